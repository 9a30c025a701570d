"""Ranks make a mistake where they compute what one rank does not have, as in flat parts of all gradients."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional

import msgspec
import numpy as np
import pytest
from host_dumps import item, rank_writer

import ascend_dump
from ascend_dump.analysis.compare import Comparison
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.writing import Item

pytest.importorskip("rapidfuzz")

_RANKS, _STEPS, _SIZE = 4, 2, 12


class Mistakes(NamedTuple):
    """Mistakes that ranks make, and one rank does not.

    wrong  the ranks that update at another rate
    moved  the ranks that cut the parameter out of another place of what they added up
    turned the ranks exchange the axes of what they added up
    reduce how they add it up
    """

    wrong: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    turned: bool = False
    reduce: str = "sum"


_NONE = Mistakes()
Call = tuple[str, str, list[np.ndarray], list[np.ndarray], Optional[dict[str, float]]]


def write(root: Path, ranks: int, mistakes: Mistakes = _NONE, *, own: bool = False) -> Path:
    """Ranks update their parts of a parameter, with padding in a flat tensor, and add them up.

    own: the last rank reads what it adds from another place on, because its part has another size
    """
    rng = np.random.default_rng(2)
    gradients = rng.standard_normal((_STEPS, _SIZE)).astype("f4")
    values = [rng.standard_normal(_SIZE).astype("f4")] * ranks
    writers = [rank_writer(root, rank, ranks) for rank in range(ranks)]
    for step in range(_STEPS):
        padding = np.zeros(ranks - 1, "f4")
        parts = np.split(gradients[step], ranks)
        flat = [np.concatenate([part, padding]) for part in parts]
        rates = [0.4 if rank in mistakes.wrong else 0.1 for rank in range(ranks)]
        steps = [array * np.float32(rate) for array, rate in zip(flat, rates)]
        size = _SIZE // ranks
        terms = np.zeros((ranks, 16), "f4")
        for rank, array in enumerate(steps):
            terms[rank, 1 + rank * size : 1 + (rank + 1) * size] = array[:size]
        total = terms.max(0) if mistakes.reduce == "max" else terms.sum(0)
        square = total.reshape(4, 4)
        read = np.ascontiguousarray(square.T).ravel() if mistakes.turned and ranks > 1 else total
        for rank, writer in enumerate(writers):
            start = 2 if rank in mistakes.moved else 1
            change = read[start : start + _SIZE]
            first = 1 if own and 0 < rank == ranks - 1 else 0
            new = values[rank] - change
            calls: list[Call] = [
                ("aten::relu", "forward", [values[rank]], [np.maximum(values[rank], 0)], None),
                ("aten::neg", "backward", [-parts[rank]], [parts[rank]], None),
                ("aten::zeros", "other", [], [padding], None),
                ("aten::cat", "other", [parts[rank], padding], [flat[rank]], None),
                ("aten::mul", "other", [flat[rank]], [steps[rank]], {"other": rates[rank]}),
                ("aten::constant_pad_nd", "other", [steps[rank]], [terms[rank]], None),
            ]
            if ranks > 1:
                calls.append(("c10d::allreduce_", "other", [terms[rank]], [total], None))
                turned = np.ascontiguousarray(square.T if mistakes.turned else square)
                calls.append(
                    ("aten::transpose" if mistakes.turned else "aten::view", "other", [square], [turned], None)
                )
            calls += [
                ("aten::slice", "other", [read], [change], {"start": start, "end": start + _SIZE}),
                ("aten::slice", "other", [flat[rank]], [flat[rank][first:]], {"start": first, "end": _SIZE}),
                ("aten::sub", "other", [values[rank], change], [new], None),
            ]
            if step:
                writer.begin_step(step)
            for number, call in enumerate(calls):
                items = items_of(
                    number, call, CollectiveCall("all_reduce", "0", f"0-{ranks - 1}", reduce=mistakes.reduce)
                )
                writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
            writer.end_step()
            values[rank] = new
    for writer in writers:
        writer.close()
    return root


def items_of(number: int, call: Call, collective: CollectiveCall) -> list[Item]:
    op_type, phase, inputs, outputs, arguments = call
    module = "fc" if phase != "other" else ""
    items = []
    for io, arrays in (("input", inputs), ("output", outputs)):
        for index, array in enumerate(arrays):
            name = f"{module and 'fc/'}{op_type}_{number}"
            one = item(name, array, io=io, index=index, op_type=op_type, seq=number, module=module)
            one.line.phase = phase
            one.line.parameter = "w" if op_type == "aten::relu" and io == "input" else ""
            if op_type.startswith("c10d"):
                one.line.collective = collective
            if arguments is not None and not items:
                values = {"op": f"{op_type}.default", "args": {"self": {"input": 0}, **arguments}}
                one.line.call = msgspec.Raw(msgspec.json.encode(values))
            items.append(one)
    return items


def compared(root: Path, mistakes: Mistakes = _NONE, *, own: bool = False) -> Comparison:
    actual = write(root / "actual", _RANKS, mistakes, own=own)
    return ascend_dump.compare(actual, write(root / "reference", 1, own=own))


@pytest.mark.parametrize("own", [False, True])
def test_a_healthy_program_has_no_origin(own: bool, tmp_path: Path) -> None:
    comparison = compared(tmp_path, own=own)
    assert (comparison.origins, comparison.verdict) == ((), "noise")


@pytest.mark.parametrize("own", [False, True])
def test_another_rate_of_one_rank_is_named(own: bool, tmp_path: Path) -> None:
    [origin] = compared(tmp_path, Mistakes(wrong=(1,)), own=own).origins
    assert (origin.kind, origin.op_type, origin.rank, origin.step) == ("structure", "aten::mul", 1, 0)
    assert origin.evidence[:2] == (
        "rank 1: other: 0.4 here, 0.1 in the reference",
        "ranks 0|2-3 pass what the reference passes",
    )


def test_another_place_of_a_tensor_that_all_ranks_have_is_named(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, Mistakes(moved=(2,))).origins
    assert (origin.kind, origin.op_type, origin.rank) == ("structure", "aten::slice", 2)
    assert "rank 2: start: 2 here, 1 in the reference" in origin.evidence


@pytest.mark.parametrize("own", [False, True])
def test_an_argument_of_most_ranks_may_belong_to_their_parts(own: bool, tmp_path: Path) -> None:
    """Then it is unknown what is wrong, but it is not the padding, whose size follows from the parts."""
    [origin] = compared(tmp_path, Mistakes(wrong=(0, 1, 2)), own=own).origins
    assert (origin.kind, origin.op_type) == ("unknown", "aten::cat")


def test_axes_that_only_ranks_exchange_are_named_if_the_reader_would_agree_without(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, Mistakes(turned=True)).origins
    assert (origin.kind, origin.op_type, origin.rank) == ("structure", "aten::transpose", 0)
    assert "without it, aten::slice_8.input.0 would agree" in origin.evidence[0]


def test_a_maximum_of_gradients_is_named(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, Mistakes(reduce="max")).origins
    assert (origin.kind, origin.op_type) == ("collective", "c10d::allreduce_")
    assert origin.evidence[0] == "c10d::allreduce_ combines tensors of all ranks by max, and not by a sum"

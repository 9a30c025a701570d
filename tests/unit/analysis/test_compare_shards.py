"""Several ranks, each with a part of the tensors, are compared with one rank that has the whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
from host_dumps import item
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.analysis.compare import Comparison
from ascend_dump.host import CollectiveCall
from ascend_dump.writing import HostWriter

pytest.importorskip("rapidfuzz")


class Call(NamedTuple):
    """One operator of a program, with what it read and wrote."""

    op_type: str
    module: str
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


def write(root: Path, ranks: list[list[Call]]) -> Path:
    for rank, calls in enumerate(ranks):
        folder = root / f"worldsize{len(ranks)}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        writer = HostWriter(folder, metadata={})
        writer.begin_step(0)
        for number, call in enumerate(calls):
            name = f"{call.module}/{call.op_type}_{number}"
            items = [
                item(name, array, io=io, index=index, op_type=call.op_type, seq=number, module=call.module)
                for io, arrays in (("input", call.inputs), ("output", call.outputs))
                for index, array in enumerate(arrays)
            ]
            if call.op_type.startswith("c10d::"):
                for one in items:
                    one.line.collective = CollectiveCall("all_reduce", "0", f"0-{len(ranks) - 1}", reduce="sum")
            writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
        writer.end_step()
        writer.close()
    return root


def network(
    ranks: int, *, blocks: int = 1, fault: Callable[[int, str, np.ndarray], np.ndarray] = lambda *a: a[2]
) -> list[list[Call]]:
    """A layer that is cut by columns, its activation, a layer that is cut by rows, and the sum of what the ranks have.

    blocks: matrices that stand beside each other in the first one, each of which is cut by itself.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 12)).astype("f4")
    first, second = (rng.standard_normal(shape).astype("f4") for shape in ((12, 24 * blocks), (24 * blocks, 8)))
    programs: list[list[Call]] = []
    partial: list[np.ndarray] = []
    for rank in range(ranks):
        columns = np.arange(24 * blocks).reshape(blocks, ranks, -1)[:, rank].reshape(-1)
        own = [np.ascontiguousarray(first[:, columns]), np.ascontiguousarray(second[columns])]
        hidden = fault(rank, "up", x @ own[0])
        active = fault(rank, "act", np.tanh(hidden))
        partial.append(fault(rank, "down", active @ own[1]))
        programs.append(
            [
                Call("aten::mm", "up", [x, own[0]], [hidden]),
                Call("aten::tanh", "act", [hidden], [active]),
                Call("aten::mm", "down", [active, own[1]], [partial[-1]]),
            ]
        )
    total = np.sum(partial, axis=0, dtype="f4")
    for rank, calls in enumerate(programs):
        got = fault(rank, "sum", total)
        if ranks > 1:
            calls.append(Call("c10d::allreduce_", "down", [partial[rank]], [got]))
        calls.append(Call("aten::relu", "out", [got], [np.maximum(got, 0)]))
    return programs


def compared(root: Path, actual: list[list[Call]], reference: list[list[Call]]) -> Comparison:
    return ascend_dump.compare(write(root / "actual", actual), write(root / "reference", reference))


def transformations(comparison: Comparison) -> dict[tuple[Any, str, str], str]:
    return {
        (pair.record.rank, pair.record.module or "", pair.record.op_type): pair.transformation
        for pair in comparison.pairs
        if pair.actual is not None and pair.reference is not None and pair.record.io == "output"
    }


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_parts_and_terms_of_several_ranks_are_what_one_rank_has(tmp_path: Path, ranks: int, blocks: int) -> None:
    comparison = compared(tmp_path, network(ranks, blocks=blocks), network(1, blocks=blocks))
    assert not comparison.origins
    both = [pair for pair in comparison.pairs if pair.actual is not None and pair.reference is not None]
    assert {pair.verdict for pair in both} <= {"equal", "noise"}
    assert len(both) == 10 * ranks
    found = transformations(comparison)
    cut = f", of {blocks} blocks" if blocks > 1 else ""
    for rank in range(ranks):
        assert found[rank, "up", "aten::mm"] == f"part {rank + 1} of {ranks} along axis 1{cut}"
        assert found[rank, "down", "aten::mm"] == f"sum over {ranks} ranks"
        assert found[rank, "out", "aten::relu"] == "identity"
    # What only several ranks do has nothing to be compared with.
    assert {pair.record.op_type for pair in comparison.unmatched} == {"c10d::allreduce_"}


def test_one_rank_is_compared_with_several_of_the_reference(tmp_path: Path) -> None:
    comparison = compared(tmp_path, network(1), network(2))
    assert not comparison.origins
    assert transformations(comparison)[0, "up", "aten::mm"] == "part 2 of 2 along axis 1 of the reference"


@settings(deadline=None, max_examples=15)
@given(rank=st.integers(0, 3), module=st.sampled_from(["up", "act"]), place=st.integers(0, 35))
def test_the_rank_that_computes_wrongly_is_named(
    tmp_path_factory: pytest.TempPathFactory, rank: int, module: str, place: int
) -> None:
    def wrong(number: int, where: str, array: np.ndarray) -> np.ndarray:
        if (number, where) == (rank, module):
            array = array.copy()
            array.reshape(-1)[place] += 3
        return array

    comparison = compared(tmp_path_factory.mktemp("dumps"), network(4, fault=wrong), network(1))
    [origin] = comparison.origins
    assert (origin.kind, origin.module, origin.rank) == ("compute", module, rank)
    assert origin.pair.transformation == f"part {rank + 1} of 4 along axis 1"
    assert origin.pair.measure is not None
    assert origin.pair.measure.at == tuple(int(i) for i in np.unravel_index(place, (6, 6)))


@pytest.mark.parametrize("wrong_ranks", [(1,), (0, 1, 2, 3)])
def test_a_sum_that_is_not_what_the_ranks_put_in_is_the_origin(tmp_path: Path, wrong_ranks: tuple[int, ...]) -> None:
    """Nothing of the one rank is held against the collective, which runs on several ranks only."""

    def wrong(number: int, where: str, array: np.ndarray) -> np.ndarray:
        return array + np.float32(0.5) if where == "sum" and number in wrong_ranks else array

    comparison = compared(tmp_path, network(4, fault=wrong), network(1))
    [origin] = comparison.origins
    assert (origin.kind, origin.op_type, origin.module) == ("collective", "c10d::allreduce_", "down")
    assert origin.rank in wrong_ranks
    assert "is not the sum of what ranks 0-3 gave" in origin.evidence[0]
    assert origin.next == {
        "layers": "down/c10d::allreduce__3",
        "data": "tensor",
        "steps": "0",
        "ranks": str(origin.rank),
    }
    with ThreadPoolExecutor(2) as executor:
        again = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference", executor=executor)
    assert [one.to_dict() for one in again.origins] == [origin.to_dict()]


def test_a_rank_that_computes_wrongly_stays_the_origin_beside_a_wrong_sum(tmp_path: Path) -> None:
    def wrong(number: int, where: str, array: np.ndarray) -> np.ndarray:
        return array + np.float32(0.5) if (number, where) in ((2, "up"), (1, "sum")) else array

    comparison = compared(tmp_path, network(4, fault=wrong), network(1))
    assert {(one.kind, one.rank, one.module) for one in comparison.origins} == {
        ("compute", 2, "up"),
        ("collective", 1, "down"),
    }


def test_ranks_that_all_have_the_whole_are_no_parts(tmp_path: Path) -> None:
    [calls] = network(1)
    comparison = compared(tmp_path, [calls, calls], [calls])
    assert {pair.verdict for pair in comparison.pairs if pair.record.rank == 1} == {"unmatched"}


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_has_the_whole_wrongly_is_named_though_the_mean_over_ranks_is_nearer(
    tmp_path: Path, ranks: int
) -> None:
    programs = network(ranks)
    last = programs[1].pop()
    programs[1].append(last._replace(outputs=[last.outputs[0] * np.float32(1.02)]))
    comparison = compared(tmp_path, programs, network(1))
    [origin] = comparison.origins
    assert (origin.rank, origin.module, origin.pair.transformation) == (1, "out", "identity")

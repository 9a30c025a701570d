"""Several ranks, each with a part of the tensors, are compared with one rank that has the whole."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, NamedTuple

import msgspec
import numpy as np
import pytest
from host_dumps import item, rank_writer
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.analysis.compare import Comparison
from ascend_dump.cli import main
from ascend_dump.dump_format import CollectiveCall, Placement
from ascend_dump.statistics import merged, statistics
from ascend_dump.writing import Item

pytest.importorskip("rapidfuzz")


class Call(NamedTuple):
    """One operator of a program, with what it read and wrote."""

    op_type: str
    module: str
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


def write(root: Path, ranks: list[list[Call]], *, statistics_only: bool = False) -> Path:
    for rank, calls in enumerate(ranks):
        writer = rank_writer(root, rank, len(ranks))
        for number, call in enumerate(calls):
            name = f"{call.module}/{call.op_type}_{number}"
            items = [
                item(name, array, io=io, index=index, op_type=call.op_type, seq=number, module=call.module)
                for io, arrays in (("input", call.inputs), ("output", call.outputs))
                for index, array in enumerate(arrays)
            ]
            if statistics_only:
                arrays = [*call.inputs, *call.outputs]
                items = [Item(one.line, None) for one in items]
                for one, array in zip(items, arrays):
                    one.line.stats = tuple(statistics(array))
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


def compared(
    root: Path, actual: list[list[Call]], reference: list[list[Call]], *, statistics_only: bool = False, **more: Any
) -> Comparison:
    sides = [
        write(root / name, ranks, statistics_only=statistics_only)
        for name, ranks in (("actual", actual), ("reference", reference))
    ]
    return ascend_dump.compare(*sides, **more)


def one_element(rank: int, module: str, change: float = 3) -> Callable[[int, str, np.ndarray], np.ndarray]:
    """A fault of one rank in what a module makes."""

    def wrong(number: int, where: str, array: np.ndarray) -> np.ndarray:
        if (number, where) == (rank, module):
            array = array.copy()
            array.reshape(-1)[5] += change
        return array

    return wrong


def transformations(comparison: Comparison) -> dict[tuple[Any, str, str], str]:
    return {
        (pair.record.rank, pair.record.module or "", pair.record.op_type): pair.transformation
        for pair in comparison.pairs
        if pair.actual is not None and pair.reference is not None and pair.record.io == "output"
    }


@pytest.mark.parametrize("wrong", [(0,), (1,), (0, 1)])
def test_a_transposed_square_on_some_ranks_differs(tmp_path: Path, wrong: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal((6, 6)).astype("f4") for _ in range(2))
    result = x @ weight
    right = [Call("aten::mm", "square", [x, weight], [result]), Call("aten::sum", "total", [result], [result.sum(0)])]
    turned = np.ascontiguousarray(result.T)
    other = [Call("aten::mm", "square", [x, weight], [turned]), Call("aten::sum", "total", [turned], [turned.sum(0)])]
    found = compared(tmp_path, [other if rank in wrong else right for rank in range(2)], [right])
    assert found.verdict == "different"
    assert found.origins[0].op_name == "square/aten::mm_0"


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
    # What only several ranks do has nothing to be compared with: it is judged by what leaves it.
    assert not comparison.unmatched
    assert {(part.actual, part.reference) for part in comparison.rebuilt} == {(1, 0)}


def test_one_rank_is_compared_with_several_of_the_reference(tmp_path: Path) -> None:
    comparison = compared(tmp_path, network(1), network(2))
    assert not comparison.origins
    assert transformations(comparison)[0, "up", "aten::mm"] == "part 2 of 2 along axis 1 of the reference"


@settings(deadline=None, max_examples=15)
@given(rank=st.integers(0, 3), module=st.sampled_from(["up", "act"]), place=st.integers(0, 35))
# What is made of the wrong element is right again but for rounding.
@example(rank=2, module="up", place=33)
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
    assert "is not the sum of the inputs of ranks 0-3" in origin.evidence[0]
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


def test_ranks_that_all_have_the_whole_are_compared_with_it(tmp_path: Path) -> None:
    [calls] = network(1)
    comparison = compared(tmp_path, [calls, calls], [calls])
    assert {pair.verdict for pair in comparison.pairs if pair.record.rank == 1} == {"equal"}


def test_a_missing_rank_of_the_same_program_is_unmatched(tmp_path: Path) -> None:
    [calls] = network(1)
    sides = [write(tmp_path / name, [calls, calls]) for name in ("actual", "reference")]
    shutil.rmtree(sides[1] / "worldsize2_global_rank1")
    comparison = ascend_dump.compare(*sides)
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


@pytest.mark.parametrize(("actual", "reference"), [(4, 2), (2, 4), (6, 2), (8, 4)])
@pytest.mark.parametrize("blocks", [1, 2])
def test_other_numbers_of_ranks_have_the_same_tensors(tmp_path: Path, actual: int, reference: int, blocks: int) -> None:
    comparison = compared(tmp_path, network(actual, blocks=blocks), network(reference, blocks=blocks))
    assert comparison.origins == ()
    assert set(comparison.counts) <= {"equal", "noise"}
    found, most = transformations(comparison), max(actual, reference)
    of = "" if actual > reference else " of the reference"
    cut = f", of {blocks} blocks" if blocks > 1 else ""
    last = (actual if actual > reference else reference) - 1
    if actual > reference:
        assert found[last, "up", "aten::mm"] == f"part {most} of {most} along axis 1{cut}{of}"
        assert found[last, "down", "aten::mm"] == f"sum over {most} ranks{of}"
    assert {"identity", f"sum over {most} ranks{of}"} <= set(found.values())


@pytest.mark.parametrize(("actual", "reference"), [(4, 2), (2, 4)])
@pytest.mark.parametrize("module", ["up", "act", "out"])
def test_with_other_numbers_of_ranks_a_fault_is_found(tmp_path: Path, actual: int, reference: int, module: str) -> None:
    def wrong(number: int, where: str, array: np.ndarray) -> np.ndarray:
        return one_element(actual - 1, "sum" if module == "out" else module)(number, where, array)

    comparison = compared(tmp_path, network(actual, fault=wrong), network(reference))
    first = comparison.origins[0]
    expected = "collective" if module == "out" else "compute"
    assert (first.kind, first.module) == (expected, "down" if module == "out" else module)
    if actual > reference:
        assert first.rank == actual - 1


@pytest.mark.parametrize("shape", [(2**62, 2**62), (6, 2**40), (6, 24), (0, 0), (6,)])
def test_a_placement_of_another_shape_takes_no_memory(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """The shape of a whole tensor is a number in a file."""
    sides = [write(tmp_path / str(ranks), network(ranks)) for ranks in (4, 2)]
    for side, ranks in zip(sides, (4, 2)):
        placement = Placement(f"0-{ranks - 1}", (ranks,), ("shard 1",), shape=shape)
        for index in side.rglob("index.jsonl"):
            lines = [json.loads(text) for text in index.read_bytes().splitlines()]
            for line in lines:
                if line["op_type"] == "aten::tanh":
                    line["placement"] = msgspec.to_builtins(placement)
            index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    comparison = ascend_dump.compare(*sides)
    outputs = [pair.verdict for pair in comparison.pairs if pair.record.io == "output" and pair.record.module == "act"]
    # Whether tanh of a part rounds as tanh of the whole depends on the processor.
    assert set(outputs) <= ({"equal", "noise"} if shape == (6, 24) else {"unmatched"})
    assert outputs or shape != (6, 24)


def test_other_numbers_of_ranks_are_compared_on_an_executor_too(tmp_path: Path) -> None:
    here = compared(tmp_path, network(4, fault=one_element(2, "up")), network(2))
    with ThreadPoolExecutor(2) as executor:
        there = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference", executor=executor)
    assert there.to_dict() == here.to_dict()


@pytest.mark.parametrize("reference", [1, 2])
def test_statistics_of_parts_are_put_together(tmp_path: Path, reference: int) -> None:
    """Counts, extremes, norms and means of parts are those of the whole; of terms nothing follows."""
    comparison = compared(tmp_path, network(4), network(reference), statistics_only=True)
    assert comparison.origins == ()
    assert set(comparison.counts) <= {"equal", "noise", "undecided", "unmatched"}
    found = transformations(comparison)
    assert found[0, "up", "aten::mm"] == "statistics of 4 parts"
    assert found[0, "down", "aten::mm"] == "terms of a sum"


@pytest.mark.parametrize("change", [50.0, float("nan"), float("inf")])
def test_statistics_of_parts_prove_a_difference(tmp_path: Path, change: float) -> None:
    wrong = network(4, fault=one_element(3, "up", change))
    comparison = compared(tmp_path, wrong, network(1), statistics_only=True)
    assert comparison.verdict == "different"
    assert (comparison.origins[0].module, comparison.origins[0].pair.transformation) == ("up", "statistics of 4 parts")


#: Tensors of `network` as the notation names them.
LAYOUTS = {
    "up/aten::mm_0.output.0": "shard 1",
    "up/aten::mm_0.input.1": "shard 1",
    "act/*": "shard 1",
    "down/aten::mm_2.input.0": "shard 1",
    "down/aten::mm_2.input.1": "shard 0",
    "down/aten::mm_2.output.0": "partial sum",
    "out/*": "replicate",
}


@pytest.mark.parametrize("reference", [1, 2])
def test_the_user_says_which_parts_ranks_hold(tmp_path: Path, reference: int) -> None:
    comparison = compared(tmp_path, network(4), network(reference), shards=LAYOUTS)
    assert comparison.origins == ()
    assert {pair.verdict for pair in comparison.pairs if pair.actual and pair.reference} <= {"equal", "noise"}
    found = transformations(comparison)
    assert found[3, "up", "aten::mm"] == "part 4 of 4 along axis 1"
    assert found[3, "down", "aten::mm"] == "sum over 4 ranks"
    assert found[3, "out", "aten::relu"] == "identity"


def test_a_number_of_ranks_that_is_no_multiple_needs_the_user_to_say_it(tmp_path: Path) -> None:
    """Else it is taken for a run of which ranks are missing."""
    comparison = compared(tmp_path, network(6), network(4), shards=LAYOUTS)
    assert comparison.origins == ()
    assert set(comparison.counts) <= {"equal", "noise"}
    missing = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert {pair.verdict for pair in missing.pairs if pair.record.rank in (4, 5)} == {"unmatched"}


def test_the_user_says_of_blocks_and_meshes(tmp_path: Path) -> None:
    blocks = {**LAYOUTS, **dict.fromkeys(list(LAYOUTS)[:4], "shard 1 of 2 blocks")}
    blocks["down/aten::mm_2.input.1"] = "shard 0 of 2 blocks"
    comparison = compared(tmp_path / "blocks", network(2, blocks=2), network(1, blocks=2), shards=blocks)
    assert comparison.origins == ()
    assert transformations(comparison)[1, "up", "aten::mm"] == "part 2 of 2 along axis 1, of 2 blocks"
    halves = network(2)
    copies = [calls for calls in halves for _ in range(2)]  # ranks 0 and 1 have the first half, 2 and 3 the second
    mesh = {glob: f"2x2: {layout}, replicate" for glob, layout in LAYOUTS.items()}
    mesh["out/*"] = "2x2: replicate, replicate"
    comparison = compared(tmp_path / "mesh", copies, network(1), shards=mesh)
    assert comparison.origins == ()
    assert transformations(comparison)[3, "up", "aten::mm"] == "part 2 of 2 along axis 1"


def test_a_copy_that_is_not_alike_is_found(tmp_path: Path) -> None:
    """That a tensor is replicated is not believed: each rank is held against the whole."""
    wrong = network(4)
    last = wrong[2].pop()
    wrong[2].append(last._replace(outputs=[last.outputs[0] + 1]))
    comparison = compared(tmp_path, wrong, network(2), shards={"out/*": "replicate"})
    [origin] = comparison.origins
    assert (origin.rank, origin.module, origin.pair.transformation) == (2, "out", "identity")


@pytest.mark.parametrize(
    ("layouts", "words"),
    [
        ({"up/*.output.0": "shard 0"}, r"do not fit up/aten::mm_0\.output\.0 of rank 0.*\[6, 6\]"),
        ({"up/*.output.0": "shard 7"}, "do not fit up/aten::mm_0"),
        ({"up/*.output.0": "replicate"}, r"the whole has shape \[6, 24\]"),
        ({"up/*.output.0": "shard 1 of 5 blocks"}, r"a whole of shape \[6, 24\] has no part of this shape"),
        ({"up/*.output.0": "2x3: replicate, shard 1"}, "the mesh has 6 ranks, but 4 have"),
    ],
)
def test_a_layout_that_shapes_refute_is_refused(tmp_path: Path, layouts: dict[str, str], words: str) -> None:
    with pytest.raises(ascend_dump.ConfigError, match=words):
        compared(tmp_path, network(4), network(1), shards=layouts)


@pytest.mark.parametrize(
    "text",
    ["", "x", "=shard 1", "x=", "x=shard", "x=shard one", "x=2x2: shard 1", "x=shard 1, shard 2", "x=0: shard 1"],
)
def test_what_is_no_layout_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(write(tmp_path / "dump", network(1)))
    assert main(["compare", root, root, "--shards", text]) == 2
    assert "expected GLOB=LAYOUT" in capsys.readouterr().err


@given(st.text(max_size=40))
def test_any_text_is_a_layout_or_refused(text: str) -> None:
    """It is read before the dumps are, and no other error comes of it."""
    with pytest.raises((ascend_dump.ConfigError, ascend_dump.DumpNotFound)):
        ascend_dump.compare("no such dump", "no such dump", shards=[text])


def test_the_verb_takes_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [str(write(tmp_path / str(ranks), network(ranks))) for ranks in (4, 2)]
    options = [text for glob, layout in LAYOUTS.items() for text in ("--shards", f"{glob}={layout}")]
    assert main(["compare", *sides, *options]) == 0
    assert main(["compare", *sides, "--shards", "up/*.output.0=shard 0"]) == 2
    assert "do not fit" in capsys.readouterr().err


@settings(max_examples=50)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32) | st.sampled_from([float("nan"), float("inf")]), min_size=1, max_size=30),
    st.lists(st.integers(0, 30), max_size=3),
)
def test_merged_statistics_are_those_of_the_whole(values: list[float], cuts: list[int]) -> None:
    whole = np.asarray(values, "f4")
    parts = np.split(whole, sorted(min(cut, len(values)) for cut in cuts))
    found, expected = merged([statistics(part) for part in parts]), statistics(whole)
    for name, one, other in zip(expected._fields, found, expected):
        if name in ("mean", "l2norm"):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-6 if name == "mean" else 0)
        else:
            assert one == other, name

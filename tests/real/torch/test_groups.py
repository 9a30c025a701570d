"""Four ranks on gloo: what is wrong between them is named with rank and operator, and nothing where all is well."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from processes import PROGRAMS, run_python

import ascend_dump


class Expected(NamedTuple):
    """The first suspect of a scenario, and what its reason says."""

    rule: str
    op_name: str
    rank: int
    step: int
    words: str


FAULTS = {
    "ddp.weight": Expected("extra-operator", "add__14", 2, 0, "ranks 0-1|3 pass the tensor on as it is"),
    "ddp.reduction": Expected("disagreement", "blocks.0.norm/allreduce__0", 1, 0, "that of ranks 0|2-3 is right"),
    "ddp.part": Expected("disagreement", "blocks.0.norm/allreduce__0", 2, 0, "as if the part of rank 2 were missing"),
    "fsdp.scattered": Expected(
        "disagreement", "blocks.1/_reduce_scatter_base__0", 3, 0, "not the avg of the inputs of ranks 0-3"
    ),
    "fsdp.gathered": Expected("disagreement", "_allgather_base__0", 1, 0, "of rank 1 differs from the input of rank 2"),
    "tp.data": Expected("replicas", "blocks.0.up/addmm_0", 3, 0, "replicated by its placement"),
    "tp.reduction": Expected("disagreement", "blocks.0/all_reduce_0", 1, 0, "not the sum of the inputs of ranks 0-3"),
    "pipeline.message": Expected("disagreement", "recv__0", 2, 0, "of rank 2 differs from the input of rank 1"),
}
HEALTHY = ("ddp", "fsdp", "tp", "pipeline", "pipeline.late", "zero")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of all scenarios, from one start of four processes."""
    directory = tmp_path_factory.mktemp("groups")
    others = ("zero.whole", "whole", "mesh", "mesh.activation", "tp.part", "two", "two.activation")
    run_python(PROGRAMS / "groups.py", directory, *HEALTHY, *FAULTS, *others)
    return directory


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_suspects(name: str, dumps: Path) -> None:
    found = ascend_dump.triage(dumps / name)
    assert [(one.rule, one.op_name, one.rank, one.reason) for one in found.suspects] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_rank_and_operator(name: str, dumps: Path) -> None:
    expected = FAULTS[name]
    found = ascend_dump.triage(dumps / name)
    first = found.suspects[0]
    assert (first.rule, first.op_name, first.rank, first.step) == expected[:4]
    assert expected.words in first.reason
    assert first.order == "none of the others comes before it on any rank"
    assert first.source is not None
    assert Path(first.source).parent == PROGRAMS, "a line of the program, not of PyTorch"
    assert found.cause is not None
    assert found.cause.rank == expected.rank
    assert all(one.order.startswith("comes after") for one in found.suspects[1:])


def test_calls_are_told_apart(dumps: Path) -> None:
    told = {
        record.attrs["collective"]["kind"]: record.attrs["collective"]
        for name in ("ddp", "fsdp", "tp", "pipeline")
        for record in ascend_dump.open(dumps / name).select(rank=1, step=1)
        if "collective" in record.attrs
    }
    assert {kind: (one["group"], one["ranks"], one.get("reduce", "")) for kind, one in told.items()} == {
        "broadcast": ("0", "0-3", ""),
        "all_reduce": ("0", "0-3", "sum"),
        "all_gather": ("0", "0-3", ""),
        "reduce_scatter": ("0", "0-3", "avg"),
        "send": ("0", "0-3", ""),
        "recv": ("0", "0-3", ""),
    }
    assert (told["send"]["peer"], told["recv"]["peer"], told["send"]["tag"]) == (2, 0, 5)


def test_outputs_of_asynchronous_collectives_are_there(dumps: Path) -> None:
    """DistributedDataParallel reduces while the backward pass goes on, and waits at its end."""
    records = list(ascend_dump.open(dumps / "ddp").select(step=0, op_type="c10d::allreduce_"))
    given = {record.rank: record.numpy() for record in records if record.io == "input"}
    got = [record.numpy() for record in records if record.io == "output"]
    assert len(given) == len(got) == 4
    for one in got:
        np.testing.assert_allclose(one, sum(given.values()), rtol=1e-5, atol=1e-7)


def test_placements_of_local_tensors(dumps: Path) -> None:
    dump = ascend_dump.open(dumps / "tp").select(rank=2, step=0, op="blocks.0.up/addmm_0", io="input")
    placed = {record.index: record.attrs["placement"] for record in dump}
    assert {index: ([*one["axes"]], [*one["shape"]]) for index, one in placed.items()} == {
        0: (["shard 0"], [32]),
        1: (["replicate"], [8, 16]),
        2: (["shard 1"], [16, 32]),
    }
    assert [*placed[0]["names"]] == ["tp"]
    assert (placed[0]["ranks"], *placed[0]["mesh"]) == ("0-3", 4)


@pytest.mark.parametrize("name", ["tp", "mesh"])
def test_parts_on_four_ranks_are_those_of_one(name: str, dumps: Path) -> None:
    """Placements say which part of which tensor it is, and which ranks hold terms of one sum."""
    found = ascend_dump.compare(dumps / name, dumps / "whole")
    assert found.origins == ()
    assert set(found.counts) == {"equal", "noise"}  # collectives, which several ranks alone run, count for nothing
    parts = {pair.transformation for pair in found.pairs}
    count = 4 if name == "tp" else 2
    assert {f"part {count} of {count} along axis {axis}" for axis in (0, 1)} | {f"sum over {count} ranks"} <= parts


def test_parameters_that_ranks_update_in_turn_are_those_of_one(dumps: Path) -> None:
    """Each rank sends its parameters in an order of its own, and some of them have one shape."""
    found = ascend_dump.compare(dumps / "zero", dumps / "zero.whole")
    assert found.origins == ()
    assert set(found.counts) == {"equal", "noise"}


def test_a_fault_of_one_part_is_found_against_one_rank(dumps: Path) -> None:
    found = ascend_dump.compare(dumps / "mesh.activation", dumps / "whole")
    assert [(one.op_name, one.pair.record.rank, one.pair.record.step) for one in found.origins] == [
        ("blocks.1.act/gelu_0", 2, 0)
    ]
    first = ascend_dump.compare(dumps / "tp.data", dumps / "whole").origins[0]
    assert (first.kind, first.op_name, first.pair.record.rank) == ("input", "blocks.0.norm/native_layer_norm_0", 3)


@pytest.mark.parametrize(
    ("name", "rank", "words"),
    [
        ("tp.reduction", 1, "rank 1 is not the sum of the inputs of ranks 0-3"),
        ("tp.part", 2, "as if the part of rank 2 were missing"),
    ],
)
def test_a_wrong_collective_is_found_against_one_rank(name: str, rank: int, words: str, dumps: Path) -> None:
    """The one rank runs no collective: what the ranks put in says that it is wrong, not what runs behind it."""
    [origin] = ascend_dump.compare(dumps / name, dumps / "whole").origins
    assert (origin.kind, origin.op_name, origin.step) == ("collective", "blocks.0/all_reduce_0", 0)
    assert origin.pair.record.rank == rank
    assert words in origin.evidence[0]
    assert origin.explains
    assert (origin.next["layers"], origin.next["ranks"]) == ("blocks.0/all_reduce_0", str(rank))


@pytest.mark.parametrize(("actual", "reference"), [("tp", "two"), ("two", "tp")])
def test_parts_on_two_ranks_are_those_on_four(actual: str, reference: str, dumps: Path) -> None:
    found = ascend_dump.compare(dumps / actual, dumps / reference)
    assert found.origins == ()
    assert found.verdict in ("equal", "noise")
    of = "" if actual == "tp" else " of the reference"
    parts = {pair.transformation for pair in found.pairs}
    assert {f"part 4 of 4 along axis 0{of}", f"part 4 of 4 along axis 1{of}", f"sum over 4 ranks{of}"} <= parts


@pytest.mark.parametrize(("actual", "reference"), [("two.activation", "tp"), ("tp", "two.activation")])
def test_a_fault_of_one_of_two_ranks_is_found_against_four(actual: str, reference: str, dumps: Path) -> None:
    found = ascend_dump.compare(dumps / actual, dumps / reference)
    [origin] = found.origins
    assert (origin.op_name, origin.step) == ("blocks.1.act/gelu_0", 0)
    assert origin.rank == (1 if reference == "tp" else 2)
    assert ("the same on rank 3" in origin.evidence) == (reference != "tp")


@pytest.mark.parametrize(
    ("name", "rank", "op_name", "kind"),
    [
        ("ddp.weight", 2, "add__14", "structure"),  # it writes an element of the weight, which the others do not
        ("tp.data", 3, "blocks.0.norm/native_layer_norm_0", "input"),
        ("tp.reduction", 1, "blocks.0/all_reduce_0", "collective"),
        ("fsdp.gathered", 1, "_allgather_base__0", "collective"),
        ("pipeline.message", 2, "recv__0", "collective"),
    ],
)
def test_the_rank_where_it_began_is_the_first_origin(
    name: str, rank: int, op_name: str, kind: str, dumps: Path
) -> None:
    """Against a healthy run on as many ranks; the others get the difference of collectives and messages."""
    found = ascend_dump.compare(dumps / name, dumps / name.split(".")[0])
    first = found.origins[0]
    assert (first.rank, first.op_name, first.kind) == (rank, op_name, kind)
    assert {one.rank for one in found.origins if one.kind == "collective"} <= {rank}

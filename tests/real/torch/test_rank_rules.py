"""Two ranks on gloo, without a reference: a mistake of one rank is named, and what ranks do on purpose is not."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from processes import PROGRAMS, run_python

import ascend_dump
from ascend_dump.analysis.ranks import compare_indexes


class Expected(NamedTuple):
    """The first suspect of a scenario, and words of its reason."""

    rule: str
    op_type: str
    words: str


FAULTS = {
    "data.scaled": Expected("extra-operator", "aten::mul", "between aten::addmm and aten::relu"),
    "data.copied": Expected("extra-operator", "aten::mul", "between aten::addmm and aten::relu"),
    "data.gradient": Expected("extra-operator", "aten::mul_", "between aten::mm and c10d::allreduce_"),
    "data.lacking": Expected("extra-operator", "aten::add_", "rank 1 runs no aten::add_ for down.bias at "),
    "data.skipped": Expected("extra-operator", "aten::add_", "rank 1 runs no aten::add_ in step 0 at "),
    "data.undivided": Expected("gradient-factor", "aten::add_", "the gradient of up.bias lacks the division by 2"),
    "data.bit": Expected("replicas", "aten::t", "up/t_0.input.0 of rank 1 differs from that of rank 0"),
    "data.parameter": Expected("extra-operator", "aten::add_", "and the value of up.weight"),
    "shards.rate": Expected("shard-update", "aten::mul_", "on rank 1 than on rank 0: other is 0.998, not 0.999"),
    "shards.norm": Expected("shard-update", "aten::mul_", "updates the parts of one tensor by other numbers"),
    "shards.bit": Expected("shard-update", "fsdp::all_gather_copy_in", "0.weight of rank 1 is not what "),
    "tensor.norm": Expected("replicas", "aten::add_", "although the gradient of start is reduced over these ranks"),
    "tensor.start": Expected("unreduced-term", "aten::add_", "the gradient of start differs between ranks 0-1"),
    "sequence.norm": Expected("replicas", "aten::add_", "rows of one tensor there; 1.norm.weight.grad is not reduced"),
    "experts.room": Expected("disagreement", "c10d::alltoall_base_", "of rank 1 has room for "),
    "residual.term": Expected("unreduced-term", "aten::add", "a sum over these ranks is missing"),
    "residual.gradient": Expected("unreduced-term", "aten::add", "a sum over these ranks is missing"),
    "local.left": Expected("replicas", "aten::native_layer_norm", "it is not averaged as others are"),
    "local.decay": Expected("shard-update", "aten::mul_", "other is 0.5, not 0.8"),
    "owners.kept": Expected("replicas", "aten::addmm", "although the gradient of 2.bias is reduced over these ranks"),
    "frozen.other": Expected("replicas", "aten::t", "a parameter without a gradient"),
    "frozen.left": Expected("replicas", "aten::add_", "its gradient is not reduced as those of others are"),
    "frozen.early": Expected("replicas", "aten::lerp_", "of 128 elements"),
    "routed.gate": Expected("replicas", "aten::add_", "for its own data, before the ranks exchange any"),
    "routed.bias": Expected("replicas", "aten::add_", "its gradient is not reduced as others of its module are"),
    "experts.routing": Expected("extra-operator", "aten::add", "between aten::argmax and aten::sort"),
}
#: The step of the first suspect, if it is not the first step.
LATER = {"data.bit": 1, "shards.bit": 1, "local.left": 2, "local.decay": 1, "owners.kept": 1}
HEALTHY = (
    "data",
    "data.padding",
    "data.clipped",
    "data.logged",
    "data.averaged",
    "data.same bits",
    "experts",
    "experts.idle",
    "routed",
    "tables",
    "shards",
    "tensor",
    "sequence",
    "residual",
    "local",
    "owners",
    "frozen",
)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of all scenarios, from one start of two processes."""
    directory = tmp_path_factory.mktemp("rules")
    run_python(PROGRAMS / "rank_rules.py", directory, *HEALTHY, *FAULTS)
    return directory


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_suspects(name: str, dumps: Path) -> None:
    found = ascend_dump.triage(dumps / name)
    assert [(one.rule, one.op_name, one.rank, one.reason) for one in found.suspects] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str, dumps: Path) -> None:
    expected = FAULTS[name]
    first = ascend_dump.triage(dumps / name).suspects[0]
    assert (first.rule, first.op_type, first.step) == (expected.rule, expected.op_type, LATER.get(name, 0))
    is_of_all = name in ("data.undivided", "data.skipped", "tensor.start") or name.startswith("residual")
    assert first.rank == (0 if is_of_all else 1), (
        "on all ranks alike, the first one is named; it runs what another lacks"
    )
    assert expected.words in first.reason
    assert Path(str(first.source)).parent == PROGRAMS, "a line of the program, not of PyTorch"


def test_one_flipped_bit_is_noise_for_a_comparison_and_the_indexes_name_its_line(dumps: Path) -> None:
    flipped, reference = dumps / "data.bit", dumps / "data.same bits"
    compared = ascend_dump.compare(flipped, reference)
    assert (compared.verdict, compared.origins) == ("noise", ())
    found = compare_indexes(flipped, reference)
    assert found.verdict == "different"
    first = found.origins[0]
    assert (first.op_name, first.ranks, first.step, first.io) == ("up/t_0", (1,), 1, "input")
    assert Path(str(first.source).rpartition(":")[0]).name == "rank_rules.py"


def test_the_part_of_a_rank_has_the_name_of_the_parameter(dumps: Path) -> None:
    dump = ascend_dump.open(dumps / "shards").select(step=1, rank=1, io="output", phase="other")
    assert next(one.parameter for one in dump.select(op_type="aten::lerp_")) == "exp_avg of 0.weight"
    names = {one.parameter for one in dump.select(op_type="aten::addcdiv_")}
    assert names == {"0.weight", "0.bias", "2.weight", "2.bias"}

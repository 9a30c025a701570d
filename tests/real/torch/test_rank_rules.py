"""Two ranks on gloo, without a reference: a mistake of one rank is named, and what ranks do on purpose is not."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from processes import PROGRAMS, run_python

import ascend_dump


class Expected(NamedTuple):
    """The first suspect of a scenario, and words of its reason."""

    rule: str
    op_type: str
    words: str


FAULTS = {
    "data.scaled": Expected("extra-operator", "aten::mul", "between aten::addmm and aten::relu"),
    "data.gradient": Expected("extra-operator", "aten::mul_", "between aten::mm and c10d::allreduce_"),
    "data.undivided": Expected("gradient-factor", "aten::add_", "the gradient of up.bias lacks the division by 2"),
    "data.parameter": Expected("extra-operator", "aten::add_", "and the value of up.weight"),
    "shards.rate": Expected("shard-update", "aten::mul_", "on rank 1 than on rank 0: other is 0.998, not 0.999"),
    "shards.norm": Expected("shard-update", "aten::mul_", "updates the parts of one tensor by other numbers"),
    "tensor.norm": Expected("replicas", "aten::add_", "although the gradient of start is reduced over these ranks"),
    "experts.routing": Expected("extra-operator", "aten::add", "between aten::argmax and aten::sort"),
}
HEALTHY = (
    "data",
    "data.padding",
    "data.clipped",
    "data.logged",
    "data.averaged",
    "experts",
    "experts.idle",
    "shards",
    "tensor",
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
    assert (first.rule, first.op_type, first.step) == (expected.rule, expected.op_type, 0)
    assert first.rank == (0 if name == "data.undivided" else 1), "on all ranks alike, the first one is named"
    assert expected.words in first.reason
    assert Path(str(first.source)).parent == PROGRAMS, "a line of the program, not of PyTorch"

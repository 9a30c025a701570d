"""Networks through torchair's own frontend are compared with PyTorch's operators on the host, without a mapping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from same_networks import NETWORKS
from same_networks_torch import FAULTS, computing, dump

import ascend_dump

#: The comparison sees what is in a dump, and the trees of the versions differ in nothing that it looks at.
VERSION = "2.14.0"
#: All but the approximation of GELU, which is no fault here.
_PLANTED = [number for number, one in enumerate(FAULTS) if one.what != "an approximation"]


@pytest.fixture(scope="module")
def graphs(run_program: Callable[[str, str], Path]) -> Path:
    return run_program("same_networks_dumps", VERSION)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("eager")
    for network in NETWORKS:
        dump(network, root / network, approximate="tanh")
    return root


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_is_the_same_on_both_sides(graphs: Path, eager: Path, network: str) -> None:
    found = ascend_dump.compare(graphs / "right" / network, eager / network)
    assert set(found.counts) <= {"equal", "noise"}, found.counts
    assert not found.origins
    paired = {pair.reference.op_name for pair in found.pairs if pair.reference is not None}
    assert paired >= computing(eager / network)


@pytest.mark.parametrize("number", _PLANTED, ids=lambda number: f"{FAULTS[number].network}-{FAULTS[number].what}")
class TestAFault:
    def test_in_the_graph_is_named(self, graphs: Path, eager: Path, number: int) -> None:
        one = FAULTS[number]
        found = ascend_dump.compare(graphs / "wrong" / str(number), eager / one.network)
        assert found.verdict == "different"
        first = [origin.pair.reference for origin in found.origins]
        assert [record and record.op_name for record in first] == [one.of_right_one]

    def test_on_the_host_is_named(self, graphs: Path, tmp_path: Path, number: int) -> None:
        one = FAULTS[number]
        actual = dump(one.network, tmp_path / "actual", one.fault, approximate="tanh")
        found = ascend_dump.compare(actual, graphs / "right" / one.network)
        assert found.verdict == "different"
        assert [origin.op_name for origin in found.origins] == [one.expected]


def test_torchair_makes_an_approximation_of_every_gelu(graphs: Path, tmp_path: Path) -> None:
    """Its converter drops the argument that asks for the exact function: that is a difference, and it is named."""
    found = ascend_dump.compare(graphs / "exact", dump("transformer", tmp_path / "eager"))
    assert [(origin.kind, origin.op_type) for origin in found.origins] == [("compute", "Gelu")]
    assert found.origins[0].explains >= 2

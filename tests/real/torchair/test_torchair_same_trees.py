"""The same script through the fake and the real torchair: where both name an operator, both dump the same of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import read_json

import ascend_dump

#: Of each network, how many operators of its three graphs both have (training forward, backward, evaluation).
SHARED = {"mlp": 75, "resnet": 100, "llama": 300}
#: The fake runs PyTorch's kernels, and the boundary below the real frontend computes what GE's operators say:
#: sums in another order, in float32. A sum of K terms near 1 is off by up to 8 sqrt(K) 2^-24: 1e-5 for K = 400, the
#: largest here; 2.6e-6 was seen.
RELATIVE, ABSOLUTE = 1e-5, 1e-5

#: Outputs of batch normalisation that the backward graph takes: PyTorch has the inverse of the deviation there, and
#: torchair's gradient takes the variance.
VARIANCES = {"getitem_4", "getitem_9", "getitem_14"}


class Run(NamedTuple):
    """graphs: by their order, since their names go on counting; each with the type and sources of its operators."""

    dump: ascend_dump.Dump
    graphs: list[dict[str, Any]]
    places: dict[str, int]


def read_run(place: Path) -> Run:
    graphs = read_json(place / "graphs.json")
    return Run(ascend_dump.open(place / "dump"), list(graphs.values()), {name: at for at, name in enumerate(graphs)})


@pytest.fixture(params=SHARED)
def network(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def fake(network: str, fake_run: Path) -> Run:
    return read_run(fake_run / "trees" / network)


@pytest.fixture
def real(network: str, real_run: Path) -> Run:
    return read_run(real_run / "trees" / network)


def shared_operators(one: Run, other: Run) -> set[tuple[int, str]]:
    """What both name: of one type, and reading the same operators beside constants.

    The name alone is not enough: `Identity_1` is the second Identity of a graph, whatever it reads.
    """
    return {
        (place, name)
        for place, (ours, theirs) in enumerate(zip(one.graphs, other.graphs))
        for name in ours.keys() & theirs.keys()
        if definition(ours, name) == definition(theirs, name)
    }


def definition(graph: dict[str, Any], name: str) -> Any:
    kind, sources = graph[name]
    return kind, [source for source in sources if graph.get(source.rpartition(":")[0], [""])[0] != "Const"]


def records(run: Run, names: set[tuple[int, str]]) -> dict[tuple[Any, ...], Any]:
    return {
        (place, record.step, record.op_name, record.io, record.index): record
        for record in run.dump
        for place in [run.places[record.model]]
        if (place, record.op_name) in names
    }


def test_both_trees_hold_the_same_where_both_name_the_operator(network: str, fake: Run, real: Run) -> None:
    names = shared_operators(fake, real)
    ours, theirs = records(fake, names), records(real, names)
    assert len({(key[0], key[2]) for key in theirs}) >= SHARED[network]
    # The fake may leave out what torchair gives an operator as a constant, such as axes.
    assert ours.keys() <= theirs.keys()
    assert all(key[3] == "input" for key in theirs.keys() - ours.keys())
    for key, record in ours.items():
        if network == "resnet" and key[2] in VARIANCES:
            continue
        found, wanted = record.numpy(), theirs[key].numpy()
        assert record.op_type == theirs[key].op_type, key
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), key
        np.testing.assert_allclose(found, wanted, RELATIVE, ABSOLUTE, err_msg=str(key))


def test_the_trees_are_laid_out_alike(fake: Run, real: Run) -> None:
    def layout(run: Run) -> set[tuple[Any, ...]]:
        found = set()
        for record in run.dump:
            dump, world, _time, device, model, model_id, step, _file = record.path.parts[-8:]
            found.add((dump, world, device, run.places[model], model_id, step))
        return found

    wanted = {
        ("dump", "worldsize1_global_rank0", "0", place, str(place + 1), step)
        for place, steps in enumerate((("0", "2"), ("0", "2"), ("0",)))
        for step in steps
    }
    assert layout(fake) == layout(real) == wanted


@pytest.mark.parametrize("network", ["mlp"])
def test_every_operator_of_the_small_network_has_its_name_in_both(fake: Run, real: Run) -> None:
    for place, graph in enumerate(real.graphs):
        wanted = {(place, name) for name, (kind, _) in graph.items() if kind not in ("Const", "NetOutput")}
        assert len(wanted) > 20
        assert wanted <= shared_operators(fake, real)

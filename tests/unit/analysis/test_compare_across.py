"""One network in several frameworks: pairs are found without a mapping, and a fault is named in each.

The dumps of MindSpore and TensorFlow are real ones of the host, made by tests/real/*/…/same_networks_dumps.py; those of
GE are written by the simulated device.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

import pytest
from places import extract
from same_networks import NETWORKS, inputs

import ascend_dump
from ascend_dump import Comparison, fakes
from ascend_dump.cli import main

pytest.importorskip("torch")

import torch
from same_networks_torch import FAULTS, Network, Planted, computing, dump

OTHERS = ("mindspore", "tensorflow", "torchair")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of the other frameworks, by framework and network."""
    root = tmp_path_factory.mktemp("others")
    extract("same_networks.tar.gz", root)
    # torchair writes graphs into the working directory.
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("graphs"))
        for network in NETWORKS:
            dump_of_graph(network, root / "torchair" / network)
    return root


def dump_of_graph(network: str, path: Path, **settings: Any) -> None:
    """By torchair on the simulated device: operators of GE, or ATen's in the eager mode."""
    with fakes.install("torchair", environ={}), torch.no_grad():
        torchair: Any = import_module("torchair")
        config = torchair.CompilerConfig()
        run = torch.compile(Network(network), backend=torchair.get_npu_backend(compiler_config=config))
        with ascend_dump.capture(config, path=path, **settings):
            run(torch.from_numpy(inputs(network)))
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("right")
    return lambda network: root / network if (root / network).exists() else dump(network, root / network)


def operators_of(found: Comparison) -> set[tuple[str, str]]:
    return {
        (pair.actual.op_type, pair.reference.op_type)
        for pair in found.pairs
        if pair.actual is not None and pair.reference is not None and pair.actual.io == "output"
    }


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_is_the_same_in_both_frameworks(
    others: Path, right: Callable[[str], Path], network: str, other: str
) -> None:
    found = ascend_dump.compare(right(network), others / other / network)
    assert set(found.counts) <= {"equal", "noise"}
    assert not found.origins
    paired = {pair.actual.op_name for pair in found.pairs if pair.actual is not None and pair.actual.io == "output"}
    assert paired == computing(right(network)), "every operator that computes has a partner"


@pytest.mark.parametrize("network", NETWORKS)
def test_two_frameworks_neither_of_which_is_pytorch(others: Path, network: str) -> None:
    found = ascend_dump.compare(others / "mindspore" / network, others / "tensorflow" / network)
    assert set(found.counts) <= {"equal", "noise"}
    assert not found.origins
    assert len(found.pairs) > 10


def test_files_of_torchairs_eager_mode(
    right: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no hashes, other names of operators, and other strides: the bits of every element are the same."""
    monkeypatch.chdir(tmp_path)
    dump_of_graph("transformer", tmp_path / "eager", options={"eager": True})
    found = ascend_dump.compare(tmp_path / "eager", right("transformer"))
    assert set(found.counts) == {"equal"}
    assert ("aten.native_layer_norm.default", "aten::native_layer_norm") in operators_of(found)


def test_layouts_are_named(others: Path, right: Callable[[str], Path]) -> None:
    found = ascend_dump.compare(right("conv"), others / "tensorflow" / "conv")
    told = {(pair.record.label, pair.transformation) for pair in found.pairs}
    assert ("convolution_0.input.1", "permute(2, 3, 1, 0)") in told
    assert ("convolution_0.output.0", "permute(0, 2, 3, 1)") in told


def test_a_fused_operator_is_compared_where_both_have_a_tensor(others: Path, right: Callable[[str], Path]) -> None:
    """TensorFlow spells out the norm and the GELU, and adds the bias by itself."""
    found = ascend_dump.compare(right("transformer"), others / "tensorflow" / "transformer")
    pairs = {(one.rpartition("::")[2].partition(".")[0], other) for one, other in operators_of(found)}
    assert {("native_layer_norm", "AddV2"), ("gelu", "Mul"), ("addmm", "BiasAdd")} <= pairs
    assert found.inside[1] > 10
    assert not found.unmatched


@pytest.mark.parametrize("other", OTHERS)
def test_each_operator_is_compared_or_counted(
    others: Path, right: Callable[[str], Path], capsys: pytest.CaptureFixture[str], other: str
) -> None:
    actual, reference = right("transformer"), others / other / "transformer"
    found = ascend_dump.compare(actual, reference)
    names = {one.op_name for one in ascend_dump.open(actual)}
    in_pairs = {pair.actual.op_name for pair in found.pairs if pair.actual is not None}
    assert found.left_out[0] > 0
    assert len(in_pairs) + found.inside[0] + found.left_out[0] == len(names)
    assert found.to_dict()["left_out"] == {"actual": found.left_out[0], "reference": found.left_out[1]}
    assert any(f"{found.left_out[0]} operators of actual" in line for line in found.to_page().unchecked)
    main(["compare", str(actual), str(reference), "--all"])
    assert f"left out: {found.left_out[0]} operators of actual and {found.left_out[1]} of" in capsys.readouterr().out
    main(["compare", str(actual), str(reference)])
    sides = [" and ".join(map(str, counts)) for counts in (found.inside, found.left_out)]
    short = f"left out: {sides[0]} operators inside compared ones, {sides[1]} without values of their own"
    assert (short in capsys.readouterr().out) == (any(found.inside) and any(found.left_out))


@pytest.mark.parametrize("share", [0.999, 0.98, 0.5])
@pytest.mark.parametrize("side", ["actual", "reference"])
def test_values_that_cannot_be_read_are_told(
    others: Path, right: Callable[[str], Path], tmp_path: Path, share: float, side: str
) -> None:
    whole, cut = others / "tensorflow" / "transformer", tmp_path / "cut"
    shutil.copytree(right("transformer"), cut)
    [shard] = cut.rglob("tensors-*.safetensors")
    os.truncate(shard, int(shard.stat().st_size * share))
    found = ascend_dump.compare(*((cut, whole) if side == "actual" else (whole, cut)))
    assert found.verdict == "unreadable"
    assert found.left_out[0 if side == "actual" else 1] == ascend_dump.compare(right("transformer"), whole).left_out[0]
    lost = [pair.record for pair in found.pairs if pair.verdict == "unreadable"]
    assert all(record.error is not None and "its data ends at" in str(record.error) for record in lost)
    labels = Counter(record.label for record in (getattr(pair, side) for pair in found.pairs) if record is not None)
    assert {labels[record.label] for record in lost} == {1}


def test_a_paired_operator_with_an_unreadable_output_is_told_once(
    others: Path, right: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(right("transformer"), tmp_path / "broken")
    [index] = (tmp_path / "broken").rglob("index.jsonl")
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    lost = next(one for one in lines if "layer_norm" in one["op_name"] and one["io"] == "output" and one["index"] == 1)
    lost["shard"] = "../elsewhere"
    index.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = ascend_dump.compare(tmp_path / "broken", others / "tensorflow" / "transformer")
    own = [pair for pair in found.pairs if pair.actual is not None and pair.actual.op_name == lost["op_name"]]
    assert [pair.verdict for pair in own].count("unreadable") == 1
    assert "unmatched" not in {pair.verdict for pair in own}


def test_what_is_left_out_is_counted_on_all_ranks(right: Callable[[str], Path], others: Path, tmp_path: Path) -> None:
    alone = right("transformer"), others / "tensorflow" / "transformer"
    sides = [tmp_path / "actual", tmp_path / "reference"]
    for source, path in zip(alone, sides):
        [directory] = source.glob("worldsize*")
        for rank in range(2):
            shutil.copytree(directory, path / f"worldsize2_global_rank{rank}")
    expected = tuple(2 * number for number in ascend_dump.compare(*alone).left_out)
    assert ascend_dump.compare(*sides).left_out == expected
    with ThreadPoolExecutor(2) as executor:
        assert ascend_dump.compare(*sides, executor=executor).left_out == expected


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("one", FAULTS, ids=lambda one: f"{one.network}-{one.what}")
def test_a_planted_fault_is_named(others: Path, tmp_path: Path, one: Planted, other: str) -> None:
    found = ascend_dump.compare(dump(one.network, tmp_path / "actual", one.fault), others / other / one.network)
    assert found.verdict == "different"
    assert [origin.op_name for origin in found.origins] == [one.expected]
    assert found.origins[0].explains or one.expected == "addmm_1"


def test_another_network_is_no_pass(others: Path, right: Callable[[str], Path]) -> None:
    found = ascend_dump.compare(right("mlp"), others / "tensorflow" / "conv")
    assert found.verdict in ("unmatched", "structure", "different")


def test_a_mapping_goes_before_everything_else_and_can_be_written(
    others: Path, right: Callable[[str], Path], tmp_path: Path
) -> None:
    found = ascend_dump.compare(right("mlp"), others / "tensorflow" / "mlp")
    assert found.mapping == {"addmm_0": "BiasAdd", "relu_0": "Relu", "addmm_1": "BiasAdd_1"}
    mapping = json.loads(found.save_mapping(tmp_path / "mapping.json").read_text())
    again = ascend_dump.compare(right("mlp"), others / "tensorflow" / "mlp", mapping=mapping)
    assert {(pair.how, pair.record.label, pair.verdict) for pair in again.pairs if pair.how != "mapping"} == set()
    assert again.counts == found.counts
    mapping["relu_0"] = "BiasAdd"
    del mapping["addmm_0"]
    wrong = ascend_dump.compare(right("mlp"), others / "tensorflow" / "mlp", mapping=mapping)
    assert wrong.verdict == "different"


class Old(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(4))
        )
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x))


class New(torch.nn.Module):
    """The same after a refactoring: modules have other names and another order, and something is looked at."""

    def __init__(self, old: Any) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(block[0] for block in old.encoder)
        self.projections = torch.nn.ModuleList(block[1] for block in old.encoder)
        self.classifier = old.head

    def forward(self, x: Any) -> Any:
        for norm, projection in zip(self.norms, self.projections):
            x = torch.nn.functional.gelu(projection(norm(x)))
            assert x.abs().max() < 1e6
        return self.classifier(x)


def refactored(root: Path, change: Optional[Callable[[Any], None]] = None) -> Comparison:
    """The new program, changed, held against the old one."""
    torch.manual_seed(0)
    old, x = Old(), torch.randn(4, 8)
    for name, network in (("old", old), ("new", New(old))):
        if name == "new" and change is not None:
            with torch.no_grad():
                change(network)
        network.zero_grad()
        with ascend_dump.capture(network, path=root / name, steps="0"):
            network(x).sum().backward()
    return ascend_dump.compare(root / "new", root / "old")


def of_the_look(found: Comparison) -> bool:
    """Return True if only inserted operators have no partner."""
    inserted = {f"aten::{name}" for name in ("abs", "max", "lt", "_local_scalar_dense", "is_nonzero", "detach")}
    return all(pair.reference is None and pair.record.op_type.partition(".")[0] in inserted for pair in found.unmatched)


class TestARefactoring:
    """An old dump against that of the same program with new names, other borders and inserted operators."""

    def test_equal_values_are_equal(self, tmp_path: Path) -> None:
        found = refactored(tmp_path)
        assert set(found.counts) == {"equal", "unmatched"}
        assert of_the_look(found)

    def test_rounding_is_noise(self, tmp_path: Path) -> None:
        def last_places(network: Any) -> None:
            for parameter in network.parameters():
                parameter.copy_(torch.nextafter(parameter, torch.full_like(parameter, 9)))

        found = refactored(tmp_path, last_places)
        assert set(found.counts) <= {"equal", "noise", "unmatched"}
        assert found.counts["noise"] > 100
        assert of_the_look(found)
        assert not found.origins

    def test_a_mistake_is_named(self, tmp_path: Path) -> None:
        def other_epsilon(network: Any) -> None:
            network.norms[2].eps = 1e-2

        found = refactored(tmp_path, other_epsilon)
        assert [origin.module for origin in found.origins] == ["norms.2"]
        assert of_the_look(found)

"""One network in several frameworks: pairs are found without a mapping, and a fault is named in each.

The dumps of MindSpore and TensorFlow are real ones of the host, made by tests/real/*/…/same_networks_dumps.py; those of
GE are written by the simulated device.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

import pytest
from places import DATA
from same_networks import HEADS, NETWORKS, inputs, weights

import ascend_dump
from ascend_dump import Comparison, fakes

torch = pytest.importorskip("torch")
functional = torch.nn.functional

Fault = Callable[[dict[str, Any], dict[str, Any]], None]
OTHERS = ("mindspore", "tensorflow", "torchair")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of the other frameworks, by framework and network."""
    root = tmp_path_factory.mktemp("others")
    with tarfile.open(DATA / "same_networks.tar.gz") as archive:
        archive.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    # torchair writes graphs into the working directory.
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("graphs"))
        for network in NETWORKS:
            dump_of_graph(network, root / "torchair" / network)
    return root


class Network:
    """The networks in PyTorch. A fault changes weights, or the functions that are called."""

    def __init__(self, network: str, fault: Optional[Fault] = None) -> None:
        self.network = network
        self.of: dict[str, Any] = {
            name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in weights(network).items()
        }
        self.functions: dict[str, Any] = {
            "gelu": functional.gelu,
            "softmax": torch.softmax,
            "layer_norm": lambda x, *affine: functional.layer_norm(x, (8,), *affine, 1e-5),
            "batch_norm": lambda *tensors: functional.batch_norm(*tensors, eps=1e-3),
            "relu": functional.relu,
        }
        if fault is not None:
            with torch.no_grad():
                fault(self.of, self.functions)

    def dense(self, x: Any, name: str) -> Any:
        return functional.linear(x, self.of[f"{name}.w"], self.of[f"{name}.b"])

    def norm(self, x: Any, name: str) -> Any:
        return self.functions["layer_norm"](x, self.of[f"{name}.w"], self.of[f"{name}.b"])

    def heads(self, x: Any) -> Any:
        return x.view(2, 4, HEADS, 4).transpose(1, 2)

    def __call__(self, x: Any) -> Any:
        of, functions = self.of, self.functions
        if self.network == "mlp":
            return self.dense(functions["relu"](self.dense(x, "up")), "down")
        if self.network == "conv":
            y = functional.conv2d(x, of["kernel"], padding=1)
            y = functions["batch_norm"](y, of["mean"], of["variance"], of["gamma"], of["beta"])
            return self.dense(functions["relu"](y).mean((2, 3)), "head")
        y = self.norm(x, "norm1")
        q, k, v = (self.heads(self.dense(y, name)) for name in ("q", "k", "v"))
        mixed = functions["softmax"](q @ k.transpose(-1, -2) * 0.5, -1) @ v
        x = x + self.dense(mixed.transpose(1, 2).reshape(2, 4, 8), "o")
        return x + self.dense(functions["gelu"](self.dense(self.norm(x, "norm2"), "up")), "down")


def dump(network: str, path: Path, fault: Optional[Fault] = None) -> Path:
    """In PyTorch on the host."""
    run = Network(network, fault)
    with torch.no_grad(), ascend_dump.capture(path=path, framework="torch", steps="0"):
        run(torch.from_numpy(inputs(network)))
    return path


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
    computing = [
        record.op_name
        for record in ascend_dump.open(right(network)).select(io="output")
        if record.op_type.partition(".")[0]
        not in {
            f"aten::{name}"
            for name in ("t", "transpose", "view", "expand", "_unsafe_view", "clone", "empty", "lift_fresh")
        }
    ]
    assert paired == set(computing), "every operator that computes has a partner"


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


def scaled(name: str, by: float) -> Fault:
    def change(of: dict[str, Any], functions: dict[str, Any]) -> None:
        of[name].mul_(by)

    return change


def replaced(name: str, function: Any) -> Fault:
    def change(of: dict[str, Any], functions: dict[str, Any]) -> None:
        functions[name] = function

    return change


def nan(x: Any) -> Any:
    y = functional.gelu(x)
    y[0, 0, 0] = float("nan")
    return y


FAULTS: list[tuple[str, str, Fault, str]] = [
    ("mlp", "a weight", scaled("up.w", 1.01), "addmm_0"),
    ("mlp", "a bias", scaled("down.b", 1.5), "addmm_1"),
    ("conv", "a kernel", scaled("kernel", 1.1), "convolution_0"),
    ("conv", "a moving mean", scaled("mean", 2), "native_batch_norm_0"),
    (
        "conv",
        "an epsilon",
        replaced("batch_norm", lambda *t: functional.batch_norm(*t, eps=0.1)),
        "native_batch_norm_0",
    ),
    ("transformer", "a weight of one branch", scaled("q.w", 1.05), "addmm_0"),
    ("transformer", "a bias of one branch", scaled("v.b", 2), "addmm_2"),
    ("transformer", "a scale of a norm", scaled("norm1.w", 1.1), "native_layer_norm_0"),
    (
        "transformer",
        "an epsilon of a norm",
        replaced("layer_norm", lambda x, *affine: functional.layer_norm(x, (8,), *affine, 0.1)),
        "native_layer_norm_0",
    ),
    ("transformer", "an approximation", replaced("gelu", lambda x: functional.gelu(x, approximate="tanh")), "gelu_0"),
    ("transformer", "another activation", replaced("gelu", functional.relu), "relu_0"),
    ("transformer", "a wrong axis", replaced("softmax", lambda x, axis: torch.softmax(x, -2)), "_softmax_0"),
]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    ("network", "fault", "expected"), [(one[0], one[2], one[3]) for one in FAULTS], ids=lambda x: ""
)
def test_a_planted_fault_is_named(
    others: Path, tmp_path: Path, network: str, fault: Fault, expected: str, other: str
) -> None:
    found = ascend_dump.compare(dump(network, tmp_path / "actual", fault), others / other / network)
    assert found.verdict == "different"
    assert [origin.op_name for origin in found.origins] == [expected]
    assert found.origins[0].explains or expected == "addmm_1"


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


def test_new_names_other_borders_and_new_operators_of_one_program(tmp_path: Path) -> None:
    """An old dump against that of the same program after a refactoring."""

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
        def __init__(self, old: Any) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(block[0] for block in old.encoder)
            self.projections = torch.nn.ModuleList(block[1] for block in old.encoder)
            self.classifier = old.head

        def forward(self, x: Any) -> Any:
            for norm, projection in zip(self.norms, self.projections):
                x = functional.gelu(projection(norm(x)))
                assert x.abs().max() < 1e6
            return self.classifier(x)

    torch.manual_seed(0)
    old, x = Old(), torch.randn(4, 8)
    for name, network in (("old", old), ("new", New(old))):
        network.zero_grad()
        with ascend_dump.capture(network, path=tmp_path / name, steps="0"):
            network(x).sum().backward()
    found = ascend_dump.compare(tmp_path / "new", tmp_path / "old")
    assert set(found.counts) == {"equal", "unmatched"}
    assert {pair.record.op_type.partition(".")[0] for pair in found.unmatched} <= {
        f"aten::{name}" for name in ("abs", "max", "lt", "_local_scalar_dense", "is_nonzero", "detach")
    }
    assert all(pair.reference is None for pair in found.unmatched)

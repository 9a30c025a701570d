"""Operators of GE, run again through the nodes of PyTorch's graph that torchair's text says they were made for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.analysis.replay import Replay
from ascend_dump.cli import main

torch = pytest.importorskip("torch")
from torchair_helpers import simulated_torchair  # noqa: E402  # it needs PyTorch


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        y = self.down(torch.nn.functional.gelu(self.up(self.norm(x)), approximate="tanh"))
        y = torch.cat([y, x], -1)
        return torch.softmax(y[..., :8] + y[..., 8:] * 0.5, -1).sum(0)


def run(path: Path, model: Any = None, **settings: Any) -> Path:
    with simulated_torchair():
        import torchair

        config = torchair.CompilerConfig()
        compiled = torch.compile(model or Network(), backend=torchair.get_npu_backend(compiler_config=config))
        with ascend_dump.capture(config, path=path, **settings), torch.no_grad():
            compiled(torch.linspace(-1, 1, 32).reshape(4, 8))
    return path


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return run(tmp_path / "dump", steps="0", options={"graph_dump": "py"})


def verdicts(found: Replay) -> dict[str, str]:
    return {one.node.partition(" ")[0]: one.verdict for one in found.pairs}


def change_text(dump: Path, change: Callable[[str], str]) -> None:
    files = list(dump.rglob("dynamo_*_graph_*.py"))
    assert files
    for file in files:
        text = file.read_text()
        assert change(text) != text
        file.write_text(change(text))


def spoil(dump: Path, name: str) -> None:
    """The last element of what an operator wrote is another one."""
    [record] = ascend_dump.open(dump).select(op=name, io="output")
    content = bytearray(record.path.read_bytes())
    assert content.endswith(record.numpy().tobytes())
    content[-1] ^= 0x41
    record.path.write_bytes(content)


def test_every_node_gives_what_was_recorded(dump: Path) -> None:
    found = ascend_dump.replay(dump)
    known = verdicts(found)
    assert set(known.values()) <= {"equal", "noise"}
    assert {"addmm", "addmm_1", "gelu", "cat", "mul", "add", "_softmax", "sum_1", "native_layer_norm"} <= set(known)
    assert {one.reason for one in found.refused} == {"graph"}
    assert {one.op_type for one in found.refused} == {"Data"}
    [gelu] = [one for one in found.pairs if one.node == "gelu (aten.gelu.default)"]
    assert gelu.record.op_type == "Gelu"
    assert gelu.measure is not None


@pytest.mark.parametrize(("name", "node"), [("Gelu", "gelu"), ("Add", "addmm"), ("ConcatV2", "cat")])
def test_what_computes_wrongly_is_named_alone(dump: Path, name: str, node: str) -> None:
    """What reads it has its inputs recorded with itself."""
    spoil(dump, name)
    found = ascend_dump.replay(dump)
    assert [(one.node.partition(" ")[0], one.record.op_name) for one in found.wrong] == [(node, name)]


def test_one_operator_finds_its_inputs_in_the_whole_dump(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(dump, "Add")
    assert main(["replay", str(dump), "--op", "Add", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    [pair] = document["pairs"]
    assert (pair["op_name"], pair["node"], pair["verdict"]) == ("Add", "addmm (aten.addmm.default)", "different")
    assert not document["refused"]
    assert main(["replay", str(dump), "--op", "MatMulV2_1"]) == 0, "a part of a node stands for the node"
    assert main(["replay", str(dump), "--op", "Add"]) == 1
    assert "addmm (aten.addmm.default)" in capsys.readouterr().out


class TestRefusals:
    def reasons(self, dump: Path) -> dict[str, str]:
        return {one.op_name: one.reason for one in ascend_dump.replay(dump).refused}

    def test_without_a_text(self, tmp_path: Path) -> None:
        found = ascend_dump.replay(run(tmp_path / "dump", steps="0"))
        assert not found.pairs
        [one] = [one for one in found.refused if one.op_name == "Gelu"]
        assert one.reason == "graph"
        assert "options={'graph_dump': 'py'}" in one.message

    def test_random_numbers(self, dump: Path) -> None:
        change_text(dump, lambda text: text.replace("aten.gelu.default", "aten.rand_like.default"))
        assert self.reasons(dump)["gelu"] == "random"

    def test_what_is_no_operator_of_pytorch(self, dump: Path) -> None:
        change_text(dump, lambda text: text.replace("aten.gelu.default", "npu.npu_gelu.default"))
        assert self.reasons(dump)["gelu"] == "library"

    def test_a_damaged_call(self, dump: Path) -> None:
        change_text(dump, lambda text: text.replace("approximate=tanh)", "approximate=[)"))
        assert self.reasons(dump)["gelu"] == "arguments"

    def test_arguments_of_another_version(self, dump: Path) -> None:
        change_text(dump, lambda text: text.replace("approximate=tanh)", "approximate=tanh, fast=True)"))
        assert self.reasons(dump)["gelu"] == "kernel"

    def test_a_text_that_is_cut_off(self, dump: Path) -> None:
        change_text(dump, lambda text: text[: text.index("## FX Code: gelu")])
        found = ascend_dump.replay(dump)
        assert "different" not in found.counts
        assert self.reasons(dump)["Gelu"] == "graph"

    def test_inputs_that_nobody_recorded(self, tmp_path: Path) -> None:
        """As where GE makes one operator of several: what lies between them is in no file."""
        dump = run(tmp_path / "dump", steps="0", options={"graph_dump": "py"}, mode="output")
        for name in ("Add", "MatMulV2"):
            for record in ascend_dump.open(dump).select(op=name):
                record.path.unlink(missing_ok=True)
        found = ascend_dump.replay(dump)
        [gelu] = [one for one in found.refused if one.op_name == "gelu"]
        assert gelu.reason == "inputs"
        assert "addmm (aten.addmm.default) was not recorded: its operator was fused" in gelu.message
        assert "different" not in found.counts


def test_operators_of_a_node_without_a_line_are_not_taken_for_those_above(dump: Path) -> None:
    """torchair writes no line of a node that it has no source for; what was made for it stands below another one."""

    def change(text: str) -> str:
        lines = [line for line in text.splitlines() if not line.startswith("## FX Code: gelu")]
        return "\n".join(lines) + "\n"

    change_text(dump, change)
    found = ascend_dump.replay(dump)
    assert "different" not in found.counts
    assert verdicts(found)["cat"] in ("equal", "noise")


def test_what_the_graph_returns_is_not_taken_for_the_node_above(tmp_path: Path) -> None:
    """The last activation has no line, and has the shape of the layer that it stands below."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU())
    dump = run(tmp_path / "dump", model, steps="0", options={"graph_dump": "py"})
    assert {"addmm", "relu", "addmm_1", "relu_1"} <= set(verdicts(ascend_dump.replay(dump)))

    def change(text: str) -> str:
        return "".join(line for line in text.splitlines(True) if not line.startswith("## FX Code: relu_1"))

    change_text(dump, change)
    found = ascend_dump.replay(dump)
    assert "different" not in found.counts
    [refused] = [one for one in found.refused if one.op_type != "Data"]
    assert (refused.op_name, refused.reason) == ("addmm_1", "outputs")

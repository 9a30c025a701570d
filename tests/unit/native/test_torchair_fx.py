"""Arguments of the nodes of PyTorch's graph, read from the text that torchair writes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import DATA

from ascend_dump.native.torchair.fx import FxGraph, FxNode, FxValue, NotPlain, read_fx_graph

(OPTIMIZED,) = (DATA / "torchair_graph").glob("dynamo_optimized_*.py")
HEAD = "from torchair._ge_concrete_graph import ge_apis as ge\n"


def read(tmp_path: Path, text: str) -> FxGraph:
    path = tmp_path / "dynamo_optimized_graph_3_rank_0_pid_7_ts_20261121015259103066.py"
    path.write_text(HEAD + text)
    return read_fx_graph(path)


def node(tmp_path: Path, arguments: str) -> FxNode:
    line = f"## FX Code: x: torch.bfloat16[2, s0]npu:0 = torch.ops.aten.f.default({arguments})\n"
    [found] = read(tmp_path, line).nodes.values()
    return found


def test_a_graph_of_torchair() -> None:
    found = read_fx_graph(OPTIMIZED)
    assert found.inputs == {f"arg{number}_1" for number in range(7)}
    assert found.returned == ("Add_2:0",)
    addmm = found.nodes["addmm_1"]
    assert (addmm.value, addmm.target) == (FxValue("addmm_1", "float32", (5, 16)), "aten.addmm.default")
    bias, mat1, mat2 = FxValue("arg4_1", "float32", (16,)), addmm.args[1], addmm.args[2]  # type: ignore[index]
    assert addmm.args == [bias, mat1, mat2]
    assert {one.name for one in addmm.values} == {"arg4_1", "relu", "t_1"}
    assert [one.name for one in addmm.operators] == ["MatMulV2_1", "Mul_1", "Add_1"]
    assert found.nodes["t"].operators == (), "a view that is written and becomes no operator"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("None", None),
        ("True", True),
        ("-1", -1),
        ("9223372036854775807", 2**63 - 1),
        ("1e-05", 1e-5),
        ("0.5", 0.5),
        ("-inf", -math.inf),
        ("[1, -1]", [1, -1]),
        ("[]", []),
        ("[a, b_1]", [FxValue("a"), FxValue("b_1")]),
        ("[None, a]", [None, FxValue("a")]),
        ("['sum', 'x,y']", ["sum", "x,y"]),
        ("torch.float32", NotPlain("torch.float32")),
        ("tanh", NotPlain("tanh")),
        ("npu:0", NotPlain("npu:0")),
        ("y: torch.int64[]npu:0", FxValue("y", "int64", ())),
        ("y: torch.float16[3, s0, 2*s1]cpu", FxValue("y", "float16", (3, None, None))),
        ('s0: "Sym(5)"', FxValue("s0")),
    ],
)
def test_arguments(tmp_path: Path, text: str, value: Any) -> None:
    found = node(tmp_path, f"{text}, 7, name={text}")
    assert found.args == [value, 7]
    assert found.kwargs == {"name": value}
    assert found.value == FxValue("x", "bfloat16", (2, None))


def test_one_of_several_tensors(tmp_path: Path) -> None:
    text = "## FX Code: two = torch.ops.aten.max.dim(x: torch.float32[2]cpu, 0)\n"
    found = read(tmp_path, text + "## FX Code: item: torch.int64[]cpu = operator.getitem(two, 1)\n").nodes
    assert found["item"].item == (FxValue("two"), 1)
    assert found["two"].item is None


@pytest.mark.parametrize("text", ["[", "1]", "'a", "[[[[[[[[[[1]]]]]]]]]]", "9" * 5000])
def test_a_damaged_call_has_no_arguments(tmp_path: Path, text: str) -> None:
    found = node(tmp_path, text)
    assert (found.args, found.kwargs) == (None, None)
    assert found.target == "aten.f.default"


@given(
    text=st.text(alphabet="ab1 ,:=[]()'\"\\.-+etorchfls²\u0661", max_size=60),
    left=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
)
def test_any_text_is_read(tmp_path_factory: pytest.TempPathFactory, text: str, left: str) -> None:
    path = tmp_path_factory.mktemp("text") / "dynamo_original_graph_1_rank_0_pid_7_ts_20261121015259103066.py"
    lines = [f"## FX Code: x: {left} = torch.ops.aten.f({text})", f"## FX Code: y = f({text})"]
    path.write_text(HEAD + "\n".join(lines), encoding="utf-8")
    for found in read_fx_graph(path).nodes.values():
        assert all(one.name for one in found.values)

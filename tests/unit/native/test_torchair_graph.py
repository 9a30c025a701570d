"""torchair's graphs as Python text: operators, PyTorch nodes and lines, and what records learn from them."""

from __future__ import annotations

import ast
import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import DATA

import ascend_dump
from ascend_dump import CorruptDump, DumpNotFound, ReadError
from ascend_dump.cli import main
from ascend_dump.fakes.device.npu import NodeInfo, Npu
from ascend_dump.native.torchair.graph import parse_graph_file, read_torchair_graph

GRAPHS = DATA / "torchair_graph"
(OPTIMIZED,) = GRAPHS.glob("dynamo_optimized_*.py")
(ORIGINAL,) = GRAPHS.glob("dynamo_original_*.py")
HEAD = "from torchair._ge_concrete_graph import ge_apis as ge\n"
NAME = "dynamo_optimized_graph_{}_rank_{}_pid_7_ts_20261121015259103066.py"


def read(tmp_path: Path, text: str) -> list[Any]:
    path = tmp_path / NAME.format(3, 0)
    path.write_text(HEAD + text)
    return list(read_torchair_graph(path))


# The text.


@pytest.mark.parametrize("path", [OPTIMIZED, ORIGINAL], ids=["optimized", "original"])
def test_a_graph_of_torchair_is_read(path):
    found = {one.node.name: one for one in read_torchair_graph(path) if one.node.type}
    assert len(found) == 22
    matmul = found["MatMulV2_1"]
    assert (matmul.node.type, matmul.node.inputs, matmul.node.graph) == (
        "MatMulV2",
        ("Relu:0", "Transpose_1:0"),
        "graph_1",
    )
    assert (matmul.fx, matmul.target, matmul.source) == ("addmm_1", "aten.addmm.default", "/home/user/mlp.py:97")
    assert found["Transpose_1"].fx == "t_1"
    for edge in ("arg0_1", "NetOutput"):
        assert (found[edge].fx, found[edge].source) == ("", "")
    assert found["NetOutput"].node.inputs == ("Add_2:0",)


def test_nodes_without_an_operator_are_there_too():
    views = {one.fx: one.source for one in read_torchair_graph(ORIGINAL) if not one.node.type}
    assert views["t"] == "/home/user/mlp.py:94"
    assert views["scope_exit"].endswith("_scope.py:61")


def test_operators_with_several_outputs_are_named_by_them(tmp_path):
    one, two, three = read(
        tmp_path,
        'x_0 = ge.Data(index=0, node_name="x")\n'
        "[LayerNorm_1_0, LayerNorm_1_1, LayerNorm_1_2] = ge.LayerNorm(x_0, None)\n"
        'Add_0 = ge.Add(LayerNorm_1_1, [x_0, ge.Const(1, dtype=0)], node_name="Add")\n',
    )
    assert (one.node.name, two.node.name) == ("x", "LayerNorm_1")
    assert three.node.inputs == ("LayerNorm_1:1", "x:0")


ASSIGNING = """
x_0 = ge.Data(index=0, node_name="x")
c_0 = ge.Data(index=1, node_name="c")

# File "m.py", line 5, in forward    self.calls += 1
## FX Code: add = torch.ops.aten.add.Tensor(c, 1)
Add_0 = ge.Add(c_0, ge.Const(1, dtype=0), node_name="Add")

# File "m.py", line 6, in forward    y = x.view(-1)
## FX Code: view = torch.ops.aten.view.default(x)
Assign_0 = ge.Assign(c_0, Add_0, node_name="Assign")
Assign_1_0 = ge.Assign(Add_0, x_0, node_name="Assign_1")

# File "m.py", line 7, in forward    h.copy_(x)
## FX Code: copy_ = torch.ops.aten.copy_.default(add, x)
Assign_2_0 = ge.Assign(Add_0, x_0, node_name="Assign_2")
## FX Code: copy__1: torch.float32[2, 3]cpu = torch.ops.aten.copy_.default(c: torch.float32[2, 3]cpu, add: torch.float32[2, 3]cpu)
Assign_3_0 = ge.Assign(c_0, Add_0, node_name="Assign_3")
"""  # noqa: E501  (as torchair writes it)


def test_what_is_assigned_to_an_input_never_reaches_the_engine(tmp_path, capsys):
    found = {one.node.name: one for one in read(tmp_path, ASSIGNING)}
    assert [name for name, one in found.items() if one.to_input] == ["Assign", "Assign_3"]
    # Those of a node that is not written: the line before is another operator's.
    assert [(found[name].fx, found[name].source) for name in ("Assign", "Assign_1")] == [("", ""), ("", "")]
    assert (found["Assign_2"].fx, found["Assign_2"].source) == ("copy_", "m.py:7")
    # What is written back at the end comes from where it was computed.
    assert (found["Assign_3"].fx, found["Assign_3"].source) == ("copy__1", "m.py:5")
    assert found["view"].source == "m.py:6"
    assert main(["ops", str(tmp_path / NAME.format(3, 0)), "--dumped", "--json"]) == 0
    listed = [one["name"] for one in json.loads(capsys.readouterr().out)["operators"]]
    assert listed == ["Add", "Assign_1", "Assign_2"]
    assert main(["ops", str(tmp_path / NAME.format(3, 0)), "--not-dumped"]) == 0
    assert "GE has no such operator" in capsys.readouterr().out


def test_text_that_is_no_python_is_read_without_inputs(tmp_path):
    [one] = read(tmp_path, 'Einsum_0 = ge.Einsum([x], equation="a"b", node_name="Einsum")\n')
    assert (one.node.name, one.node.type, one.node.inputs) == ("Einsum", "Einsum", ())


def test_a_name_may_end_with_more_digits_than_python_makes_a_number_of(tmp_path):
    name = "Add_" + "7" * 5000
    [one] = read(tmp_path, f"{name} = ge.Add(x_0, y_0)\n")
    assert one.node.name == name


_ARGUMENTS = st.recursive(
    st.sampled_from(["A_0", "B_0", "C_0", "None", "-1.5e3", "x.A_0", '"B_0, "', "'\\'A_0('", "[]", "A_0 == 3", "1e5"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda some: f"[{', '.join(some)}]"),
        st.lists(inner, max_size=3).map(lambda some: f"ge.Const({', '.join([*some, 'A_0=B_0'])})"),
        inner.map("[*{}]".format),
        inner.map('{{"A_0": {}}}'.format),
    ),
    max_leaves=8,
)


@given(st.lists(_ARGUMENTS, max_size=4))
def test_inputs_are_the_names_in_the_positional_arguments_as_python_reads_them(tmp_path_factory, arguments):
    call = f'ge.X({", ".join([*arguments, "k=[C_0]"])}, node_name="X")'
    try:
        tree = ast.parse(call, mode="eval").body
    except SyntaxError:  # a star where none may stand
        return
    names = [node.id for argument in tree.args for node in ast.walk(argument) if isinstance(node, ast.Name)]
    path = tmp_path_factory.mktemp("g") / NAME.format(1, 0)
    path.write_text("".join([HEAD, *(f'{one}_0 = ge.Y(node_name="{one}")\n' for one in "ABC"), f"X_0 = {call}\n"]))
    expected = [f"{name[0]}:0" for name in names if name[1:] == "_0"]
    assert sorted(list(read_torchair_graph(path))[-1].node.inputs) == sorted(expected)


def test_a_long_constant_takes_the_memory_of_its_text(tmp_path):
    """Python's syntax tree would take 500 bytes for each character."""
    tracemalloc.start()
    try:
        *_, one = read(tmp_path, f'A_0 = ge.Y(node_name="A")\nX_0 = ge.X(A_0, [{"0," * 500_000}], node_name="X")\n')
        assert one.node.inputs == ("A:0",)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


LAYER = """
# File "m.py", line 5, in forward    h = self.lin(x)
## FX Code: t = torch.ops.aten.t.default(w)
## FX Code: addmm = torch.ops.aten.addmm.default(b, x, t)
MatMulV2_0 = ge.MatMulV2(x_0, w_0, node_name="MatMulV2")

# File "m.py", line 6, in forward    h = relu(h)
## FX Code: relu = torch.ops.aten.relu.default(addmm)
Relu_0 = ge.Relu(MatMulV2_0, node_name="Relu")
## FX Code: t_1 = torch.ops.aten.t.default(w)
## FX Code: addmm_1 = torch.ops.aten.addmm.default(b, relu, t_1)
MatMulV2_1_0 = ge.MatMulV2(Relu_0, w_0, node_name="MatMulV2_1")
## FX Code: relu_1 = torch.ops.aten.relu.default(addmm_1)
Relu_1_0 = ge.Relu(MatMulV2_1_0, node_name="Relu_1")

# File "m.py", line 9, in forward    return h.sum()
## FX Code: sum_1 = torch.ops.aten.sum.default(relu_1)
ReduceSum_0 = ge.ReduceSum(Relu_1_0, node_name="ReduceSum")
"""


def test_a_second_layer_follows_the_lines_of_the_first(tmp_path):
    found = {one.node.name: one.source for one in read(tmp_path, LAYER) if one.node.type}
    # torchair writes lines 5 and 6 once: what comes from them again stands below line 6.
    first = {"MatMulV2": "m.py:5", "Relu": "m.py:6"}
    assert found == {**first, "MatMulV2_1": "m.py:5", "Relu_1": "m.py:6", "ReduceSum": "m.py:9"}


def as_torchair(nodes: list[tuple[int, str]]) -> str:
    """The text of nodes (line, target): each line is written before its first node only."""
    text, seen = "", set()
    for number, (line, target) in enumerate(nodes):
        if line not in seen:
            text += f'\n# File "m.py", line {line}, in forward    ...\n'
            seen.add(line)
        text += f"## FX Code: n{number} = torch.ops.aten.{target}.default(x)\n"
        text += f'X_{number}_0 = ge.X(x_0, node_name="X_{number}")\n'
    return text


def test_a_node_that_may_come_from_several_lines_has_none(tmp_path):
    nodes = [(1, "t"), (1, "addmm"), (2, "t"), (2, "mul"), (1, "t"), (1, "addmm"), (2, "t"), (3, "sum"), (3, "neg")]
    found = [one.source for one in read(tmp_path, as_torchair(nodes))]
    assert found == ["m.py:1", "m.py:1", "m.py:2", "m.py:2", "", "", "", "m.py:3", "m.py:3"]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(1, 3), min_size=6, max_size=6))
def test_lines_of_different_operators_are_known_in_any_order(tmp_path_factory, order, lengths):
    nodes = [(line, f"op{line}_{number}") for line in order for number in range(lengths[line])]
    path = tmp_path_factory.mktemp("g") / NAME.format(1, 0)
    path.write_text(HEAD + as_torchair(nodes))
    for one, (line, _) in zip(read_torchair_graph(path), nodes):
        # A single operator that comes again may be a part of the line above it.
        assert one.source == f"m.py:{line}" or (lengths[line] == 1 and one.source == ""), one


def test_an_operator_that_began_an_earlier_line_stays_in_its_own(tmp_path):
    """As the graph of `y = x.relu(); z = (x @ w).relu().sum()`, all of the second in one line."""
    nodes = [(1, "relu"), (2, "mm"), (2, "relu"), (2, "sum"), (3, "neg")]
    found = [one.source for one in read(tmp_path, as_torchair(nodes))]
    assert found == ["m.py:1", "m.py:2", "", "m.py:2", "m.py:3"]


def test_a_loop_over_one_operator_keeps_its_line(tmp_path):
    nodes = [(1, "relu"), (1, "relu"), (1, "relu"), (2, "add"), (2, "add"), (1, "relu"), (2, "add"), (1, "relu")]
    found = [one.source for one in read(tmp_path, as_torchair(nodes))]
    assert found[:5] == ["m.py:1"] * 3 + ["m.py:2"] * 2
    assert all(source in ("", f"m.py:{line}") for source, (line, _) in zip(found, nodes))


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), max_size=25))
def test_the_first_node_of_a_line_always_has_it(tmp_path_factory, nodes):
    path = tmp_path_factory.mktemp("g") / NAME.format(1, 0)
    path.write_text(HEAD + as_torchair(nodes))
    firsts = {line: number for number, (line, _) in reversed(list(enumerate(nodes)))}
    found = [one.source for one in read_torchair_graph(path)]
    assert all(found[number] == f"m.py:{line}" for line, number in firsts.items())


@pytest.mark.parametrize("text", ["", "print('hello')\n", "\1\xff\n" * 5])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / NAME.format(1, 0)
    path.write_text(text)
    with pytest.raises(CorruptDump, match="not a graph file of torchair"):
        list(read_torchair_graph(path))


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(DumpNotFound, match="no such file"):
        list(read_torchair_graph(tmp_path / "none.py"))
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("pipe.py", "."):
        with pytest.raises(ReadError):
            list(read_torchair_graph(tmp_path / name))


def test_nothing_of_the_text_is_run(tmp_path):
    target = tmp_path / "ran"
    read(tmp_path, f'X_0 = ge.X(open({str(target)!r}, "w"), node_name="X")\n__import__("os").mkdir({str(target)!r})\n')
    assert not target.exists()


@pytest.mark.parametrize("argument", ["(" * 100_000, "-" * 100_000 + "1", "[" * 50_000 + "]" * 50_000, "a." * 100_000])
def test_deep_texts_do_no_harm(tmp_path, argument):
    [one] = read(tmp_path, f'X_0 = ge.X({argument}, node_name="X")\n')
    assert one.node.name == "X"


@given(st.text(st.characters(exclude_characters="\0"), max_size=300))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("g") / NAME.format(1, 0)
    path.write_bytes((HEAD + text).encode("utf-8", "surrogatepass"))
    for one in read_torchair_graph(path):
        assert isinstance(one.node.name, str)


_NAMES = st.from_regex(r"[A-Z][A-Za-z0-9]{0,9}(_[1-9])?", fullmatch=True)


@given(st.lists(_NAMES, min_size=1, max_size=8, unique=True), st.data())
def test_every_chain_of_operators_is_read_back(tmp_path_factory, names, data):
    lines, expected, before = [], [], None
    for name in names:
        kind = name.partition("_")[0]
        inputs = () if before is None else (f"{before}:0",)
        arguments = "" if before is None else f"{before}_0, "
        lines.append(f'{name}_0 = ge.{kind}({arguments}node_name="{name}")')
        expected.append((name, kind, inputs))
        before = name
    path = tmp_path_factory.mktemp("g") / NAME.format(1, 0)
    path.write_text(HEAD + "\n".join(lines) + "\n")
    found = [(one.node.name, one.node.type, one.node.inputs) for one in read_torchair_graph(path)]
    assert found == expected


@given(st.integers(0, 10**9 - 1), st.integers(0, 10**6), st.sampled_from(["original", "optimized"]))
def test_names_of_files_are_read_back(number, rank, kind):
    name = f"dynamo_{kind}_graph_{number}_rank_{rank}_pid_4_ts_20261121015259103066.py"
    assert parse_graph_file(name) == (kind, number, rank, 4, "20261121015259103066")
    for other in (name + "c", "x" + name, name.replace(".py", ".txt")):
        assert parse_graph_file(other) is None


# Written by torchair 2.13 for two dropouts, the second with a generator of its own; shapes and types are left out.
RANDOM = """## FX Code: native_dropout = torch.ops.aten.native_dropout.default(x: torch.float32[2, 4]cpu, 0.5, True)
Shape_0 = ge.Shape(x_0, node_name="Shape")
offset_list_0 = ge.Data(index=1, dtype=9, shape=[1], placement="CPU", node_name="offset_list")
ConcatV2_0 = ge.ConcatV2([ge.Const(0, dtype=9), unpack_generator_offsets_0], 0, N=2, node_name="ConcatV2")
## FX Code: rand = torch.ops.aten.rand.default([2, 4])
ConcatV2_1_0 = ge.ConcatV2([ge.Const(0, dtype=9), unpack_generator_offsets_1], 0, N=2, node_name="ConcatV2_1")
## FX Code: bernoulli = torch.ops.aten.bernoulli.default(x: torch.float32[2, 4]cpu, generator=g)
offset_list_1_0 = ge.Data(index=2, dtype=9, shape=[1], placement="CPU", node_name="offset_list_1")
StatelessBernoulli_0 = ge.StatelessBernoulli(Shape_0, x_0, unpack_generator_offsets_1_0, node_name="StatelessBernoulli")
"""


def test_the_operators_that_hand_out_offsets_of_generators_are_read_though_they_have_no_line(tmp_path, capsys):
    """GE gets and dumps them; torchair adds them to its graph without the function that writes the text."""
    found = {one.node.name: one for one in read(tmp_path, 'x_0 = ge.Data(index=0, node_name="x")\n' + RANDOM)}
    assert [name for name in found if name.startswith("unpack")] == [
        "unpack_generator_offsets",
        "unpack_generator_offsets_1",
    ]
    first, second = found["unpack_generator_offsets"], found["unpack_generator_offsets_1"]
    assert (first.node.type, first.node.inputs, first.fx) == ("Unpack", ("offset_list:0",), "native_dropout")
    assert (second.node.inputs, second.fx) == (("offset_list_1:0",), "bernoulli")
    assert found["ConcatV2_1"].node.inputs == ("unpack_generator_offsets:1",)
    assert found["StatelessBernoulli"].node.inputs == ("Shape:0", "x:0", "unpack_generator_offsets_1:0")
    assert main(["ops", str(tmp_path / NAME.format(3, 0)), "--dumped", "--type", "Unpack"]) == 0
    assert re.search(r"^unpack_generator_offsets +Unpack +native_dropout ", capsys.readouterr().out, re.MULTILINE)


# The verb.


def test_ops_lists_names_nodes_and_lines(capsys):
    assert main(["ops", str(OPTIMIZED), "--dumped", "--name", "relu*"]) == 0
    out = capsys.readouterr().out
    assert "model graph_1" in out
    assert [line.split()[:5] for line in out.splitlines() if "aten.relu" in line] == [
        ["Relu", "Relu", "relu", "aten.relu.default", "/home/user/mlp.py:94"],
        ["Relu_1", "Relu", "relu_1", "aten.relu.default", "/home/user/mlp.py:97"],
    ]
    assert main(["ops", str(OPTIMIZED), "--type", "MatMul*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["operators"]
    assert [one["name"] for one in found] == ["MatMulV2", "MatMulV2_1", "MatMulV2_2"]
    assert found[0]["fx_node"] == "addmm"
    assert main(["ops", str(OPTIMIZED), "--not-dumped", "--json"]) == 0
    assert {one["type"] for one in json.loads(capsys.readouterr().out)["operators"]} == {"Data"}


def test_ops_tells_a_file_that_is_no_graph(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("print()\n")
    assert main(["ops", str(path)]) == 3
    assert "not a graph file of torchair" in capsys.readouterr().err


# Records.


@pytest.fixture
def dumped(tmp_path, monkeypatch):
    """What the device writes of two operators of graph_1."""
    monkeypatch.chdir(tmp_path)
    dumps = tmp_path / "dumps"
    (dumps / "worldsize1_global_rank0").mkdir(parents=True)
    npu = Npu(environ={})
    options = {"ge.exec.enableDump": "1", "ge.exec.dumpPath": str(dumps / "worldsize1_global_rank0")}
    assert npu.arm_ge({**options, "ge.exec.dumpMode": "all"}) == 0
    model = npu.load_model("graph_1", ops=[NodeInfo("Relu_1", "Relu"), NodeInfo("Fused", "Fused")])
    npu.begin_step(model, 0)
    for name, kind in (("Relu_1", "Relu"), ("Fused", "Fused")):
        npu.run_op(kind, name, [np.ones(2, "f4")], [np.ones(2, "f4")], model_id=model)
    return dumps


def sources(path: Path) -> dict[str, Any]:
    return {record.op_name: record.source for record in ascend_dump.open(path)}


@pytest.mark.parametrize("place", ["dumps", "dumps/worldsize1_global_rank0", "."])
def test_records_know_their_line_from_a_graph_beside_the_dump(dumped, tmp_path, place):
    assert sources(dumped) == {"Relu_1": None, "Fused": None}
    (tmp_path / place / OPTIMIZED.name).write_text(OPTIMIZED.read_text())
    assert sources(dumped) == {"Relu_1": "/home/user/mlp.py:97", "Fused": None}
    (record, _) = ascend_dump.open(dumped).select(op="Relu_1")
    assert record.source == "/home/user/mlp.py:97"


def test_only_the_graph_of_the_same_number_and_rank_counts(dumped, tmp_path):
    for number, rank in ((2, 0), (1, 1)):
        (tmp_path / NAME.format(number, rank)).write_text(OPTIMIZED.read_text())
    assert sources(dumped)["Relu_1"] is None


def test_the_last_graph_after_the_passes_wins(dumped, tmp_path):
    text = OPTIMIZED.read_text()
    for name, line in (
        ("dynamo_optimized_graph_1_rank_0_pid_7_ts_20261121000000000000.py", "1"),
        ("dynamo_optimized_graph_1_rank_0_pid_7_ts_20261121000000000001.py", "2"),
        ("dynamo_original_graph_1_rank_0_pid_7_ts_20261121000000000002.py", "3"),
    ):
        (tmp_path / name).write_text(text.replace("line 97", f"line {line}"))
    assert sources(dumped)["Relu_1"] == "/home/user/mlp.py:2"


def test_a_broken_graph_costs_the_lines_only(dumped, tmp_path):
    (tmp_path / NAME.format(1, 0)).write_text("nothing")
    assert sources(dumped) == {"Relu_1": None, "Fused": None}


def test_nodes_of_eager_dumps_have_lines_too(tmp_path):
    step = tmp_path / "worldsize1_global_rank0" / "graph_1" / "0"
    step.mkdir(parents=True)
    np.save(step / "t_1-aten.t.default.OUTPUT.0.20261121015241486262", np.ones(1))
    (tmp_path / ORIGINAL.name).write_text(ORIGINAL.read_text())
    assert sources(tmp_path) == {"t_1": "/home/user/mlp.py:97"}

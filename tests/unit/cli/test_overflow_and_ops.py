"""The verbs `overflow` and `ops`, as a user sees them."""

from __future__ import annotations

import json
import os
import shutil

import msgspec
import numpy as np
import pytest
from places import DATA

from ascend_dump.cli import Exit, main
from ascend_dump.dump_format import Line
from ascend_dump.native.cann.dump_file import tensor_of, write
from ascend_dump.native.cann.names import DumpLevels, build_levels
from ascend_dump.native.cann.overflow import encode_overflow

OVERFLOW = DATA / "cann" / "in_overflow"
GRAPHS = DATA / "ge_proto"
TRAIN = GRAPHS / "ge_proto_00000017_graph_1_Build.txt"


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_every_overflow_is_shown_with_its_operator_and_its_meaning(run):
    code, out, err = run("overflow", OVERFLOW)
    assert (code, err) == (Exit.DIFFERENT, "")
    parts = out.split("\n\n")[:5]
    assert [part.splitlines()[0] for part in parts] == [
        "1. Pooling pool1  (first)",
        "2. Pooling pool1",
        "3. operator unknown: the directory of the overflow report has no file of the same task and stream",
        "4. Pooling pool1",
        "5. Pooling pool1",
    ]
    assert "status 272 (0x110)" in parts[1]
    assert "- integer add, subtract, multiply or multiply-accumulate (0x10)" in parts[1]
    # The numbers of msaccucmp's own summary of these files.
    row = next(line for line in parts[0].splitlines() if line.split()[0] == "output").split()
    assert row[1:5] == ["0", "float16", "[2,3]", "ND"]
    assert [float(cell) for cell in row[5:8]] == [65504.0, -1.0, 10919.5]


def test_the_document_of_an_overflow(run):
    code, out, _ = run("overflow", OVERFLOW, "--json", "-n", 2)
    document = json.loads(out)
    assert (code, document["schema"], document["total"]) == (Exit.DIFFERENT, "ascend-dump/overflow/1", 5)
    first, second = document["overflows"]
    assert first["document"] == json.loads(
        next((DATA / "cann" / "msaccucmp_overflow").glob("*OpDebug.59*")).read_text()
    )
    assert (second["unit"], second["status"], second["task_id"], second["thread_id"]) == ("AIC", [272], 57, None)
    tensors = first["operator"]["tensors"]
    assert [(tensor["io"], tensor["statistics"]["max"]) for tensor in tensors] == [
        ("input", 1.4541015625),
        ("output", 65504.0),
    ]


def write_record(directory, stamp, *, task=57, status=32):
    directory.mkdir(parents=True, exist_ok=True)
    ids = {"stream_id": 7, "task_id": task, "context_id": 65535, "thread_id": 65535, "status": status}
    document = {"magic": "", "acc_list": {"acc_type": "AIC", "data": ids}}
    payload = np.frombuffer(encode_overflow(document), "u1")
    path = directory / f"Opdebug.Node_OpDebug.1.1.{stamp}"
    write(path, [tensor_of("output", 0, payload, address=1)], op_name="Node_OpDebug", dump_time=stamp)
    return path


def test_overflows_of_several_steps_and_devices_come_in_the_order_of_time(run, tmp_path):
    stamp = 1589195081588018
    for number, (device, step) in enumerate([(1, 0), (0, 2), (0, 1)]):
        place = tmp_path.joinpath(*build_levels(DumpLevels("20260101010101", device, "m", 1, step)))
        write_record(place, stamp + number * 10, task=number)
        operator = place / f"Add.op_{number}.{number}.7.{stamp + number * 10 - 1}"
        write(operator, [tensor_of("output", 0, np.ones(2, "f4"), address=1)], op_name=f"op/{number}", dump_time=stamp)
    _, out, _ = run("overflow", tmp_path)
    assert [line for line in out.splitlines() if line[:1].isdigit()] == [
        "1. Add op/0  (first)",
        "2. Add op/1",
        "3. Add op/2",
    ]
    assert "step 0 · device 1" in out
    _, out, _ = run("overflow", tmp_path, "--step", "1", "--json")
    assert [one["record"]["step"] for one in json.loads(out)["overflows"]] == [1]
    # Nobody knows whether that step ran.
    assert run("overflow", tmp_path, "--step", "7")[0] == Exit.UNREADABLE


def test_without_overflow_the_exit_code_is_0(run, tmp_path):
    write(
        tmp_path / "Add.a.1.2.1589195081588018",
        [tensor_of("output", 0, np.ones(2, "f4"), address=1)],
        op_name="a",
        dump_time=0,
    )
    assert run("overflow", tmp_path) == (Exit.OK, "no overflow: 1 operator checked\n", "")
    write_record(tmp_path, 1589195081588018, status=0)
    code, out, err = run("overflow", tmp_path)
    assert (code, out) == (Exit.OK, "no overflow: 1 operator checked\n")
    assert "every status is 0" in err
    document = json.loads(run("overflow", tmp_path, "--json")[1])
    assert (document["answer"], document["overflows"], document["reasons"]) == ("none", [], [])


def test_a_record_that_cannot_be_decoded_is_told_and_the_others_are_shown(run, tmp_path):
    shutil.copytree(OVERFLOW, tmp_path / "dump")
    path = next((tmp_path / "dump").glob("*OpDebug.60*"))
    path.chmod(0o600)
    os.truncate(path, 200)
    code, out, err = run("overflow", tmp_path)
    assert code == Exit.DIFFERENT
    assert "4. Pooling pool1" in out
    assert "5." not in out
    assert "1 record cannot be read" in err
    for other in (tmp_path / "dump").glob("Opdebug*"):
        other.chmod(0o600)
        other.write_bytes(b"")
    code, out, err = run("overflow", tmp_path)
    assert code == Exit.UNREADABLE
    assert out.startswith("not checked, so nothing is known:\n   - 5 records cannot be read\n")


def test_what_could_be_read_is_told_beside_what_could_not(run, tmp_path):
    for number, name in enumerate(("a", "b")):
        write(
            tmp_path / f"Add.{name}.1.2.158919508158801{number}",
            [tensor_of("output", 0, np.ones(64, "f4"), address=1)],
            op_name=name,
            dump_time=0,
        )
    os.truncate(tmp_path / "Add.b.1.2.1589195081588011", 200)
    code, out, _ = run("overflow", tmp_path)
    assert code == Exit.UNREADABLE
    head = "no overflow in the 1 operator that could be read; not everything could be checked:"
    assert out == f"{head}\n   - 1 record cannot be read\n"


def test_on_the_host_the_operators_that_made_nan_of_finite_inputs_are_the_overflows(run, tmp_path):
    place = tmp_path / "worldsize1_global_rank0" / "20260102030405" / "0" / "Net" / "0" / "3"
    place.mkdir(parents=True)

    def line(seq, name, io, origin):
        stats = (2, "inf" if io == "output" else 1.0, 0.0, 1.0, 1.0, 0, 1 if io == "output" else 0, 0, 0, 0, 0)
        return Line(
            seq=seq, op_type="aten::exp", op_name=name, io=io, index=0, time=1_700_000_000_000_000 + seq,
            dtype="float32", shape=(2,), nbytes=8, origin=origin, stats=stats,
        )  # fmt: skip

    lines = [line(0, "exp_0", "input", False), line(0, "exp_0", "output", True), line(1, "relu_0", "output", False)]
    (place / "index.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
    code, out, _ = run("overflow", tmp_path)
    assert code == Exit.DIFFERENT
    assert [text for text in out.splitlines() if text[:1].isdigit()] == ["1. aten::exp exp_0  (first)"]
    assert "NaN or Inf of finite inputs" in out
    assert [text.split()[0] for text in out.splitlines() if "float32" in text] == ["input", "output"]


# ops


def test_ops_lists_names_for_layers_and_why_some_are_never_dumped(run):
    code, out, err = run("ops", TRAIN)
    assert (code, err) == (Exit.OK, "")
    lines = out.splitlines()
    assert lines[0].endswith("model ge_default_20240613143502_1")
    assert lines[1].split("  ")[0] == "name"
    rows = {line.split()[0]: line for line in lines[2:8]}
    assert "_no_task" in rows["Node_Output"]
    assert rows["dense/MatMul"].split()[-1] == "-"
    assert "dense/BiasAdd, Relu" in rows["dense/BiasAdd_Relu"]
    assert lines[-1] == "6 operators"


def test_ops_of_a_directory_takes_the_computational_graph(run, tmp_path):
    assert run("ops", GRAPHS)[1] == run("ops", TRAIN)[1]
    shutil.copy(TRAIN, tmp_path / "ge_proto_00000001_graph_1_Build.txt")
    text = TRAIN.read_text().replace("dense/BiasAdd_Relu", "other/BiasAdd")
    (tmp_path / "ge_proto_00000002_graph_2_Build.txt").write_text(text)
    code, _, err = run("ops", tmp_path)
    assert code == Exit.USAGE
    assert "2 of them fit" in err
    code, out, _ = run("ops", tmp_path, "--name", "other/*")
    assert (code, out.splitlines()[-1]) == (Exit.OK, "1 operator")
    assert run("ops", tmp_path / "none")[0] == Exit.UNREADABLE
    (tmp_path / "empty").mkdir()
    assert run("ops", tmp_path / "empty")[0] == Exit.UNREADABLE


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--type", "MatMul*"], ["dense/MatMul"]),
        (["--type", "IteratorGetNext"], ["IteratorGetNext"]),
        (["--name", "Relu"], ["dense/BiasAdd_Relu"]),
        (["--name", "re:^dense/[kM]", "--dumped"], ["dense/MatMul"]),
        (["--not-dumped"], ["dense/kernel", "Node_Output"]),
        (["--name", "nothing"], []),
    ],
)
def test_ops_narrows_and_writes_one_document(run, arguments, names):
    code, out, _ = run("ops", TRAIN, "--json", *arguments)
    document = json.loads(out)
    assert (code, document["schema"], document["error"]) == (Exit.OK, "ascend-dump/ops/1", None)
    assert [one["name"] for one in document["operators"]] == names


def test_ops_of_a_cut_graph_shows_what_is_there(run, tmp_path):
    path = tmp_path / "ge_proto_00000001_graph_1_Build.txt"
    path.write_bytes(TRAIN.read_bytes()[:3000])
    code, out, err = run("ops", path)
    assert code == Exit.UNREADABLE
    assert "dense/kernel" in out
    assert "AD401" in err
    code, out, _ = run("ops", path, "--json")
    document = json.loads(out)
    assert code == Exit.UNREADABLE
    assert document["error"]["code"] == "AD401"
    assert document["operators"]


# --- MindSpore -----------------------------------------------------------------------------

MINDSPORE_GRAPH = DATA / "mindspore/conv_iter_0_2/rank_0/graphs/ms_output_trace_code_graph_0.ir"


def test_ops_lists_the_operators_of_mindspores_ir(run):
    code, out, err = run("ops", MINDSPORE_GRAPH)
    assert (code, err) == (Exit.OK, "")
    rows = {line.split()[0]: line for line in out.splitlines()[2:-2]}
    assert rows["Default/fc-Dense/MatMul-op0"].split() == [
        "Default/fc-Dense/MatMul-op0",
        "MatMul",
        "/home/user/nets.py:12",
        "-",
    ]
    assert "no kernel" in rows["Default/fc-Dense/Load-op0"]


def test_ops_of_an_ir_that_can_be_dumped_are_those_that_ran(run):
    order = MINDSPORE_GRAPH.parents[1] / "execution_order/ms_execution_order_graph_0.csv"
    code, out, _ = run("ops", MINDSPORE_GRAPH, "--dumped", "--json")
    found = json.loads(out)
    assert (code, found["schema"], found["error"]) == (Exit.OK, "ascend-dump/ops/1", None)
    assert [one["name"] for one in found["operators"]] == order.read_text().split()[1:]
    assert run("ops", MINDSPORE_GRAPH, "--type", "Conv*", "--name", "*conv1*")[1].endswith("\n1 operator\n")


def test_an_ir_without_operators_is_refused(run, tmp_path):
    (tmp_path / "empty.ir").touch()
    for name in ("empty.ir", "missing.ir"):
        code, _, err = run("ops", tmp_path / name)
        assert code == Exit.UNREADABLE
        assert name in err


GE_PLACE = "7/20260101120000/3/kernel_graph0/1/0"


def put_array(directory, name, value):
    directory.mkdir(parents=True, exist_ok=True)
    np.save(directory / f"{name}.DefaultFormat.float16.npy", np.array([value, 1], "f2"))


def test_the_json_of_mindspore_names_the_operator_with_all_its_tensors(run, tmp_path):
    place = tmp_path / GE_PLACE
    put_array(place, "Mul.Default_Mul-op0.57.7.1700000000000001.input.0", 2)
    put_array(place, "Mul.Default_Mul-op0.57.7.1700000000000002.output.0", np.inf)
    put_array(place, "Add.Default_Add-op0.58.7.1700000000000003.output.0", 5)
    data = {"stream_id": 7, "task_id": 57, "status": 32}
    record = place / "Opdebug.Node_OpDebug.57.7.1700000000000004.output.0.json"
    record.write_text(json.dumps({"AI Core": data}))
    code, out, err = run("overflow", tmp_path)
    assert (code, err) == (Exit.DIFFERENT, "")
    assert out.startswith("1. Mul Default_Mul-op0  (first)")
    assert "floating-point calculation (0x20)" in out
    assert [line.split()[0] for line in out.splitlines() if "[2]" in line] == ["input", "output"]
    assert "Add" not in out
    code, out, _ = run("overflow", tmp_path, "--json")
    [one] = json.loads(out)["overflows"]
    assert (one["unit"], one["status"], one["document"]) == ("AI Core", [32], {"AI Core": data})


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "{}",
        '{"a": 1}',
        '{"AI Core": 5}',
        '{"AI Core": {"status": {}}}',
        '{"AI Core": {"status": -1}}',
        '{"DHA Atomic Add": {"task_id": "x"}}',
        '{"magic": "0x5a5a5a5a"}',
        '{"magic": "", "acc_list": {"acc_type": "none", "data": {}}}',
        '{"magic": "", "acc_list": {"acc_type": "AIC", "data": [], "data_len": 1e99}}',
    ],
)
def test_a_json_that_is_no_overflow_is_unreadable(run, tmp_path, text):
    place = tmp_path / GE_PLACE
    place.mkdir(parents=True)
    (place / "Opdebug.Node_OpDebug.57.7.1700000000000004.output.0.json").write_text(text)
    code, out, err = run("overflow", tmp_path)
    assert code == Exit.UNREADABLE
    assert out.startswith("not checked")
    assert "Node_OpDebug" in err


def overflow_tree(root, mode=3):
    root.mkdir()
    config = {"common_dump_settings": {"op_debug_mode": mode}}
    (root.parent / f"mindspore-{root.name}.json").write_text(json.dumps(config))
    for step, value in ((0, np.inf), (2, 65504)):
        stamp = 1700000000000001 + 10 * step
        place = root / f"rank_0/Net/0/{step}"
        put_array(place, f"Mul.Default_Mul-op0.0.0.{stamp}.input.0", 2)
        put_array(place, f"Mul.Default_Mul-op0.0.0.{stamp + 1}.output.0", value)
    return root


def test_a_tree_of_o0_holds_the_operators_that_overflowed(run, tmp_path):
    root = overflow_tree(tmp_path / "run")
    code, out, err = run("overflow", root)
    assert (code, err) == (Exit.DIFFERENT, "")
    heads = [line for line in out.splitlines() if line[:2] in ("1.", "2.", "3.")]
    assert heads == ["1. Mul Default_Mul-op0  (first)", "2. Mul Default_Mul-op0"]
    assert "step 2" in out
    code, out, _ = run("overflow", root, "--step", "2", "--json")
    [one] = json.loads(out)["overflows"]
    assert [tensor["statistics"]["max"] for tensor in one["operator"]["tensors"]] == [2.0, 65504.0]
    assert (one["record"]["step"], one["status"]) == (2, [])


@pytest.mark.parametrize("why", ["another mode", "no file", "a link", "not an object", "a cpu"])
def test_a_tree_that_does_not_tell_its_scene_says_so(run, tmp_path, why):
    root = overflow_tree(tmp_path / "run", mode=0 if why == "another mode" else 3)
    config = tmp_path / "mindspore-run.json"
    if why == "no file":
        config.unlink()
    elif why == "a link":
        config.rename(tmp_path / "other.json")
        config.symlink_to(tmp_path / "other.json")
    elif why == "not an object":
        config.write_text('{"common_dump_settings": 3}')
    elif why == "a cpu":
        (root / "rank_0/.dump_metadata").mkdir()
    # Inf shows without the report too; the other operator, whose values are finite, does not.
    code, out, err = run("overflow", root)
    assert code == Exit.DIFFERENT
    assert [line for line in out.splitlines() if line[:2] in ("1.", "2.")] == ["1. Mul Default_Mul-op0  (first)"]
    assert "NaN or Inf of finite inputs" in out
    code, out, err = run("overflow", root, "--step", "2")
    assert (code, out) == (Exit.OK, "no overflow: 1 operator checked\n")
    assert "op_debug_mode 3, every operator in it overflowed" in err


@pytest.mark.parametrize("where", ["beside", "inside", "the environment"])
def test_the_dump_json_that_mindspore_was_given_tells_the_scene(run, tmp_path, monkeypatch, where):
    root = overflow_tree(tmp_path / "run")
    (tmp_path / "mindspore-run.json").unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    config = {"beside": tmp_path, "inside": root, "the environment": elsewhere}[where] / "dump.json"
    assert main(["config", "--for", "mindspore", "--scene", "overflow", "--path", str(root), "-o", str(config)]) == 0
    if where == "the environment":
        monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", str(config))
    code, out, _ = run("overflow", root)
    assert code == Exit.DIFFERENT
    heads = [line for line in out.splitlines() if line[:2] in ("1.", "2.")]
    assert heads == ["1. Mul Default_Mul-op0  (first)", "2. Mul Default_Mul-op0"]

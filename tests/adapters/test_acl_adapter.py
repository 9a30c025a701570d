"""The adapter `acl` where the contract does not look: both roads, refusals, and what it says beforehand."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from acl_helpers import execute
from findings import findings
from places import DATA

import ascend_dump
from ascend_dump import fakes
from ascend_dump.cli import Exit, main
from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save
from ascend_dump.native.cann.acl_codes import AclError


@pytest.fixture
def npu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ASCEND_DUMP_PATH", "ASCEND_WORK_PATH", "NPU_COLLECT_PATH", "ASCEND_DUMP_SCENE"):
        monkeypatch.delenv(name, raising=False)
    with fakes.install("acl") as device:
        yield device


@pytest.fixture
def acl(npu):
    import acl

    return acl


@pytest.fixture
def om(tmp_path):
    nodes = (OfflineNode("first/Relu", "Relu", ("x:0",)), OfflineNode("second", "Mul", ("first/Relu:0", "x:0")))
    path = tmp_path / "net.om"
    save(OfflineModel("net", (TensorSpec("x", (4,), "float32"),), nodes, ("second:0",), True), path)
    return str(path)


def load(acl: Any, om: str) -> int:
    assert acl.rt.set_device(0) == 0
    model, ret = acl.mdl.load_from_file(om)
    assert ret == 0
    return model


def capture(**settings: Any) -> ascend_dump.Capture:
    return ascend_dump.capture(settings.pop("target", None), framework="acl", path="dumps", **settings)


X = np.array([-1, 0, 2, 3], np.float32)


# The two roads.


def test_an_initialised_acl_is_armed_for_the_block(acl, npu, om, tmp_path):
    acl.init()
    with capture() as cap:
        assert npu.dump_root is not None
        result = execute(acl, load(acl, om), X)
    assert (npu.dump_root, result.tolist()) == (None, [0, 0, 4, 9])
    assert cap.path.parent.parent == tmp_path / "dumps"
    names = {(record.op_name, record.io) for record in cap.dump() if record.op_type != "Data"}
    assert names == {(name, io) for name in ("first/Relu", "second") for io in ("input", "output")}
    [record] = cap.dump().select(op="second", io="output")
    assert (record.numpy().tolist(), record.rank, record.step, record.model) == ([0, 0, 4, 9], 0, 0, "net")
    assert acl.mdl.init_dump() == 0, "the dump interface is free again"


def test_an_acl_that_is_not_initialised_gets_the_file(acl, npu, om):
    with capture(layers="second", mode="output") as cap:
        assert npu.dump_root is None
        assert isinstance(cap.config, str)
        settings = json.loads(Path(cap.config).read_text())["dump"]
        assert settings["dump_list"] == [{"layer": ["second"]}]
        assert acl.init(cap.config) == 0
        model = load(acl, om)
        execute(acl, model, X)
    assert cap.config is None
    assert npu.dump_root is None
    files = list(npu.files)
    execute(acl, model, X)
    assert npu.files == files
    assert {record.op_name for record in cap.dump() if record.op_type != "Data"} == {"second"}


def test_a_whole_life_of_acl_fits_into_the_block(acl, om):
    with capture(strict=True) as cap:
        acl.init(cap.config)
        execute(acl, load(acl, om), X)
        acl.finalize()
    assert len(cap.dump()) > 0


def test_acl_may_be_finalised_inside_an_armed_block(acl, om):
    acl.init()
    with capture(strict=True) as cap:
        execute(acl, load(acl, om), X)
        acl.finalize()
    assert len(cap.dump()) > 0


def test_each_call_of_a_decorated_function_is_a_step(acl, om):
    @ascend_dump.capture(framework="acl", path="dumps", layers="second")
    def infer(x: np.ndarray) -> np.ndarray:
        model = load(acl, om)
        result = execute(acl, model, x)
        acl.mdl.unload(model)
        return result

    acl.init()
    for number in range(2):
        assert infer(X).tolist() == [0, 0, 4, 9]
        assert {record.step for record in infer.capture.dump()} == set(range(number + 1))
    infer.capture.stop()


def test_other_adapters_have_no_configuration_file(tmp_path):
    torch = pytest.importorskip("torch")
    with ascend_dump.capture(framework="torch", path=tmp_path / "dumps") as cap:
        torch.ones(2) + 1
        assert cap.config is None


def test_without_a_framework_name_the_imported_acl_is_taken(acl, npu, om):
    acl.init()
    with ascend_dump.capture(path="dumps"):
        assert npu.dump_root is not None
        execute(acl, load(acl, om), X)


def test_the_file_is_private_and_stands_beside_the_dump(acl, tmp_path):
    cap = capture().start()
    file = Path(cap.config)
    assert (file.parent, file.stat().st_mode & 0o777) == (cap.path.parent, 0o600)
    assert list(cap.path.iterdir()) == []
    cap.stop()


def test_the_watcher_is_captured_and_read(acl, npu, om, capsys):
    from ascend_dump.cli import main

    npu.trample("second", "first/Relu", offset=8, data=np.float32(5).tobytes())
    acl.init()
    with capture(scene="watch", watch="first/Relu", layers="second") as cap:
        execute(acl, load(acl, om), X)
    assert main(["watch", str(cap.path), "--json"]) == 1
    [found] = json.loads(capsys.readouterr().out)["tramples"]
    assert [found[name] for name in ("layer", "watched", "before", "after")] == ["second", "first_Relu", 2.0, 5.0]


def test_a_suspect_that_runs_first_is_told_before_and_after(acl, npu, om, capsys, tmp_path):
    from ascend_dump.cli import main

    graph = tmp_path / "ge_proto_00000001_Build.txt"
    operators = "".join(f'  op {{\n    name: "{name}"\n    type: "Relu"\n  }}\n' for name in ("first/Relu", "second"))
    graph.write_text(f'graph {{\n  name: "net"\n{operators}}}\n')
    acl.init()
    with capture(scene="watch", watch="second", layers="first/Relu", options={"graph": str(graph)}) as cap:
        execute(acl, load(acl, om), X)
    assert [one.severity for one in cap.problems if "runs before every watched operator" in one.message] == ["silent"]
    assert main(["check", str(cap.path.with_name(f"acl-{cap.path.name}.json")), "--graph", str(graph)]) == 1
    assert main(["watch", str(cap.path)]) == 3
    assert "nothing was compared" in capsys.readouterr().err


# Refusals.


def test_a_loaded_model_comes_too_late(acl, npu, om):
    acl.init()
    model = load(acl, om)
    with pytest.raises(ascend_dump.ConfigError, match="is loaded already") as refused:
        capture(target=model).start()
    assert (refused.value.code, npu.dump_root) == ("AD230", None)


def test_only_models_loaded_in_the_block_are_dumped_and_the_warning_says_so(acl, om, caplog):
    acl.init()
    model = load(acl, om)
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture():
        execute(acl, model, X)
    assert "the capture wrote nothing" in caplog.text
    assert "loaded before the dump was set is not dumped" in caplog.text


def test_a_file_that_nobody_used_is_told(acl, om, caplog):
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(layers="second", steps="7"):
        acl.init()
        execute(acl, load(acl, om), X)
    text = caplog.text
    assert text.index("acl.init was not given cap.config") < text.index("CANN compares exact names")
    assert "steps=7" in text


def test_no_overflow_is_a_good_result(acl, om, caplog):
    acl.init()
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(scene="overflow") as cap:
        execute(acl, load(acl, om), X)
    assert "wrote nothing" not in caplog.text
    assert len(cap.dump()) == 0
    for path in (cap.path, cap.request.path):
        assert main(["overflow", str(path)]) == Exit.OK


@pytest.mark.parametrize(
    ("call", "code", "error", "ours"),
    [
        ("init_dump", AclError.REPEAT_INITIALIZE, ascend_dump.CaptureError, "AD302"),
        ("set_dump", AclError.INVALID_DUMP_CONFIG, ascend_dump.ConfigError, "AD110"),
        ("set_dump", AclError.FEATURE_UNSUPPORTED, ascend_dump.NotSupported, "AD203"),
        ("set_dump", AclError.INTERNAL_ERROR, ascend_dump.AscendDumpError, "AD200"),
    ],
)
def test_what_acl_refuses_is_a_typed_error_with_the_name_of_its_code(acl, monkeypatch, call, code, error, ours):
    acl.init()
    monkeypatch.setattr(acl.mdl, call, lambda *args: int(code))
    monkeypatch.setattr(acl, "get_recent_err_msg", lambda: "EZ9999: as CANN says it")
    with pytest.raises(error, match=f"acl.mdl.{call} returned {int(code)} ACL_ERROR_{code.name}") as refused:
        capture().start()
    assert refused.value.code == ours
    assert "EZ9999: as CANN says it" in str(refused.value)
    monkeypatch.undo()
    assert acl.mdl.init_dump() == 0, "what had begun is taken back"


def test_a_second_capture_is_refused_while_one_is_on(acl):
    acl.init()
    with capture(), pytest.raises(ascend_dump.CaptureError, match="a capture by acl is dumping"):
        capture().start()


def test_a_failure_to_end_the_dump_is_told(acl, monkeypatch):
    acl.init()
    cap = capture(strict=True).start()
    monkeypatch.setattr(acl.mdl, "finalize_dump", lambda: 500000)
    with pytest.raises(ascend_dump.AscendDumpError, match="finalize_dump returned 500000"):
        cap.stop()


# What it says beforehand.


def problems(**settings: Any) -> list[Any]:
    return findings("acl", ascend_dump.DumpRequest(**settings), None)


def found(severity: str, text: str, **settings: Any) -> bool:
    return any(one.severity == severity and text in one.message for one in problems(**settings))


def test_loops_are_warned_of_where_steps_do_not_limit_them(npu):
    assert found("warning", "each execution of a model adds data")
    assert not found("warning", "each execution of a model adds data", steps="0")


def test_overflow_needs_a_model_built_for_it(npu):
    assert found("warning", "--status_check=1", scene="overflow")
    assert not found("warning", "--status_check=1", scene="overflow", options={"status_check": True})
    assert found("silent", "--status_check=1", scene="overflow", options={"status_check": False})


def test_the_environment_is_reported(npu, monkeypatch):
    monkeypatch.setenv("NPU_COLLECT_PATH", "/tmp")
    assert found("silent", "NPU_COLLECT_PATH is set")
    monkeypatch.delenv("NPU_COLLECT_PATH")
    for name in ("ASCEND_DUMP_PATH", "ASCEND_WORK_PATH"):
        monkeypatch.setenv(name, "/elsewhere")
        assert found("silent", f"{name}=/elsewhere is used instead", scene="exception")
        assert not found("silent", f"{name}=/elsewhere", path="dumps")
        monkeypatch.delenv(name)


def test_a_path_that_ge_refuses_is_told_before_it_exists(npu):
    assert found("silent", "characters that GE refuses", path="my dumps")
    assert not found("silent", "characters that GE refuses", path="my_dumps")
    assert found("error", "512 characters", path="a" * 200 + "/" + "b" * 200 + "/" + "c" * 200)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"data": "full"}, "AD203"),
        ({"quant": True}, "AD203"),
        ({"layers": "*conv*"}, "AD203"),
        ({"options": {"nonsense": 1}}, "AD101"),
        ({"options": {"graph": "none.txt"}}, "AD403"),
    ],
)
def test_what_cannot_be_asked_of_cann_is_an_error(npu, settings, code):
    assert [one.code for one in problems(**settings) if one.severity == "error"] == [code]


def test_a_limit_of_size_is_not_kept(npu):
    assert found("silent", "no limit on the size", max_bytes="1GB")


def test_patterns_are_expanded_with_the_graph(acl, npu):
    graph = DATA / "ge_proto" / "ge_proto_00000009_graph_11_Build.txt"
    from ascend_dump.native.cann.graph import read_graph

    names = [node.name for node in read_graph(graph)]
    with capture(layers="*", options={"graph": str(graph)}) as cap:
        settings = json.loads(Path(cap.config).read_text())["dump"]
    assert settings["dump_list"] == [{"layer": names}]


def test_a_container_is_recognised_by_its_marks(tmp_path, monkeypatch):
    from ascend_dump.native.cann.config.situation import in_container

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert not in_container(tmp_path)
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "proc" / "1" / "cgroup").write_text("0::/init.scope\n")
    assert not in_container(tmp_path)
    (tmp_path / "proc" / "1" / "cgroup").write_text("12:pids:/kubepods/besteffort/pod1\n")
    assert in_container(tmp_path)
    (tmp_path / "proc" / "1" / "cgroup").unlink()
    (tmp_path / ".dockerenv").touch()
    assert in_container(tmp_path)


def test_a_container_is_warned_of(npu, monkeypatch):
    monkeypatch.setattr("ascend_dump_acl._settings.in_container", lambda: True)
    assert found("warning", "the dump of offline models is not supported inside a container")
    monkeypatch.setattr("ascend_dump_acl._settings.in_container", lambda: False)
    assert not found("warning", "inside a container")

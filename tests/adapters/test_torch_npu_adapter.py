"""The adapter `torch_npu` where the contract does not look: what is on when, refusals, and what it says beforehand."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from findings import findings

torch = pytest.importorskip("torch")

import ascend_dump  # noqa: E402
from ascend_dump import fakes  # noqa: E402
from ascend_dump.cli import Exit, main  # noqa: E402

ENVIRONMENT = (
    "ACL_DUMP_DATA",
    "ASCEND_DUMP_PATH",
    "ASCEND_DUMP_SCENE",
    "ASCEND_WORK_PATH",
    "NPU_COLLECT_PATH",
    "TORCH_ACL_INIT_CONFIG_PATH",
)


@pytest.fixture
def npu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    with fakes.install("torch_npu") as device:
        yield device


@pytest.fixture
def torch_npu(npu):
    import torch_npu

    return torch_npu


@pytest.fixture
def model(npu):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).npu()


def x() -> Any:
    return torch.arange(8.0).reshape(2, 4).npu()


def capture(target: Any = None, **settings: Any) -> Any:
    return ascend_dump.capture(target, **{"framework": "torch_npu", "path": "dumps", **settings})


def calls_of(cap: Any, api: str) -> int:
    return len([one for one in cap.dump().select(op_type=api, io="output") if one.kernel is None])


# What is on when.


def test_only_selected_steps_have_the_dump_on(npu, model):
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append(npu.dump_root is not None))
    with capture(model, steps="1|3") as cap:
        for _ in range(5):
            model(x())
        assert npu.dump_root is None
        model(x())
    assert seen == [False, True, False, True, False, False]
    assert cap.dump().known_values("step") == {1, 3}


def test_a_step_holds_the_backward_pass_and_the_update(npu, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture(model, steps="1") as cap:
        for _ in range(3):
            optimizer.zero_grad()
            model(x()).square().sum().backward()
            optimizer.step()
    types = {record.op_type for record in cap.dump()}
    products = {"aclnnAddmm", "aclnnMm"}
    assert {*products, "aclnnRelu", "aclnnThresholdBackward", "aclnnReduceSum"} <= types
    assert any("Foreach" in op_type or op_type == "aclnnInplaceAdd" for op_type in types), "the update"


def test_values_are_those_of_the_run(npu, model):
    with capture(model, steps="0", mode="output") as cap:
        result = model(x()).detach().cpu()
    *_, last = [record for record in cap.dump().select(op_type="aclnnAddmm") if record.kernel == "MatMulCommon"]
    assert torch.equal(torch.from_numpy(last.numpy().copy()), result)
    assert (last.step, last.rank, last.device, last.model) == (0, 0, 0, None)
    assert {record.io for record in cap.dump()} == {"output"}


def test_the_device_is_waited_for_at_every_switch(npu, torch_npu, model, monkeypatch):
    calls = []
    for name in ("init_dump", "set_dump", "finalize_dump"):
        plain = getattr(torch_npu.npu.utils, name)
        monkeypatch.setattr(torch_npu.npu.utils, name, lambda *a, n=name, p=plain: (calls.append(n), p(*a)))
    monkeypatch.setattr(torch_npu.npu, "synchronize", lambda: calls.append("wait"))
    with capture(model, steps="0|1"):
        for _ in range(3):
            model(x())
    on, off = ["wait", "init_dump", "set_dump", "wait"], ["wait", "finalize_dump"]
    assert calls == [*on, *off, *on, *off]


def test_without_a_target_the_program_draws_the_steps(npu):
    with capture(steps="0|2") as cap:
        for _ in range(3):
            x().relu()
            cap.step()
    assert cap.dump().known_values("step") == {0, 2}


def test_each_call_of_a_decorated_function_is_a_step(npu):
    @ascend_dump.capture(framework="torch_npu", path="dumps", steps="1")
    def infer(value: Any) -> Any:
        return value.relu()

    for _ in range(3):
        infer(x())
        (x() * 2).cpu()
    assert {(record.op_type, record.step) for record in infer.capture.dump()} == {("aclnnRelu", 1)}
    assert npu.dump_root is None


def test_calls_inside_a_call_are_no_steps(npu, model):
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, value: Any) -> Any:
            self.inner(value)
            return self.inner(value)

    outer = Twice()
    with capture(model, steps="0") as cap:
        outer(x())
    assert calls_of(cap, "aclnnRelu") == 1
    with capture(outer, steps="0") as cap:
        outer(x())
    assert calls_of(cap, "aclnnRelu") == 2


def test_the_npu_is_not_initialised_by_a_capture(npu, torch_npu):
    with capture(strict=True) as cap:
        assert not torch_npu.npu.is_initialized()
        torch_npu.npu.set_device(0)
        x().relu()
    assert {record.op_type for record in cap.dump()} == {"aclnnRelu"}
    assert npu.dump_root is None


def test_a_dump_that_waited_in_vain_does_not_begin_later(npu, torch_npu, caplog):
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture():
        torch.ones(2).relu()
    assert "nothing used an NPU" in caplog.text
    x().relu()
    assert npu.dump_root is None
    assert npu.files == []


def test_without_a_framework_name_the_device_goes_before_the_host(npu, model):
    with ascend_dump.capture(model, path="dumps", steps="0"):
        model(x())
        assert npu.dump_root is not None


def test_other_threads_are_told(npu, model, caplog):
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(model):
        thread = threading.Thread(target=lambda: model(x()))
        thread.start()
        thread.join()
    assert "called 1 times in threads other than" in caplog.text


def test_files_are_private(npu, model):
    os.umask(0o022)
    with capture(model, steps="0") as cap:
        model(x())
    place = cap.path.parent
    [config] = place.glob("torch_npu-*.json")
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE((cap.path / "0").stat().st_mode) == 0o700
    dump = json.loads(config.read_text())["dump"]
    assert dump["dump_path"] == str(cap.path / "0")
    assert (dump["dump_list"], dump["dump_op_switch"], "dump_step" in dump) == ([], "on", False)


def test_no_overflow_is_a_good_result(npu, model):
    with capture(model, steps="0", scene="overflow", strict=True) as cap:
        model(x())
    assert len(cap.dump()) == 0
    for path in (cap.path, cap.request.path):
        assert main(["overflow", str(path)]) == Exit.OK


# Failures.


def test_a_refusal_at_a_step_is_told_once_and_the_run_goes_on(npu, torch_npu, model, monkeypatch, caplog):
    def refuse(config: str) -> None:
        raise RuntimeError("NPU function error: aclmdlSetDump(), error code is 100009\n[Error]: as torch_npu says it")

    monkeypatch.setattr(torch_npu.npu.utils, "set_dump", refuse)
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(model):
        results = [model(x()).shape for _ in range(3)]
    assert len(results) == 3
    assert caplog.text.count("ACL_ERROR_INVALID_DUMP_CONFIG") == 1
    assert "as torch_npu says it" in caplog.text
    torch_npu.npu.utils.init_dump()  # what had begun was taken back
    torch_npu.npu.utils.finalize_dump()
    with pytest.raises(ascend_dump.ConfigError, match="100009"), capture(model, strict=True):
        model(x())


def test_a_dump_that_somebody_else_ends_is_told(npu, torch_npu, model):
    cap = capture(model, strict=True).start()
    model(x())
    torch_npu.npu.finalize_dump()
    with pytest.raises(ascend_dump.AscendDumpError, match="no dump is on"):
        cap.stop()


def test_a_dump_that_somebody_else_has_begun_is_told(npu, torch_npu, model):
    torch_npu.npu.init_dump()
    with pytest.raises(ascend_dump.CaptureError, match="REPEAT_INITIALIZE") as refused, capture(model, strict=True):
        model(x())
    assert refused.value.code == "AD302"
    torch_npu.npu.utils.finalize_dump()


@pytest.mark.parametrize("wait", [1, 2, 3], ids=["before the start", "after the start", "before the end"])
def test_a_kernel_that_failed_leaves_no_dump_on(npu, torch_npu, model, monkeypatch, caplog, wait):
    plain, waits = torch_npu.npu.synchronize, []

    def synchronize() -> None:
        waits.append(1)
        if len(waits) == wait:
            raise RuntimeError("NPU function error: aclrtSynchronizeDevice, error code is 507015")
        plain()

    monkeypatch.setattr(torch_npu.npu, "synchronize", synchronize)
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(model, steps="0"):
        model(x())
        model(x())
        assert npu.dump_root is None
    assert caplog.text.count("a kernel that the program launched failed on the device: NPU function error") == 1
    with capture(model, steps="0", strict=True):
        model(x())


def test_other_errors_of_torch_npu_are_typed(npu, torch_npu, model, monkeypatch):
    def fail() -> None:
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(torch_npu.npu.utils, "init_dump", fail)
    with pytest.raises(ascend_dump.AscendDumpError, match="init_dump failed: the driver is gone") as refused:  # noqa: SIM117
        with capture(model, strict=True):
            model(x())
    assert refused.value.code == "AD200"


def test_a_full_disk_ends_the_dump_only(npu, model, monkeypatch):
    monkeypatch.setattr("ascend_dump_torch_npu._session.add_private_directory", _no_space)
    with pytest.raises(ascend_dump.CaptureError, match="could not be switched at step 1") as told:  # noqa: SIM117
        with capture(model, strict=True):
            assert model(x()).shape == (2, 2)
    assert told.value.code == "AD305"
    assert "the disk is full or fails" in str(told.value)
    assert "report" not in str(told.value)


def _no_space(path: Path) -> None:
    raise OSError(28, "No space left on device")


def test_one_capture_at_a_time(npu, model):
    with capture(model):
        with pytest.raises(ascend_dump.CaptureError, match="capture by torch_npu is dumping") as refused:
            capture().start()
        assert refused.value.code == "AD302"
    with capture(model, strict=True):
        model(x())


def test_acl_and_torch_npu_share_one_interface(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fakes.install("acl", "torch_npu"):
        import torch_npu

        torch_npu.npu.init()
        with ascend_dump.capture(framework="acl", path="dumps"):
            with pytest.raises(ascend_dump.CaptureError, match="capture by acl is dumping") as refused:
                capture().start()
            assert refused.value.code == "AD302"
        with capture(strict=True):
            torch.ones(2).npu().relu()


def test_nothing_is_switched_while_a_graph_is_captured(npu, torch_npu, model, monkeypatch, caplog):
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(model) as cap:
        model(x())
        monkeypatch.setattr(torch_npu.npu, "is_current_stream_capturing", lambda: True)
        model(x())
        monkeypatch.setattr(torch_npu.npu, "is_current_stream_capturing", lambda: False)
    assert caplog.text.count("AD269") == 1
    assert cap.dump().known_values("step") == {0}
    assert npu.dump_root is None


def test_a_forked_child_leaves_the_device_alone(npu, model):
    read, write = os.pipe()
    with capture(model) as cap:
        model(x())
        before = len(npu.files)
        child = os.fork()
        if child == 0:
            try:
                model(x())
                cap.stop()
                os.write(write, b"no" if cap.active else b"ok")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 2) == b"ok"
        assert npu.dump_root is not None
        assert len(npu.files) == before
    assert npu.dump_root is None


# Exception scenes.


def test_an_exception_dump_is_set_when_the_npu_is_initialised(npu, torch_npu, tmp_path):
    npu.fail("aclnnRelu")
    with capture(scene="exception", options={"exception": "norm"}) as cap:
        assert "TORCH_ACL_INIT_CONFIG_PATH" in os.environ
        with pytest.raises(RuntimeError, match="Relu"):
            x().relu()
    assert "TORCH_ACL_INIT_CONFIG_PATH" not in os.environ
    assert {(record.op_type, record.kernel) for record in cap.dump()} == {("aclnnRelu", "Relu")}
    assert (cap.path / "extra-info" / "data-dump" / "0").is_dir()
    assert [problem.code for problem in cap.problems if problem.severity == "warning"] == ["AD263"]


def test_the_users_own_file_for_acl_keeps_its_other_settings(npu, torch_npu, tmp_path, monkeypatch):
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"defaultDevice": {"default_device": "0"}, "StackSize": {"simt_stack_size": 2048}}))
    monkeypatch.setenv("TORCH_ACL_INIT_CONFIG_PATH", str(mine))
    with capture(scene="exception", options={"exception": "brief"}):
        used = json.loads(Path(os.environ["TORCH_ACL_INIT_CONFIG_PATH"]).read_text())
    assert os.environ["TORCH_ACL_INIT_CONFIG_PATH"] == str(mine)
    assert used["StackSize"] == {"simt_stack_size": 2048}
    assert used["dump"]["dump_scene"] == "aic_err_brief_dump"


@pytest.mark.parametrize("kind", ["pipe", "too large", "nested too deep", "no JSON", "missing"])
def test_a_file_for_acl_that_acl_cannot_read_is_refused_at_once(kind, npu, torch_npu, tmp_path, monkeypatch):
    mine = tmp_path / "mine.json"
    if kind == "pipe":
        os.mkfifo(mine)
    elif kind != "missing":
        content = {"too large": " " * (10 << 20) + "{}", "nested too deep": '{"a": ' + "[" * 100_000}.get(kind, "no")
        mine.write_text(content)
    monkeypatch.setenv("TORCH_ACL_INIT_CONFIG_PATH", str(mine))
    with pytest.raises(ascend_dump.CaptureError, match=r"TORCH_ACL_INIT_CONFIG_PATH=.*mine\.json cannot be used: "):
        capture(scene="exception", options={"exception": "brief"}).start()


def test_after_the_initialisation_an_exception_dump_is_too_late(npu, torch_npu, tmp_path):
    torch_npu.npu.init()
    npu.fail("aclnnRelu")
    with capture(scene="exception") as cap, pytest.raises(RuntimeError, match="Relu"):
        x().relu()
    assert "AD262" in [problem.code for problem in cap.problems]
    assert list(tmp_path.glob("extra-info/data-dump/0/exception_info.*")), "where torch_npu's own setting sends it"
    with pytest.raises(ascend_dump.ConfigError) as refused:
        capture(scene="exception", strict=True).start()
    assert refused.value.code == "AD262"


# What it says beforehand.


def problems(target: Any = None, **settings: Any) -> dict[str, str]:
    found = findings("torch_npu", ascend_dump.DumpRequest(**{"path": "dumps", **settings}), target)
    return {problem.code: problem.severity for problem in found}


def test_a_plain_request_has_no_problem(npu, model):
    assert problems(model, steps="0|2-5") == {}


def test_an_overflow_dump_needs_no_conversion_by_atc(npu, model):
    assert problems(model, steps="0", scene="overflow") == {"AD258": "warning"}


def test_where_graphs_may_be_loaded_their_dump_is_told(npu, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchair", ModuleType("torchair"))
    assert problems(model) == {"AD115": "warning"}


@pytest.mark.parametrize(
    ("settings", "code", "severity"),
    [
        ({"scene": "watch", "watch": "a"}, "AD203", "error"),
        ({"data": "full"}, "AD203", "error"),
        ({"quant": True}, "AD203", "error"),
        ({"options": {"nonsense": 1}}, "AD101", "error"),
        ({"layers": "conv1"}, "AD265", "silent"),
        ({"layers": "*conv*"}, "AD265", "silent"),
        ({"models": "net"}, "AD265", "silent"),
        ({"options": {"optype_blacklist": [{"name": "Add", "pos": ["input0"]}]}}, "AD265", "silent"),
        ({"level": "op"}, "AD268", "silent"),
        ({"max_bytes": "1GB"}, "AD211", "silent"),
    ],
)
def test_what_eager_kernels_cannot_have(npu, settings, code, severity):
    assert problems(**settings)[code] == severity


def test_layers_are_kept_where_graphs_are_dumped_too(npu, model):
    request = {"layers": "conv1", "options": {"op_switch": True}}
    assert "AD265" not in problems(**request)
    with capture(model, steps="0", **request) as cap:
        model(x())
    [config] = cap.path.parent.glob("*.json")
    dump = json.loads(config.read_text())["dump"]
    assert (dump["dump_list"], dump["dump_op_switch"]) == ([{"layer": ["conv1"]}], "on")


def test_what_is_ignored_is_left_out_of_the_configuration(npu, model):
    with capture(model, steps="0", layers="conv*") as cap:
        model(x())
    assert "AD265" in [problem.code for problem in cap.problems]
    assert cap.dump().select(op_type="aclnnRelu")


@pytest.mark.parametrize(("value", "is_refused"), [("1", True), ("01", True), ("0", False), ("", False), ("on", False)])
def test_a_dump_that_torch_npu_begins_itself_is_refused(npu, monkeypatch, value, is_refused):
    monkeypatch.setenv("ACL_DUMP_DATA", value)
    assert (problems().get("AD260") == "error") is is_refused


@pytest.mark.parametrize(
    ("module", "name", "value", "is_refused"),
    [
        ("torchair.core._backend", "_GLOBAL_COMPILE_OPTION", {"ge.exec.enableDump": "1"}, True),
        ("torchair.core._backend", "_GLOBAL_COMPILE_OPTION", {"ge_dump_with_acl_config": "a.json"}, True),
        ("torchair.core._backend", "_GLOBAL_COMPILE_OPTION", {"ge.exec.enableDump": "0"}, False),
        ("torchair.core._backend", "_GLOBAL_COMPILE_OPTION", None, False),
        ("torchair._ge_concrete_graph.fx2ge_converter", "g_cached_dump_root", {"dump": {}}, True),
        ("torchair._ge_concrete_graph.fx2ge_converter", "g_cached_dump_root", None, False),
    ],
)
def test_torchairs_hold_on_the_interface_is_seen(npu, monkeypatch, module, name, value, is_refused):
    fake = ModuleType(module)
    setattr(fake, name, value)
    monkeypatch.setitem(sys.modules, module, fake)
    assert (problems().get("AD261") == "error") is is_refused


def test_torchairs_own_dump_is_refused_before_it_conflicts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fakes.install("torch_npu", "torchair") as npu:
        import torchair

        config = torchair.CompilerConfig()
        config.dump_config.enable_dump = True
        model = torch.nn.Linear(4, 2).npu()
        compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
        compiled(x())
        with pytest.raises(ascend_dump.ConfigError, match=r"ge\.exec\.enableDump=1") as refused:
            capture(model).start()
        assert refused.value.code == "AD261"
        assert npu.executed
        torch._dynamo.reset()


def test_a_graph_that_wants_the_interface_inside_the_block_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fakes.install("torch_npu", "torchair"):
        import torchair

        config = torchair.CompilerConfig()
        config.dump_config.enable_dump = True
        model = torch.nn.Linear(4, 2).npu()
        compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
        cap = capture(steps="0", strict=True).start()
        x().relu()
        compiled(x())
        with pytest.raises(ascend_dump.CaptureError, match="inside the block") as told:
            cap.stop()
        assert told.value.code == "AD261"
        assert cap.dump().select(op_type="aclnnRelu")
        torch._dynamo.reset()


def test_a_compiled_model_is_told(npu, model):
    assert problems(torch.compile(model, backend="eager"))["AD264"] == "warning"


def test_a_model_of_the_host_is_told(npu):
    assert problems(torch.nn.Linear(2, 2))["AD266"] == "silent"
    assert "AD266" not in problems(torch.nn.ReLU())


def test_an_interface_that_drops_codes_is_told_and_used(npu, torch_npu, model, monkeypatch):
    for name in ("init_dump", "set_dump", "finalize_dump"):
        monkeypatch.delattr(torch_npu.npu.utils, name)
    assert problems()["AD267"] == "warning"
    with capture(model, steps="0") as cap:
        model(x())
    assert cap.dump().known_values("step") == {0}
    assert npu.dump_root is None


def test_a_path_that_ge_or_adump_refuses_is_told_before_it_exists(npu):
    assert "error" in problems(path="/".join(("a" * 200, "b" * 200, "c" * 200))).values()
    assert not Path("dumps").exists()


# What is in a record.


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_calls_of_one_api_are_numbered_in_each_step(npu, data):
    class Twice(torch.nn.Module):
        def forward(self, value: Any) -> Any:
            return (value + 1) + 2

    model = Twice()
    with capture(model, steps="0-1", data=data) as cap:
        for _ in range(2):
            model(x())
    for step in (0, 1):
        found = list(cap.dump().select(op_type="aclnnAdds", step=step))
        sides = {(record.op_name, record.io) for record in found}
        names = [f"aclnnAdds_{number}{kernel}" for number in (0, 1) for kernel in ("", "/AddAiCore_0")]
        assert sides == {(name, io) for name in names for io in ("input", "output")}
        assert len(found) == len(sides)


@pytest.mark.usefixtures("torch_npu")
def test_framework_torch_records_aten_operators_instead(model: Any, tmp_path: Path) -> None:
    with ascend_dump.capture(model, path=tmp_path / "aten", framework="torch", strict=True) as aten:
        expected = model(x())
    with ascend_dump.capture(model, path=tmp_path / "kernels", strict=True) as kernels:
        model(x())
    (result,) = aten.dump().select("2/addmm_0", io="output")
    assert result.numpy().tolist() == expected.tolist()
    assert not kernels.dump().select(op_type="aten::addmm")
    assert kernels.dump().select(op_type="aclnnAddmm")

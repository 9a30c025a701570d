"""The adapter `mindspore` on the fake MindSpore: what it hands over, when, and what it says about it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Private: what a process does at its end, and what it has in the temporary directory.
from ascend_dump_mindspore._process import forget
from ascend_dump_mindspore._scratch import Scratch
from findings import findings
from mindspore_process import dense_net, graph_mode, step
from planted_links import plant, state_of

import ascend_dump
from ascend_dump import fakes
from ascend_dump.adapter import RunDirectory, current_rank, load
from ascend_dump.cli import main
from ascend_dump.native.mindspore.config.dump_json import CONFIG_VARIABLE


@pytest.fixture(autouse=True)
def ms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A process in graph mode whose device is not up yet; a parameter is MindSpore's version."""
    if hasattr(request, "param"):
        monkeypatch.setenv("ASCEND_DUMP_FAKE_MINDSPORE_VERSION", request.param)
    with graph_mode(monkeypatch, "CPU") as mindspore:
        yield mindspore


@pytest.fixture
def net(ms: Any) -> Any:
    return dense_net(ms)


def config_in(env: Any = os.environ) -> dict[str, Any]:
    return json.loads(Path(env[CONFIG_VARIABLE]).read_text())


def problems(target: Any = None, **settings: Any) -> list[tuple[str, str]]:
    found = findings("mindspore", ascend_dump.DumpRequest(**settings), target)
    return [(problem.code, problem.severity) for problem in found]


def codes(target: Any = None, **settings: Any) -> list[str]:
    return [code for code, _ in problems(target, **settings)]


def planned(path: Path) -> RunDirectory:
    return RunDirectory.planned(path, current_rank()).make()


# --- what is handed over -------------------------------------------------------------------


def test_the_environment_names_the_file_for_as_long_as_the_block_lasts(ms, net, tmp_path, monkeypatch):
    monkeypatch.setenv("UNRELATED", "1")
    before = dict(os.environ)
    with ascend_dump.capture(net, path=tmp_path, steps="0|2", models="ResNet50", mode="output", strict=True) as cap:
        common = config_in()["common_dump_settings"]
        assert (common["net_name"], common["iteration"], common["input_output"]) == ("ResNet50", "0|2", 2)
        assert os.path.samefile(common["path"], cap.path)
        assert config_in()["e2e_dump_settings"] == {"enable": True, "trans_flag": True}
        assert stat.S_IMODE(os.stat(os.environ[CONFIG_VARIABLE]).st_mode) == 0o600
        assert stat.S_IMODE(cap.path.stat().st_mode) == 0o700
        step(ms, net)
    assert dict(os.environ) == before
    assert {record.model for record in cap.dump()} == {"ResNet50"}


def test_the_summary_counts_operators_as_ls_does(ms, net, tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO)
    with ascend_dump.capture(net, path=tmp_path) as cap:
        step(ms, net)
        step(ms, net)
    assert main(["ls", str(cap.path), "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert f"{totals['operators']} operators, {totals['records']} records" in caplog.text
    assert totals["operators"] < totals["records"]


def test_a_cpu_is_not_asked_for_settings_of_ascend(ms, net, tmp_path):
    with ascend_dump.capture(net, path=tmp_path, strict=True):
        step(ms, net)
    device = fakes.installed_device()
    assert device is not None
    assert not any("ascend_config" in line for line in device.log)


@pytest.mark.parametrize("name", ["run.1", "my dumps", "д", "a+b~c"])
def test_a_path_that_mindspore_refuses_is_reached_through_a_link(name, ms, net, tmp_path):
    with ascend_dump.capture(net, path=tmp_path / name, strict=True) as cap:
        link = config_in()["common_dump_settings"]["path"]
        assert set(link) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/")
        assert name not in link
        step(ms, net)
    assert tmp_path / name in cap.path.parents
    assert len(cap.dump()) > 0


def test_a_capture_elsewhere_does_not_take_a_directory_that_is_being_made(ms, net, tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    lock, others = fcntl.flock, []

    def locked_late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        others.append(Scratch())  # as another process does, before the capture has its lock
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", locked_late)
    with ascend_dump.capture(net, path=tmp_path / "run.1", strict=True) as cap:
        others.append(Scratch())  # and once it has it
        step(ms, net)
    assert len(cap.dump()) > 0
    assert len(others) == 2
    for scratch in others:
        scratch.remove()


def test_links_of_a_temporary_directory_with_other_characters_are_elsewhere(ms, net, tmp_path, monkeypatch):
    odd = tmp_path / "with.dot"
    odd.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    with ascend_dump.capture(net, path=odd / "dumps", strict=True):
        assert not config_in()["common_dump_settings"]["path"].startswith(str(odd))
        step(ms, net)


def test_a_relative_path_is_made_absolute(ms, net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ascend_dump.capture(net, path="dumps", strict=True) as cap:
        step(ms, net)
        monkeypatch.chdir("/")
        step(ms, net)
    assert {record.step for record in cap.dump()} == {0, 1}


def test_all_steps_leave_one_to_park_at(ms, net, tmp_path):
    with ascend_dump.capture(net, path=tmp_path, strict=True) as cap:
        assert config_in()["common_dump_settings"]["iteration"] == "0-999999999"
        for value in range(3):
            step(ms, net, value)
    assert {record.step for record in cap.dump()} == {0, 1, 2}


def test_targets(ms, net):
    adapter = load("mindspore")
    assert adapter.accepts(net)
    assert adapter.accepts(None)
    assert adapter.accepts(ms.train.Model(net))
    assert not adapter.accepts(ms.Tensor(np.ones(1)))


# --- too late, or taken --------------------------------------------------------------------


def test_after_the_first_operator_it_is_too_late(ms, net, tmp_path):
    ms.Tensor(np.ones(2, "f4")) + 1
    assert problems(net) == [("AD271", "error")]
    with pytest.raises(ascend_dump.ConfigError, match="initialised") as caught:
        ascend_dump.capture(net, path=tmp_path / "dumps").start()
    assert caught.value.code == "AD271"
    assert not (tmp_path / "dumps").exists()
    assert CONFIG_VARIABLE not in os.environ
    # Whoever skips the check is told too.
    with pytest.raises(ascend_dump.CaptureError, match="initialised"):
        load("mindspore").start(ascend_dump.DumpRequest(path=tmp_path), net, planned(tmp_path))


def test_what_may_come_before(ms, net, tmp_path):
    ms.Parameter(ms.Tensor(np.ones(2)), name="p")
    assert problems(net) == []


def test_a_configuration_of_the_user_is_kept(ms, net, tmp_path, monkeypatch):
    monkeypatch.setenv(CONFIG_VARIABLE, "/home/user/dump.json")
    assert problems(net) == [("AD276", "error")]
    with pytest.raises(ascend_dump.ConfigError):
        ascend_dump.capture(net, path=tmp_path).start()
    assert os.environ[CONFIG_VARIABLE] == "/home/user/dump.json"


def test_an_unset_configuration_is_none(ms, net, monkeypatch):
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    assert problems(net) == []


def test_two_at_once_are_refused(ms, net, tmp_path):
    with ascend_dump.capture(net, path=tmp_path) as cap:
        assert problems(net) == [("AD302", "error")]
        step(ms, net)
        with pytest.raises(ascend_dump.CaptureError, match="another capture"):
            load("mindspore").start(ascend_dump.DumpRequest(path=tmp_path), net, planned(tmp_path))
    assert len(cap.dump()) > 0


# --- a second capture ----------------------------------------------------------------------


def test_a_second_capture_has_its_own_directory_steps_and_graphs(ms, net, tmp_path):
    found = []
    for number in range(3):
        # The path is the capture's own; every other setting stays.
        with ascend_dump.capture(net, path=tmp_path / str(number), steps="1", strict=True) as cap:
            for value in range(3):
                step(ms, net, 10 * number + value)
        found.append(cap)
        step(ms, net, 99)
    for number, cap in enumerate(found):
        dump = cap.dump()
        assert {record.step for record in dump} == {1}
        assert {record.run for record in dump} == {cap.path.name}
        [x] = [record for record in dump if record.op_type == "Parameter" and record.shape == (2, 4)]
        assert x.numpy()[0, 0] == 10 * number + 1
        [output] = dump.select(op_type="MatMul", io="output")
        assert output.op_name.startswith("Default/")
        assert output.attrs["execution_index"] == 0


def test_other_settings_are_refused_by_name(ms, net, tmp_path):
    with ascend_dump.capture(net, path=tmp_path, steps="1", strict=True):
        step(ms, net)
        step(ms, net)
    for settings, key in (({"steps": "2"}, "iteration"), ({"steps": "1", "mode": "input"}, "input_output")):
        [problem] = findings("mindspore", ascend_dump.DumpRequest(**settings), net)
        assert (problem.code, problem.severity) == ("AD277", "error")
        assert problem.where.endswith(key)
        assert key in problem.message


def test_when_nothing_ran_the_settings_are_free_again(ms, net, tmp_path):
    cap = ascend_dump.capture(net, path=tmp_path, steps="1", strict=True).start()
    with pytest.raises(ascend_dump.CaptureError, match="no graph was compiled"):
        cap.stop()
    assert [path for path in tmp_path.rglob("*") if path.is_symlink()] == []
    with ascend_dump.capture(net, path=tmp_path, steps="0", mode="input", strict=True) as cap:
        step(ms, net)
    assert {record.io for record in cap.dump()} == {"input"}


def test_graphs_compiled_between_captures_are_in_neither_and_known_later(ms, net, tmp_path):
    with ascend_dump.capture(net, path=tmp_path, strict=True) as first:
        step(ms, net)
    other = ms.nn.Dense(4, 2)
    before = sorted(first.path.rglob("*"))
    step(ms, other)
    assert sorted(first.path.rglob("*")) == before
    with ascend_dump.capture(other, path=tmp_path, strict=True) as second:
        step(ms, other)
    assert {record.model_id for record in second.dump()} == {1}
    assert all("/" in record.op_name for record in second.dump() if record.op_type != "Parameter")


def test_without_the_controls_it_goes_on_and_says_so(ms, net, tmp_path, monkeypatch, caplog):
    controls = sys.modules["mindspore._c_expression"]
    monkeypatch.delattr(controls, "_set_init_iter")
    caplog.set_level(logging.WARNING, "ascend_dump")
    with ascend_dump.capture(net, path=tmp_path, strict=True) as cap:
        assert config_in()["common_dump_settings"]["iteration"] == "all"
        step(ms, net)
    assert "AD280" in caplog.text
    step(ms, net)
    assert {record.step for record in cap.dump()} == {0, 1}
    assert problems(net) == [("AD277", "error"), ("AD280", "warning")]


def test_queued_operators_are_waited_for_and_their_errors_are_the_programs(ms, net, tmp_path, monkeypatch):
    class Executor:
        waits = 0

        def sync(self) -> None:
            self.waits += 1
            if self.waits > 2:
                raise RuntimeError("an operator of the program failed")

    executor = Executor()
    monkeypatch.setattr(sys.modules["mindspore.graph.api"], "_pynative_executor", executor, raising=False)
    cap = ascend_dump.capture(net, path=tmp_path, strict=True).start()
    assert executor.waits == 2
    step(ms, net)
    with pytest.raises(RuntimeError, match="of the program"):
        cap.stop()
    assert CONFIG_VARIABLE not in os.environ
    step(ms, net)
    assert {record.step for record in cap.dump()} == {0}


# --- an empty dump -------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [True, False])
def test_names_that_are_too_long_say_what_shortens_them(classes, ms, tmp_path, caplog):
    inner = type(ms.nn.ReLU)("L" * 200, (ms.nn.ReLU,), {})
    ms.set_context(reserve_class_name_in_scope=classes)
    net = ms.nn.SequentialCell(ms.nn.Dense(4, 3), inner())
    with ascend_dump.capture(net, path=tmp_path, strict=True) as cap:
        step(ms, net)
    renamed = [path for path in cap.path.rglob("*.npy") if path.stem.isdecimal()]
    said = [record for record in caplog.records if "reserve_class_name_in_scope=False" in record.getMessage()]
    assert (bool(renamed), len(said)) == (classes, int(classes))
    if classes:
        assert said[0].getMessage().startswith(f"{len(renamed)} file names of the dump were too long")
        assert any("L" * 200 in record.op_name for record in cap.dump())


def test_an_empty_dump_says_why_although_graphs_were_written(ms, net, tmp_path, caplog):
    with ascend_dump.capture(net, path=tmp_path, layers="Default/none-Dense/MatMul-op0") as cap:
        step(ms, net)
    assert list(cap.path.rglob("*.ir"))
    assert len(cap.dump()) == 0
    assert "wrote nothing" in caplog.text
    assert "layers=" in caplog.text


# --- devices and modes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"data": "stats"}, ("AD270", "error")),
        ({"data": "full"}, ("AD270", "error")),
        ({"scene": "overflow"}, ("AD274", "silent")),
        ({"scene": "watch", "watch": ["a"]}, ("AD203", "error")),
        ({"quant": True}, ("AD203", "error")),
        ({"options": {"set_dump": True}}, ("AD203", "error")),
        ({"options": {"sample_num": 4}}, ("AD274", "silent")),
        ({"options": {"save_kernel_args": True}}, ("AD274", "silent")),
        ({"options": {"typo": 1}}, ("AD101", "error")),
        ({"layers": "re:op\\d"}, ("AD203", "error")),
        ({"layers": "MatMul-op0"}, ("AD273", "silent")),
        ({"max_bytes": "1GB"}, ("AD211", "silent")),
    ],
)
def test_what_a_cpu_does_not_do_is_told(settings, expected, ms, net):
    assert expected in problems(net, **settings)


def test_ascend_has_more(ms, net, tmp_path):
    ms.set_device("Ascend")
    for settings in ({"data": "stats"}, {"data": "full"}, {"scene": "overflow"}, {"options": {"sample_num": 4}}):
        assert problems(net, **settings) == []
    with ascend_dump.capture(net, path=tmp_path, data="stats", stats=["max", "l2norm"], strict=True) as cap:
        assert config_in()["common_dump_settings"]["statistic_category"] == ["max", "l2norm"]
        step(ms, net)
    [record] = cap.dump().select(op_type="ReLU", io="output")
    assert record.statistics().max is not None
    assert record.statistics().min is None


def test_jit_level_o2_is_told(ms, net):
    ms.set_device("Ascend")
    ms.set_context(jit_level="O2")
    assert ("AD274", "silent") in problems(net)


@pytest.mark.parametrize("ms", ["2.5.0"], indirect=True)
def test_jit_level_o2_of_an_older_mindspore_is_configured(ms, net, tmp_path):
    ms.set_device("Ascend")
    ms.set_context(jit_level="O2")
    with ascend_dump.capture(net, path=tmp_path, strict=True) as cap:
        assert config_in()["common_dump_settings"]["file_format"] == "npy"
        assert "e2e_dump_settings" not in config_in()
        step(ms, net)
    found = list(cap.dump())
    assert {record.op_type for record in found} >= {"MatMul"}
    assert {record.step for record in found} == {0}
    assert None not in {record.model for record in found}


@pytest.mark.parametrize("ms", ["2.5.0"], indirect=True)
def test_files_of_canns_own_format_are_records(ms, net, tmp_path):
    ms.set_device("Ascend")
    ms.set_context(jit_level="O2")
    with ascend_dump.capture(net, path=tmp_path, options={"file_format": "bin"}, strict=True) as cap:
        assert config_in()["common_dump_settings"]["file_format"] == "bin"
        step(ms, net)
    assert {path.suffix for path in cap.path.rglob("MatMul.*")} != {".npy"}
    [output] = cap.dump().select(op_type="MatMul", io="output")
    np.testing.assert_array_equal(output.numpy(), np.full((2, 3), 4, "f4"))


@pytest.mark.parametrize("ms", ["2.5.0"], indirect=True)
def test_an_empty_dump_of_an_older_o2_names_reasons_that_apply(ms, net, tmp_path, caplog):
    ms.set_device("Ascend")
    ms.set_context(jit_level="O2")
    with ascend_dump.capture(net, path=tmp_path, steps="7", options={"file_format": "bin"}) as cap:
        step(ms, net)
    assert len(cap.dump()) == 0
    assert "steps=7" in caplog.text
    assert "PyNative" not in caplog.text
    assert "since 2.6" not in caplog.text


def test_a_mindspore_without_set_dump_is_told_apart_from_a_missing_target(ms, net, monkeypatch):
    ms.set_device("Ascend")
    for owner in (ms, getattr(ms, "tools", None)):
        if owner is not None:
            monkeypatch.setattr(owner, "set_dump", None)
    found = findings("mindspore", ascend_dump.DumpRequest(options={"set_dump": True}), net)
    assert [problem.message for problem in found if problem.code == "AD274"] == ["this MindSpore has no set_dump"]


def test_set_dump_marks_the_target_for_as_long_as_the_block_lasts(ms, net, monkeypatch, tmp_path):
    ms.set_device("Ascend")
    assert ("AD274", "error") in problems(None, options={"set_dump": True})
    marked = []
    original = ms.set_dump
    monkeypatch.setattr(
        ms, "set_dump", lambda target, enabled=True: (marked.append((target, enabled)), original(target, enabled))
    )
    if hasattr(ms, "tools"):
        monkeypatch.setattr(ms.tools, "set_dump", ms.set_dump)
    with ascend_dump.capture(net, path=tmp_path, options={"set_dump": True}, strict=True):
        assert config_in()["common_dump_settings"]["dump_mode"] == 2
        step(ms, net)
    assert marked == [(net, True), (net, False)]
    with ascend_dump.capture(ms.Model(net), path=tmp_path, options={"set_dump": True}, strict=True) as cap:
        step(ms, net)
    assert marked[2:] == [(net, True), (net, False)]
    assert len(cap.dump())


def test_a_start_that_fails_leaves_the_next_one_free(ms, net, tmp_path, monkeypatch):
    ms.set_device("Ascend")
    before = dict(os.environ)

    def refuse(target: Any, enabled: bool = True) -> None:
        raise ValueError("not this one")

    with monkeypatch.context() as patch:
        patch.setattr(ms, "set_dump", refuse)
        if hasattr(ms, "tools"):
            patch.setattr(ms.tools, "set_dump", refuse)
        with pytest.raises(ValueError, match="not this one"):
            ascend_dump.capture(net, path=tmp_path, options={"set_dump": True}).start()
    assert dict(os.environ) == before
    with ascend_dump.capture(net, path=tmp_path, strict=True) as cap:
        step(ms, net)
    assert len(cap.dump())


@pytest.mark.parametrize("between", [False, True])
def test_a_dump_may_be_removed_before_the_next_capture(between, ms, net, tmp_path):
    with ascend_dump.capture(net, path=tmp_path / "dumps", strict=True) as first:
        step(ms, net)
    names = [record.op_name for record in first.dump()]
    shutil.rmtree(tmp_path / "dumps")
    other = ms.nn.SequentialCell(ms.nn.Tanh())
    if between:
        step(ms, other)
    for _ in range(2):
        with ascend_dump.capture(net, path=tmp_path / "dumps", strict=True) as again:
            step(ms, net)
            step(ms, other)
        found = [record.op_name for record in again.dump()]
        assert found[: len(names)] == [record.op_name for record in again.dump() if record.model_id == 0]
        assert {record.op_type for record in again.dump() if record.model_id == 1} == {"Tanh", "Parameter"}
        assert any("/" in name for name in found if "Tanh" in name)


def test_nothing_behind_a_planted_link_is_changed(ms, net, tmp_path, caplog):
    with ascend_dump.capture(net, path=tmp_path / "dumps", strict=True) as first:
        step(ms, net)
    names = {path.name for path in first.path.parent.iterdir()}
    cap = ascend_dump.capture(net, path=tmp_path / "dumps").start()
    step(ms, net)
    victim = plant(tmp_path / "dumps")
    before = state_of(victim)
    assert {path.name for path in victim.iterdir()} > names
    cap.stop()
    with pytest.raises(ascend_dump.WriteError, match="was moved"):
        ascend_dump.capture(net, path=tmp_path / "others").start()
    forget()
    assert state_of(victim) == before
    assert "was moved" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes can be forked here")
def test_a_forked_child_that_ends_the_capture_leaves_the_parents(ms, net, tmp_path):
    with ascend_dump.capture(net, path=tmp_path, strict=True) as cap:
        step(ms, net)
        child = os.fork()
        if child == 0:
            cap.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        step(ms, net)
    assert {record.step for record in cap.dump()} == {0, 1}


def test_a_device_beyond_the_default_list_is_added(ms, net, monkeypatch, tmp_path):
    ms.set_device("Ascend")
    monkeypatch.setenv("DEVICE_ID", "11")
    assert problems(net) == []
    assert ("AD274", "silent") in problems(net, options={"devices": [0]})


def test_several_devices_are_told_about_the_timeout(ms, net, monkeypatch):
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    assert codes(net) == []
    ms.set_device("Ascend")
    assert problems(net) == [("AD281", "warning")]
    monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "3600")
    assert codes(net) == []


def test_pynative_mode_is_told(ms, net):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    assert problems(net) == [("AD279", "warning")]


@pytest.mark.parametrize("chooses", [True, False])
def test_without_a_target_the_mode_is_told_when_the_capture_ends(chooses, ms, net, tmp_path, caplog):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with ascend_dump.capture(framework="mindspore", path=tmp_path, strict=True) as cap:
        if chooses:
            ms.set_context(mode=ms.GRAPH_MODE)
            step(ms, net)
        else:
            ms.jit(net)(ms.Tensor(np.ones((2, 4), "f4")))
    assert cap.problems == []
    assert len(cap.dump()) > 0
    assert ("AD279" in caplog.text) != chooses


def test_complex_parameters_are_refused(ms):
    class Complex(ms.nn.Cell):  # type: ignore[misc, name-defined]
        def get_parameters(self, expand: bool = True) -> Any:
            yield type("Parameter", (), {"dtype": "Complex64"})()

    assert ("AD279", "error") in problems(Complex())


def test_a_program_whose_first_graph_has_complex_inputs_runs_without_a_dump(ms, tmp_path, caplog):
    class Square(ms.nn.Cell):  # type: ignore[misc, name-defined]
        def construct(self, x: Any) -> Any:
            return x * x

    x = ms.Tensor(np.full(3, 2j, np.complex64))
    net = Square()
    assert problems(net) == []
    cap = ascend_dump.capture(net, path=tmp_path, strict=True).start()
    np.testing.assert_array_equal(net(x).asnumpy(), [-4, -4, -4])
    with pytest.raises(ascend_dump.CaptureError, match="runs without a dump") as caught:
        cap.stop()
    assert caught.value.code == "AD279"
    assert caplog.text.count("AD279") == 1
    assert CONFIG_VARIABLE not in os.environ
    net(x)
    # The device is up, and has read no configuration.
    assert problems(net) == [("AD271", "error")]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"name": "Print"}, ("AD279", "warning")),
        ({"name": "MatMul", "attrs": {"primitive_target": "CPU"}}, ("AD279", "silent")),
    ],
)
def test_operators_of_the_target_that_do_not_go_with_a_dump_are_told(attributes, expected, ms, net):
    net._primitives = {"one": type("Primitive", (), attributes)()}
    assert problems(ms.nn.SequentialCell(net)) == [expected]


@pytest.mark.parametrize("ms", ["2.5.0"], indirect=True)
def test_data_that_sinks_is_told_when_the_training_begins(ms, net, tmp_path, caplog):
    ms.set_device("Ascend")
    ms.set_context(jit_level="O2")
    original = ms.train.Model.__dict__["train"]
    data = ms.dataset.NumpySlicesDataset((np.ones((4, 4), "f4"), np.ones((4, 3), "f4")), ["x", "y"]).batch(2)
    with ascend_dump.capture(net, path=tmp_path, strict=True) as cap:
        model = ms.Model(net, ms.nn.MSELoss(), ms.nn.SGD(net.trainable_params(), 0.1))
        model.train(1, data, dataset_sink_mode=True, sink_size=1)
        assert "sink size" not in caplog.text
        for _ in range(2):
            model.train(1, data, dataset_sink_mode=True)
    assert caplog.text.count("sink size of 1 only, the program has -1") == 1
    assert ms.train.Model.__dict__["train"] is original
    assert len(cap.dump()) > 0

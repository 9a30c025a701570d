"""Programs that ask frameworks on the simulated device: probes confirm what it does, and refute what it is made to do.

npu_device's functions need a real TensorFlow: tests/real/tensorflow.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

import pytest
from other_engines import counted_by_graph
from torchair_helpers import simulated_torchair

from ascend_dump import fakes
from ascend_dump.fakes.device.npu import Npu
from ascend_dump.selftest import program
from ascend_dump.selftest.evidence import FAILED, Evidence
from ascend_dump.selftest.probes import PROBES, run_probes
from ascend_dump.selftest.program import ask_each

PROGRAMS = Path(program.__file__).with_name("programs")
OF_SESSIONS = (
    "last_entry",
    "init_keys",
    "graph_names",
    "signatures",
    "fed_names",
    "variable_values",
    "times_of_sessions",
    "graph_texts",
    "loop",
)


def evidence(facts: dict[str, Any]) -> Evidence:
    return Evidence(device=0, began=0, ended=1, facts=facts)


def ask(name: str, directory: Path) -> dict[str, Any]:
    """The facts that a program finds, run in this process."""
    directory.mkdir(exist_ok=True)
    facts: dict[str, Any] = runpy.run_path(str(PROGRAMS / name))["ask"](directory)
    return facts


def states(facts: dict[str, Any]) -> dict[str, str]:
    return {name: one.state for name, one in run_probes(evidence(facts)).items() if one.state != "unknown"}


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], dict[str, Any]]]:
    monkeypatch.chdir(tmp_path)
    with fakes.install("tensorflow", "npu_bridge", cwd=tmp_path, environ={}):
        import_module("npu_bridge.npu_init")
        yield lambda: ask("bridge_sessions.py", tmp_path / "asked")


def test_the_simulated_bridge_is_as_assumed(sessions: Callable[[], dict[str, Any]]) -> None:
    facts = sessions()
    assert facts[FAILED] == {}
    assert states(facts) == dict.fromkeys(OF_SESSIONS, "confirmed")


def change_entries(monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Any]], list[Any]]) -> None:
    """Let sessions have other entries than those that were given."""
    module = sys.modules["npu_bridge.npu_init"]
    real = module.npu_config_proto

    def npu_config_proto(config: Any) -> Any:
        entries = config.graph_options.rewrite_options.custom_optimizers
        wanted = change(list(entries))
        del entries[:]
        entries.extend(wanted)
        return real(config)

    monkeypatch.setattr(module, "npu_config_proto", npu_config_proto)


def entries_from_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    change_entries(monkeypatch, lambda entries: entries[::-1])


def keys_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first entry of the process is that of every session without keys of a dump."""
    kept: list[Any] = []

    def change(entries: list[Any]) -> list[Any]:
        if not kept:
            kept.append(type(entries[0])())
            kept[0].CopyFrom(entries[0])
        return entries if "enable_dump" in entries[0].parameter_map else kept

    change_entries(monkeypatch, change)


def one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Npu.load_model
    monkeypatch.setattr(Npu, "load_model", lambda self, name, **others: real(self, name[:-1] + "1", **others))


def one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted over all models of the process."""
    real, begun = Npu.begin_step, []

    def begin_step(self: Any, model: int, step: int) -> None:
        begun.append(step)
        real(self, model, len(begun) - 1)

    monkeypatch.setattr(Npu, "begin_step", begin_step)


def steps_of_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run counts as often as it loops."""
    real = Npu.begin_step
    monkeypatch.setattr(Npu, "begin_step", lambda self, model, step: real(self, model, 2 * step))


def feeds_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Npu.load_model

    def load_model(self: Any, name: str, *, ops: Any, **others: Any) -> Any:
        renamed = [
            op._replace(name="arg_0") if op.type == "Data" else op._replace(inputs=tuple(map(feed, op.inputs)))
            for op in ops
        ]
        return real(self, name, ops=renamed, **others)

    def feed(source: str) -> str:
        return "arg_0:0" if source == "x:0" else source

    monkeypatch.setattr(Npu, "load_model", load_model)


def variables_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator overwrites is dumped as it is behind the operator."""
    real = Npu.run_op

    def run_op(self: Any, op_type: str, name: str, inputs: Any, outputs: Any, **others: Any) -> Any:
        given = [outputs[0], *inputs[1:]] if op_type == "AssignAdd" else inputs
        return real(self, op_type, name, given, outputs, **others)

    monkeypatch.setattr(Npu, "run_op", run_op)


def one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sessions of a process have the directory of the first."""
    monkeypatch.setattr(Npu, "_time_directory", lambda self: "20260101000000")


def no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """GE writes graphs to a place that it was not asked to."""
    monkeypatch.setattr(Npu, "working_directory", str(Path.cwd().parent))


@pytest.mark.parametrize(
    ("name", "otherwise"),
    [
        ("last_entry", entries_from_behind),
        ("init_keys", keys_for_all),
        ("graph_names", one_name),
        ("signatures", one_count),
        ("fed_names", feeds_renamed),
        ("variable_values", variables_after),
        ("times_of_sessions", one_time),
        ("graph_texts", no_texts),
        ("loop", steps_of_iterations),
    ],
)
def test_another_bridge_refutes(
    monkeypatch: pytest.MonkeyPatch,
    sessions: Callable[[], dict[str, Any]],
    name: str,
    otherwise: Callable[[pytest.MonkeyPatch], None],
) -> None:
    otherwise(monkeypatch)
    assert states(sessions())[name] == "refuted"


def test_a_device_that_dumps_nothing_answers_nothing(
    monkeypatch: pytest.MonkeyPatch, sessions: Callable[[], dict[str, Any]]
) -> None:
    monkeypatch.setattr(Npu, "run_op", lambda self, *arguments, **others: None)
    found = run_probes(evidence(sessions()))
    assert {found[name].state for name in OF_SESSIONS} == {"unknown"}
    assert "dumped nothing" in found["signatures"].seen


# MindSpore.

OF_MINDSPORE = {
    "samples": ("tree", "stored_types", "sampled", "paused"),
    "overflowed": ("overflowed",),
    "without_e2e": ("without_e2e",),
    "graph_engine": ("graph_engine",),
    "device_statistics": ("device_statistics",),
}


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Asks a question of a fresh MindSpore, which reads one configuration in a process."""
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", "")

    def ask_question(question: str) -> dict[str, Any]:
        place = tmp_path / question
        place.mkdir()
        with fakes.install("mindspore", environ={}):
            facts: dict[str, Any] = runpy.run_path(str(PROGRAMS / "mindspore_dumps.py"))["ask"](question, place)
        return facts

    return ask_question


def test_the_simulated_mindspore_is_as_assumed(dumps: Callable[[str], dict[str, Any]]) -> None:
    facts: dict[str, Any] = {}
    for question in OF_MINDSPORE:
        found = dumps(question)
        assert found[FAILED] == {}
        facts.update(found)
    assert states(facts) == dict.fromkeys((name for names in OF_MINDSPORE.values() for name in names), "confirmed")


def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device does as a CPU does: parameters, names of types, whole tensors, and no second block."""
    monkeypatch.setattr(import_module("mindspore"), "set_device", lambda device: None)


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("samples", "tree"),
        ("samples", "stored_types"),
        ("samples", "sampled"),
        ("overflowed", "overflowed"),
        ("without_e2e", "without_e2e"),
        ("graph_engine", "graph_engine"),
    ],
)
def test_a_device_that_dumps_as_a_cpu_does_refutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, name: str
) -> None:
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", "")
    with fakes.install("mindspore", environ={}):
        on_a_cpu(monkeypatch)
        facts = runpy.run_path(str(PROGRAMS / "mindspore_dumps.py"))["ask"](question, tmp_path)
    assert states(facts).get(name) == "refuted", facts


def test_the_older_layout_is_told_by_the_versions_that_have_it(
    monkeypatch: pytest.MonkeyPatch, dumps: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    facts = dumps("older_layout")
    assert states(facts) == {}
    assert "MindSpore 2.10.0 dumps nothing" in PROBES["older_layout"](evidence(facts)).seen
    shutil.rmtree(tmp_path / "older_layout")
    monkeypatch.setenv("ASCEND_DUMP_FAKE_MINDSPORE_VERSION", "2.5.0")
    facts = dumps("older_layout")
    assert states(facts) == {"older_layout": "confirmed"}, facts
    shutil.rmtree(tmp_path / "older_layout")
    real = Npu.load_model
    monkeypatch.setattr(Npu, "load_model", lambda self, name, **others: real(self, f"{name}/inner", **others))
    monkeypatch.setattr("ascend_dump.native.cann.names.sanitize", lambda text: text)
    assert states(dumps("older_layout")) == {"older_layout": "refuted"}


def test_a_device_with_more_statistics_refutes(
    monkeypatch: pytest.MonkeyPatch, dumps: Callable[[str], dict[str, Any]]
) -> None:
    monkeypatch.setattr("ascend_dump.fakes.mindspore._files.DEVICE_STATISTICS", ("max", "l2norm", "md5"))
    assert states(dumps("device_statistics")) == {"device_statistics": "refuted"}


def test_a_pause_that_does_not_hold_refutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", "")
    with fakes.install("mindspore", environ={}):
        monkeypatch.setattr(import_module("mindspore._c_expression"), "_set_init_iter", lambda iteration: None)
        facts = runpy.run_path(str(PROGRAMS / "mindspore_dumps.py"))["ask"]("samples", tmp_path)
    assert states(facts).get("paused") == "refuted", facts


def test_nothing_is_no_answer_where_nothing_else_is_dumped_either() -> None:
    assert states({"without_e2e": False, "graph_engine": False}) == {}
    assert states({"without_e2e": True}) == {"without_e2e": "refuted"}


# torchair. One question at a time: each compiles graphs.


@pytest.fixture
def graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], dict[str, Any]]]:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    with simulated_torchair():

        def ask_one(name: str) -> dict[str, Any]:
            module = runpy.run_path(str(PROGRAMS / "torchair_graphs.py"))
            return ask_each(tmp_path, {name: lambda: module[name](tmp_path)})

        yield ask_one


def options_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """GE begins anew with the options of each graph."""
    native = sys.modules["torchair.core._torchair"]
    real = native.InitializeGraphEngine

    def initialize(options: Any) -> None:
        native.FinalizeGraphEngine()
        real(options)

    monkeypatch.setattr(native, "InitializeGraphEngine", initialize)


def json_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Npu, "arm_acl", lambda self, path: 0)


def refusal_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise RuntimeError("acl refuses it")

    monkeypatch.setattr(sys.modules["torchair.core._torchair"], "AclmdlSetDump", refuse)


def scope_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Npu.arm_acl

    def arm_acl(self: Any, path: Any) -> int:
        file = Path(path)
        root = json.loads(file.read_text())
        for entry in root["dump"]["dump_list"]:
            entry["layer"] = ["MatMulV2_1"]
        file.write_text(json.dumps(root))
        return real(self, path)

    monkeypatch.setattr(Npu, "arm_acl", arm_acl)


def products_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    load, run = Npu.load_model, Npu.run_op

    def load_model(self: Any, name: str, *, ops: Any, **others: Any) -> Any:
        return load(self, name, ops=[op._replace(name=f"{op.name}_fused") for op in ops], **others)

    def run_op(self: Any, op_type: str, name: str, *arrays: Any, **others: Any) -> Any:
        return run(self, op_type, f"{name}_fused", *arrays, **others)

    monkeypatch.setattr(Npu, "load_model", load_model)
    monkeypatch.setattr(Npu, "run_op", run_op)


@pytest.mark.parametrize(
    ("name", "otherwise"),
    [
        ("first_graph", options_taken_anew),
        ("json_and_options", json_ignored),
        ("refusal_dropped", refusal_raised),
        ("scope_selects", scope_by_name),
        ("renamed", products_fused),
        ("saved_names", counted_by_graph),
    ],
)
def test_the_simulated_torchair_is_as_assumed_and_another_one_refutes(
    monkeypatch: pytest.MonkeyPatch,
    graphs: Callable[[str], dict[str, Any]],
    name: str,
    otherwise: Callable[[pytest.MonkeyPatch], None],
) -> None:
    facts = graphs(name)
    assert facts[FAILED] == {}
    assert states(facts) == {name: "confirmed"}
    otherwise(monkeypatch)
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert states(graphs(name)) == {name: "refuted"}


@pytest.mark.parametrize(
    ("name", "good", "others"),
    [
        ("batch_statistics", {"mean": True, "variance": True}, [{"mean": True, "variance": False}, {}]),
        ("max_pool_mask", {"type": "uint16", "indices": False}, [{"type": "int32", "indices": True}]),
        ("renamed", [], [["MatMulV2_fused"]]),
        (
            "saved_names",
            {"device": "npu", "names": [f"relu_device_0_{number}.pt" for number in range(4)]},
            [
                {"device": "npu", "names": [f"relu_{number}.pt" for number in range(4)]},
                {"device": "npu", "names": [f"relu_device_0_{number}.pt" for number in range(1, 5)]},
            ],
        ),
        ("refusal_dropped", "", ["RuntimeError: no"]),
        ("steps_of_calls", ["1"], [["0"], ["1", "2"], ["0", "1", "2"]]),
        ("options_once", {"first": True, "second": False}, [{"first": False, "second": True}]),
    ],
)
def test_another_answer_refutes(name: str, good: Any, others: list[Any]) -> None:
    assert states({name: good}) == {name: "confirmed"}
    for other in others:
        assert states({name: other}) == {name: "refuted"}


def test_a_question_that_fails_leaves_the_others_their_answers(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no such option\nbelow")

    facts = ask_each(tmp_path, {"steps_of_calls": fail, "options_once": lambda: {"first": True, "second": False}})
    assert states(facts) == {"options_once": "confirmed"}
    assert PROBES["steps_of_calls"](evidence(facts)).seen == "RuntimeError: no such option"
    assert '"failed": {"steps_of_calls"' in (tmp_path / "truth.json").read_text()

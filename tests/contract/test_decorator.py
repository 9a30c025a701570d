"""Each call of a decorated function is a step, whatever the framework counts itself."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import weakref
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
from acl_helpers import execute
from disk_faults import FailingDisk

import ascend_dump
from ascend_dump import fakes
from ascend_dump.adapter import load
from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save


class Program(NamedTuple):
    """install: the fakes. before: gives the target, and one call of the program. adapter: its name."""

    adapter: str
    install: tuple[str, ...]
    before: Callable[[Path], tuple[Any, Callable[[], object]]]


def _acl(place: Path) -> tuple[Any, Callable[[], object]]:
    import acl

    nodes = (OfflineNode("act", "Relu", ("x:0",)),)
    save(OfflineModel("net", (TensorSpec("x", (1, 4), "float32"),), nodes, ("act:0",), True), place / "net.om")
    assert [acl.init(), acl.rt.set_device(0)] == [0, 0]

    def call() -> None:
        model, ret = acl.mdl.load_from_file(str(place / "net.om"))
        assert ret == 0
        execute(acl, model, np.arange(4, dtype=np.float32))
        acl.mdl.unload(model)

    return None, call


def _linear() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def _torch(place: Path) -> tuple[Any, Callable[[], object]]:
    import torch

    model, x = _linear(), torch.ones(2, 4)
    return None, lambda: model(x)


def _torch_model(place: Path) -> tuple[Any, Callable[[], object]]:
    import torch

    model, x = _linear(), torch.ones(2, 4)
    return model, lambda: model(x)


def _torch_npu(place: Path) -> tuple[Any, Callable[[], object]]:
    import torch

    model, x = _linear().npu(), torch.ones(2, 4).npu()
    return None, lambda: model(x)


def _compiled(target: Any, config: Any) -> tuple[Any, Callable[[], object]]:
    import torch
    import torchair

    torch._dynamo.reset()
    model, made = _linear(), []

    def call() -> object:
        if not made:  # as a program does that compiles when it is used
            made.append(torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config)))
        with torch.no_grad():
            return made[0](torch.ones(2, 4))

    return target, call


def _torchair(place: Path) -> tuple[Any, Callable[[], object]]:
    import torchair

    return _compiled(None, torchair.CompilerConfig())


def _torchair_config(place: Path) -> tuple[Any, Callable[[], object]]:
    import torchair

    config = torchair.CompilerConfig()
    return _compiled(config, config)


def _torchair_model(place: Path) -> tuple[Any, Callable[[], object]]:
    import torch

    torch._dynamo.reset()
    model = _linear()

    def call() -> object:
        with torch.no_grad():
            return model(torch.ones(2, 4))

    return model, call


def _mindspore(place: Path) -> tuple[Any, Callable[[], object]]:
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    net = ms.nn.Dense(4, 3)
    return None, lambda: net(ms.Tensor(np.ones((2, 4), "f4")))


def _tensorflow(place: Path) -> tuple[Any, Callable[[], object]]:
    tf = import_module("tensorflow")

    def call() -> None:
        with tf.Graph().as_default() as graph:
            product = tf.matmul(tf.constant(np.ones((2, 4), "f4")), tf.constant(np.ones((4, 3), "f4")), name="mm")
            with tf.Session(graph=graph) as session:
                session.run(product)

    return None, call


PROGRAMS = {
    "acl": Program("acl", ("acl",), _acl),
    "torch": Program("torch", (), _torch),
    "torch with a target": Program("torch", (), _torch_model),
    "torch_npu": Program("torch_npu", ("torch_npu",), _torch_npu),
    "torchair": Program("torchair", ("torchair",), _torchair),
    "torchair with a config": Program("torchair", ("torchair",), _torchair_config),
    "torchair with a model": Program("torchair", ("torchair",), _torchair_model),
    "mindspore": Program("mindspore", ("mindspore",), _mindspore),
    "tensorflow on the NPU": Program("tensorflow", ("tensorflow", "npu_bridge"), _tensorflow),
}


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    pytest.importorskip("torch")
    for variable in ("RANK", "RANK_ID", "DUMP_GRAPH_PATH", "DUMP_GE_GRAPH", "NPU_COLLECT_PATH", "ASCEND_WORK_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    found = PROGRAMS[request.param]
    with fakes.install(*found.install, environ={}) if found.install else contextlib.nullcontext():
        if found.adapter.startswith("torch"):
            import_module("torch")
        import_module(load(found.adapter).framework)
        if found.adapter == "tensorflow":
            import_module("npu_bridge.npu_init")
        yield found


def decorated(program: Program, place: Path, steps: Any) -> tuple[Any, Any]:
    target, call = program.before(place)

    @ascend_dump.capture(target, framework=program.adapter, path=place / "dumps", steps=steps)
    def run() -> object:
        return call()

    return run, call


def names(dump: Any, step: int) -> list[tuple[str, str, int]]:
    return sorted((record.op_type, record.io, record.index) for record in dump.select(step=step))


@pytest.mark.parametrize("steps", ["1|3", "0-1", "0|4"])
def test_the_selected_calls_are_the_steps_of_one_run(
    program: Program, steps: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, _ = decorated(program, tmp_path, steps)
    with caplog.at_level(logging.WARNING, "ascend_dump"):
        for _ in range(5):
            run()
    selected = {"1|3": {1, 3}, "0-1": {0, 1}, "0|4": {0, 4}}[steps]
    dump = run.capture.dump()
    assert {record.step for record in dump} == selected
    assert dump.errors() == []
    first, second = sorted(selected)
    assert names(dump, first)
    assert {each[0] for each in names(dump, first)} == {each[0] for each in names(dump, second)}
    everything = ascend_dump.open(tmp_path / "dumps")
    assert {record.step for record in everything} == selected
    assert len(everything) == len(dump)
    assert len([path for path in (tmp_path / "dumps").glob("worldsize*/2*") if path.is_dir()]) == 1
    assert not run.capture.active
    told = [record.getMessage() for record in caplog.records]
    assert [each for each in told if "inside a container" not in each] == []


def test_a_disk_that_fails_in_the_first_call_ends_no_program(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target, _ = program.before(tmp_path)
    environment = dict(os.environ)
    disk = FailingDisk(monkeypatch)
    failures = 0
    while disk.count >= disk.fails:
        disk.fails = max(disk.fails, 0) + 1
        caplog.clear()
        calls: list[int] = []
        run = ascend_dump.capture(target, framework=program.adapter, path=tmp_path / str(disk.fails), steps="0-1")(
            calls.append
        )
        with disk:
            run(0)
        run(1)
        assert calls == [0, 1]
        reports = [text for text in caplog.messages if "No space left" in text or "is full" in text]
        assert len(reports) <= 1
        failures += len(reports)
        run.capture.stop()
        assert dict(os.environ) == environment
    assert failures >= 5


# The two that are left out take any number of operators for a step, none as well.
def test_a_selected_call_without_records_is_told_once(
    program: Program, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, call = program.before(tmp_path)

    @ascend_dump.capture(target, framework=program.adapter, path=tmp_path / "dumps", steps="0-1|3")
    def run(number: int) -> object:
        return call() if number not in (1, 2) else None

    with caplog.at_level(logging.WARNING, "ascend_dump"):
        for number in range(5):
            run(number)
        run.capture.stop()
    assert {record.step for record in run.capture.dump()} == {0, 3}
    told = [message for message in caplog.messages if "AD303" in message]
    assert len(told) == 1
    assert re.match(r"1 of the selected (call|step)s wrote nothing, the first is \1 1: ", told[0])


def test_a_framework_that_cannot_be_recorded_refuses_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fakes.install("tensorflow"):  # a stand-in for the NPU only: it has no debugger
        import_module("tensorflow")
        _, call = _tensorflow(tmp_path)

        @ascend_dump.capture(framework="tensorflow", path=tmp_path / "dumps")
        def run() -> None:
            call()

        with pytest.raises(ascend_dump.AscendDumpError, match="lack a method"):
            run()
        assert not (tmp_path / "dumps").exists() or not list((tmp_path / "dumps").rglob("index*"))


def test_a_call_that_was_interrupted_leaves_no_complete_run(program: Program, tmp_path: Path) -> None:
    target, call = program.before(tmp_path)

    @ascend_dump.capture(target, framework=program.adapter, path=tmp_path / "dumps", steps="0-2")
    def run() -> None:
        call()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    run.capture.stop()
    dump = ascend_dump.open(tmp_path / "dumps")
    assert "complete" not in {found.state for found in dump.runs()}


def test_decorated_functions_and_captures_type_check(tmp_path: Path) -> None:
    """An object of a framework without type information is a target, and no function."""
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(
        "from typing import Any\n"
        "import ascend_dump\n"
        "@ascend_dump.capture(steps='0')\n"
        "def run(number: int) -> str:\n"
        "    return str(number)\n"
        "@ascend_dump.capture\n"
        "def bare(number: int) -> str:\n"
        "    return str(number)\n"
        "@ascend_dump.capture\n"
        "async def later(number: int) -> str:\n"
        "    return str(number)\n"
        "def plain() -> None:\n"
        "    pass\n"
        "class Trainer:\n"
        "    @ascend_dump.capture\n"
        "    def train(self, number: int) -> str:\n"
        "        return str(number)\n"
        "class Model:\n"
        "    def __call__(self, number: int) -> str:\n"
        "        return str(number)\n"
        "base: Any = object\n"
        "class Untyped(base):  # type: ignore[misc]\n"
        "    pass\n"
        "with ascend_dump.capture(Model(), steps='0') as first, ascend_dump.capture(Untyped()) as second:\n"
        "    reveal_type((run(1), bare(1), Trainer().train(1)))\n"
        "    reveal_type((first, second, run.capture, bare.capture, ascend_dump.capture()))\n"
        "made = later(1)\n"
        "reveal_type([made])\n"
        "run('one')\n"
        "bare('one')\n"
        "ascend_dump.capture(stepz='0')\n"
        "with ascend_dump.capture(plain):\n"
        "    pass\n"
    )
    said, _, _ = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(program)])
    capture = "ascend_dump.capturing.capture.Capture"
    assert 'Revealed type is "tuple[str, str, str]"' in said
    assert f'Revealed type is "tuple[{", ".join([capture] * 5)}]"' in said
    assert 'Coroutine[Any, Any, str]]"' in said
    wrong = {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}
    lines = program.read_text().splitlines()
    assert {lines[number - 1] for number in wrong} == {
        "run('one')",
        "bare('one')",
        "ascend_dump.capture(stepz='0')",
        "with ascend_dump.capture(plain):",
    }


def test_calls_behind_the_last_step_keep_nothing_until_the_process_ends(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    kept = weakref.ref(model)

    @ascend_dump.capture(model, path=tmp_path, steps="0")
    def run(model: Any) -> None:
        model(torch.ones(1, 2))

    for _ in range(3):
        run(model)
    assert not run.capture.active
    del model, run
    gc.collect()
    assert kept() is None

"""A capture behaves alike whether the program starts it or ASCEND_DUMP does, for every adapter."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
from acl_helpers import execute
from disk_faults import FailingDisk
from findings import findings

import ascend_dump

# Private: a launched capture is global to its process.
from ascend_dump import fakes
from ascend_dump.adapter import load
from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save
from ascend_dump.startup import activation


class Program(NamedTuple):
    """install: the fakes. before: runs ahead of the capture. run: one step, captured. refused: bad settings."""

    install: tuple[str, ...]
    before: Callable[[Path], Any]
    run: Callable[[Any], object]
    refused: dict[str, Any]


def _init_acl(place: Path) -> Any:
    import acl

    nodes = (OfflineNode("act", "Relu", ("x:0",)),)
    save(OfflineModel("net", (TensorSpec("x", (1, 4), "float32"),), nodes, ("act:0",), True), place / "net.om")
    assert [acl.init(), acl.rt.set_device(0)] == [0, 0]
    return acl, str(place / "net.om")


def _run_acl(given: Any) -> object:
    acl, om = given
    model, ret = acl.mdl.load_from_file(om)
    assert ret == 0
    return execute(acl, model, np.arange(4, dtype=np.float32))


def _make_linear(place: Path) -> Any:
    import torch

    return torch.nn.Linear(4, 3)


def _run_linear(model: Any) -> object:
    import torch

    with torch.no_grad():
        return model(torch.ones(2, 4))


def _run_on_npu(model: Any) -> object:
    import torch

    with torch.no_grad():
        return model.npu()(torch.ones(2, 4).npu())


def _compile(model: Any) -> object:
    import torch
    import torchair

    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(model, backend=torchair.get_npu_backend())(torch.ones(2, 4))


def _make_dense(place: Path) -> Any:
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    return ms


def _run_dense(ms: Any) -> object:
    return ms.nn.Dense(4, 3)(ms.Tensor(np.ones((2, 4), "f4")))


def _import_tensorflow(place: Path) -> Any:
    import_module("npu_bridge.npu_init")
    return import_module("tensorflow")


def _run_session(tf: Any) -> object:
    with tf.Graph().as_default() as graph:
        weights = tf.get_variable("w", [4, 3], initializer=tf.ones_initializer())
        product = tf.matmul(tf.constant(np.ones((2, 4), "f4")), weights, name="mm")
        with tf.Session(graph=graph) as session:
            session.run(tf.global_variables_initializer())
            return session.run(product)


PROGRAMS = {
    "acl": Program(("acl",), _init_acl, _run_acl, {"data": "full"}),
    "torch": Program((), _make_linear, _run_linear, {"scene": "watch", "watch": "a", "options": {"no": 1}}),
    "torch_npu": Program(("torch_npu",), _make_linear, _run_on_npu, {"scene": "watch", "watch": "a"}),
    "torchair": Program(("torchair",), _make_linear, _compile, {"data": "full"}),
    "mindspore": Program(("mindspore",), _make_dense, _run_dense, {"data": "stats"}),
    "tensorflow": Program(("tensorflow", "npu_bridge"), _import_tensorflow, _run_session, {"scene": "watch"}),
}
ROADS = ("script", "launched")


class Road:
    """One capture of one program by one of the two roads."""

    def __init__(self, name: str, road: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.road, self.place = name, road, place
        self.program = PROGRAMS[name]
        self.dumps = place / "dumps"
        self._monkeypatch = monkeypatch
        self.cap: Any = None

    @contextlib.contextmanager
    def capturing(self, *, strict: bool = False, **settings: Any) -> Iterator[Any]:
        """Gives what the program needs. The end is that of the process: errors go to `failed_at_exit`."""
        settings = {"path": self.dumps, "steps": "0", **settings}
        if self.road == "launched":
            self._monkeypatch.setenv("ASCEND_DUMP_STRICT", "1" if strict else "0")
            road = activation.launch(load(self.name), ascend_dump.DumpRequest(**settings))
            given = self.program.before(self.place)
            try:
                yield given
            finally:
                road.end()
                if self.name in ("torch", "torch_npu"):
                    # What follows the calls ends with the first call behind the capture.
                    self.program.run(given)
        else:
            given = self.program.before(self.place)
            self.cap = ascend_dump.capture(framework=self.name, strict=strict, **settings)
            with self.cap:
                yield given


@pytest.fixture
def road(name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Road]:
    pytest.importorskip("torch")
    for variable in ("RANK", "RANK_ID", "DUMP_GRAPH_PATH", "DUMP_GE_GRAPH", "NPU_COLLECT_PATH", "ASCEND_WORK_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(activation, "_launched", {})
    monkeypatch.setattr(activation, "_code", 0)
    load(name)
    install = PROGRAMS[name].install
    with fakes.install(*install) if install else contextlib.nullcontext():
        if name in ("torch", "torch_npu", "torchair"):
            import_module("torch")
        import_module(load(name).framework)
        if name == "tensorflow":
            import_module("npu_bridge.npu_init")
        yield Road(name, how, tmp_path, monkeypatch)


both = [
    pytest.mark.parametrize("how", ROADS),
    pytest.mark.parametrize("name", PROGRAMS),
]


def on_both_roads(test: Any) -> Any:
    for mark in both:
        test = mark(test)
    return test


def runs(road: Road) -> list[Path]:
    return [path for path in road.dumps.glob("worldsize*/2*") if path.is_dir()]


@on_both_roads
def test_what_runs_is_dumped_into_one_run(road: Road) -> None:
    with road.capturing() as given:
        road.program.run(given)
    assert len(runs(road)) == 1
    assert len(ascend_dump.open(road.dumps)) > 0


@on_both_roads
def test_every_refusal_is_told_and_nothing_is_made(road: Road, capsys: pytest.CaptureFixture[str]) -> None:
    refused = findings(road.name, ascend_dump.DumpRequest(path=road.dumps, **road.program.refused), None)
    assert any(problem.severity == "error" for problem in refused)
    if road.road == "script":
        with pytest.raises(ascend_dump.ConfigError) as raised, road.capturing(**road.program.refused):
            pass
        said = str(raised.value)
    else:
        with road.capturing(**road.program.refused) as given:
            road.program.run(given)
        said = capsys.readouterr().err
        assert said.count("nothing is dumped by the adapter") == 1
    # What a warning is about may depend on the road: how often the program runs a model.
    for problem in (one for one in refused if one.severity != "warning"):
        assert " ".join(problem.message.split()) in " ".join(said.split())
    assert not road.dumps.exists()


@on_both_roads
def test_what_is_no_refusal_is_a_warning(road: Road, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ascend_dump"), road.capturing(max_bytes="1GB") as given:
        road.program.run(given)
    expected = road.name != "torch"  # the host keeps the limit
    assert ("max_bytes= changes nothing" in caplog.text) == expected


@on_both_roads
def test_a_rank_that_is_not_asked_for_writes_nothing(road: Road, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ascend_dump"), road.capturing(ranks="3") as given:
        road.program.run(given)
    assert runs(road) == []
    assert caplog.text.count("ranks=3 selects no rank of this run, whose world size is 1") == 1


@on_both_roads
def test_an_empty_dump_is_explained(road: Road, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ascend_dump"), road.capturing(steps="1000") as given:
        road.program.run(given)
    assert caplog.text.count("wrote nothing") == 1
    assert "AD303" in caplog.text


@on_both_roads
def test_an_empty_dump_fails_a_strict_run(road: Road) -> None:
    if road.road == "script":
        with (
            pytest.raises(ascend_dump.CaptureError, match="wrote nothing"),
            road.capturing(steps="1000", strict=True) as given,
        ):
            road.program.run(given)
    else:
        with road.capturing(steps="1000", strict=True) as given:
            road.program.run(given)
        assert activation._code, "the exit code says nothing"


@pytest.mark.parametrize("how", ["script"])  # the launcher reports any error and goes on
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_disk_that_fails_at_the_start_ends_no_program(
    road: Road, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = road.program.before(road.place)
    disk = FailingDisk(monkeypatch, errno.ENOSPC)
    failures: list[int] = []
    while disk.count >= disk.fails:
        disk.fails = max(disk.fails, 0) + 1
        caplog.clear()
        cap = ascend_dump.capture(framework=road.name, path=road.place / str(disk.fails))
        with disk:
            cap.start()
        failed = not cap.recording
        cap.stop()
        reports = [text for text in caplog.messages if "No space left" in text or "is full" in text]
        assert failed <= len(reports) <= 1
        assert not (failed and list(cap.dump()))
        failures += [disk.fails] * failed
    disk.fails = failures[5]
    with pytest.raises(OSError, match="No space left"), disk:
        ascend_dump.capture(framework=road.name, path=road.place / "strict", strict=True).start()
    with ascend_dump.capture(framework=road.name, path=road.dumps) as cap:
        road.program.run(given)
    assert len(cap.dump()) > 0, "nothing stays armed"


@on_both_roads
def test_an_exception_of_the_program_is_its_own_and_ends_the_dump(road: Road) -> None:
    with pytest.raises(ZeroDivisionError), road.capturing() as given:  # noqa: PT012  (what ran before is looked at)
        road.program.run(given)
        raise ZeroDivisionError
    dump = ascend_dump.open(road.dumps)
    assert len(dump) > 0
    assert dump.errors() == []


@on_both_roads
def test_a_forked_child_leaves_the_dump_to_its_parent(road: Road) -> None:
    with road.capturing() as given:
        road.program.run(given)
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(BaseException):
                if road.cap is not None:
                    road.cap.end()
                else:
                    activation._launched[road.name].end()
                code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    dump = ascend_dump.open(road.dumps)
    assert len(dump) > 0
    assert dump.errors() == []

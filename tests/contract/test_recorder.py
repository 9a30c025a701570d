"""keep=, until= and trigger() with every framework that writes its dump itself."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
from acl_helpers import execute

import ascend_dump
from ascend_dump import fakes
from ascend_dump.adapter import load
from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save


class Framework(NamedTuple):
    """install: the fakes. prepare: gives a function that runs one step, with an input of this value, in the block."""

    install: tuple[str, ...]
    prepare: Callable[[Path], Callable[[float], object]]


def _acl(place: Path) -> Callable[[float], object]:
    import acl

    nodes = (OfflineNode("act", "Sqrt", ("x:0",)),)
    save(OfflineModel("net", (TensorSpec("x", (1, 4), "float32"),), nodes, ("act:0",), True), place / "net.om")
    assert [acl.init(), acl.rt.set_device(0)] == [0, 0]
    made: list[Any] = []

    def run(value: float) -> object:
        if not made:
            model, ret = acl.mdl.load_from_file(str(place / "net.om"))
            assert ret == 0
            made.append(model)
        return execute(acl, made[0], np.full(4, value, np.float32))

    run.made = made  # type: ignore[attr-defined]
    return run


def _torch_npu(place: Path) -> Callable[[float], object]:
    import torch

    return lambda value: torch.full((2, 4), value).npu().sqrt()


def _torchair(place: Path) -> Callable[[float], object]:
    import torch
    import torchair

    torch._dynamo.reset()
    compiled: list[Any] = []

    def run(value: float) -> object:
        if not compiled:
            compiled.append(torch.compile(torch.nn.Linear(4, 3), backend=torchair.get_npu_backend()))
        with torch.no_grad():
            return compiled[0](torch.full((2, 4), value))

    return run


def _mindspore(place: Path) -> Callable[[float], object]:
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    made: list[Any] = []

    def run(value: float) -> object:
        if not made:
            made.append(ms.nn.Dense(4, 3))
        return made[0](ms.Tensor(np.full((2, 4), value, "f4")))

    return run


def _tensorflow(place: Path) -> Callable[[float], object]:
    tf = import_module("tensorflow")
    made: list[Any] = []

    def run(value: float) -> object:
        if not made:
            graph = tf.Graph()
            with graph.as_default():
                given = tf.placeholder(tf.float32, [2, 4])
                made.append((tf.Session(graph=graph), tf.sqrt(given, name="root"), given))
        session, root, given = made[0]
        return session.run(root, {given: np.full((2, 4), value, "f4")})

    run.made = made  # type: ignore[attr-defined]
    return run


FRAMEWORKS = {
    "acl": Framework(("acl",), _acl),
    "torch_npu": Framework(("torch_npu",), _torch_npu),
    "torchair": Framework(("torchair",), _torchair),
    "mindspore": Framework(("mindspore",), _mindspore),
    "tensorflow": Framework(("tensorflow", "npu_bridge"), _tensorflow),
}


@pytest.fixture(params=FRAMEWORKS)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def step(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], object]]:
    pytest.importorskip("torch")
    for variable in ("RANK", "RANK_ID", "DUMP_GRAPH_PATH", "DUMP_GE_GRAPH", "NPU_COLLECT_PATH", "ASCEND_WORK_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    framework = FRAMEWORKS[name]
    load(name)
    with fakes.install(*framework.install):
        if name in ("torch_npu", "torchair"):
            import_module("torch")
        import_module(load(name).framework)
        if name == "tensorflow":
            import_module("npu_bridge.npu_init")
        yield framework.prepare(tmp_path)


def steps_of(dump: Any) -> list[Any]:
    return sorted({record.step for record in dump} - {None})


def manifest(cap: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cap.path / "manifest.json").read_text())
    return found


def run_steps(name: str, cap: Any, step: Callable[[float], object], values: list[float]) -> None:
    for value in values:
        if name == "torch_npu" and getattr(cap, "begun", False):
            cap.step()
        cap.begun = True
        step(value)


def test_only_the_last_steps_stay(name: str, step: Callable[[float], object], caplog: pytest.LogCaptureFixture) -> None:
    with ascend_dump.capture(framework=name, path="dumps", keep=2) as cap:
        run_steps(name, cap, step, [1.0] * 7)
    steps = steps_of(cap.dump())
    assert len(steps) == 2
    assert steps == list(range(steps[0], steps[0] + 2))
    assert steps[-1] in (5, 6, 7), "counted from 0 or, by TensorFlow, with the run that begins the session"
    assert cap.dump().errors() == []
    found = manifest(cap)
    assert (found["request"]["keep"], found["state"]) == (2, "complete")
    assert found["removed"]["steps"] >= 4
    (run,) = ascend_dump.open("dumps").runs()
    assert "older steps were removed (keep=2)" in run.notes[0]
    assert "wrote nothing" not in caplog.text


def test_files_of_others_stay(name: str, step: Callable[[float], object], tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("mine")
    with ascend_dump.capture(framework=name, path="dumps", keep=1) as cap:
        run_steps(name, cap, step, [1.0] * 2)
        (cap.path / "notes.txt").write_text("mine")
        for directory, names, _ in list(os.walk(cap.path)):
            if any(found.isdecimal() for found in names):
                os.symlink(tmp_path / "outside", Path(directory, "0000000"))
        run_steps(name, cap, step, [1.0] * 3)
    assert (cap.path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "outside" / "precious").read_text() == "mine"
    assert list(cap.path.rglob("0000000")), "links are no steps"


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_the_step_that_produced_nan_is_the_last(
    name: str, step: Callable[[float], object], data: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = np.nan if name in ("torchair", "mindspore") else -1.0
    if data == "stats" and name == "mindspore":
        pytest.skip("MindSpore writes no statistics on a CPU")
    with ascend_dump.capture(framework=name, path="dumps", keep=2, until="nonfinite", data=data) as cap:
        run_steps(name, cap, step, [1.0, 1.0, 1.0, 1.0, wrong, 1.0, 1.0])
    found = manifest(cap)["ended"]
    steps = steps_of(cap.dump())
    assert steps == [found["step"] - 2, found["step"] - 1, found["step"]]
    assert found["step"] in (4, 5)
    assert found["reason"].startswith("NaN in")
    assert caplog.text.count("the capture keeps it and records nothing more") == 1


def test_without_nan_it_says_so(name: str, step: Callable[[float], object]) -> None:
    with ascend_dump.capture(framework=name, path="dumps", until="nonfinite") as cap:
        run_steps(name, cap, step, [1.0] * 3)
    assert len(steps_of(cap.dump())) >= 3
    (run,) = ascend_dump.open("dumps").runs()
    assert run.notes[-1].startswith("no step produced NaN or Inf")


@pytest.mark.parametrize("keep", [None, 1])
def test_a_trigger_ends_it(name: str, step: Callable[[float], object], keep: Any) -> None:
    with ascend_dump.capture(framework=name, path="dumps", keep=keep) as cap:
        run_steps(name, cap, step, [1.0] * 4)
        before = steps_of(cap.dump())
        cap.trigger("loss spike")
        run_steps(name, cap, step, [1.0] * 3)
    steps = steps_of(cap.dump())
    assert steps == (before if keep is None else before[-2:])
    if keep is not None:
        assert manifest(cap)["ended"] == {"reason": "loss spike", "step": before[-1], "operator": ""}


def test_an_exception_ends_it(name: str, step: Callable[[float], object]) -> None:
    cap = ascend_dump.capture(framework=name, path="dumps", keep=1)
    with pytest.raises(ValueError, match="no batch"), cap:  # noqa: PT012  (the exception leaves the block)
        run_steps(name, cap, step, [1.0] * 4)
        raise ValueError("no batch")
    assert len(steps_of(cap.dump())) == 2
    assert manifest(cap)["ended"]["reason"] == "ValueError: no batch"


def test_calls_of_a_decorated_function_are_steps(name: str, step: Callable[[float], object]) -> None:
    @ascend_dump.capture(framework=name, path="dumps", keep=2)
    def call(value: float) -> object:
        if name in ("acl", "tensorflow"):
            step.made.clear()  # type: ignore[attr-defined]  # a capture dumps what is loaded in it
        return step(value)

    for number in range(6):
        call(1.0)
        if number == 4:
            call.capture.trigger("enough")
    call.capture.stop()
    assert steps_of(call.capture.dump()) == [2, 3, 4]
    assert manifest(call.capture)["ended"]["reason"] == "enough"


@pytest.mark.parametrize("steps", ["0-9", "1000-2000"])
@pytest.mark.parametrize("name", ["acl", "mindspore"], indirect=False)
def test_a_dump_without_a_directory_for_each_step_is_told(
    name: str,
    step: Callable[[float], object],
    steps: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """GE gives graphs that see no step counter no level for it, and nobody knows before they have run."""
    module = import_module(f"ascend_dump_{name}._session")
    session = module.AclSession if name == "acl" else module.MindSporeSession
    monkeypatch.setattr(session, "step_directories", re.compile("another"))
    with ascend_dump.capture(framework=name, path="dumps", keep=1, steps=steps):
        step(1.0)
    assert ("keep= changed nothing" in caplog.text) == (steps == "0-9")


def test_a_dump_that_was_opened_before_has_typed_errors(name: str, step: Callable[[float], object]) -> None:
    with ascend_dump.capture(framework=name, path="dumps", keep=1) as cap:
        run_steps(name, cap, step, [1.0] * 2)
        before = cap.dump()
        records = list(before)
        run_steps(name, cap, step, [1.0] * 3)
    assert len(steps_of(cap.dump())) == 1
    assert records
    for record in records:
        with pytest.raises(ascend_dump.ReadError):
            record.numpy()
    assert all(record.error is not None for record in before)
    before.catalog().collect()


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many bytes are free on the disk, and makes the looks for a complete step follow each other at once."""
    monkeypatch.setattr("ascend_dump.capturing._disk_forecast._PAUSE", 0.01)
    monkeypatch.setattr("ascend_dump.capturing._disk_forecast._PAUSE_FACTOR", 0)

    # Not the file system's own answer: CANN asks it too, and drops a dump for which there is too little.
    def put(nbytes: int) -> None:
        monkeypatch.setattr("ascend_dump.writing.budget.Budget._free", lambda budget: (nbytes, 0))

    return put


def forecasts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in (one.getMessage() for one in caplog.records) if text.startswith("a step is ")]


def run_until_told(name: str, cap: Any, step: Callable[[float], object], told: Callable[[], object]) -> None:
    """Run a few steps, and wait until the thread that looks at them has told what it found."""
    run_steps(name, cap, step, [1.0] * 3)
    patience = time.monotonic() + 600  # on a busy machine that thread may have to wait for a processor
    while not told() and time.monotonic() < patience:
        time.sleep(0.02)


@pytest.mark.parametrize(("steps", "asked"), [(None, "all steps"), ("0-998", "999 steps")])
def test_what_will_not_fit_is_told_after_the_first_step(
    name: str,
    step: Callable[[float], object],
    free: Callable[[int], None],
    steps: Any,
    asked: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    free(5000)
    with ascend_dump.capture(framework=name, path="dumps", steps=steps) as cap:
        run_until_told(name, cap, step, lambda: forecasts(caplog))
    [told] = forecasts(caplog)
    found = re.match(
        rf"a step is ([\d.]+) (k?B), {asked} were asked for, 5.0 kB are free: "
        r"the disk is full after about (\d+) steps of",
        told,
    )
    assert found is not None, told
    nbytes = float(found[1]) * (1000 if found[2] == "kB" else 1)
    first = min(steps_of(cap.dump()))
    # Rounded to a tenth of a kB; the files of a step hold its tensors and more.
    assert nbytes + 50 >= sum(record.nbytes or 0 for record in cap.dump().select(step=first))
    assert abs(int(found[3]) - 1 - 5000 / nbytes) <= 1.5
    assert "max_bytes" not in told


def test_nothing_is_told_where_all_fits(
    name: str, step: Callable[[float], object], free: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    free(1 << 40)
    threads = [one.name for one in threading.enumerate()]
    with ascend_dump.capture(framework=name, path="dumps", steps="0-998") as cap:
        run_until_told(name, cap, step, lambda: [one.name for one in threading.enumerate()] == threads)
    assert forecasts(caplog) == []


def test_nothing_is_told_of_one_step(
    name: str, step: Callable[[float], object], free: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    free(1000)
    with ascend_dump.capture(framework=name, path="dumps", steps="0") as cap:
        run_steps(name, cap, step, [1.0] * 3)
    assert forecasts(caplog) == []

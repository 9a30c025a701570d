"""The scenarios that all programs of the self-test share, and the notes that a program saves.

A program is started as `python with_torch.py FRAMEWORK SCENARIO DIRECTORY`. It runs a tiny network, with or without a
capture. In the directory it saves the arrays that it fetched (`truth.npz`) and its notes (`truth.json`), such as
messages and facts about the device.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import ascend_dump
from ascend_dump.errors import AscendDumpError, ConfigError, NotSupported
from ascend_dump.selftest.evidence import FAILED

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DUMPS", "OVERFLOWS", "SELECTED", "STEPS", "Network", "StepSeen", "ask_each", "main"]

STEPS = 4
#: The captured steps. Step 0 and the step between them are left out, to see that they are not dumped.
SELECTED = (1, 3)
DUMPS = "dumps"
#: The step that overflows in the scenario "overflow".
OVERFLOWS = 1
#: Number of steps that run after the end of the capture.
_STEPS_AFTER = 2
#: Maximum size of a file in bytes in the scenario "full": the limit stands in for a full disk.
_FULL = 2048


@dataclass(frozen=True)
class StepSeen:
    """The arrays that a program fetched in one step: inputs and outputs of operators, and the result of the step."""

    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    result: Sequence[np.ndarray]


@dataclass(frozen=True)
class Network:
    """The part of a self-test program that depends on the framework.

    make      returns a new model for `step`, with the same weights each time
    step      runs one step: `step(model, number, overflow)`; `overflow` lets an operator overflow
    settings  arguments of `capture`, in addition to those of the scenario
    target    returns the part of the model to capture; None captures everything that runs in the block
    marks     True if the program has to call `Capture.step`, because the framework does not count steps
    anew      True if a decorated function makes a new model in each call, because the framework reads the settings of
              a dump when a model is made
    detects   True if the device detects overflows by itself
    facts     returns facts about the device, in addition to those of the probes' programs; called after the run with
              the directory of the process
    """

    make: Callable[[], Any]
    step: Callable[[Any, int, bool], StepSeen]
    settings: dict[str, Any] = field(default_factory=dict)
    target: Callable[[Any], Any] = lambda model: model
    marks: bool = False
    anew: bool = False
    detects: bool = False
    facts: Callable[[Path], dict[str, Any]] = lambda directory: {}


class _Truth:
    """The notes and arrays of a program. `write` saves them at its end, even if the program fails."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.noted: dict[str, Any] = {"began": time.time(), "messages": []}
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, number: int, fetched: StepSeen) -> None:
        for kind in ("inputs", "outputs", "result"):
            for index, array in enumerate(getattr(fetched, kind)):
                self.arrays[f"{kind}-{number}-{index}"] = array

    def write(self) -> None:
        import numpy as np

        self.noted["ended"] = time.time()
        arrays: dict[str, Any] = self.arrays
        np.savez(self.directory / "truth.npz", **arrays)
        (self.directory / "truth.json").write_text(json.dumps(self.noted, default=str))


class _Listener(logging.Handler):
    """A handler that collects the messages of ascend_dump."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def ask_each(directory: Path, questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Call the functions `questions` one after the other, and return their results by name.

    The error of a question that raises one is stored under the name `FAILED`, by the name of the question. `truth.json`
    is written after each question, because the next question may end the process.

    >>> import tempfile
    >>> ask_each(Path(tempfile.mkdtemp()), {"sum": lambda: 1 + 1, "quotient": lambda: 1 // 0})["sum"]
    2
    """
    facts: dict[str, Any] = {FAILED: {}}
    for name, question in questions.items():
        try:
            facts[name] = question()
        except Exception as error:  # a framework may raise any error
            facts[FAILED][name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        (directory / "truth.json").write_text(json.dumps({"facts": facts}))
    return facts


def main(network: Network) -> None:
    """Run the scenario that the command line names, and write the notes."""
    scenario, directory = sys.argv[2], Path(sys.argv[3])
    truth = _Truth(directory)
    logging.getLogger("ascend_dump").addHandler(_Listener(truth.noted["messages"]))
    try:
        _SCENARIOS[scenario](network, truth)
    finally:
        truth.write()


def _run(network: Network, truth: _Truth, model: Any, *, mark: Callable[[], None], overflow: bool = False) -> None:
    for number in range(STEPS):
        if number:
            mark()
        truth.add(number, network.step(model, number, overflow and number == OVERFLOWS))


def _capture(network: Network, truth: _Truth, target: Any, **settings: Any) -> ascend_dump.Capture:
    common = {"path": truth.directory / DUMPS, "steps": "|".join(map(str, SELECTED)), "mode": "all", "quiet": True}
    return ascend_dump.capture(target, **{**common, **network.settings, **settings})  # type: ignore[no-any-return]


def _files(directory: Path) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_size) for path in directory.rglob("*") if path.is_file()}


def _plain(network: Network, truth: _Truth) -> None:
    """Run without starting a capture. Captured runs must have the same results. The launcher captures this scenario."""
    _run(network, truth, network.make(), mark=lambda: None)


def _with(network: Network, truth: _Truth, **settings: Any) -> None:
    """Run all steps in a `with` block, then further steps, and note the files that these changed."""
    model = network.make()
    cap = _capture(network, truth, network.target(model), strict=True, **settings)
    with _refusal_noted(truth), cap:
        mark = cap.step if network.marks else lambda: None
        _run(network, truth, model, mark=mark, overflow=bool(truth.noted.get("plant")))
    before = _files(truth.directory / DUMPS)
    for number in range(STEPS, STEPS + _STEPS_AFTER):
        network.step(model, number, False)
    truth.noted["after"] = sorted(path for path, _ in _files(truth.directory / DUMPS) - before)
    truth.noted["facts"] = network.facts(truth.directory)


@contextmanager
def _refusal_noted(truth: _Truth) -> Iterator[None]:
    """Note the error of an adapter that refuses the capture before the first step.

    The checks of the scenario are then skipped, they do not fail. Later errors are raised.
    """
    try:
        yield
    except (ConfigError, NotSupported) as error:
        if truth.arrays:
            raise
        truth.noted["refused"] = str(error)


def _decorated(network: Network, truth: _Truth) -> None:
    """Capture a decorated function. Each call of the function is one step."""
    model = None if network.anew else network.make()

    def step(number: int) -> StepSeen:
        return network.step(network.make() if network.anew else model, number, False)

    cap = _capture(network, truth, None, strict=True)
    decorated = cap(step)
    for number in range(STEPS):
        truth.add(number, decorated(number))
    decorated.capture.stop()


def _statistics(network: Network, truth: _Truth) -> None:
    _with(network, truth, data="stats")


def _overflow(network: Network, truth: _Truth) -> None:
    """Capture a run with an overflow: with `scene="overflow"` if the device detects overflows, else all tensors."""
    truth.noted["plant"] = True
    # `steps` is None for the scene, because GE and acl cannot select steps for overflow detection.
    _with(network, truth, **({"scene": "overflow", "steps": None} if network.detects else {}))


def _unwritable(network: Network, truth: _Truth) -> None:
    """Capture to a path that cannot be created.

    It is below a read-only directory. Root may write there, so for root it is below a regular file.
    """
    import os

    parent = truth.directory / "read-only"
    if os.geteuid():
        parent.mkdir(mode=0o500)
    else:
        parent.write_text("")
    _survive(network, truth, network.make(), path=parent / DUMPS)


def _full(network: Network, truth: _Truth) -> None:
    """Capture with a limit on the size of files, which is smaller than the tensors: writing fails as on a full disk."""
    import resource

    model = network.make()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL, hard))
    try:
        _survive(network, truth, model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _survive(network: Network, truth: _Truth, model: Any, **settings: Any) -> None:
    """Run all steps even if the capture fails, as a user's program does, and note the error.

    settings: arguments of `capture`.
    """
    try:
        cap = _capture(network, truth, network.target(model), **settings)
        with cap:
            _run(network, truth, model, mark=cap.step if network.marks else lambda: None)
    except AscendDumpError as error:
        truth.noted["messages"].append(str(error))
        if not truth.arrays:  # no step has run yet
            _run(network, truth, model, mark=lambda: None)


_SCENARIOS: dict[str, Callable[[Network, _Truth], None]] = {
    "plain": _plain,
    "with": _with,
    "decorator": _decorated,
    "statistics": _statistics,
    "overflow": _overflow,
    "unwritable": _unwritable,
    "full": _full,
}

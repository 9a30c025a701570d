"""The scenarios of the programs of the self-test, and the notes of a program.

A program is started as `python with_torch.py FRAMEWORK SCENARIO DIRECTORY`. It runs a tiny network, with or without a
capture, and saves the arrays that it fetched (`truth.npz`) and its observations (`truth.json`) in the directory.
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
#: Not the first step, and not the step between them.
SELECTED = (1, 3)
DUMPS = "dumps"
#: The step that overflows in the scenario overflow.
OVERFLOWS = 1
#: Steps after the end of the capture.
_STEPS_AFTER = 2
#: Limit for the size of files, as on a full disk.
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

    make      creates the model that `step` runs, with the same weights each time
    step      runs step `number`; `overflow` makes an operator overflow
    settings  of `capture`, besides those of the scenario
    target    the part to capture; None captures everything that runs in the block
    marks     `Capture.step` has to count the steps, because the framework does not
    anew      each call of a decorated function makes a model, because the framework reads its settings then
    detects   the device detects overflows by itself
    facts     further facts about the device, determined after the run
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
    """The notes of a program, written at its end, even if it fails."""

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
    """Ask questions one after the other, and return the answers by name.

    If a question raises an error, the error is noted in the fact `FAILED`. `truth.json` is written after each question,
    because the next one may end the process.

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
    """Run the scenario of the command line."""
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
    """Run without a capture: for comparison, and under the launcher."""
    _run(network, truth, network.make(), mark=lambda: None)


def _with(network: Network, truth: _Truth, **settings: Any) -> None:
    """Run a with block, and further steps after it."""
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
    """Note a refusal of an adapter before the first step: the scenario is not supported, it does not fail."""
    try:
        yield
    except (ConfigError, NotSupported) as error:
        if truth.arrays:
            raise
        truth.noted["refused"] = str(error)


def _decorated(network: Network, truth: _Truth) -> None:
    """Run a decorated function; each call is a step."""
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
    """Run the scene overflow on devices that detect overflows, else a capture of values."""
    truth.noted["plant"] = True
    # At every step: GE and acl cannot select steps for it.
    _with(network, truth, **({"scene": "overflow", "steps": None} if network.detects else {}))


def _unwritable(network: Network, truth: _Truth) -> None:
    """Run with a path that cannot be written: below a read-only directory, for root below a file."""
    import os

    parent = truth.directory / "read-only"
    if os.geteuid():
        parent.mkdir(mode=0o500)
    else:
        parent.write_text("")
    _survive(network, truth, network.make(), path=parent / DUMPS)


def _full(network: Network, truth: _Truth) -> None:
    """Run with a full disk: files cannot grow beyond a fraction of the network's tensors."""
    import resource

    model = network.make()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL, hard))
    try:
        _survive(network, truth, model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _survive(network: Network, truth: _Truth, model: Any, **settings: Any) -> None:
    """Run to the end even if the capture fails, as a user's program does, and note the messages."""
    try:
        cap = _capture(network, truth, network.target(model), **settings)
        with cap:
            _run(network, truth, model, mark=cap.step if network.marks else lambda: None)
    except AscendDumpError as error:
        truth.noted["messages"].append(str(error))
        if not truth.arrays:  # refused before it began
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

"""Shared by the programs of the self-test: the scenarios, and the notes that a program leaves.

A program is started as `python with_torch.py FRAMEWORK SCENARIO DIRECTORY`. It runs a tiny network, with or without a
capture, and leaves in the directory the arrays that it fetched itself (`truth.npz`) and its observations
(`truth.json`).
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
#: Neither the first nor the last step, and one between them that is left out.
SELECTED = (1, 3)
DUMPS = "dumps"
#: The step that overflows in the scenario of that name.
OVERFLOWS = 1
#: Steps after the end of the capture.
_BEHIND = 2
#: No file may become longer, as on a disk that is full.
_FULL = 2048


@dataclass(frozen=True)
class StepSeen:
    """What a program fetched in one step: inputs and outputs of operators, and the result of the step."""

    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    result: Sequence[np.ndarray]


@dataclass(frozen=True)
class Network:
    """The part of a self-test program that depends on the framework.

    make      creates what `step` runs, with the same weights each time
    step      runs step `number`; `overflow` makes an operator overflow
    settings  of `capture`, besides those of the scenario
    target    the part to capture; None captures what runs in the block
    marks     whether steps have to be drawn by `Capture.step`, because the framework does not count them
    anew      whether each call of a decorated function makes its own, because the framework reads its settings then
    detects   whether the device detects overflows by itself
    facts     other facts about the device that the program can determine after its run
    """

    make: Callable[[], Any]
    step: Callable[[Any, int, bool], StepSeen]
    settings: dict[str, Any] = field(default_factory=dict)
    target: Callable[[Any], Any] = lambda made: made
    marks: bool = False
    anew: bool = False
    detects: bool = False
    facts: Callable[[Path], dict[str, Any]] = lambda directory: {}


class _Truth:
    """What is written at the end, even if the program fails."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.noted: dict[str, Any] = {"began": time.time(), "messages": []}
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, number: int, seen: StepSeen) -> None:
        for kind in ("inputs", "outputs", "result"):
            for place, array in enumerate(getattr(seen, kind)):
                self.arrays[f"{kind}-{number}-{place}"] = array

    def write(self) -> None:
        import numpy as np

        self.noted["ended"] = time.time()
        arrays: dict[str, Any] = self.arrays
        np.savez(self.directory / "truth.npz", **arrays)
        (self.directory / "truth.json").write_text(json.dumps(self.noted, default=str))


class _Listener(logging.Handler):
    """Collects the messages of ascend_dump."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def ask_each(directory: Path, questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """The answers by name, one question after the other.

    The exception of a question is noted under `FAILED` instead. `truth.json` is written after each question, because
    the next one may end the process.

    >>> import tempfile
    >>> ask_each(Path(tempfile.mkdtemp()), {"sum": lambda: 1 + 1, "quotient": lambda: 1 // 0})["sum"]
    2
    """
    facts: dict[str, Any] = {FAILED: {}}
    for name, question in questions.items():
        try:
            facts[name] = question()
        except Exception as error:  # whatever a framework raises
            facts[FAILED][name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        (directory / "truth.json").write_text(json.dumps({"facts": facts}))
    return facts


def main(network: Network) -> None:
    """Run the scenario that the command line names."""
    scenario, directory = sys.argv[2], Path(sys.argv[3])
    truth = _Truth(directory)
    logging.getLogger("ascend_dump").addHandler(_Listener(truth.noted["messages"]))
    try:
        _SCENARIOS[scenario](network, truth)
    finally:
        truth.write()


def _run(network: Network, truth: _Truth, made: Any, *, mark: Callable[[], None], overflow: bool = False) -> None:
    for number in range(STEPS):
        if number:
            mark()
        truth.add(number, network.step(made, number, overflow and number == OVERFLOWS))


def _capture(network: Network, truth: _Truth, target: Any, **settings: Any) -> ascend_dump.Capture:
    common = {"path": truth.directory / DUMPS, "steps": "|".join(map(str, SELECTED)), "mode": "all", "quiet": True}
    return ascend_dump.capture(target, **{**common, **network.settings, **settings})  # type: ignore[no-any-return]


def _files(directory: Path) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_size) for path in directory.rglob("*") if path.is_file()}


def _plain(network: Network, truth: _Truth) -> None:
    """Without a capture: for comparison, and under the launcher."""
    _run(network, truth, network.make(), mark=lambda: None)


def _with(network: Network, truth: _Truth, **settings: Any) -> None:
    """A with block, and more steps after it."""
    made = network.make()
    cap = _capture(network, truth, network.target(made), strict=True, **settings)
    with _refusal_noted(truth), cap:
        mark = cap.step if network.marks else lambda: None
        _run(network, truth, made, mark=mark, overflow=bool(truth.noted.get("plant")))
    before = _files(truth.directory / DUMPS)
    for number in range(STEPS, STEPS + _BEHIND):
        network.step(made, number, False)
    truth.noted["after"] = sorted(path for path, _ in _files(truth.directory / DUMPS) - before)
    truth.noted["facts"] = network.facts(truth.directory)


@contextmanager
def _refusal_noted(truth: _Truth) -> Iterator[None]:
    """Note what an adapter refuses before anything runs; that is not a failure, it is not supported here."""
    try:
        yield
    except (ConfigError, NotSupported) as error:
        if truth.arrays:
            raise
        truth.noted["refused"] = str(error)


def _decorated(network: Network, truth: _Truth) -> None:
    """A decorated function; each call is a step."""
    made = None if network.anew else network.make()

    def step(number: int) -> StepSeen:
        return network.step(network.make() if network.anew else made, number, False)

    cap = _capture(network, truth, None, strict=True)
    decorated = cap(step)
    for number in range(STEPS):
        truth.add(number, decorated(number))
    decorated.capture.stop()


def _statistics(network: Network, truth: _Truth) -> None:
    _with(network, truth, data="stats")


def _overflow(network: Network, truth: _Truth) -> None:
    """The scene overflow on devices that detect overflows; else overflow is found from recorded values."""
    truth.noted["plant"] = True
    # At every step: GE and acl know no others for it.
    _with(network, truth, **({"scene": "overflow", "steps": None} if network.detects else {}))


def _unwritable(network: Network, truth: _Truth) -> None:
    """A path that cannot be written to: below a read-only directory, for root below a file."""
    import os

    place = truth.directory / "read-only"
    if os.geteuid():
        place.mkdir(mode=0o500)
    else:
        place.write_text("")
    _survive(network, truth, network.make(), path=place / DUMPS)


def _full(network: Network, truth: _Truth) -> None:
    """A full disk: files cannot grow beyond a fraction of the network's tensors."""
    import resource

    made = network.make()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL, hard))
    try:
        _survive(network, truth, made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _survive(network: Network, truth: _Truth, made: Any, **settings: Any) -> None:
    """Run to the end whatever happens to the capture, as a user's program does, and note its messages."""
    try:
        cap = _capture(network, truth, network.target(made), **settings)
        with cap:
            _run(network, truth, made, mark=cap.step if network.marks else lambda: None)
    except AscendDumpError as error:
        truth.noted["messages"].append(str(error))
        if not truth.arrays:  # refused before it began
            _run(network, truth, made, mark=lambda: None)


_SCENARIOS: dict[str, Callable[[Network, _Truth], None]] = {
    "plain": _plain,
    "with": _with,
    "decorator": _decorated,
    "statistics": _statistics,
    "overflow": _overflow,
    "unwritable": _unwritable,
    "full": _full,
}

"""Evidence that the runs of one framework left on a device, and helpers for the probes that judge it.

A *fact* is the answer of a self-test program to a question about the device, such as an error code. A *probe* is a
function that reads the evidence and returns an outcome for one assumption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from ascend_dump.native.cann.names import DumpName, parse_name
from ascend_dump.selftest.assumptions import Outcome

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "FAILED",
    "DeviceFile",
    "Evidence",
    "Probe",
    "Untried",
    "device_files",
    "fact",
    "judge_fact",
    "outcome",
    "probes",
    "step_of",
]

_TIME_DIGITS = 14
#: Name of the fact that contains the errors: a dict from the name of each question that failed to its error.
FAILED = "failed"


class DeviceFile(NamedTuple):
    """A file that the device wrote.

    time    name of the directory that is named after a time, "YYYYmmddHHMMSS"
    levels  names of the directories between that directory and the file; the first is the number of the device
    name    the parsed file name, None if the name is not one of CANN's
    """

    path: Path
    time: str
    levels: tuple[str, ...]
    name: Any

    @property
    def parsed(self) -> DumpName:
        assert isinstance(self.name, DumpName)
        return self.name


@dataclass(frozen=True)
class Evidence:
    """The dumps of the runs of one framework on a device, and the facts that its programs noted.

    device           logical number of the device
    began, ended     start of the first run and end of the last one, in seconds since the epoch
    tensors          directory of the dump of whole tensors; None if there is none
    statistics       directory of the dump of statistics; None if there is none
    overflow         directory of the dump of overflows; None if there is none
    eager            True if operators ran one by one, not as parts of a model (graph)
    steps            the steps that the captures of `tensors` and `statistics` selected
    inputs, outputs  arrays that the program passed to an operator, or fetched from an operator's output, by step
    facts            the answers of the programs by name

    >>> Evidence(device=0, began=0.0, ended=1.0).files(None)
    []
    """

    device: int
    began: float
    ended: float
    tensors: Optional[Path] = None
    statistics: Optional[Path] = None
    overflow: Optional[Path] = None
    eager: bool = False
    steps: Sequence[int] = ()
    inputs: Mapping[int, Sequence[np.ndarray]] = field(default_factory=dict)
    outputs: Mapping[int, Sequence[np.ndarray]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def files(self, root: Optional[Path]) -> list[DeviceFile]:
        """Return the files that the device wrote below `root`; none if `root` is None."""
        return [] if root is None else device_files(root)

    @property
    def dumped(self) -> list[DeviceFile]:
        """The files of the dump of whole tensors."""
        return self.files(self.tensors)


def step_of(evidence: Evidence, file: DeviceFile) -> Optional[int]:
    """Return the step of a file, None if its directory is not a number.

    For graphs the step is the last level. For eager operators it is the directory above the one named after a time.
    """
    level = file.levels[-1] if not evidence.eager else file.path.parts[-len(file.levels) - 3]
    return int(level) if level.isdecimal() else None


Probe = Callable[[Evidence], Outcome]


class Untried(Exception):
    """Raised by a probe if the evidence does not contain what it needs. The text is the reason."""


def fact(evidence: Evidence, name: str) -> Any:
    """Return the fact of this name. Raises Untried if the program did not ask the question, or if it got no answer."""
    value = evidence.facts.get(name)
    if value is None:
        raise Untried(evidence.facts.get(FAILED, {}).get(name, "the program did not try it"))
    return value


def outcome(is_confirmed: bool, seen: object) -> Outcome:
    """Return the outcome "confirmed" or "refuted". seen: the evidence."""
    return Outcome("confirmed" if is_confirmed else "refuted", str(seen))


def judge_fact(evidence: Evidence, name: str, expected: object) -> Outcome:
    """Compare a fact with its expected value. Raises Untried if the fact is missing.

    >>> judge_fact(Evidence(device=0, began=0.0, ended=1.0, facts={"code": 3}), "code", 0).state
    'refuted'
    """
    value = fact(evidence, name)
    return outcome(value == expected, f"{value}, expected {expected}")


def probes(*judges: Probe, **expected: object) -> dict[str, Probe]:
    """Return probes by name: the functions `judges`, and for each keyword a probe that expects this value of the fact.

    A probe that raises Untried has the outcome "unknown".
    """
    facts = {name: partial(judge_fact, name=name, expected=value) for name, value in expected.items()}
    named: dict[str, Probe] = {**{judge.__name__: judge for judge in judges}, **facts}
    return {name: _unknown_if_untried(judge) for name, judge in named.items()}


def _unknown_if_untried(judge: Probe) -> Probe:
    @wraps(judge)
    def probe(evidence: Evidence) -> Outcome:
        try:
            return judge(evidence)
        except Untried as reason:
            return Outcome("unknown", str(reason))

    return probe


def device_files(root: Path) -> list[DeviceFile]:
    """Return the files below directories that a device made and named after a time, sorted by path.

    >>> device_files(Path("/nowhere"))
    []
    """
    return sorted(_walk(root), key=lambda file: file.path)


def _walk(root: Path) -> Iterator[DeviceFile]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        # Run directories of ascend_dump are named after a time too. The device's directory is below them.
        levels = [level for level, part in enumerate(parts[:-1]) if part.isdecimal() and len(part) == _TIME_DIGITS]
        time_level = levels[-1] if levels else None
        if time_level is None or path.name == "mapping.csv" or not path.is_file():
            continue
        yield DeviceFile(path, parts[time_level], parts[time_level + 1 : -1], parse_name(path.name))

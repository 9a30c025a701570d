"""The evidence of the runs of one framework on a device, and how probes judge it."""

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
#: The fact with the errors of questions that failed, by name.
FAILED = "failed"


class DeviceFile(NamedTuple):
    """A file that the device wrote.

    levels: the directories below the time, the device first. name: None if it is not a name of CANN's.
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
    """The dumps of the runs of one framework on a device, and facts that its programs noted.

    device          the logical device number
    began, ended    of all runs, in seconds since the epoch
    tensors, statistics, overflow  directories of captures, or None
    eager           the dumped kernels belong to no model
    steps           the selected steps, of `tensors` and `statistics`
    inputs, outputs by step, arrays that the program passed to an operator, or fetched from its output
    facts           the answers that programs noted, by name

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
        """Return the files of the device: those below directories named after a time."""
        return [] if root is None else device_files(root)

    @property
    def dumped(self) -> list[DeviceFile]:
        """The dump files of whole tensors."""
        return self.files(self.tensors)


def step_of(evidence: Evidence, file: DeviceFile) -> Optional[int]:
    """Return the step: the last level of graphs, the level above the time of eager operators."""
    level = file.levels[-1] if not evidence.eager else file.path.parts[-len(file.levels) - 3]
    return int(level) if level.isdecimal() else None


Probe = Callable[[Evidence], Outcome]


class Untried(Exception):
    """The evidence has no answer; the text is the reason."""


def fact(evidence: Evidence, name: str) -> Any:
    """Return a fact. Raises Untried if the program could not determine it."""
    value = evidence.facts.get(name)
    if value is None:
        raise Untried(evidence.facts.get(FAILED, {}).get(name, "the program did not try it"))
    return value


def outcome(is_confirmed: bool, seen: object) -> Outcome:
    """Return the outcome of a check, with its evidence."""
    return Outcome("confirmed" if is_confirmed else "refuted", str(seen))


def judge_fact(evidence: Evidence, name: str, expected: object) -> Outcome:
    """Compare a fact with its expected value. Raises Untried.

    >>> judge_fact(Evidence(device=0, began=0.0, ended=1.0, facts={"code": 3}), "code", 0).state
    'refuted'
    """
    value = fact(evidence, name)
    return outcome(value == expected, f"{value}, expected {expected}")


def probes(*judges: Probe, **expected: object) -> dict[str, Probe]:
    """Return these probes by name, and a probe for each fact with an expected value.

    Their outcome is unknown if the evidence has no answer.
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
    """Return the files below directories named after a time, sorted by path.

    >>> device_files(Path("/nowhere"))
    []
    """
    return sorted(_walk(root), key=lambda file: file.path)


def _walk(root: Path) -> Iterator[DeviceFile]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        # The last one: run directories of ascend_dump are named after a time too.
        times = [index for index, part in enumerate(parts[:-1]) if part.isdecimal() and len(part) == _TIME_DIGITS]
        time = times[-1] if times else None
        if time is None or path.name == "mapping.csv" or not path.is_file():
            continue
        yield DeviceFile(path, parts[time], parts[time + 1 : -1], parse_name(path.name))

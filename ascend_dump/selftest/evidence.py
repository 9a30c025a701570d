"""The evidence that the runs of one framework on a device leave for the probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.native.cann.names import DumpName, parse_name
from ascend_dump.selftest.assumptions import Outcome

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FAILED", "DeviceFile", "Evidence", "device_files", "judge_fact"]

_TIME_DIGITS = 14
#: The fact under which a program notes questions that failed, by name.
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
    """What the runs of one framework on a device left: dumps, and facts that the programs noted themselves.

    device          the logical device number
    began, ended    of all runs, in seconds since the epoch
    tensors, statistics, overflow  directories of captures, None where there was none
    eager           whether the dumped kernels belong to no model
    steps           the selected steps, of `tensors` and `statistics`
    inputs, outputs by step, arrays that the program passed to an operator, or fetched from its output
    facts           what the program noted when it called the dump interface itself, by name

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
        """Files below directories named after a time; everything else in a run is ascend_dump's own."""
        return [] if root is None else device_files(root)

    @property
    def dumped(self) -> list[DeviceFile]:
        """The dump files of whole tensors."""
        return self.files(self.tensors)


def judge_fact(evidence: Evidence, name: str, wanted: object) -> Outcome:
    """Whether a fact has the expected value; unknown if the program did not, or could not, determine it.

    >>> judge_fact(Evidence(device=0, began=0.0, ended=1.0, facts={"code": 3}), "code", 0).state
    'refuted'
    """
    if name not in evidence.facts:
        return Outcome("unknown", evidence.facts.get(FAILED, {}).get(name, "the program did not try it"))
    found = evidence.facts[name]
    return Outcome("confirmed" if found == wanted else "refuted", f"{found}, expected {wanted}")


def device_files(root: Path) -> list[DeviceFile]:
    """The files below directories named after a time, sorted by path.

    >>> device_files(Path("/nowhere"))
    []
    """
    return sorted(_walk(root), key=lambda file: file.path)


def _walk(root: Path) -> Iterator[DeviceFile]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        # The last one: the directory of a run of ours is named after a time too.
        times = [at for at, part in enumerate(parts[:-1]) if part.isdecimal() and len(part) == _TIME_DIGITS]
        time = times[-1] if times else None
        if time is None or path.name == "mapping.csv" or not path.is_file():
            continue
        yield DeviceFile(path, parts[time], parts[time + 1 : -1], parse_name(path.name))

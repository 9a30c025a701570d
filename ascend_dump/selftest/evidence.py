"""What the runs of one framework on a device left for the probes to look at."""

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
    """A file that the device wrote. levels: the directories below the time, the device first; name: None where it is
    no name of CANN's."""

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
    """The dumps of one framework's runs, and what the program knows of them itself.

    device          the logical number
    began, ended    of all runs, in seconds since the epoch
    tensors, statistics, overflow  roots of captures, None where there was none
    eager           kernels of no model were dumped
    steps           those that were selected, of `tensors` and `statistics`
    inputs, outputs by step, arrays that the program gave to an operator, or got of one and fetched from the device
    facts           what the program saw when it called the dump interface itself, by name

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
        """What stands below directories named after a time; the rest of a run is ours."""
        return [] if root is None else device_files(root)

    @property
    def dumped(self) -> list[DeviceFile]:
        """The files of whole tensors."""
        return self.files(self.tensors)


def judge_fact(evidence: Evidence, name: str, wanted: object) -> Outcome:
    """Whether what a program noted under this name is as wanted; unknown where it did not, or could not, find out.

    >>> judge_fact(Evidence(device=0, began=0.0, ended=1.0, facts={"code": 3}), "code", 0).state
    'refuted'
    """
    if name not in evidence.facts:
        return Outcome("unknown", evidence.facts.get(FAILED, {}).get(name, "the program did not try it"))
    found = evidence.facts[name]
    return Outcome("confirmed" if found == wanted else "refuted", f"{found}, expected {wanted}")


def device_files(root: Path) -> list[DeviceFile]:
    """What stands below directories named after a time, by path.

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

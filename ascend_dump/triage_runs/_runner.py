"""One round: the command is run once, with a request of its own, until it has shown what the round is for."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional

from ascend_dump.adapter import registered
from ascend_dump.analysis.triage import TriageRound
from ascend_dump.common.paths import holds_files, make_private_directory
from ascend_dump.dump_format import Outline, Over, read_outlines, why_over
from ascend_dump.errors import AscendDumpError, CaptureError, ReadError, WriteError
from ascend_dump.reading import Dump, RunState, open_dump
from ascend_dump.request import Data, DumpRequest
from ascend_dump.startup.launching import environment_of
from ascend_dump.triage_runs._command import ChildCommand, birth_of
from ascend_dump.triage_runs._state import TriageState

__all__ = ["PROGRAM", "REFERENCE", "SECOND_RUN", "RoundResult", "RoundRunner"]

PROGRAM, REFERENCE, SECOND_RUN = "program", "reference", "second run"
_DISABLED = "ASCEND_DUMP_DISABLED_ADAPTERS"
#: Seconds that other processes of a program have to come where the first one is.
_BEHIND = 10.0

#: One part in so many of what is free is there for the tensors of a round.
_SHARE = 10
#: Seconds that a program waits to be stopped.
_WAIT = 5

Tell = Callable[[str], None]


@dataclass(frozen=True)
class RoundResult:
    """What one run of a command left.

    dump       None where nothing was recorded
    reasons    why the dump is not whole, empty where it is
    exit_code  None where the command was stopped
    """

    number: int
    dump: Optional[Dump]
    outlines: list[Outline]
    exit_code: Optional[int]
    reasons: tuple[str, ...]

    @property
    def has_failed(self) -> bool:
        return self.exit_code not in (0, None)

    @property
    def last_step(self) -> int:
        """The last step that a process began; -1 where there was none."""
        return max((one.last for one in self.outlines), default=-1)

    def values(self, step: int) -> list[Any]:
        """The numbers of a step in the outlines, process by process."""
        return [one.steps.get(step) for one in self.outlines]


class RoundRunner:
    """Runs rounds and keeps their results; a round that an interrupted triage has finished is not run again.

    max_bytes  of all rounds together
    run_out    let the commands come to their own end
    output     a descriptor for what they print
    """

    def __init__(
        self,
        state: TriageState,
        commands: Mapping[str, Sequence[str]],
        *,
        tell: Tell,
        max_bytes: Optional[int] = None,
        ranks: Optional[str] = None,
        run_out: bool = False,
        output: Optional[int] = None,
    ) -> None:
        self._state = state
        self._commands = commands
        self._tell = tell
        self._max_bytes = max_bytes
        self._ranks = ranks
        self._run_out = run_out
        self._outline_options = {} if run_out else {"outline_wait": _WAIT}
        self._output = output
        self._next = 0
        self.rounds: list[TriageRound] = []

    @property
    def room_for_tensors(self) -> Optional[int]:
        """The bytes that the tensors of whole steps may take: a tenth of the free space.

        None where the user gave max_bytes: statistics are recorded then, which take much less.
        """
        return None if self._max_bytes is not None else shutil.disk_usage(self._state.directory).free // _SHARE

    def watch(self, program: str, purpose: str, *, until: Literal["wrong", "end"], gradients: str = "") -> RoundResult:
        """All steps, of which nothing is recorded."""
        options = {"outline_until": until, **({"outline_gradients": gradients} if gradients else {})}
        return self._round(program, purpose, options, {})

    def record(
        self,
        program: str,
        purpose: str,
        *,
        steps: str,
        data: Data = "stats",
        layers: Sequence[str] = (),
        graft: Optional[Mapping[str, str]] = None,
        max_bytes: Optional[int] = None,
    ) -> RoundResult:
        """These steps, of all operators or of some. max_bytes: of this round, where there is no limit for all."""
        settings: dict[str, Any] = {"steps": steps, "data": data, "layers": list(layers), "ranks": self._ranks}
        # A few steps at most, so that call stacks cost little.
        options = {"stack": True, **({} if graft is None else {"graft": dict(graft)})}
        return self._round(program, purpose, options, settings, max_bytes)

    def keep_last(self, program: str, purpose: str, data: Data) -> RoundResult:
        """All steps of any framework, of which those around the first NaN or Inf stay."""
        settings = {"data": data, "keep": 2, "until": "nonfinite", "ranks": self._ranks}
        return self._round(program, purpose, None, settings)

    def conclude(self, result: RoundResult, outcome: str) -> None:
        """Say what a round has shown."""
        place = next(place for place, one in enumerate(self.rounds) if one.number == result.number)
        one = self.rounds[place]
        self.rounds[place] = TriageRound(**{**vars(one), "outcome": outcome})
        self._tell(f"round {one.number}: {outcome}")

    def _round(
        self,
        program: str,
        purpose: str,
        options: Optional[Mapping[str, Any]],
        settings: Mapping[str, Any],
        max_bytes: Optional[int] = None,
    ) -> RoundResult:
        """options: of the outline; None for no outline, with every framework.

        max_bytes: a limit of this round, which may be another one when the triage is resumed.
        """
        number = self._next = self._next + 1
        name = f"{number}-{program.replace(' ', '_')}"
        place = self._state.directory / name
        asked = {"program": program, "options": None if options is None else dict(options), "settings": dict(settings)}
        known = next((one for one in self._state.rounds if one.get("number") == number), None)
        if known is not None and known.get("asked") == asked:
            self._tell(f"round {number}, the {program}: {purpose}: was run before, {place}")
        else:
            self._tell(f"round {number}, the {program}: {purpose}")
            # What came behind another round than this one tells nothing.
            self._state.rounds = [one for one in self._state.rounds if one["number"] < number]
            known = self._run(number, name, place, asked, {"max_bytes": max_bytes or self._bytes_left(), **settings})
        known = {"exit_code": None, "seconds": 0.0, "nbytes": 0, **known}
        dump, reasons = _dump_of(place / "dump")
        result = RoundResult(number, dump, read_outlines(place / "outline"), known["exit_code"], reasons)
        self.rounds.append(
            TriageRound(
                number,
                program,
                purpose,
                None if dump is None else dump.root,
                known["exit_code"],
                float(known["seconds"]),
                int(known["nbytes"]),
                "",
            )
        )
        return result

    def _run(
        self, number: int, name: str, place: Path, asked: dict[str, Any], settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        outline = place / "outline"
        options = asked["options"]
        make_private_directory(outline)
        request = DumpRequest(
            path=place / "dump",
            options=None if options is None else {**self._outline_options, "outline": str(outline), **options},
            **settings,
        )
        environment = environment_of(request)
        if options is not None:
            # An outline is that of PyTorch's own adapter, whatever device the program uses.
            others = [one for one in registered() if one != "torch"]
            environment[_DISABLED] = ",".join(filter(None, [os.environ.get(_DISABLED, ""), *others]))
        command = self._commands[asked["program"]]
        entry = {"number": number, "name": name, "program": asked["program"], "asked": asked, "finished": False}
        self._state.rounds.append(entry)
        self._state.save()
        began = time.monotonic()
        child = ChildCommand(command, environment, output=self._output)
        entry.update(process=child.pid, birth=birth_of(child.pid))
        self._state.save()
        exit_code = child.wait(_Enough(outline) if not self._run_out else lambda: False)
        entry.update(
            finished=True, exit_code=exit_code, seconds=round(time.monotonic() - began, 3), nbytes=_size_of(place)
        )
        self._state.save()
        return entry

    def _bytes_left(self) -> Optional[int]:
        if self._max_bytes is None:
            return None
        left = self._max_bytes - sum(one.nbytes for one in self.rounds)
        if left <= 0:
            raise WriteError(
                f"max_bytes={self._max_bytes} is reached after {len(self.rounds)} rounds",
                hint="give a larger --max-bytes; what the rounds wrote can be read",
                code="AD503",
            )
        return left


class _Enough:
    """Whether every process of a round has written all that it was run for."""

    def __init__(self, outline: Path) -> None:
        self._outline = outline
        self._since = 0.0

    def __call__(self) -> bool:
        found = why_over(self._outline)
        # One whose process ends is left to it, for the sake of its exit code.
        if all(found) and set(found) - {Over.ENDED}:
            return True
        if not {Over.WRONG, Over.RECORDED} & set(found):
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since > _BEHIND


def _dump_of(path: Path) -> tuple[Optional[Dump], tuple[str, ...]]:
    if not path.is_dir() or not holds_files(path):
        return None, ()
    try:
        dump = open_dump(path)
    except ReadError as error:
        return None, (str(error),)
    # A command that is stopped leaves other processes' runs open.
    reasons = [run.reason for run in dump.runs() if run.state is RunState.FAILED]
    return (dump if dump else None), tuple(dict.fromkeys(reasons))


def _size_of(place: Path) -> int:
    found = 0
    for directory, _, names in os.walk(place):
        for name in names:
            try:
                found += os.lstat(os.path.join(directory, name)).st_size
            except OSError:
                continue
    return found


def no_dump(result: RoundResult, commands: Sequence[str]) -> AscendDumpError:
    """Why a round has recorded nothing."""
    failed = [one.reason for one in result.outlines if one.over == Over.FAILED and one.reason]
    reason = next(iter([*result.reasons, *failed]), "")
    if result.has_failed:
        reason = reason or f"the command ended with exit code {result.exit_code}"
    return CaptureError(
        f"round {result.number} recorded nothing{f': {reason}' if reason else ''}",
        hint=f"`{' '.join(commands)}` must come to the same steps each time it is run; see what it printed above",
    )

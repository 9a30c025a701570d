"""Run the rounds of a triage. Each round runs the command once with its own request, until the request is fulfilled."""

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
from ascend_dump.triage_runs.output import CommandOutput

__all__ = ["PROGRAM", "REFERENCE", "SECOND_RUN", "RoundResult", "RoundRunner"]

PROGRAM, REFERENCE, SECOND_RUN = "program", "reference", "second run"
_DISABLED = "ASCEND_DUMP_DISABLED_ADAPTERS"
#: Seconds that the other processes of a program have to finish their recording after the first process.
_CATCH_UP = 10.0

#: The tensors of a round may take the free space divided by this number.
_SHARE = 10
#: Seconds that a program waits to be stopped, once it has recorded enough.
_WAIT = 5
#: A number of steps that no program reaches.
_ALL = 1 << 62

Tell = Callable[[str], None]


@dataclass(frozen=True)
class RoundResult:
    """The result of one run of a command.

    dump       the dump of the round, None if nothing was recorded
    directory  directory of the round's files
    reasons    why the dump is incomplete; empty if it is complete
    exit_code  exit code of the command, None if it was stopped
    nan_line   the first line of the output with NaN
    error      the last line of standard error
    """

    number: int
    directory: Path
    dump: Optional[Dump]
    outlines: list[Outline]
    exit_code: Optional[int]
    reasons: tuple[str, ...]
    nan_line: str = ""
    error: str = ""

    @property
    def has_failed(self) -> bool:
        return self.exit_code not in (0, None)

    @property
    def last_step(self) -> int:
        """The last step that any process began; -1 if no process began one."""
        return max((outline.last for outline in self.outlines), default=-1)

    def values(self, step: int) -> list[Any]:
        """Return the numbers of a step in the outlines, one entry per process; None for a process without this step."""
        return [outline.steps.get(step) for outline in self.outlines]


class RoundRunner:
    """Runs the rounds of a triage. Rounds that an interrupted triage has finished are not run again.

    rounds     the rounds up to now
    max_bytes  the size limit of all rounds together
    run_out    True to let the commands run to their end
    ignore     operators whose NaN and Inf is expected
    output     file descriptors to which standard output and error of each command's first run are passed on
    """

    def __init__(
        self,
        state: TriageState,
        command_words: Mapping[str, Sequence[str]],
        *,
        tell: Tell,
        max_bytes: Optional[int] = None,
        ranks: Optional[str] = None,
        run_out: bool = False,
        ignore: Sequence[str] = (),
        output: tuple[int, int] = (1, 2),
    ) -> None:
        self._state = state
        self._commands = command_words
        self._tell = tell
        self._max_bytes = max_bytes
        self._ranks = ranks
        self._run_out = run_out
        self._ignore = tuple(ignore)
        self._outline_options = {} if run_out else {"outline_wait": _WAIT}
        self._output = output
        self._next = 0
        self.rounds: list[TriageRound] = []

    @property
    def room_for_tensors(self) -> Optional[int]:
        """The number of bytes that the tensors of whole steps may take: a tenth of the free space.

        None if the user set max_bytes. Then only statistics are recorded, which take much less.
        """
        return None if self._max_bytes is not None else shutil.disk_usage(self._state.directory).free // _SHARE

    def watch(self, program: str, purpose: str, *, until: Literal["wrong", "end"]) -> RoundResult:
        """Run a round that outlines all steps and records no operators.

        until: "wrong" to stop once the user would see NaN or Inf, "end" to run to the end
        """
        return self._round(program, purpose, {"outline_until": until}, {})

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
        from_start: bool = False,
        reports_all: bool = False,
    ) -> RoundResult:
        """Run a round that records these steps, with all operators or those that `layers` selects.

        graft        tensors to replace, see `ascend_dump.capture`
        max_bytes    size limit of this round only
        from_start   True if the first step begins with the program
        reports_all  True to write records of losses and gradients too
        """
        settings: dict[str, Any] = {"steps": steps, "data": data, "layers": list(layers), "ranks": self._ranks}
        # The steps are few, so call stacks cost little.
        options: dict[str, Any] = {"stack": True, **({} if graft is None else {"graft": dict(graft)})}
        if from_start:
            options["outline_from_start"] = True
        if reports_all:
            options["outline_reports_all"] = True
        return self._round(program, purpose, options, settings, max_bytes)

    def trace(self, program: str, purpose: str, last: Optional[int]) -> RoundResult:
        """Run a round that records the operators with NaN or Inf, from the start of the program to the first symptom.

        last: the last step to record, None to record up to the end of the program
        """
        settings = {"steps": None if last is None else f"0-{last}", "data": "stats", "ranks": self._ranks}
        options = {
            "stack": True,
            "outline_from_start": True,
            "outline_until": "symptom",
            "steps_after_origin": _ALL,
        }
        return self._round(program, purpose, options, {**settings, "scene": "overflow"})

    def keep_last(self, program: str, purpose: str, data: Data) -> RoundResult:
        """Run a round that records all steps up to the first NaN or Inf, and keeps the last two of them.

        The program may use any framework.
        """
        settings = {"data": data, "keep": 2, "until": "nonfinite", "ranks": self._ranks}
        return self._round(program, purpose, None, settings)

    def conclude(self, result: RoundResult, outcome: str) -> None:
        """Store and report the outcome of a round, a sentence."""
        index = next(index for index, finished in enumerate(self.rounds) if finished.number == result.number)
        finished = self.rounds[index]
        self.rounds[index] = TriageRound(**{**vars(finished), "outcome": outcome})
        self._tell(f"round {finished.number}: {outcome}")

    def _round(
        self,
        program: str,
        purpose: str,
        options: Optional[Mapping[str, Any]],
        settings: Mapping[str, Any],
        max_bytes: Optional[int] = None,
    ) -> RoundResult:
        """Run a round, or take its result from the interrupted triage if the round was run with the same settings.

        options    options of the outline. None: no outline is written, and every framework records. With an outline,
                   only PyTorch's adapter records
        max_bytes  size limit of this round; it may differ when the triage is resumed
        """
        number = self._next = self._next + 1
        name = f"{number}-{program.replace(' ', '_')}"
        directory = self._state.directory / name
        plan = {
            "program": program,
            "options": None if options is None else dict(options),
            "settings": dict(settings),
        }
        entry = next((entry for entry in self._state.rounds if entry.get("number") == number), None)
        if entry is not None and entry.get("asked") == plan:
            self._tell(f"round {number}, the {program}: {purpose}: was run before, {directory}")
        else:
            self._tell(f"round {number}, the {program}: {purpose}")
            # Discard this and later rounds of the interrupted triage: they depended on another plan.
            self._state.rounds = [entry for entry in self._state.rounds if entry["number"] < number]
            entry = self._run(number, name, directory, plan, {"max_bytes": max_bytes or self._bytes_left(), **settings})
        entry = {"exit_code": None, "seconds": 0.0, "nbytes": 0, "nan_line": "", "error": "", **entry}
        dump, reasons = _dump_of(directory / "dump")
        outlines, printed = read_outlines(directory / "outline"), (str(entry["nan_line"]), str(entry["error"]))
        result = RoundResult(number, directory, dump, outlines, entry["exit_code"], reasons, *printed)
        self.rounds.append(
            TriageRound(
                number,
                program,
                purpose,
                None if dump is None else dump.root,
                entry["exit_code"],
                float(entry["seconds"]),
                int(entry["nbytes"]),
                "",
            )
        )
        return result

    def _run(
        self, number: int, name: str, directory: Path, plan: dict[str, Any], settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        outline = directory / "outline"
        options = plan["options"]
        make_private_directory(outline)
        request = DumpRequest(
            path=directory / "dump",
            ignore=self._ignore,
            options=None if options is None else {**self._outline_options, "outline": str(outline), **options},
            **settings,
        )
        # Python must not buffer the output: it would be shown late, and would be lost when the program is stopped.
        environment = {"PYTHONUNBUFFERED": "1", **environment_of(request)}
        if options is not None:
            # Outlines are written by PyTorch's own adapter on every device.
            other_adapters = [adapter for adapter in registered() if adapter != "torch"]
            environment[_DISABLED] = ",".join(filter(None, [os.environ.get(_DISABLED, ""), *other_adapters]))
        command = self._commands[plan["program"]]
        entry = {
            "number": number,
            "name": name,
            "program": plan["program"],
            "asked": plan,
            "finished": False,
        }
        self._state.rounds.append(entry)
        self._state.save()
        began = time.monotonic()
        is_enough = None if self._run_out else _Enough(outline)
        # The output of a program is shown in its first run only.
        is_first = not any(finished.program == plan["program"] for finished in self.rounds)
        with CommandOutput(directory, self._output if is_first else None) as output:
            child = ChildCommand(command, environment, output.files)
            entry.update(process=child.pid, birth=birth_of(child.pid))
            self._state.save()

            def follow() -> bool:
                output.follow()
                return is_enough is not None and is_enough()

            exit_code = child.wait(follow)
        entry.update(nan_line=output.nan_line, error=output.last_error)
        entry.update(
            finished=True, exit_code=exit_code, seconds=round(time.monotonic() - began, 3), nbytes=_size_of(directory)
        )
        self._state.save()
        return entry

    def _bytes_left(self) -> Optional[int]:
        if self._max_bytes is None:
            return None
        remaining = self._max_bytes - sum(finished.nbytes for finished in self.rounds)
        if remaining <= 0:
            raise WriteError(
                f"max_bytes={self._max_bytes} is reached after {len(self.rounds)} rounds",
                hint="set a larger --max-bytes; the dumps of the rounds can be read",
                code="AD503",
            )
        return remaining


class _Enough:
    """A test of whether a round has recorded enough.

    Calling it returns True once every process has recorded enough, or `_CATCH_UP` seconds after the first one has.
    """

    def __init__(self, outline: Path) -> None:
        self._outline = outline
        self._since = 0.0

    def __call__(self) -> bool:
        outcomes = why_over(self._outline)
        # If all processes have ended by themselves, the command is not stopped: it ends too, with an exit code.
        if all(outcomes) and set(outcomes) - {Over.ENDED}:
            return True
        if not {Over.WRONG, Over.RECORDED} & set(outcomes):
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since > _CATCH_UP


def _dump_of(path: Path) -> tuple[Optional[Dump], tuple[str, ...]]:
    if not path.is_dir() or not holds_files(path):
        return None, ()
    try:
        dump = open_dump(path)
    except ReadError as error:
        return None, (str(error),)
    # Only failed runs are reasons. The other processes of a stopped command leave their runs open, which is normal.
    reasons = [run.reason for run in dump.runs() if run.state is RunState.FAILED]
    return (dump if dump else None), tuple(dict.fromkeys(reasons))


def _size_of(root: Path) -> int:
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except OSError:
                continue
    return total


def no_dump(result: RoundResult, command_words: Sequence[str]) -> AscendDumpError:
    """Return the error to raise for a round without a dump."""
    failed = [outline.reason for outline in result.outlines if outline.over == Over.FAILED and outline.reason]
    reason = next(iter([*result.reasons, *failed]), "")
    if result.has_failed:
        reason = reason or f"the command ended with exit code {result.exit_code}"
    return CaptureError(
        f"round {result.number} recorded nothing{f': {reason}' if reason else ''}",
        hint=f"`{' '.join(command_words)}` must reach the same steps each time it is run; see its output above",
    )

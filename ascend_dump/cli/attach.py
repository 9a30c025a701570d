"""`ascend-dump attach`: start a capture in running processes that were started with ASCEND_DUMP=wait."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any, Optional

import click

from ascend_dump.attach.client import AttachTarget, TargetIsBusy, error_of, find, find_all, state_of
from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option
from ascend_dump.cli.shared.settings import given_settings, request_options
from ascend_dump.common.units import counted, size
from ascend_dump.errors import AscendDumpError, CaptureError, ConfigError

__all__ = ["attach"]

log = logging.getLogger("ascend_dump")

#: Seconds between two requests for the progress of a capture.
_PAUSE = 0.2


@click.command(
    short_help="Start a capture in a running process.",
    epilog="Example:  ASCEND_DUMP=wait vllm serve MODEL,  then  ascend-dump attach --steps 0-3 4711",
)
@request_options
@click.option("--framework", metavar="NAME", help="The adapter to use, if a process runs several frameworks.")
@click.option("--list", "listed", is_flag=True, help="List the waiting processes of this user.")
@click.option("--all", "everyone", is_flag=True, help="Attach to all waiting processes of this user.")
@click.option("--stop", is_flag=True, help="Stop the capture after the open step.")
@click.option("--no-wait", is_flag=True, help="Return at once instead of waiting for the end of the capture.")
@json_option
@click.argument("pids", nargs=-1, type=click.IntRange(min=1), metavar="[PID]...")
def attach(
    pids: tuple[int, ...],
    config: Optional[str],
    framework: Optional[str],
    listed: bool,
    everyone: bool,
    stop: bool,
    no_wait: bool,
    as_json: bool,
    **options: Any,
) -> Exit:
    """Capture the next steps of the running processes PID, which were started with ASCEND_DUMP=wait.

    Steps are counted from the attach: step 0 is the next top-level call of a model in each process. After the last
    selected step the capture ends, and the process waits again. The process itself writes the dump, with its own user
    and permissions; without --path it writes to `dumps` in the working directory of this command.

    This command shows the progress until the capture ends; Ctrl-C leaves the capture running. Without PID it lists the
    waiting processes.
    """
    settings = given_settings(config, options)
    if pids and everyone:
        raise ConfigError("--all and PIDs are both given", hint="keep one of them")
    if not (pids or everyone or listed) and (settings or framework or stop or no_wait):
        raise ConfigError(
            "no process is given", hint="give a PID or --all; `ascend-dump attach --list` shows the waiting processes"
        )
    targets = [find(pid) for pid in dict.fromkeys(pids)] if pids else find_all()
    if listed or not (pids or everyone):
        return _list(targets, as_json=as_json)
    if not targets:
        raise CaptureError("no process of this user is waiting", hint="start one with ASCEND_DUMP=wait", code="AD306")
    if stop:
        _stop([target for target in targets if not everyone or _runs(target.capture)])
        if as_json:
            _write(targets)
        return Exit.OK
    begun = _begin(targets, settings, framework)
    if not no_wait:
        try:
            begun = _follow(begun)
        except KeyboardInterrupt:
            names = " ".join(str(target.pid) for target in begun)
            _say(f"the capture goes on; `ascend-dump attach --stop {names}` stops it")
            raise
    if as_json:
        _write([target.look() for target in begun] if no_wait else begun)
    return Exit.OK


def _stop(targets: list[AttachTarget]) -> None:
    """Stop the captures of all targets, then raise the first error, if any."""
    failures = []
    for target in targets:
        try:
            target.end()
        except AscendDumpError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _begin(targets: list[AttachTarget], settings: dict[str, Any], framework: Optional[str]) -> list[AttachTarget]:
    """Start captures in all processes that `ranks=` selects, after all processes have accepted the settings."""
    selected = []
    for target in targets:
        planned = target.check(settings, framework)
        for problem in planned["problems"]:
            _say(f"{target}: {problem}")
        if planned["selected"]:
            selected.append((target, planned))
        else:
            _say(f"{target}: ranks={planned['ranks']} leaves it out")
    if not selected:
        raise ConfigError(f"ranks={planned['ranks']} leaves out every process", hint="ranks count from 0")
    begun = []
    for target, planned in selected:
        begun.append(target.begin(settings, framework))
        steps = "every step" if planned["steps"] == "all" else f"steps {planned['steps']}"
        _say(f"{target}: {steps} from the next call of a model on, into {planned['path']}")
    return begun


def _follow(begun: list[AttachTarget]) -> list[AttachTarget]:
    """Report the progress of the captures until all have ended. Raises the error of the first failed capture."""
    reported: dict[int, str] = {}
    now = {target.pid: target for target in begun}
    gone: set[int] = set()
    replaced: set[int] = set()
    while True:
        for target in now.values():
            text = _progress(target.capture)
            if text and reported.get(target.pid) != text:
                reported[target.pid] = text
                _say(f"{target}: {text}")
        running = [pid for pid, target in now.items() if _runs(target.capture) and pid not in gone | replaced]
        if not running:
            break
        time.sleep(_PAUSE)
        for pid in running:
            try:
                current = _look(now[pid])
            except CaptureError:
                gone.add(pid)
                continue
            if current.has_same_capture(now[pid]):
                now[pid] = current
            else:
                (gone if current.capture is None else replaced).add(pid)
    failures = [_outcome(target, gone=target.pid in gone, replaced=target.pid in replaced) for target in now.values()]
    for failure in failures:
        if failure is not None:
            raise failure
    return list(now.values())


def _look(target: AttachTarget) -> AttachTarget:
    """Wait until a process is not busy, and return its current state. Raises CaptureError if it has ended."""
    while True:
        try:
            return target.look()
        except TargetIsBusy as error:
            log.info("%s", error.message)


def _progress(capture: Optional[Mapping[str, Any]]) -> str:
    if capture is None or not _runs(capture):
        return ""  # `_outcome` reports it
    if capture["state"] == "waiting":
        return "waiting for the next call of a model"
    count, begun = capture["count"], capture["begun"]
    if begun is None:
        return "recording"
    if count is None:
        return f"{counted(begun, 'step')} so far"
    open_one = "; the last one ends with the next call" if begun == count else ""
    return f"{begun} of {counted(count, 'step')} begun{open_one}"


def _outcome(target: AttachTarget, *, gone: bool, replaced: bool) -> Optional[AscendDumpError]:
    """Report the result of a capture that has ended, or return its error.

    gone      the process has ended, or runs another program
    replaced  the process has begun another capture, so `target` has the last state of the previous capture
    """
    capture = target.capture or {}
    path = str(capture.get("path", ""))
    failure = None if capture.get("failure") is None else error_of(capture["failure"])
    if gone:
        state = state_of(path, target.pid)
        if state == "complete":
            _say(f"{target} has ended, and its capture with it")
        elif failure is None:
            failure = CaptureError(
                f"{target} ended before its capture did", hint=f"what was written is in {path}", code="AD306"
            )
    elif replaced:
        # Before the first step `path` is the directory of all dumps, in which the other capture may write too.
        if capture["state"] == "recording" and state_of(path, target.pid) == "complete":
            _say(f"{target}: the capture has ended, and another one has begun")
        elif failure is None:
            failure = CaptureError(
                f"{target} has begun another capture, so the result of this one is not known",
                hint=f"what it wrote is in {path}",
                code="AD306",
            )
    elif capture.get("wrote") and capture["begun"] is None:
        _say(f"{target}: the capture has ended, it is in {path}")
    elif capture.get("wrote"):
        steps, records = counted(capture["begun"], "step"), counted(capture["records"] or 0, "record")
        _say(f"{target}: {steps}, {records}, {size(capture['seen'] or 0)} seen, in {path}")
    elif failure is None:
        _say(f"{target}: the capture was stopped before a step began")
        return None
    if failure is None:
        _say(f"look at it: ascend-dump ls {shlex.quote(path)}")
    return failure


def _runs(capture: Optional[Mapping[str, Any]]) -> bool:
    return capture is not None and capture["state"] != "ended"


def _list(targets: list[AttachTarget], *, as_json: bool) -> Exit:
    if as_json:
        _write(targets)
    elif targets:
        from ascend_dump.report.tables import Column, write_table

        ranks = any(target.world > 1 for target in targets)
        columns = [Column("pid", right=True), *([Column("rank", right=True)] if ranks else [])]
        rows = (
            [
                str(target.pid),
                *([str(target.rank)] if ranks else []),
                _state(target.capture),
                shlex.join(target.command),
            ]
            for target in targets
        )
        write_table([*columns, Column("state"), Column("command", elastic=True)], rows, sys.stdout)
    else:
        _say("no process of this user is waiting: start one with ASCEND_DUMP=wait")
    return Exit.OK


def _state(capture: Optional[Mapping[str, Any]]) -> str:
    return "attached" if _runs(capture) else "waiting"


def _write(targets: list[AttachTarget]) -> None:
    from ascend_dump.report.documents import write_document

    processes = [
        {name: getattr(target, name) for name in ("pid", "rank", "world", "command", "capture")} for target in targets
    ]
    write_document(sys.stdout, "attach", {"processes": processes})


def _say(text: str) -> None:
    from ascend_dump.report.tables import escape_lines

    # Escaped, because a part of the text may come from the other process.
    print(f"ascend-dump: {escape_lines(text)}", file=sys.stderr, flush=True)

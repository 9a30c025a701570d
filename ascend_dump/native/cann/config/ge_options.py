"""Check GE's session options that control a dump (`ge.exec.*`): find values that GE refuses or ignores.

Sources: GE `dump_properties` (InitByOptions, CheckDumpStep, SetDumpDebugOptions: values, order, E10001 and E10058) and
mmpa (a link is not followed to a directory). The table `silent.SILENT_OPTIONS` lists values that GE ignores.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, Optional

from ascend_dump.common.problem import Problem
from ascend_dump.native.cann.config._dump_path import place_of
from ascend_dump.native.cann.config._subjects import GeSubject
from ascend_dump.native.cann.config.keys import (
    DEBUG_MODE,
    DUMP_MODE,
    DUMP_PATH,
    DUMP_STEP,
    ENABLE_DEBUG,
    ENABLE_DUMP,
    GE_OPTIONS,
    MAX_INTERVALS,
)
from ascend_dump.native.cann.config.silent import SILENT_OPTIONS
from ascend_dump.native.cann.config.situation import Situation
from ascend_dump.native.rules import Example, Hit, RuleTable

__all__ = ["REFUSED_OPTIONS", "check_ge_options"]

_INT32_MAX = 2**31 - 1
_MODES = ("input", "output", "all")
_DEBUG_MODES = ("aicore_overflow", "atomic_overflow", "all")

#: Rules for values that GE refuses, in the order of its checks.
REFUSED_OPTIONS = RuleTable(GeSubject.of_example)


def check_ge_options(options: Mapping[str, Any], *, situation: Optional[Situation] = None) -> list[Problem]:
    """Return the problems of session options: values that GE would refuse, or accept and ignore.

    Options of other subsystems are not checked. Refusals come first, in the order of GE's checks.
    """
    subject = GeSubject.of(options, Situation.here() if situation is None else situation)
    return [*REFUSED_OPTIONS.problems(subject), *SILENT_OPTIONS.problems(subject)]


_Find = Callable[[GeSubject], Iterable[Hit]]


def _rule(
    id: str,
    about: str,
    source: str,
    where: str,
    *,
    trips: Mapping[str, Any],
    passes: Mapping[str, Any],
    native: str = "E10001",
) -> Callable[[_Find], _Find]:
    examples = {"trips": Example(trips), "passes": Example(passes)}
    return REFUSED_OPTIONS.rule(
        f"option-{id}", "AD110", about, f"GE {source}", severity="error", where=where, native=native, **examples
    )


_DUMPS = {ENABLE_DUMP: "1", DUMP_PATH: "$DIR"}
_DETECTS = {ENABLE_DEBUG: "1", DUMP_PATH: "$DIR", DEBUG_MODE: "all"}


@_rule(
    "text",
    "the values of session options must be texts",
    "GEInitialize",
    ENABLE_DUMP,
    trips={**_DUMPS, ENABLE_DUMP: 1},
    passes=_DUMPS,
    native="",
)
def _text(subject: GeSubject) -> Iterator[Hit]:
    for name, value in subject.given.items():
        if name in GE_OPTIONS and not isinstance(value, str):
            yield Hit(name, f"{value!r} is not a text, which GE needs", f"give {str(value)!r}")


@_rule(
    "switch",
    "the value of a switch must be 1 or 0",
    "dump_properties InitByOptions",
    ENABLE_DUMP,
    trips={**_DUMPS, ENABLE_DUMP: "on"},
    passes=_DUMPS,
)
def _switch(subject: GeSubject) -> Iterator[Hit]:
    for name in (ENABLE_DUMP, ENABLE_DEBUG):
        if subject.options.get(name, "") not in ("", "0", "1"):
            yield Hit(name, f"{subject.options[name]!r} is neither 1 nor 0", 'give "1" or "0"')


@_rule(
    "two-dumps",
    "a dump and overflow detection cannot be combined",
    "dump_properties InitByOptions",
    ENABLE_DEBUG,
    trips={**_DUMPS, **_DETECTS},
    passes=_DETECTS,
)
def _two_dumps(subject: GeSubject) -> Iterator[Hit]:
    if subject.dump and subject.debug:
        message = f"it cannot be 1 if {ENABLE_DUMP} is 1"
        yield Hit(ENABLE_DEBUG, message, "dump in one run and detect overflow in another")


@_rule(
    "path",
    "a dump needs an existing directory that is not a link",
    "dump_properties InitByOptions; mmpa mmIsDir",
    DUMP_PATH,
    trips={ENABLE_DUMP: "1"},
    passes=_DUMPS,
)
def _path(subject: GeSubject) -> Iterator[Hit]:
    # (assumption ge.symlink)
    if not (subject.dump or subject.debug):
        return
    if DUMP_PATH not in subject.options:
        message = "it is required when a dump is enabled"
        yield Hit(DUMP_PATH, message, "give an existing directory", native="E10058")
        return
    path = subject.options[DUMP_PATH]
    directory = place_of(path, subject.situation.cwd, subject.situation.planned)
    try:
        # mmIsDir uses lstat, which follows a link only if the path ends with a slash.
        mode = os.lstat(directory).st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        yield Hit(DUMP_PATH, f"{path!r}: {why}", "create it first; ~ and $HOME are not expanded")
        return
    if not path:
        yield Hit(DUMP_PATH, "it is empty", "give an existing directory")
    elif stat.S_ISLNK(mode) and os.path.isdir(directory):
        hint = f"give {os.path.realpath(directory).decode()!r}"
        yield Hit(DUMP_PATH, f"{path!r} is a link, which GE does not follow", hint)
    elif not stat.S_ISDIR(mode):
        yield Hit(DUMP_PATH, f"{path!r} is not a directory", "give an existing directory")
    elif not os.access(directory, os.R_OK | os.W_OK):
        yield Hit(DUMP_PATH, f"{path!r} cannot be read and written by this user", "change its permissions")


@_rule(
    "steps",
    "the steps must be numbers below 2^31 and ascending ranges",
    "dump_properties CheckDumpStep",
    DUMP_STEP,
    trips={**_DUMPS, DUMP_STEP: "5-2"},
    passes={**_DUMPS, DUMP_STEP: "0|2-5"},
)
def _steps(subject: GeSubject) -> Iterator[Hit]:
    # (assumption ge.step_range)
    steps = subject.options.get(DUMP_STEP, "") if subject.dump else ""
    parts = steps.split("|") if steps else []
    if len(parts) > MAX_INTERVALS:
        message = f"{len(parts)} ranges, the limit is {MAX_INTERVALS}"
        yield Hit(DUMP_STEP, message, "join successive steps into ranges such as 0-99")
        return
    for part in parts:
        pieces = part.split("-")
        if len(pieces) > 2 or not all(_is_int32(piece) for piece in pieces):
            hint = 'leave the option out, or give "", for all steps' if steps == "None" else "write 0|5|10-20"
            yield Hit(DUMP_STEP, f"{part!r} is neither a step nor a range of steps below 2^31", hint)
        elif len(pieces) == 2 and int(pieces[0]) >= int(pieces[1]):
            yield Hit(DUMP_STEP, f"{part!r} is not an ascending range", f"write {pieces[0]!r} for a single step")


def _is_int32(text: str) -> bool:
    digits = text.lstrip("0")
    return text.isascii() and text.isdigit() and len(digits) <= 10 and int(digits or "0") <= _INT32_MAX


@_rule(
    "mode",
    "the mode must be one of three",
    "dump_properties InitByOptions",
    DUMP_MODE,
    trips={**_DUMPS, DUMP_MODE: "inputs"},
    passes={**_DUMPS, DUMP_MODE: "input"},
)
def _mode(subject: GeSubject) -> Iterator[Hit]:
    if subject.dump and subject.options.get(DUMP_MODE, "output") not in _MODES:
        message = f"{subject.options[DUMP_MODE]!r} is not one of {', '.join(_MODES)}"
        yield Hit(DUMP_MODE, message, "give one of them")


@_rule(
    "debug-mode",
    "the mode of overflow detection must be one of three",
    "dump_properties SetDumpDebugOptions",
    DEBUG_MODE,
    trips={**_DETECTS, DEBUG_MODE: "aicore"},
    passes=_DETECTS,
)
def _debug_mode(subject: GeSubject) -> Iterator[Hit]:
    if subject.debug and subject.options.get(DEBUG_MODE, "all") not in _DEBUG_MODES:
        message = f"{subject.options[DEBUG_MODE]!r} is out of range"
        yield Hit(DEBUG_MODE, message, f"give {GE_OPTIONS[DEBUG_MODE]}")

"""GE session options that control a dump (`ge.exec.*`): what GE refuses, and what it ignores.

Sources: GE `dump_properties` (InitByOptions, CheckDumpStep, SetDumpDebugOptions: values, order,
E10001 and E10058) and mmpa (a directory is looked at without following a link). What GE ignores
is the table `silent.SILENT_OPTIONS`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from ascend_dump._problem import Problem
from ascend_dump.native.cann.config._adump_checks import place_of
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

__all__ = ["check_ge_options"]

_INT32_MAX = 2**31 - 1


def check_ge_options(options: Mapping[str, Any], *, situation: Optional[Situation] = None) -> list[Problem]:
    """Everything GE would refuse in these session options, or accept without effect.

    Options of other subsystems are left alone. Problems are in the order in which GE checks,
    refusals first.
    """
    here = Situation.here() if situation is None else situation
    found = list(_texts(options))
    texts = {name: value for name, value in options.items() if isinstance(name, str) and isinstance(value, str)}
    found += _refused(texts, here)
    return [*found, *SILENT_OPTIONS.problems(GeSubject(texts, here))]


def _texts(options: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in options.items():
        if name in GE_OPTIONS and not isinstance(value, str):
            yield _error(name, f"{value!r} is no text; GE options are texts", f"give {str(value)!r}", native="")


def _refused(options: Mapping[str, str], here: Situation) -> Iterator[Problem]:
    for name in (ENABLE_DUMP, ENABLE_DEBUG):
        if options.get(name, "") not in ("", "0", "1"):
            yield _error(name, f"{options[name]!r} is neither 1 nor 0", 'give "1" or "0"')
    dump, debug = options.get(ENABLE_DUMP) == "1", options.get(ENABLE_DEBUG) == "1"
    if dump and debug:
        yield _error(ENABLE_DEBUG, f"it cannot be 1 together with {ENABLE_DUMP}", "dump first, then look for overflow")
    if dump or debug:
        yield from _refused_path(options, here)
    if dump:
        yield from _refused_steps(options.get(DUMP_STEP, ""))
        if options.get(DUMP_MODE, "output") not in ("input", "output", "all"):
            yield _error(DUMP_MODE, f"{options[DUMP_MODE]!r} is not one of input, output, all", "give one of them")
    if debug and options.get(DEBUG_MODE, "all") not in ("aicore_overflow", "atomic_overflow", "all"):
        yield _error(DEBUG_MODE, f"{options[DEBUG_MODE]!r} is out of range", f"give {GE_OPTIONS[DEBUG_MODE]}")


def _refused_path(options: Mapping[str, str], here: Situation) -> Iterator[Problem]:
    if DUMP_PATH not in options:
        yield _error(DUMP_PATH, "it is required when a dump is enabled", "give an existing directory", native="E10058")
        return
    path = options[DUMP_PATH]
    place = place_of(path, here.cwd, here.planned)
    try:
        # mmIsDir uses lstat: a link is no directory, unless a trailing slash resolves it.
        mode = os.lstat(place).st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        yield _error(DUMP_PATH, f"{path!r}: {why}", "create it first; ~ and $HOME are not expanded")
        return
    if not path:
        yield _error(DUMP_PATH, "it is empty", "give an existing directory")
    elif stat.S_ISLNK(mode) and os.path.isdir(place):
        yield _error(
            DUMP_PATH, f"{path!r} is a link, GE does not follow it", f"give {os.path.realpath(place).decode()!r}"
        )
    elif not stat.S_ISDIR(mode):
        yield _error(DUMP_PATH, f"{path!r} is not a directory", "give an existing directory")
    elif not os.access(place, os.R_OK | os.W_OK):
        yield _error(DUMP_PATH, f"{path!r} cannot be read and written by this user", "change its permissions")


def _refused_steps(steps: str) -> Iterator[Problem]:
    parts = steps.split("|") if steps else []
    if len(parts) > MAX_INTERVALS:
        yield _error(DUMP_STEP, f"{len(parts)} ranges, the limit is {MAX_INTERVALS}", "join neighbours: 0-99")
        return
    for part in parts:
        pieces = part.split("-")
        if len(pieces) > 2 or not all(_is_int32(piece) for piece in pieces):
            hint = 'leave the option out, or give "", for all steps' if steps == "None" else "write 0|5|10-20"
            yield _error(DUMP_STEP, f"{part!r} is neither a step nor a range of steps below 2^31", hint)
        elif len(pieces) == 2 and int(pieces[0]) >= int(pieces[1]):
            yield _error(DUMP_STEP, f"{part!r} is no rising range", f"write {pieces[0]!r} for a single step")


def _is_int32(text: str) -> bool:
    digits = text.lstrip("0")
    return text.isascii() and text.isdigit() and len(digits) <= 10 and int(digits or "0") <= _INT32_MAX


def _error(name: str, message: str, hint: str, *, native: str = "E10001") -> Problem:
    return Problem("AD110", "error", message, hint, name, native)

"""GE session options that control a dump (`ge.exec.*`): what GE refuses, and what it ignores.

Sources: GE `dump_properties` (InitByOptions, CheckDumpStep, SetDumpDebugOptions: values, order,
E10001 and E10058), `dump_manager` (exception dump, precedence of acl) and mmpa (a directory is
looked at without following a link).
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from ascend_dump._problem import Problem
from ascend_dump.cann.config._access import encode
from ascend_dump.cann.config.keys import MAX_INTERVALS
from ascend_dump.cann.config.situation import Situation

__all__ = ["KNOWN_OPTIONS", "check_ge_options"]

_ENABLE, _DEBUG = "ge.exec.enableDump", "ge.exec.enableDumpDebug"
_PATH, _STEP, _MODE = "ge.exec.dumpPath", "ge.exec.dumpStep", "ge.exec.dumpMode"
_DATA, _LAYER, _DEBUG_MODE = "ge.exec.dumpData", "ge.exec.dumpLayer", "ge.exec.dumpDebugMode"
_EXCEPTION, _QUANT, _GRAPHS = "ge.exec.enable_exception_dump", "ge.quant_dumpable", "ge.maxDumpFileNum"

#: Option to what it takes.
KNOWN_OPTIONS: Mapping[str, str] = {
    _ENABLE: "1 or 0",
    _DEBUG: "1 or 0, not 1 together with ge.exec.enableDump",
    _PATH: "an existing directory that is no link",
    _STEP: "steps such as 0|3-5|10",
    _MODE: "input, output or all",
    _DATA: "tensor or stats",
    _LAYER: "operator names separated by blanks",
    _DEBUG_MODE: "aicore_overflow, atomic_overflow or all",
    _EXCEPTION: "1 (normal) or 2 (brief)",
    _QUANT: "1 or 0",
    _GRAPHS: "a number, 0 for no limit",
}

_NEEDS_ENABLE = (_STEP, _MODE, _DATA, _LAYER)
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
    found += _ignored(texts, here)
    return found


def _texts(options: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in options.items():
        if name in KNOWN_OPTIONS and not isinstance(value, str):
            yield _error(name, f"{value!r} is no text; GE options are texts", f"give {str(value)!r}", native="")


def _refused(options: Mapping[str, str], here: Situation) -> Iterator[Problem]:
    for name in (_ENABLE, _DEBUG):
        if options.get(name, "") not in ("", "0", "1"):
            yield _error(name, f"{options[name]!r} is neither 1 nor 0", 'give "1" or "0"')
    dump, debug = options.get(_ENABLE) == "1", options.get(_DEBUG) == "1"
    if dump and debug:
        yield _error(_DEBUG, f"it cannot be 1 together with {_ENABLE}", "dump first, then look for overflow")
    if dump or debug:
        yield from _refused_path(options, here)
    if dump:
        yield from _refused_steps(options.get(_STEP, ""))
        if options.get(_MODE, "output") not in ("input", "output", "all"):
            yield _error(_MODE, f"{options[_MODE]!r} is not one of input, output, all", "give one of them")
    if debug and options.get(_DEBUG_MODE, "all") not in ("aicore_overflow", "atomic_overflow", "all"):
        yield _error(_DEBUG_MODE, f"{options[_DEBUG_MODE]!r} is out of range", f"give {KNOWN_OPTIONS[_DEBUG_MODE]}")


def _refused_path(options: Mapping[str, str], here: Situation) -> Iterator[Problem]:
    if _PATH not in options:
        yield _error(_PATH, "it is required when a dump is enabled", "give an existing directory", native="E10058")
        return
    path = options[_PATH]
    place = os.path.join(encode(here.cwd), encode(path).split(b"\0", 1)[0])
    try:
        # mmIsDir uses lstat: a link is no directory, unless a trailing slash resolves it.
        mode = os.lstat(place).st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        yield _error(_PATH, f"{path!r}: {why}", "create it first; ~ and $HOME are not expanded")
        return
    if not path:
        yield _error(_PATH, "it is empty", "give an existing directory")
    elif stat.S_ISLNK(mode) and os.path.isdir(place):
        yield _error(_PATH, f"{path!r} is a link, GE does not follow it", f"give {os.path.realpath(place).decode()!r}")
    elif not stat.S_ISDIR(mode):
        yield _error(_PATH, f"{path!r} is not a directory", "give an existing directory")
    elif not os.access(place, os.R_OK | os.W_OK):
        yield _error(_PATH, f"{path!r} cannot be read and written by this user", "change its permissions")


def _refused_steps(steps: str) -> Iterator[Problem]:
    parts = steps.split("|") if steps else []
    if len(parts) > MAX_INTERVALS:
        yield _error(_STEP, f"{len(parts)} ranges, the limit is {MAX_INTERVALS}", "join neighbours: 0-99")
        return
    for part in parts:
        pieces = part.split("-")
        if len(pieces) > 2 or not all(_is_int32(piece) for piece in pieces):
            hint = 'leave the option out, or give "", for all steps' if steps == "None" else "write 0|5|10-20"
            yield _error(_STEP, f"{part!r} is neither a step nor a range of steps below 2^31", hint)
        elif len(pieces) == 2 and int(pieces[0]) >= int(pieces[1]):
            yield _error(_STEP, f"{part!r} is no rising range", f"write {pieces[0]!r} for a single step")


def _is_int32(text: str) -> bool:
    digits = text.lstrip("0")
    return text.isascii() and text.isdigit() and len(digits) <= 10 and int(digits or "0") <= _INT32_MAX


def _ignored(options: Mapping[str, str], here: Situation) -> Iterator[Problem]:
    dump, debug = options.get(_ENABLE) == "1", options.get(_DEBUG) == "1"
    if debug and _DEBUG_MODE not in options:
        yield _silent(_DEBUG, f"without {_DEBUG_MODE} no overflow is detected", f'add "{_DEBUG_MODE}": "all"')
    if not debug and options.get(_DEBUG_MODE):
        yield _silent(_DEBUG_MODE, f"nothing without {_DEBUG}", f'add "{_DEBUG}": "1"')
    for name in _NEEDS_ENABLE if not dump else ():
        if options.get(name):
            why = f"ignored with {_DEBUG}" if debug else f"nothing is dumped without {_ENABLE}"
            yield _silent(name, why, "remove it" if debug else f'add "{_ENABLE}": "1"')
    if not dump and not debug and options.get(_PATH) and not any(options.get(name) for name in _NEEDS_ENABLE):
        yield _silent(_PATH, f"nothing is dumped without {_ENABLE}", f'add "{_ENABLE}": "1"')
    if dump and options.get(_DATA, "tensor") not in ("tensor", "stats"):
        yield _silent(_DATA, f"{options[_DATA]!r} is not checked and means tensor", 'give "tensor" or "stats"')
    if dump:
        yield from _ignored_layers(options.get(_LAYER, ""), here)
    if _EXCEPTION in options:
        yield from _ignored_exception(options[_EXCEPTION], here)
    if options.get(_QUANT, "0") not in ("0", "1"):
        yield _silent(_QUANT, f"{options[_QUANT]!r} is neither 1 nor 0 and turns nothing on", 'give "1"')
    if (dump or debug) and here.acl_dump:
        yield _silent(_ENABLE if dump else _DEBUG, "a dump set through acl outranks the session options", "use one")
    yield from _unknown(options)


def _ignored_layers(layers: str, here: Situation) -> Iterator[Problem]:
    names = layers.split()
    known = here.names() if names else {}
    if layers and not names:
        yield _silent(_LAYER, "it holds blanks only and selects every operator", "remove it or name operators")
    for name in names:
        if re.search(r"[*?,;|]|\[.*\]|^re:", name):
            yield _silent(_LAYER, f"{name!r} is one exact name here and matches nothing", "separate names by blanks")
        elif here.operators is not None and name not in known:
            yield _silent(_LAYER, f"the graph has no operator {name!r}", "take names from the graph", code="AD114")


def _ignored_exception(value: str, here: Situation) -> Iterator[Problem]:
    if value not in ("", "0", "1", "2"):
        yield _silent(_EXCEPTION, f"{value!r} turns nothing on", 'give "1" (normal) or "2" (brief)')
    elif value in ("1", "2") and here.env.get("NPU_COLLECT_PATH"):
        yield _silent(_EXCEPTION, "NPU_COLLECT_PATH is set and decides instead", "unset it", code="AD114")


def _unknown(options: Mapping[str, str]) -> Iterator[Problem]:
    lowered = {name.lower(): name for name in KNOWN_OPTIONS}
    for name in options:
        if name in KNOWN_OPTIONS or "dump" not in name.lower() or not name.lower().startswith("ge."):
            continue
        near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.85)
        if near:
            yield _silent(name, "GE knows no such option", f"did you mean {lowered[near[0]]!r}?")


def _error(name: str, message: str, hint: str, *, native: str = "E10001") -> Problem:
    return Problem("AD110", "error", message, hint, name, native)


def _silent(name: str, message: str, hint: str, *, code: str = "AD113") -> Problem:
    return Problem(code, "silent", message, hint, name)

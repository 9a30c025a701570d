"""Check a dump JSON: what MindSpore refuses, in its own words, and what it accepts without doing it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump._problem import Problem, worst_first
from ascend_dump.native.mindspore.config.dump_json import read_file, read_text
from ascend_dump.native.mindspore.config.select import KernelSelector, iteration_ranges, unused_parts
from ascend_dump.native.mindspore.config.settings import DEVICE_STATISTICS, Reading
from ascend_dump.native.mindspore.graph import has_complex
from ascend_dump.native.mindspore.runtime import Runtime

if TYPE_CHECKING:
    from ascend_dump.native.cann.config import Situation

__all__ = ["Known", "check_mindspore_config", "known_of_graph"]

Source = Union[str, bytes, "os.PathLike[str]", Mapping[str, Any]]

_COMMON, _E2E = "common_dump_settings", "e2e_dump_settings"
_KEYS = {
    _COMMON: {
        "op_debug_mode",
        "dump_mode",
        "path",
        "net_name",
        "iteration",
        "saved_data",
        "input_output",
        "kernels",
        "support_device",
        "statistic_category",
        "overflow_number",
        "initial_iteration",
        "file_format",
    },
    _E2E: {
        "enable",
        "trans_flag",
        "stat_calc_mode",
        "device_stat_precision_mode",
        "sample_mode",
        "sample_num",
        "save_kernel_args",
    },
}
_HINTS = {
    "path": "give an absolute path of letters, digits, - _ and / only; a link with such a name may lead elsewhere",
    "iteration": 'write 0|3-5|10 without blanks, or "all"',
    "net_name": "use letters, digits, - and _",
    "overflow_number": "remove it, also when it is 0",
    "saved_data": "dump tensors, and compute statistics when reading",
    "dump_mode": "use 0 for all operators, 1 for those in kernels",
    "file_format": "remove it, or write npy or bin",
    "kernels": "write a list; the expression in name-regex(...) must be one of C++ (ECMAScript)",
    "support_device": "write a list of numbers, such as [0, 1]",
    "": "write one JSON object, see the documents of MindSpore's Dump",
}


#: What to tell a program that runs operators one by one.
PYNATIVE = Problem(
    "AD279",
    "warning",
    "in PyNative mode only what @jit compiles is dumped, single operators are not",
    "decorate the part with @jit, or use GRAPH_MODE",
)


class Known(NamedTuple):
    """What is known of the program that will dump; None means unknown, and the rules that need it stay quiet.

    operators: full names of its operators, as an earlier dump shows them. pynative: operators run one by one.
    complex: it has tensors of complex numbers. graphs: how many graphs it compiles. device_id: of this process.
    """

    env: Optional[Mapping[str, str]] = None
    operators: Optional[Sequence[str]] = None
    pynative: Optional[bool] = None
    complex: Optional[bool] = None
    graphs: Optional[int] = None
    device_id: Optional[int] = None


def known_of_graph(path: Path) -> Known:
    """What one `.ir` text of a dump, and what is written beside it, say of the program, beside the operators.

    graphs: those that have a history of their own; the bodies of loops have none.
    """
    histories = (path.parent.parent / "execution_order").glob("ms_global_execution_order_graph_*.csv")
    return Known(complex=has_complex(path), graphs=sum(1 for _ in histories) or None)


def check_mindspore_config(
    source: Source,
    *,
    all: bool = False,
    situation: Optional[Situation] = None,
    runtime: Optional[Runtime] = None,
    known: Optional[Known] = None,
) -> list[Problem]:
    """Find what MindSpore would refuse in a dump JSON, or accept without doing it.

    source: a path, the content of a file (bytes), or its decoded value. all: also list what would be refused
    after the first refusal. situation: gives the environment and names of operators where `known` does not.
    runtime: where it runs; by default guessed from the form of the file, Ascend with O0 or O1 unless it is O2's.
    Errors come first, then silent findings, then warnings.
    """
    facts = known or Known()
    if situation is not None:
        operators = None if situation.operators is None else [node.name for node in situation.operators]
        facts = facts._replace(env=facts.env or situation.env, operators=facts.operators or operators)
    where = runtime
    if where is None:
        where = _guess(_read(source, Runtime(), facts.env).value)
    reading = _read(source, where, facts.env)
    found = [_refusal(*one) for one in (reading.refusals if all else reading.refusals[:1])]
    found += _silent(reading, where, facts)
    return worst_first(found)


def _read(source: Source, runtime: Runtime, env: Optional[Mapping[str, str]]) -> Reading:
    if isinstance(source, Mapping):
        source = json.dumps(source).encode()
    if isinstance(source, bytes):
        return read_text(source, runtime=runtime, env=env)
    return read_file(os.fspath(source), runtime=runtime, env=env)


def _guess(value: Any) -> Runtime:
    """O2 up to 2.5 has a file_format and no block e2e_dump_settings."""
    common = value.get(_COMMON) if isinstance(value, dict) else None
    if isinstance(common, dict) and "file_format" in common and _E2E not in value:
        return Runtime.named("ascend-o2")
    return Runtime()


def _refusal(message: str, where: str) -> Problem:
    key = where.rpartition(".")[2].partition("[")[0]
    return Problem("AD270", "error", message, _HINTS.get(key, f"correct {key}"), where, "RuntimeError")


def _silent(reading: Reading, where: Runtime, known: Known) -> Iterator[Problem]:
    if isinstance(reading.value, dict):
        yield from _unknown_keys(reading.value)
    if reading.refusals:
        return
    yield from _of_runtime(reading, where)
    yield from _of_iteration(reading, known)
    yield from _of_kernels(reading, known)
    yield from _of_path(reading.settings.path)
    yield from _of_statistics(reading, where)
    yield from _of_program(reading, where, known)


def _unknown_keys(value: dict[str, Any]) -> Iterator[Problem]:
    for block, keys in _KEYS.items():
        inner = value.get(block)
        for key in inner if isinstance(inner, dict) else ():
            if key not in keys:
                yield Problem("AD278", "silent", "MindSpore ignores this key", "correct or remove it", f"{block}.{key}")
    for key in value:
        if key == "async_dump_settings":
            hint = f"use {_E2E} with enable false"
            yield Problem("AD278", "silent", "MindSpore has no asynchronous block any more", hint, key)
        elif key not in _KEYS:
            yield Problem("AD278", "silent", "MindSpore ignores this key", "correct or remove it", key)


def _of_runtime(reading: Reading, where: Runtime) -> Iterator[Problem]:
    settings = reading.settings
    if where.ge and not where.old_ge:
        yield Problem(
            "AD274",
            "silent",
            "jit_level O2 (the GE backend) reads no dump JSON since MindSpore 2.6: nothing is dumped",
            "run with jit_level O0 or O1, or use CANN's dump through an acl.json",
        )
    if not settings.e2e and not where.ge:
        nothing = where.device == "Ascend"
        yield Problem(
            "AD274",
            "silent" if nothing else "warning",
            "without it nothing is dumped" if nothing else "without it each start waits three seconds",
            'add {"enable": true, "trans_flag": true}',
            _E2E,
        )
    if where.device == "CPU" and settings.op_debug_mode == 3:
        message = "on a CPU this is the same as 0: every operator is dumped, overflow or not"
        yield Problem(
            "AD274", "silent", message, "use 0, and look for inf and nan when reading", f"{_COMMON}.op_debug_mode"
        )
    if where.device == "GPU" and settings.op_debug_mode:
        message = "the documents know 0 only on a GPU"
        yield Problem("AD274", "silent", message, "use 0", f"{_COMMON}.op_debug_mode")
    if where.device == "CPU" and settings.op_debug_mode == 4:
        message = "on a CPU no operator is dumped then, only parameters, in every iteration"
        yield Problem("AD274", "silent", message, "use 0", f"{_COMMON}.op_debug_mode")
    e2e = reading.value.get(_E2E)
    if where.device != "Ascend" and isinstance(e2e, dict):
        for key in ("sample_mode", "save_kernel_args", "device_stat_precision_mode"):
            if e2e.get(key) not in (None, 0, False, "high"):
                yield Problem("AD274", "silent", "only Ascend does this", "remove it", f"{_E2E}.{key}")
        if settings.stat_calc_mode == "device":
            yield Problem(
                "AD274", "silent", "only Ascend does this, it is host here", "use host", f"{_E2E}.stat_calc_mode"
            )
    if "file_format" in reading.value[_COMMON] and not where.ge:
        yield Problem("AD274", "silent", "files are always npy here", "remove it", f"{_COMMON}.file_format")
    for warning in reading.warnings:
        if "should be set to" in warning:
            yield Problem("AD274", "silent", f"two settings conflict: {warning}", "set it as MindSpore would", _COMMON)


def _of_iteration(reading: Reading, known: Known) -> Iterator[Problem]:
    settings, place = reading.settings, f"{_COMMON}.iteration"
    given = reading.value[_COMMON]["iteration"]
    ranges = iteration_ranges(settings.iteration)
    if settings.op_debug_mode == 4 and given != "all":
        yield Problem("AD272", "silent", "with op_debug_mode 4 every iteration counts", 'write "all"', place)
        return
    if ranges is None:
        return
    if not ranges:
        message = f"{given!r} selects no iteration, so nothing is dumped"
        yield Problem("AD272", "silent", message, "write numbers and rising ranges, such as 0|3-5", place)
        return
    for part in unused_parts(settings.iteration):
        yield Problem("AD272", "silent", f"the part {part!r} selects nothing", "write a range as 5-10", place)
    if all(high < settings.initial_iteration for _, high in ranges):
        message = f"the first iteration is {settings.initial_iteration}, so {given!r} selects none"
        yield Problem("AD272", "silent", message, "count from initial_iteration", place)
    if known.graphs is not None and known.graphs > 1:
        yield Problem(
            "AD272",
            "warning",
            "a graph that runs directly after another one has the number of runs of that one, not its own",
            'write "all" to see every graph',
            place,
        )


def _of_kernels(reading: Reading, known: Known) -> Iterator[Problem]:
    settings, place = reading.settings, f"{_COMMON}.kernels"
    if settings.dump_mode != 1:
        return
    if not any(settings.kernels):
        yield Problem(
            "AD273", "silent", "with an empty list everything is dumped", "name operators, or use dump_mode 0", place
        )
    for number, entry in enumerate(settings.kernels):
        here = f"{place}[{number}]"
        if "\\" in entry:
            message = "MindSpore doubles a backslash, so this never matches"
            yield Problem("AD273", "silent", message, "write [0-9] for \\d and [.] for \\.", here)
        elif entry == "name-regex()":
            yield Problem("AD273", "silent", "an empty expression matches no name", "write name-regex(.*)", here)
        elif "-op" in entry and "/" not in entry and not entry.startswith("name-regex("):
            message = f"{entry!r} is compared with full names, which begin with a scope such as Default/"
            yield Problem("AD273", "silent", message, "write the full name, or name-regex(.*/" + entry + ")", here)
        elif known.operators is not None and entry and not any(map(KernelSelector([entry]).matches, known.operators)):
            message = f"{entry!r} matches none of the {len(known.operators)} known operators"
            hint = "numbers after -op count on over all graphs of a process: take the name from files of a dump"
            yield Problem("AD273", "silent", message, hint, here)


def _of_path(path: str) -> Iterator[Problem]:
    there = Path(path)
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    place = f"{_COMMON}.path"
    if not there.is_dir():
        yield Problem("AD275", "silent", f"{there} is no directory, so nothing is written", "give a directory", place)
    elif not os.access(there, os.W_OK | os.X_OK) or str(there).startswith("/proc"):
        message = f"{there} cannot be written: MindSpore logs it and goes on without a dump"
        yield Problem("AD275", "silent", message, "give a directory that this user may write", place)


def _of_statistics(reading: Reading, where: Runtime) -> Iterator[Problem]:
    settings = reading.settings
    if settings.saved_data == "tensor" or where.device != "Ascend" or settings.stat_calc_mode != "device":
        return
    for name in settings.statistic_category:
        if name not in DEVICE_STATISTICS:
            message = f"the device does not compute {name!r}, it is left out"
            yield Problem("AD274", "silent", message, "use stat_calc_mode host", f"{_COMMON}.statistic_category")


def _of_program(reading: Reading, where: Runtime, known: Known) -> Iterator[Problem]:
    settings = reading.settings
    if known.complex:
        message = "MindSpore cannot compile a graph with complex numbers while it dumps (Unexpected type Complex)"
        yield Problem("AD279", "error", message, "dump without the part that computes with complex numbers")
    if known.pynative:
        yield PYNATIVE
    if where.device == "Ascend" and known.device_id is not None and known.device_id not in settings.support_device:
        message = f"device {known.device_id} is not in the list, so this process dumps nothing"
        yield Problem("AD274", "silent", message, "add it", f"{_COMMON}.support_device")

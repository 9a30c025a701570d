"""The dump settings of TensorFlow on Ascend: the `parameter_map` of NpuOptimizer in a ConfigProto.

The bridge reads them once for each graph of a session, checks some itself and hands them to GE as session
options. Sources: hicann/tensorflow `npu_attrs` (keys, defaults, values, what is refused and what ends the
process), GE `dump_properties` (the exclusion of `enable_dump` and `enable_dump_debug`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump._problem import Problem
from ascend_dump.native.cann.config.check import Source, read_source
from ascend_dump.native.cann.config.ge_options import check_ge_options
from ascend_dump.native.cann.config.situation import Situation

if TYPE_CHECKING:
    from ascend_dump._request import DumpRequest

__all__ = ["DUMP_KEYS", "KEYS", "Key", "check_parameters", "parameters"]

Value = Union[bool, int, str]


class Key(NamedTuple):
    """One key: the field of AttrValue it is read from (`b`, `s` or `i`), GE's option, and what absence means."""

    field: str
    ge: str
    default: Value = ""


KEYS: Mapping[str, Key] = MappingProxyType(
    {
        "enable_dump": Key("b", "ge.exec.enableDump", False),
        "enable_dump_debug": Key("b", "ge.exec.enableDumpDebug", False),
        "dump_path": Key("s", "ge.exec.dumpPath"),
        "dump_step": Key("s", "ge.exec.dumpStep"),
        "dump_mode": Key("s", "ge.exec.dumpMode", "output"),
        "dump_debug_mode": Key("s", "ge.exec.dumpDebugMode", "all"),
        "dump_data": Key("s", "ge.exec.dumpData", "tensor"),
        "dump_layer": Key("s", "ge.exec.dumpLayer"),
        "quant_dumpable": Key("s", "ge.quant_dumpable"),
        "enable_exception_dump": Key("i", "ge.exec.enable_exception_dump", 2),
        "use_off_line": Key("b", "", True),
    }
)
#: The keys that say what is dumped; the others may be there for other reasons.
DUMP_KEYS = tuple(name for name in KEYS if name not in ("enable_exception_dump", "use_off_line"))

_TYPES: Mapping[str, tuple[type, str]] = MappingProxyType({"b": (bool, "true or false"), "i": (int, "a number")})
_MODES = {
    "dump_mode": ("enable_dump", ("input", "output", "all")),
    "dump_debug_mode": ("enable_dump_debug", ("aicore_overflow", "atomic_overflow", "all")),
}
#: Checked by the bridge whatever is switched on.
_VALUES: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {"dump_data": ("tensor", "stats"), "enable_exception_dump": (0, 1, 2)}
)


def parameters(
    request: DumpRequest, *, names: Optional[Iterable[str]] = None, known_options: Iterable[str] = ()
) -> dict[str, Value]:
    """Build the keys of a request, each with a value of the type its field has; arguments as for `ge_options`.

    `dump_data` is left out where it says what its absence means: bridges before 2026 do not know it. Raises
    ConfigError and NotSupported.
    """
    from ascend_dump.native.cann.config.build import ge_options

    options = ge_options(request, names=names, known_options=known_options)
    found: dict[str, Value] = {}
    for name, key in KEYS.items():
        if key.ge in options:
            text = options[key.ge]
            found[name] = text == "1" if key.field == "b" else int(text) if key.field == "i" else text
    if found.get("dump_data") == "tensor":
        del found["dump_data"]
    return found


def check_parameters(source: Source, *, all: bool = False, situation: Optional[Situation] = None) -> list[Problem]:
    """Find what the bridge or GE would refuse in these keys, or accept without doing it.

    source: a JSON object of keys and values, as text, as a file or decoded: true and false for what is read from
    `b`, texts for `s`, numbers for `i`. Keys of other subjects are left alone. Errors come first.
    """
    here = Situation.here() if situation is None else situation
    parsed = read_source(source)
    if parsed.refusal is not None or not isinstance(parsed.value, dict):
        reason = "it holds no object of keys and values" if parsed.refusal is None else parsed.refusal.reason
        return [Problem("AD110", "error", reason, 'write {"enable_dump": true, "dump_path": "/d"}')]
    given = parsed.value
    found = [*_wrong_fields(given), *_wrong_values(given), *_without_effect(given), *_misspelt(given)]
    values = {name: value for name, value in given.items() if name in KEYS and _fits(KEYS[name], value)}
    found += _of_ge(values, here)
    order = ("error", "silent", "warning")
    return sorted(found, key=lambda problem: order.index(problem.severity))


def _fits(key: Key, value: object) -> bool:
    if key.field == "i":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if key.field == "b" else str)


def _wrong_fields(given: Mapping[str, Any]) -> Iterator[Problem]:
    """A value in another field of AttrValue is not seen: the bridge reads one field and never asks which is set."""
    for name, value in given.items():
        key = KEYS.get(name)
        if key is None or _fits(key, value):
            continue
        expected = _TYPES.get(key.field, (str, "text"))[1]
        default = "nothing" if key.default == "" else repr(key.default)
        yield Problem(
            "AD295",
            "silent",
            f"{name} is read from the field {key.field!r}, where {value!r} cannot stand; it counts as {default}",
            f"give {expected}: parameter_map[{name!r}].{key.field} = …",
            name,
        )


def _wrong_values(given: Mapping[str, Any]) -> Iterator[Problem]:
    for name, (switch, allowed) in _MODES.items():
        if given.get(switch) is True and isinstance(given.get(name), str) and given[name] not in allowed:
            yield Problem(
                "AD295",
                "error",
                f"{name} is {given[name]!r}: the bridge ends the process with a fatal log message",
                f"give one of {', '.join(allowed)}",
                name,
            )
    if isinstance(given.get("dump_data"), str) and given["dump_data"] not in _VALUES["dump_data"]:
        yield Problem(
            "AD295",
            "error",
            f"dump_data is {given['dump_data']!r}: dump_data should be 'tensor' or 'stats', even with the dump off",
            "give one of the two",
            "dump_data",
        )
    kind = given.get("enable_exception_dump", 0)
    if _fits(KEYS["enable_exception_dump"], kind) and kind not in _VALUES["enable_exception_dump"]:
        yield Problem(
            "AD295",
            "error",
            f"enable_exception_dump is {kind}: it should be one of 0, 1 and 2",
            "give one of them",
            "enable_exception_dump",
        )


def _without_effect(given: Mapping[str, Any]) -> Iterator[Problem]:
    on = given.get("enable_dump") is True or given.get("enable_dump_debug") is True
    if on and given.get("use_off_line") is False:
        yield Problem(
            "AD292",
            "silent",
            "use_off_line is false: the graph runs on the host, so nothing is dumped",
            'set parameter_map["use_off_line"].b = True, or leave it out',
            "use_off_line",
        )


def _misspelt(given: Mapping[str, Any]) -> Iterator[Problem]:
    # A map of protobuf has no order of its own.
    for name in sorted(given):
        near = difflib.get_close_matches(name.lower(), KEYS, n=1, cutoff=0.8) if name not in KEYS else []
        if near and "dump" in name.lower():
            yield Problem(
                "AD113", "silent", f"{name} is no key that the bridge reads: it is ignored", f"write {near[0]}", name
            )


def _of_ge(values: Mapping[str, Value], here: Situation) -> Iterator[Problem]:
    """What GE has to say about the options it gets, under the names they have here."""
    # The longest first: one name is the beginning of another.
    names = {key.ge: name for name, key in sorted(KEYS.items(), key=lambda item: -len(item[1].ge)) if key.ge}
    settled = {name: value for name, value in values.items() if name not in _MODES}
    for name, (switch, allowed) in _MODES.items():
        # What is wrong has been told, and what is absent has a default before GE sees it.
        if values.get(switch) is True:
            settled[name] = values[name] if values.get(name) in allowed else allowed[-1]
        elif name in values and values.get("enable_dump" if name == "dump_mode" else switch) is not True:
            settled[name] = values[name]
    for name, values_of in _VALUES.items():
        if settled.get(name, values_of[0]) not in values_of:
            del settled[name]
    options = {KEYS[name].ge: _text(value) for name, value in settled.items() if KEYS[name].ge}
    for problem in check_ge_options(options, situation=here):
        where = names.get(problem.where, problem.where)
        message, hint = problem.message, problem.hint
        for ge, name in names.items():
            message = message.replace(ge, name)
            hint = hint.replace(f'"{ge}": "1"', f'"{name}": true').replace(ge, name)
        code = "AD291" if where == "enable_dump_debug" and problem.severity == "error" else problem.code
        yield problem._replace(where=where, message=message, hint=hint, code=code)


def _text(value: Value) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)

"""The keys of NpuOptimizer that concern a dump: fields, GE's options, defaults and allowed values, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Union

__all__ = ["DUMP_KEYS", "KEYS", "MODES", "TYPES", "VALUES", "Parameter", "Value", "fits"]

Value = Union[bool, int, str]


class Parameter(NamedTuple):
    """A key: the field of AttrValue from which it is read (`b`, `s` or `i`), GE's option, and the default."""

    field: str
    ge: str
    default: Value = ""


KEYS: Mapping[str, Parameter] = MappingProxyType(
    {
        "enable_dump": Parameter("b", "ge.exec.enableDump", False),
        "enable_dump_debug": Parameter("b", "ge.exec.enableDumpDebug", False),
        "dump_path": Parameter("s", "ge.exec.dumpPath"),
        "dump_step": Parameter("s", "ge.exec.dumpStep"),
        "dump_mode": Parameter("s", "ge.exec.dumpMode", "output"),
        "dump_debug_mode": Parameter("s", "ge.exec.dumpDebugMode", "all"),
        "dump_data": Parameter("s", "ge.exec.dumpData", "tensor"),
        "dump_layer": Parameter("s", "ge.exec.dumpLayer"),
        "quant_dumpable": Parameter("s", "ge.quant_dumpable"),
        "enable_exception_dump": Parameter("i", "ge.exec.enable_exception_dump", 2),
        "use_off_line": Parameter("b", "", True),
    }
)
#: The keys that select what is dumped; the other keys may be set for other reasons.
DUMP_KEYS = tuple(name for name in KEYS if name not in ("enable_exception_dump", "use_off_line"))

TYPES: Mapping[str, tuple[type, str]] = MappingProxyType({"b": (bool, "true or false"), "i": (int, "a number")})
#: Each mode with the key that turns it on and the allowed values.
MODES = {
    "dump_mode": ("enable_dump", ("input", "output", "all")),
    "dump_debug_mode": ("enable_dump_debug", ("aicore_overflow", "atomic_overflow", "all")),
}
#: The keys that the bridge checks even if no dump is on.
VALUES: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {"dump_data": ("tensor", "stats"), "enable_exception_dump": (0, 1, 2)}
)


def fits(key: Parameter, value: object) -> bool:
    """Whether the value has the type of the field from which the key is read."""
    if key.field == "i":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if key.field == "b" else str)

"""The keys of NpuOptimizer that concern a dump, with their fields, GE's options, defaults and allowed values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Union

from ascend_dump.native.tensorflow.tf1_dump import DUMP_FIELDS, OTHER_FIELDS

__all__ = ["DUMP_KEYS", "KEYS", "MODES", "TYPES", "VALUES", "Parameter", "Value", "fits"]

Value = Union[bool, int, str]


class Parameter(NamedTuple):
    """A key.

    field    the field of AttrValue from which the bridge reads it: `b` (bool), `s` (text) or `i` (integer)
    ge       the session option of GE to which the bridge passes it; "" if it is not passed to GE
    default  the value that the bridge uses if the key is missing
    """

    field: str
    ge: str
    default: Value


_GE: Mapping[str, tuple[str, Value]] = {
    "enable_dump": ("ge.exec.enableDump", False),
    "enable_dump_debug": ("ge.exec.enableDumpDebug", False),
    "dump_path": ("ge.exec.dumpPath", ""),
    "dump_step": ("ge.exec.dumpStep", ""),
    "dump_mode": ("ge.exec.dumpMode", "output"),
    "dump_debug_mode": ("ge.exec.dumpDebugMode", "all"),
    "dump_data": ("ge.exec.dumpData", "tensor"),
    "dump_layer": ("ge.exec.dumpLayer", ""),
    "quant_dumpable": ("ge.quant_dumpable", ""),
    "enable_exception_dump": ("ge.exec.enable_exception_dump", 2),
    "use_off_line": ("", True),
}
_FIELDS = {**DUMP_FIELDS, **OTHER_FIELDS}
KEYS: Mapping[str, Parameter] = MappingProxyType(
    {name: Parameter(_FIELDS[name], *option) for name, option in _GE.items()}
)
#: The keys that only control the dump. Other keys of `KEYS` may be set for other purposes.
DUMP_KEYS = tuple(DUMP_FIELDS)

#: The types of values, with the text for them in messages, by `Parameter.field`. Other fields take a text.
TYPES: Mapping[str, tuple[type, str]] = MappingProxyType({"b": (bool, "true or false"), "i": (int, "a number")})
#: The keys that select a mode: (the key that turns it on, the allowed modes).
MODES = {
    "dump_mode": ("enable_dump", ("input", "output", "all")),
    "dump_debug_mode": ("enable_dump_debug", ("aicore_overflow", "atomic_overflow", "all")),
}
#: Keys that the bridge checks even if no dump is on, with the allowed values.
VALUES: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {"dump_data": ("tensor", "stats"), "enable_exception_dump": (0, 1, 2)}
)


def fits(key: Parameter, value: object) -> bool:
    """Return True if a value has the type of the key's field."""
    if key.field == "i":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if key.field == "b" else str)

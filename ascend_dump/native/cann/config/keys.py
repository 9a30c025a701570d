"""The keys of CANN's dump JSON and the session options of GE: types, allowed values, defaults and limits.

Sources: adump `dump_config_converter` (keys, allowed values, defaults, limits); GE `dump_manager` (the format
of `pos` in an entry of a blacklist). The keys have the order of adump's checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = [
    "BLACKLISTS",
    "BLACKLIST_ENTRY",
    "DEBUG_MODE",
    "DUMP",
    "DUMP_DATA",
    "DUMP_LAYER",
    "DUMP_MODE",
    "DUMP_PATH",
    "DUMP_STEP",
    "ENABLE_DEBUG",
    "ENABLE_DUMP",
    "ENABLE_EXCEPTION",
    "EXCEPTION_SCENES",
    "GE_OPTIONS",
    "ITEM",
    "KERNEL_DATA",
    "MAX_BLACKLIST",
    "MAX_INTERVALS",
    "MAX_PATH_BYTES",
    "QUANT",
    "RANGE_ENTRY",
    "SCENE_TYPES",
    "VALUE_ORDER",
    "Key",
    "Kind",
]


class Kind:
    """The JSON type that adump requires of a value."""

    TEXT = "string"
    TEXTS = "array of string"
    OBJECTS = "array of object"


class Key(NamedTuple):
    """A key of the dump JSON.

    kind     its JSON type, one of `Kind`
    allowed  the values that adump accepts; empty: any value
    default  the value that adump uses if the key is missing
    about    a help text
    """

    name: str
    kind: str
    allowed: tuple[str, ...] = ()
    default: str = ""
    about: str = ""


#: adump's dump type (`Verdict.dump_type`) of each exception scene. The scene "watcher" is an ordinary operator dump.
SCENE_TYPES: Mapping[str, int] = MappingProxyType(
    {"lite_exception": 3, "aic_err_brief_dump": 3, "aic_err_norm_dump": 2, "aic_err_detail_dump": 5}
)
EXCEPTION_SCENES = tuple(SCENE_TYPES)

_ON_OFF = ("on", "off")

#: Keys of the object `dump`.
DUMP: Mapping[str, Key] = MappingProxyType(
    {
        key.name: key
        for key in (
            Key("dump_path", Kind.TEXT, (), "", "an existing directory, required except in exception scenes"),
            Key("dump_mode", Kind.TEXT, ("input", "output", "all"), "output", "which tensors of an operator"),
            Key("dump_op_switch", Kind.TEXT, _ON_OFF, "off", "also dump single-operator calls"),
            Key("dump_level", Kind.TEXT, ("op", "kernel", "all"), "all", "granularity"),
            Key("dump_scene", Kind.TEXT, (*EXCEPTION_SCENES, "watcher"), "", "exception dump or watcher mode"),
            Key("dump_data", Kind.TEXT, ("tensor", "stats"), "tensor", "the values, or statistics of them"),
            Key("dump_debug", Kind.TEXT, _ON_OFF, "off", "overflow detection"),
            Key("dump_kernel_data", Kind.TEXT, (), "", "debug output of kernels: names separated by commas"),
            Key("dump_step", Kind.TEXT, (), "", "steps such as 0|3-5|10; empty means all"),
            Key(
                "dump_stats",
                Kind.TEXTS,
                ("Max", "Min", "Avg", "Nan", "Negative Inf", "Positive Inf", "L2norm"),
                "",
                "which statistics; absent means all but L2norm",
            ),
            Key("dump_list", Kind.OBJECTS, (), "", "models and operators to dump"),
        )
    }
)

#: Values in the list `dump_kernel_data`.
KERNEL_DATA = ("all", "printf", "tensor", "assert", "timestamp")

#: Keys with a fixed set of values, in the order in which adump checks them.
VALUE_ORDER = ("dump_mode", "dump_data", "dump_op_switch", "dump_level", "dump_debug", "dump_scene")

BLACKLISTS = ("optype_blacklist", "opname_blacklist")

#: Keys of an item of `dump_list`.
ITEM: Mapping[str, Key] = MappingProxyType(
    {
        key.name: key
        for key in (
            Key("model_name", Kind.TEXT, (), "", "absent means every model"),
            Key("layer", Kind.TEXTS, (), "", "exact operator names; absent means every operator"),
            Key("watcher_nodes", Kind.TEXTS, (), "", "operators whose outputs are watched; for the scene watcher only"),
            Key("optype_blacklist", Kind.OBJECTS, (), "", "tensors left out, by operator type"),
            Key("opname_blacklist", Kind.OBJECTS, (), "", "tensors left out, by operator name"),
            Key("opname_range", Kind.OBJECTS, (), "", "operators from begin to end in execution order"),
        )
    }
)

#: Keys of an entry of a blacklist, and of an entry of `opname_range`.
BLACKLIST_ENTRY = ("name", "pos")
RANGE_ENTRY = ("begin", "end")

#: The names of GE's session options; `GE_OPTIONS` has help texts about their values.
ENABLE_DUMP, ENABLE_DEBUG = "ge.exec.enableDump", "ge.exec.enableDumpDebug"
DUMP_PATH, DUMP_STEP, DUMP_MODE = "ge.exec.dumpPath", "ge.exec.dumpStep", "ge.exec.dumpMode"
DUMP_DATA, DUMP_LAYER, DEBUG_MODE = "ge.exec.dumpData", "ge.exec.dumpLayer", "ge.exec.dumpDebugMode"
ENABLE_EXCEPTION, QUANT = "ge.exec.enable_exception_dump", "ge.quant_dumpable"
GE_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        ENABLE_DUMP: "1 or 0",
        ENABLE_DEBUG: "1 or 0, not 1 together with ge.exec.enableDump",
        DUMP_PATH: "an existing directory that is not a link",
        DUMP_STEP: "steps such as 0|3-5|10",
        DUMP_MODE: "input, output or all",
        DUMP_DATA: "tensor or stats",
        DUMP_LAYER: "operator names separated by blanks",
        DEBUG_MODE: "aicore_overflow, atomic_overflow or all",
        ENABLE_EXCEPTION: "1 (normal) or 2 (brief)",
        QUANT: "1 or 0",
        "ge.maxDumpFileNum": "a number, 0 for no limit",
    }
)

MAX_PATH_BYTES = 512
MAX_INTERVALS = 100
MAX_BLACKLIST = 100

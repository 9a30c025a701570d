"""Rules for keys of NpuOptimizer that the bridge (npu_bridge) refuses, or accepts and ignores."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ascend_dump.native.rules import Example, Hit, RuleTable
from ascend_dump.native.tensorflow.config.keys import KEYS, MODES, TYPES, VALUES, fits

__all__ = ["RULES", "ParameterSubject"]


class ParameterSubject(NamedTuple):
    """The keys that the user has set. Values may have any type."""

    keys: Mapping[str, Any]

    @classmethod
    def of_example(cls, example: Example) -> ParameterSubject:
        return cls(example.config)

    @property
    def on(self) -> bool:
        """True if a dump or overflow detection is turned on."""
        return self.keys.get("enable_dump") is True or self.keys.get("enable_dump_debug") is True


RULES = RuleTable(ParameterSubject.of_example)


@RULES.rule(
    "parameter-field",
    "AD295",
    "for each key the bridge reads one field of AttrValue, even if another field is set",
    "tf_adapter npu_attrs SetNpuOptimizerAttr",
    where="dump_step",
    trips=Example({"enable_dump": True, "dump_path": "$DIR", "dump_step": 5}),
    passes=Example({"enable_dump": True, "dump_path": "$DIR", "dump_step": "5"}),
)
def _wrong_field(subject: ParameterSubject) -> Iterator[Hit]:
    for name, value in subject.keys.items():
        key = KEYS.get(name)
        if key is None or fits(key, value):
            continue
        expected = TYPES.get(key.field, (str, "text"))[1]
        default = "nothing" if key.default == "" else repr(key.default)
        yield Hit(
            name,
            f"{name} is read from the field {key.field!r}, which cannot contain {value!r}: the value is {default}",
            f"set {expected}: parameter_map[{name!r}].{key.field} = …",
        )


@RULES.rule(
    "parameter-mode",
    "AD295",
    "an unknown mode ends the process",
    "tf_adapter npu_attrs CheckDumpMode, CheckDumpDebugMode",
    severity="error",
    where="dump_mode",
    trips=Example({"enable_dump": True, "dump_path": "$DIR", "dump_mode": "outputs"}),
    passes=Example({"enable_dump": True, "dump_path": "$DIR", "dump_mode": "output"}),
)
def _wrong_mode(subject: ParameterSubject) -> Iterator[Hit]:
    keys = subject.keys
    for name, (switch, allowed) in MODES.items():
        if keys.get(switch) is True and isinstance(keys.get(name), str) and keys[name] not in allowed:
            yield Hit(
                name,
                f"{name} is {keys[name]!r}: the bridge ends the process with a fatal log message",
                f"choose from {', '.join(allowed)}",
            )


@RULES.rule(
    "parameter-data",
    "AD295",
    "the bridge refuses other values of dump_data, even if the dump is off",
    "tf_adapter npu_attrs SetNpuOptimizerAttr",
    severity="error",
    where="dump_data",
    trips=Example({"dump_data": "statistics"}),
    passes=Example({"enable_dump": True, "dump_path": "$DIR", "dump_data": "stats"}),
)
def _wrong_data(subject: ParameterSubject) -> Iterator[Hit]:
    value = subject.keys.get("dump_data")
    if isinstance(value, str) and value not in VALUES["dump_data"]:
        message = f"dump_data is {value!r}: dump_data should be 'tensor' or 'stats', even if the dump is off"
        yield Hit("dump_data", message, "choose one of the two")


@RULES.rule(
    "parameter-exception",
    "AD295",
    "the bridge knows three kinds of exception dump",
    "tf_adapter npu_attrs SetNpuOptimizerAttr",
    severity="error",
    where="enable_exception_dump",
    trips=Example({"enable_exception_dump": 3}),
    passes=Example({"enable_exception_dump": 1}),
)
def _wrong_exception(subject: ParameterSubject) -> Iterator[Hit]:
    name = "enable_exception_dump"
    kind = subject.keys.get(name, 0)
    if fits(KEYS[name], kind) and kind not in VALUES[name]:
        yield Hit(name, f"{name} is {kind}: it should be one of 0, 1 and 2", "choose one of them")


@RULES.rule(
    "parameter-on-host",
    "AD292",
    "without use_off_line the graph runs on the host, where nothing is dumped",
    "tf_adapter om_partition_subgraphs_pass",
    where="use_off_line",
    trips=Example({"enable_dump": True, "dump_path": "$DIR", "use_off_line": False}),
    passes=Example({"enable_dump": True, "dump_path": "$DIR", "use_off_line": True}),
)
def _on_host(subject: ParameterSubject) -> Iterator[Hit]:
    if subject.on and subject.keys.get("use_off_line") is False:
        yield Hit(
            "use_off_line",
            "use_off_line is false: the graph runs on the host, so nothing is dumped",
            'set parameter_map["use_off_line"].b = True, or leave it out',
        )


@RULES.rule(
    "parameter-unknown",
    "AD113",
    "a misspelt key is ignored",
    "tf_adapter npu_attrs SetNpuOptimizerAttr",
    where="dump_steps",
    trips=Example({"enable_dump": True, "dump_path": "$DIR", "dump_steps": "0"}),
    passes=Example({"enable_dump": True, "dump_path": "$DIR", "dump_step": "0", "profiling_mode": True}),
)
def _misspelt(subject: ParameterSubject) -> Iterator[Hit]:
    # Sorted, because a protobuf map has no defined order.
    for name in sorted(subject.keys):
        near = difflib.get_close_matches(name.lower(), KEYS, n=1, cutoff=0.8) if name not in KEYS else []
        if near and "dump" in name.lower():
            yield Hit(name, f"{name} is not a key of the bridge: it is ignored", f"write {near[0]}")

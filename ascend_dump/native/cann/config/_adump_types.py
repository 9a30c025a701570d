"""adump's first checks of a dump configuration: the types of all values, and keys that allow only certain values.

Sources: adump `dump_config_converter` (order), `adump_error_manager` (reasons).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ascend_dump.native.cann.config._access import objects_of
from ascend_dump.native.cann.config._adump_subjects import (
    EMPTY,
    TYPE_HINTS,
    AdumpItem,
    AdumpSubject,
    dumping,
    listing,
    refusal,
    wrong_item,
    wrong_type,
)
from ascend_dump.native.cann.config.keys import DUMP, ITEM, KERNEL_DATA, VALUE_ORDER, Key, Kind
from ascend_dump.native.rules import Example, Hit, RuleTable

__all__ = ["ITEM_TYPES", "TYPES"]

#: Rules about the object `dump`, and about one item of `dump_list`.
TYPES = RuleTable(AdumpSubject.of_example)
ITEM_TYPES = RuleTable(AdumpItem.of_example)


# The types of all keys are checked first.


@refusal(TYPES, "object", "`dump` must be an object", "", Example({"dump": []}), Example({"dump": {}}))
def _object(subject: AdumpSubject) -> Iterator[Hit]:
    if not isinstance(subject.given, dict):
        yield wrong_type("dump", "object", "")


def _add_type(key: Key) -> None:
    right: Any = {Kind.TEXT: key.allowed[0] if key.allowed else "a", Kind.TEXTS: list(key.allowed[:1])}[key.kind]
    requirement = {"dump_data": "stats"} if key.kind == Kind.TEXTS else {}
    trips, passes = dumping(**{key.name: 3}), dumping(**{**requirement, key.name: right})

    @refusal(TYPES, f"type-{key.name}", f"{key.name} must be of type {key.kind}", key.name, trips, passes)
    def _type(subject: AdumpSubject) -> Iterator[Hit]:
        if key.name in subject.dump:
            yield from _check_type(subject.dump[key.name], key.kind, key.name)


for _key in DUMP.values():
    if _key.kind != Kind.OBJECTS:
        _add_type(_key)


@refusal(
    TYPES,
    "type-dump_list",
    "dump_list must be a list of objects, and each of their keys must have its type",
    "dump_list",
    dumping(dump_list={}),
    listing(layer=["a"]),
)
def _list_types(subject: AdumpSubject) -> Iterator[Hit]:
    if "dump_list" not in subject.dump:
        return
    dump_list = subject.dump["dump_list"]
    if not isinstance(dump_list, list):
        yield wrong_type("dump_list", "array")
        return
    items = {item.where: item for item in AdumpItem.all_of(subject.dump)}
    for where in (f"dump_list[{index}]" for index in range(len(dump_list))):
        if where in items:
            yield from ITEM_TYPES.hits(items[where])
        else:
            yield wrong_type(where, "object")


def _add_item_type(key: Key) -> None:
    right: Any = {Kind.TEXT: "a", Kind.TEXTS: ["a"], Kind.OBJECTS: [{}]}[key.kind]
    trips, passes = listing(**{key.name: 3}), listing(**{key.name: right})

    @refusal(
        ITEM_TYPES,
        f"type-{key.name}",
        f"{key.name} must be of type {key.kind}",
        f"dump_list[0].{key.name}",
        trips,
        passes,
    )
    def _type(subject: AdumpItem) -> Iterator[Hit]:
        if key.name not in subject.item:
            return
        where = f"{subject.where}.{key.name}"
        yield from _check_type(subject.item[key.name], key.kind, where)
        for index, entry in objects_of(subject.item, key.name):
            yield from _check_entry(entry, key.name, f"{where}[{index}]")


for _key in ITEM.values():
    _add_item_type(_key)


def _check_entry(entry: Mapping[str, Any], key: str, where: str) -> Iterator[Hit]:
    kinds = {"begin": Kind.TEXT, "end": Kind.TEXT} if key == "opname_range" else {"name": Kind.TEXT, "pos": Kind.TEXTS}
    for name, kind in kinds.items():
        if name in entry:
            yield from _check_type(entry[name], kind, f"{where}.{name}")


def _check_type(value: Any, kind: str, where: str) -> Iterator[Hit]:
    if kind == Kind.TEXT:
        if not isinstance(value, str):
            yield wrong_type(where, "string")
        return
    if not isinstance(value, list):
        yield wrong_type(where, "array")
        return
    member, name = (str, "string") if kind == Kind.TEXTS else (dict, "object")
    for index, item in enumerate(value):
        if not isinstance(item, member):
            reason = f"The member type of this configuration item must be {name}"
            yield wrong_item(f"{where}[{index}]", reason, TYPE_HINTS[name])


# Then the keys that allow only a few values.


def _add_value(name: str) -> None:
    allowed = DUMP[name].allowed
    trips, passes = dumping(**{name: "some"}), dumping(**{name: allowed[0]})

    @refusal(TYPES, f"value-{name}", f"{name} is one of {', '.join(allowed)}", name, trips, passes)
    def _value(subject: AdumpSubject) -> Iterator[Hit]:
        if isinstance(subject.dump.get(name), str):
            yield from _check_value(subject.dump[name], allowed, name)


for _name in VALUE_ORDER:
    _add_value(_name)


@refusal(
    TYPES,
    "value-dump_kernel_data",
    "dump_kernel_data must be a list with commas and without blanks",
    "dump_kernel_data",
    dumping(dump_kernel_data="printf, tensor"),
    dumping(dump_kernel_data="printf,tensor"),
)
def _kernel_data(subject: AdumpSubject) -> Iterator[Hit]:
    value = subject.dump.get("dump_kernel_data")
    for token in value.split(",") if isinstance(value, str) else ():
        yield from _check_value(token, KERNEL_DATA, "dump_kernel_data")


@refusal(
    TYPES,
    "value-dump_stats",
    "dump_stats must be names of statistics",
    "dump_stats[1]",
    dumping(dump_data="stats", dump_stats=["Max", "max"]),
    dumping(dump_data="stats", dump_stats=["Max", "Min"]),
)
def _statistics(subject: AdumpSubject) -> Iterator[Hit]:
    statistics = subject.dump.get("dump_stats")
    for index, name in enumerate(statistics) if isinstance(statistics, list) else ():
        if isinstance(name, str):
            yield from _check_value(name, DUMP["dump_stats"].allowed, f"dump_stats[{index}]")


def _check_value(value: str, allowed: Iterable[str], where: str) -> Iterator[Hit]:
    if not value:
        yield wrong_item(where, *EMPTY)
    elif value not in allowed:
        # adump keeps the options in a sorted set.
        expected = sorted(allowed)
        arguments = {"value": value, "item": where, "expected_value": "/".join(expected)}
        hint = f"write one of {', '.join(expected)}"
        yield Hit(f"dump.{where}", f"{value!r} is not allowed", hint, native="EP0002", arguments=arguments)

"""The values that adump's rules check (subjects), the decorator that defines a rule, and the findings (hits).

adump is CANN's dump service. A hit has adump's own error code and the arguments of adump's message, from which
`adump.AdumpFailure` builds the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, NamedTuple

from ascend_dump.native.cann.config._access import encode, items_of, text_of
from ascend_dump.native.cann.config.keys import EXCEPTION_SCENES, MAX_PATH_BYTES
from ascend_dump.native.rules import Example, Hit, RuleTable

__all__ = [
    "EMPTY",
    "NOT_FOUND",
    "TYPE_HINTS",
    "AdumpItem",
    "AdumpSubject",
    "conflict",
    "dumping",
    "forbidden",
    "listing",
    "refusal",
    "wrong_item",
    "wrong_type",
    "wrong_value",
]

_SOURCE = "adump dump_config_converter"
TYPE_HINTS = {"string": "write a text in double quotes", "array": "write a list in [ ]", "object": "write { }"}
#: Pairs of a reason in adump's words, and our hint.
EMPTY = ("The configuration item value is empty", "give a value or remove the key")
NOT_FOUND = ("The configuration item is not found", "add it")


class AdumpSubject(NamedTuple):
    """The value of the key `dump`, and values in it that several checks need.

    given    the value, of any type
    dump     the value if it is an object, otherwise an empty object
    debug    True if overflow detection is on
    cwd      the directory to which relative paths are relative
    planned  a path that will be created before the dump; it need not exist yet
    """

    given: Any
    dump: Mapping[str, Any]
    scene: str
    debug: bool
    cwd: str
    planned: str

    @classmethod
    def of(cls, config: Any, cwd: str = "", planned: str = "") -> AdumpSubject:
        value = config.get("dump", {}) if isinstance(config, dict) else {}
        dump = value if isinstance(value, dict) else {}
        return cls(value, dump, text_of(dump, "dump_scene"), text_of(dump, "dump_debug") == "on", cwd, planned)

    @classmethod
    def of_example(cls, example: Example) -> AdumpSubject:
        return cls.of(example.config)

    @property
    def has_path(self) -> bool:
        """True if adump checks `dump_path`. It does not check it for exception scenes, which use another path."""
        return bool(self.dump) and self.scene not in EXCEPTION_SCENES

    @property
    def path(self) -> str:
        """The value of `dump_path`; "" if adump does not check it, or if it is not a text or is too long."""
        path = text_of(self.dump, "dump_path") if self.has_path else ""
        return path if len(encode(path)) <= MAX_PATH_BYTES else ""

    @property
    def selects(self) -> bool:
        """True if adump checks the keys that select steps, models and operators."""
        return self.has_path and not self.debug


class AdumpItem(NamedTuple):
    """An item of `dump_list`, and the keys of `dump` that its checks need. where: such as "dump_list[0]"."""

    item: Mapping[str, Any]
    where: str
    scene: str
    level: str
    switch: str

    @classmethod
    def all_of(cls, dump: Mapping[str, Any]) -> Iterator[AdumpItem]:
        scene, level = text_of(dump, "dump_scene"), text_of(dump, "dump_level", "all")
        switch = text_of(dump, "dump_op_switch", "off")
        for index, item in items_of(dump):
            yield cls(item, f"dump_list[{index}]", scene, level, switch)

    @classmethod
    def of_example(cls, example: Example) -> AdumpItem:
        return next(cls.all_of(example.config["dump"]))


def dumping(**keys: Any) -> Example:
    """Return a dump JSON with these keys and an existing path."""
    return Example({"dump": {"dump_path": "$DIR", **keys}})


def listing(**keys: Any) -> Example:
    """Return a dump JSON with an existing path and these keys in its only item of `dump_list`."""
    return dumping(dump_list=[keys])


def refusal(
    table: RuleTable[Any],
    id: str,
    about: str,
    where: str,
    trips: Example,
    passes: Example,
    code: str = "AD110",
) -> Callable[[Callable[[Any], Iterable[Hit]]], Callable[[Any], Iterable[Hit]]]:
    """Return a decorator that adds a rule to a table of adump's rules. With a code other than AD110 the rule warns."""
    severity = "error" if code == "AD110" else "warning"
    where = f"dump.{where}" if where else "dump"
    return table.rule(f"adump-{id}", code, about, _SOURCE, severity=severity, where=where, trips=trips, passes=passes)


# The functions below create hits for adump's messages: EP0001 names an item, EP0003 an item and its value, EP0005 two
# items.


def wrong_type(item: str, kind: str, prefix: str = "dump.") -> Hit:
    reason = f"This configuration item must be of the {kind} type"
    return wrong_item(item, reason, TYPE_HINTS[kind], prefix)


def wrong_item(item: str, reason: str, hint: str, prefix: str = "dump.") -> Hit:
    return Hit(f"{prefix}{item}", reason, hint, native="EP0001", arguments={"item": item, "reason": reason})


def wrong_value(value: str, item: str, reason: str, hint: str) -> Hit:
    arguments = {"value": value, "item": item, "reason": reason}
    return Hit(f"dump.{item}", f"{value[:80]!r}: {reason}", hint, native="EP0003", arguments=arguments)


def conflict(item: str, value: str, other_item: str, other_value: str) -> Hit:
    when = f"When configuration item {other_item} is set to {other_value}"
    return _excluded(item, f"{when}, configuration item {item} cannot be set to {value}")


def forbidden(item: str, other_item: str, value: str, *, unless: bool = False) -> Hit:
    when = f"When configuration item {other_item} is {'not ' if unless else ''}set to {value}"
    return _excluded(item, f"{when}, configuration item {item} cannot be configured")


def _excluded(item: str, reason: str) -> Hit:
    return Hit(f"dump.{item}", reason, "change one of the two", native="EP0005", arguments={"reason": reason})

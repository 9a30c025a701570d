"""The checks adump makes of a dump configuration, in its order, each a generator of failures.

Source: adump `dump_config_converter` (checks), `adump_error_manager` (reasons) and the error
manager's table (messages of EP0001 to EP0005).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ascend_dump.native.cann.config._access import encode, items_of, objects_of, text_of, texts_of
from ascend_dump.native.cann.config.keys import (
    BLACKLISTS,
    DUMP,
    EXCEPTION_SCENES,
    ITEM,
    KERNEL_DATA,
    MAX_BLACKLIST,
    MAX_INTERVALS,
    MAX_PATH_BYTES,
    VALUE_ORDER,
    Kind,
)

__all__ = ["AdumpFailure", "failures", "has_plain_characters", "is_ip_path"]

_MESSAGES = {
    "EP0001": "The content of configuration item {item} in configuration file {path} is invalid. Reason: {reason}.",
    "EP0002": "Value {value} for configuration item {item} in configuration file {path} is invalid. "
    "Expected value: {expected_value}.",
    "EP0003": "Value {value} for configuration item {item} in configuration file {path} is invalid. Reason: {reason}.",
    "EP0004": "Failed to parse file {path}. Reason: {reason}.",
    "EP0005": "Conflict of configuration items in configuration file {path}. Reason: {reason}.",
}

NOT_FOUND = "The configuration item is not found"
EMPTY = "The configuration item value is empty"
BAD_CHARACTERS = "The value contains invalid characters"
NO_SUCH_PATH = "The path does not exist"
NOT_A_DIRECTORY = "The path is not a directory path"
NO_PERMISSION = "The value is a path without read and write permissions"
INVALID_PATH = "The value is an invalid path"
PATH_TOO_LONG = f"The path length exceeds the maximum limit of {MAX_PATH_BYTES} characters"
TOO_MANY_INTERVALS = f"The value exceeds the maximum limit of {MAX_INTERVALS} intervals"
BAD_INTERVAL = "The value has invalid format, expected format: 5-10"
NOT_DIGITS = "The value contains non-digit characters,  expected format: 1 or 5-10"
BACKWARDS = "The value has invalid format, start step must not exceed end step, expected format: 5-10"
BLACKLIST_TOO_LONG = f"The value size exceeds the maximum limit of {MAX_BLACKLIST}"
RANGE_INCOMPLETE = "The item is incomplete, begin and end must be configured together and non-empty"

_WHITELIST = re.compile(rb"[A-Za-z0-9\-=\[\];\\,./!@#$%^&*()_+{}:?]+")
_STOI = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_LONG_MAX = 2**63 - 1


class AdumpFailure(NamedTuple):
    """One error adump reports. `final` is False where it reports and goes on regardless."""

    code: str
    args: Mapping[str, str]
    where: str
    final: bool = True

    def message(self, config_path: str = "-") -> str:
        return _MESSAGES[self.code].format(**self.args, path=config_path)


def failures(config: Any, *, cwd: str = "", planned: str = "") -> Iterator[AdumpFailure]:
    """Everything adump's checks find, in their order; adump itself stops at the first final one."""
    if not isinstance(config, dict) or "dump" not in config:
        return
    dump = config["dump"]
    if not isinstance(dump, dict):
        yield _wrong_type("dump", "object", "")
        return
    if not dump:
        return
    yield from _check_types(dump)
    yield from _check_values(dump)
    yield from _check_constraints(dump, cwd, planned)


def is_ip_path(path: str) -> bool:
    """Whether the text before the first colon reads as an IPv4 address and something follows it."""
    address, colon, rest = path.partition(":")
    if not colon or not rest:
        return False
    parts = address.split(".")
    if parts[-1] == "":
        parts.pop()
    if len(parts) != 4:
        return False
    for part in parts:
        number = _STOI.match(part)
        if number is None or not 0 <= int(number[1][:MAX_PATH_BYTES]) <= 255:
            return False
    return True


def has_plain_characters(path: str) -> bool:
    """Whether a path has only the characters that adump (behind an address) and GE (always) take."""
    return _WHITELIST.fullmatch(encode(path)) is not None


def _check_types(dump: Mapping[str, Any]) -> Iterator[AdumpFailure]:
    for key in DUMP.values():
        if key.name not in dump:
            continue
        if key.name == "dump_list":
            yield from _check_list_types(dump["dump_list"])
        else:
            yield from _check_type(dump[key.name], key.kind, key.name)


def _check_list_types(found: Any) -> Iterator[AdumpFailure]:
    if not isinstance(found, list):
        yield _wrong_type("dump_list", "array")
        return
    for index, item in enumerate(found):
        where = f"dump_list[{index}]"
        if not isinstance(item, dict):
            yield _wrong_type(where, "object")
            continue
        for key in ITEM.values():
            if key.name not in item:
                continue
            yield from _check_type(item[key.name], key.kind, f"{where}.{key.name}")
            for number, entry in objects_of(item, key.name):
                yield from _check_entry_types(entry, key.name, f"{where}.{key.name}[{number}]")


def _check_entry_types(entry: Mapping[str, Any], key: str, where: str) -> Iterator[AdumpFailure]:
    kinds = {"begin": Kind.TEXT, "end": Kind.TEXT} if key == "opname_range" else {"name": Kind.TEXT, "pos": Kind.TEXTS}
    for name, kind in kinds.items():
        if name in entry:
            yield from _check_type(entry[name], kind, f"{where}.{name}")


def _check_type(value: Any, kind: str, where: str) -> Iterator[AdumpFailure]:
    if kind == Kind.TEXT:
        if not isinstance(value, str):
            yield _wrong_type(where, "string")
        return
    if not isinstance(value, list):
        yield _wrong_type(where, "array")
        return
    member, name = (str, "string") if kind == Kind.TEXTS else (dict, "object")
    for index, item in enumerate(value):
        if not isinstance(item, member):
            yield _item(f"{where}[{index}]", f"The member type of this configuration item must be {name}")


def _check_values(dump: Mapping[str, Any]) -> Iterator[AdumpFailure]:
    for name in VALUE_ORDER:
        if isinstance(dump.get(name), str):
            yield from _check_value(dump[name], DUMP[name].allowed, name)
    if isinstance(dump.get("dump_kernel_data"), str):
        for token in dump["dump_kernel_data"].split(","):
            yield from _check_value(token, KERNEL_DATA, "dump_kernel_data")
    for index, stat in enumerate(dump["dump_stats"]) if _is_list(dump.get("dump_stats")) else ():
        if isinstance(stat, str):
            yield from _check_value(stat, DUMP["dump_stats"].allowed, f"dump_stats[{index}]")


def _check_value(value: str, allowed: Iterable[str], where: str) -> Iterator[AdumpFailure]:
    if not value:
        yield _item(where, EMPTY)
    elif value not in allowed:
        # adump keeps the options in a sorted set.
        args = {"value": value, "item": where, "expected_value": "/".join(sorted(allowed))}
        yield AdumpFailure("EP0002", args, f"dump.{where}")


def _check_constraints(dump: Mapping[str, Any], cwd: str, planned: str) -> Iterator[AdumpFailure]:
    scene = text_of(dump, "dump_scene")
    if scene in DUMP["dump_scene"].allowed:
        yield from _check_scene(dump, scene)
    if scene in EXCEPTION_SCENES:
        return
    yield from _check_path(dump, cwd, planned)
    if text_of(dump, "dump_debug") == "on":
        if text_of(dump, "dump_op_switch") == "on":
            yield _conflict("dump_op_switch", "on", "dump_debug", "on")
        return
    yield from _check_step(text_of(dump, "dump_step"))
    for index, item in items_of(dump):
        yield from _check_item(dump, item, f"dump_list[{index}]")
    yield from _check_stats(dump)


def _check_scene(dump: Mapping[str, Any], scene: str) -> Iterator[AdumpFailure]:
    for key in ("dump_debug", "dump_op_switch"):
        if text_of(dump, key) == "on":
            yield _conflict(key, "on", "dump_scene", scene)
    mode = text_of(dump, "dump_mode", "output")
    if scene == "watcher" and mode != "output":
        yield _conflict("dump_mode", mode, "dump_scene", scene)


def _check_path(dump: Mapping[str, Any], cwd: str, planned: str) -> Iterator[AdumpFailure]:
    path = dump.get("dump_path")
    if "dump_path" not in dump:
        yield _item("dump_path", NOT_FOUND)
    elif not isinstance(path, str):
        return
    elif not path:
        yield _item("dump_path", EMPTY)
    elif len(encode(path)) > MAX_PATH_BYTES:
        yield _value(path, "dump_path", PATH_TOO_LONG)
    elif is_ip_path(path):
        rest = path.partition(":")[2]
        if not has_plain_characters(rest):
            yield _value(rest, "dump_path", BAD_CHARACTERS)
    else:
        if path.find(":") == len(path) - 1:
            # Reported, then taken for an ordinary path all the same.
            yield _value(path, "dump_path", INVALID_PATH)._replace(final=False)
        reason = _why_unusable(place_of(path, cwd, planned))
        if reason:
            yield _value(path, "dump_path", reason)


def place_of(path: str, cwd: str, planned: str) -> bytes:
    """What to look at for `path`: where it is, or for the planned directory the nearest one that exists."""
    # A C string ends at its first NUL.
    encoded = os.path.join(encode(cwd), encode(path).split(b"\0", 1)[0])
    if path and path == planned:
        while not os.path.isdir(encoded) and encoded != os.path.dirname(encoded):
            encoded = os.path.dirname(encoded)
        encoded = os.path.realpath(encoded)
    return encoded


def _why_unusable(encoded: bytes) -> str:
    try:
        os.stat(encoded)
    except (OSError, ValueError):
        return NO_SUCH_PATH
    if not os.path.isdir(encoded):
        return NOT_A_DIRECTORY
    return "" if os.access(encoded, os.R_OK | os.W_OK) else NO_PERMISSION


def _check_step(steps: str) -> Iterator[AdumpFailure]:
    if not steps:
        return
    parts = steps.split("|")
    if len(parts) > MAX_INTERVALS:
        yield _value(steps, "dump_step", TOO_MANY_INTERVALS)
        return
    for index, part in enumerate(parts):
        pieces = part.split("-")
        reason = ""
        if len(pieces) > 2:
            reason = BAD_INTERVAL
        elif not all(piece.isascii() and piece.isdigit() for piece in pieces):
            reason = NOT_DIGITS
        elif _strtol(pieces[0]) > _strtol(pieces[-1]):
            reason = BACKWARDS
        if reason:
            yield _value(part, f"dump_step[{index}]", reason)


def _check_item(dump: Mapping[str, Any], item: Mapping[str, Any], where: str) -> Iterator[AdumpFailure]:
    if text_of(dump, "dump_op_switch", "off") == "off":
        if item.get("model_name") == "":
            yield _item(f"{where}.model_name", EMPTY)
        if item.get("layer") == []:
            yield _item(f"{where}.layer", EMPTY)
    if text_of(dump, "dump_scene") == "watcher":
        yield from _check_watcher(item, where)
    elif texts_of(item, "watcher_nodes"):
        yield _forbidden(f"{where}.watcher_nodes", "dump_scene", "watcher", unless=True)
    for key in BLACKLISTS:
        size = len(item[key]) if _is_list(item.get(key)) else 0
        if size > MAX_BLACKLIST:
            yield _value(str(size), f"{where}.{key}", BLACKLIST_TOO_LONG)
    level = text_of(dump, "dump_level", "all")
    for key in BLACKLISTS:
        if item.get(key) and _is_list(item[key]) and level != "op":
            yield _forbidden(f"{where}.{key}", "dump_level", "op", unless=True)
    yield from _check_range(item, where, level)


def _check_watcher(item: Mapping[str, Any], where: str) -> Iterator[AdumpFailure]:
    if "watcher_nodes" not in item:
        yield _item(f"{where}.watcher_nodes", NOT_FOUND)
    elif item["watcher_nodes"] == []:
        yield _item(f"{where}.watcher_nodes", EMPTY)
    if isinstance(item.get("model_name"), str):
        yield _forbidden(f"{where}.model_name", "dump_scene", "watcher")


def _check_range(item: Mapping[str, Any], where: str, level: str) -> Iterator[AdumpFailure]:
    ranges = objects_of(item, "opname_range")
    if not ranges:
        return
    if level != "op":
        yield _forbidden(f"{where}.opname_range", "dump_level", "op", unless=True)
    if "model_name" not in item:
        yield _item(f"{where}.model_name", NOT_FOUND)
    elif item["model_name"] == "":
        yield _item(f"{where}.model_name", EMPTY)
    for index, entry in ranges:
        begin, end = text_of(entry, "begin"), text_of(entry, "end")
        if not begin or not end:
            yield _value(f"begin={begin}, end={end}", f"{where}.opname_range[{index}]", RANGE_INCOMPLETE)


def _check_stats(dump: Mapping[str, Any]) -> Iterator[AdumpFailure]:
    if not _is_list(dump.get("dump_stats")):
        return
    if not dump["dump_stats"]:
        yield _item("dump_stats", EMPTY)
    elif text_of(dump, "dump_data", "tensor") == "tensor":
        yield _forbidden("dump_stats", "dump_data", "tensor")


def _strtol(digits: str) -> int:
    # Twenty digits are beyond the limit already; longer texts would only cost time.
    return min(int(digits.lstrip("0")[:20] or "0"), _LONG_MAX)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _wrong_type(item: str, kind: str, prefix: str = "dump.") -> AdumpFailure:
    reason = f"This configuration item must be of the {kind} type"
    return AdumpFailure("EP0001", {"item": item, "reason": reason}, f"{prefix}{item}")


def _item(item: str, reason: str) -> AdumpFailure:
    return AdumpFailure("EP0001", {"item": item, "reason": reason}, f"dump.{item}")


def _value(value: str, item: str, reason: str) -> AdumpFailure:
    return AdumpFailure("EP0003", {"value": value, "item": item, "reason": reason}, f"dump.{item}")


def _conflict(item: str, value: str, other: str, other_value: str) -> AdumpFailure:
    when = f"When configuration item {other} is set to {other_value}"
    reason = f"{when}, configuration item {item} cannot be set to {value}"
    return AdumpFailure("EP0005", {"reason": reason}, f"dump.{item}")


def _forbidden(item: str, other: str, value: str, *, unless: bool = False) -> AdumpFailure:
    when = f"When configuration item {other} is {'not ' if unless else ''}set to {value}"
    return AdumpFailure("EP0005", {"reason": f"{when}, configuration item {item} cannot be configured"}, f"dump.{item}")

"""Rules for dump configurations that adump, CANN's dump service, refuses. The rules have the order of adump's checks.

Sources: adump `dump_config_converter` (checks), `adump_error_manager` (reasons).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ascend_dump.native.cann.config._access import objects_of, text_of, texts_of
from ascend_dump.native.cann.config._adump_subjects import (
    EMPTY,
    NOT_FOUND,
    AdumpItem,
    AdumpSubject,
    conflict,
    dumping,
    forbidden,
    listing,
    refusal,
    wrong_item,
    wrong_value,
)
from ascend_dump.native.cann.config._adump_types import TYPES
from ascend_dump.native.cann.config._dump_path import has_plain_characters, is_ip_path, place_of
from ascend_dump.native.cann.config.keys import BLACKLISTS, DUMP, MAX_BLACKLIST, MAX_INTERVALS, MAX_PATH_BYTES
from ascend_dump.native.rules import Example, Hit, RuleTable

__all__ = ["ITEM_VALUES", "REFUSALS"]

_LONG_MAX = 2**63 - 1

#: Rules about the object `dump`, and about one item of `dump_list`.
REFUSALS = RuleTable(AdumpSubject.of_example, TYPES)
ITEM_VALUES = RuleTable(AdumpItem.of_example)


@refusal(
    REFUSALS,
    "scene-switch",
    "a scene cannot be combined with another kind of dump",
    "dump_op_switch",
    dumping(dump_scene="lite_exception", dump_op_switch="on"),
    dumping(dump_scene="lite_exception", dump_op_switch="off"),
)
def _scene_switch(subject: AdumpSubject) -> Iterator[Hit]:
    if subject.scene in DUMP["dump_scene"].allowed:
        for key in ("dump_debug", "dump_op_switch"):
            if text_of(subject.dump, key) == "on":
                yield conflict(key, "on", "dump_scene", subject.scene)


@refusal(
    REFUSALS,
    "scene-watch-outputs",
    "the scene watcher writes outputs only",
    "dump_mode",
    dumping(dump_scene="watcher", dump_mode="all"),
    dumping(dump_scene="watcher", dump_mode="output"),
)
def _watch_outputs(subject: AdumpSubject) -> Iterator[Hit]:
    mode = text_of(subject.dump, "dump_mode", "output")
    if subject.scene == "watcher" and mode != "output":
        yield conflict("dump_mode", mode, "dump_scene", subject.scene)


@refusal(
    REFUSALS,
    "path",
    "a dump needs a path, which must not be too long",
    "dump_path",
    Example({"dump": {"dump_op_switch": "on"}}),
    dumping(dump_op_switch="on"),
)
def _path(subject: AdumpSubject) -> Iterator[Hit]:
    if not subject.has_path:
        return
    path = subject.dump.get("dump_path")
    if "dump_path" not in subject.dump:
        yield wrong_item("dump_path", *NOT_FOUND)
    elif path == "":
        yield wrong_item("dump_path", *EMPTY)
    elif isinstance(path, str) and not subject.path:
        reason = f"The path length exceeds the maximum limit of {MAX_PATH_BYTES} characters"
        yield wrong_value(path, "dump_path", reason, "use a shorter path")


@refusal(
    REFUSALS,
    "path-of-address",
    "after the address of a host, a path may contain only some characters",
    "dump_path",
    dumping(dump_path="1.2.3.4:/a b"),
    dumping(dump_path="1.2.3.4:/a_b"),
)
def _path_of_address(subject: AdumpSubject) -> Iterator[Hit]:
    address_path = subject.path.partition(":")[2]
    if is_ip_path(subject.path) and not has_plain_characters(address_path):
        hint = "use letters, digits, - _ . / only"
        yield wrong_value(address_path, "dump_path", "The value contains invalid characters", hint)


@refusal(
    REFUSALS,
    "path-colon",
    "a colon at the end is reported as an error, and then used as a part of an ordinary path",
    "dump_path",
    dumping(dump_path="1.2.3.4:"),
    dumping(dump_path="1.2.3.4:/a"),
    code="AD115",
)
def _path_colon(subject: AdumpSubject) -> Iterator[Hit]:
    path = subject.path
    if path and not is_ip_path(path) and path.find(":") == len(path) - 1:
        hint = "give a path after the address, or no colon"
        yield wrong_value(path, "dump_path", "The value is an invalid path", hint)


@refusal(
    REFUSALS,
    "path-directory",
    "the path must be a directory that can be read and written",
    "dump_path",
    dumping(dump_path="$DIR/none"),
    dumping(),
)
def _path_directory(subject: AdumpSubject) -> Iterator[Hit]:
    path = subject.path
    if not path or is_ip_path(path):
        return
    directory = place_of(path, subject.cwd, subject.planned)
    try:
        os.stat(directory)
    except (OSError, ValueError):
        hint = "create the directory first; ~ and $HOME are not expanded"
        yield wrong_value(path, "dump_path", "The path does not exist", hint)
        return
    if not os.path.isdir(directory):
        yield wrong_value(path, "dump_path", "The path is not a directory path", "give a directory")
    elif not os.access(directory, os.R_OK | os.W_OK):
        reason = "The value is a path without read and write permissions"
        yield wrong_value(path, "dump_path", reason, "let the running user read and write it")


@refusal(
    REFUSALS,
    "overflow-switch",
    "overflow detection and dumping single operators cannot be combined",
    "dump_op_switch",
    dumping(dump_debug="on", dump_op_switch="on"),
    dumping(dump_debug="on", dump_op_switch="off"),
)
def _overflow_switch(subject: AdumpSubject) -> Iterator[Hit]:
    if subject.has_path and subject.debug and text_of(subject.dump, "dump_op_switch") == "on":
        yield conflict("dump_op_switch", "on", "dump_debug", "on")


# Below here: rules about steps, models and operators.


@refusal(
    REFUSALS,
    "step",
    "dump_step must be a list of numbers and ascending ranges",
    "dump_step[1]",
    dumping(dump_step="1|5-3"),
    dumping(dump_step="1|3-5"),
)
def _steps(subject: AdumpSubject) -> Iterator[Hit]:
    steps = text_of(subject.dump, "dump_step") if subject.selects else ""
    parts = steps.split("|") if steps else []
    if len(parts) > MAX_INTERVALS:
        reason = f"The value exceeds the maximum limit of {MAX_INTERVALS} intervals"
        yield wrong_value(steps, "dump_step", reason, "join neighbouring steps into ranges such as 0-99")
        return
    for index, part in enumerate(parts):
        for reason, hint in _why_no_range(part.split("-")):
            yield wrong_value(part, f"dump_step[{index}]", reason, hint)


def _why_no_range(pieces: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (reason, hint) if a step, or the two ends of a range of steps, are invalid."""
    if len(pieces) > 2:
        yield "The value has invalid format, expected format: 5-10", "write a range as 5-10"
    elif not all(piece.isascii() and piece.isdigit() for piece in pieces):
        hint = "write 0|3-5|10 without blanks; leave the key out for all steps"
        yield "The value contains non-digit characters,  expected format: 1 or 5-10", hint
    elif _strtol(pieces[0]) > _strtol(pieces[-1]):
        reason = "The value has invalid format, start step must not exceed end step, expected format: 5-10"
        yield reason, "put the lower step first"


def _strtol(digits: str) -> int:
    # Twenty digits exceed the limit already. Converting more digits would only take time.
    return min(int(digits.lstrip("0")[:20] or "0"), _LONG_MAX)


@refusal(
    REFUSALS,
    "list",
    "the items of dump_list must agree with the other keys",
    "dump_list[0].layer",
    listing(model_name="m", layer=[]),
    listing(model_name="m", layer=["a"]),
)
def _list_values(subject: AdumpSubject) -> Iterator[Hit]:
    if subject.selects:
        for item in AdumpItem.all_of(subject.dump):
            yield from ITEM_VALUES.hits(item)


@refusal(
    ITEM_VALUES,
    "item-empty",
    "an empty name or list selects nothing",
    "dump_list[0].model_name",
    listing(model_name=""),
    listing(model_name="m"),
)
def _item_empty(subject: AdumpItem) -> Iterator[Hit]:
    if subject.switch == "off":
        for key, empty in (("model_name", ""), ("layer", [])):
            if subject.item.get(key) == empty:
                yield wrong_item(f"{subject.where}.{key}", *EMPTY)


@refusal(
    ITEM_VALUES,
    "item-watcher",
    "the scene watcher needs the names of operators to watch, and no model name",
    "dump_list[0].watcher_nodes",
    dumping(dump_scene="watcher", dump_list=[{"layer": ["a"]}]),
    dumping(dump_scene="watcher", dump_list=[{"layer": ["a"], "watcher_nodes": ["b"]}]),
)
def _item_watcher(subject: AdumpItem) -> Iterator[Hit]:
    where = f"{subject.where}.watcher_nodes"
    if subject.scene != "watcher":
        return
    if "watcher_nodes" not in subject.item:
        yield wrong_item(where, *NOT_FOUND)
    elif subject.item["watcher_nodes"] == []:
        yield wrong_item(where, *EMPTY)
    if isinstance(subject.item.get("model_name"), str):
        yield forbidden(f"{subject.where}.model_name", "dump_scene", "watcher")


@refusal(
    ITEM_VALUES,
    "item-no-watcher",
    "operators to watch need the scene watcher",
    "dump_list[0].watcher_nodes",
    listing(watcher_nodes=["b"]),
    dumping(dump_scene="watcher", dump_list=[{"watcher_nodes": ["b"]}]),
)
def _item_no_watcher(subject: AdumpItem) -> Iterator[Hit]:
    if subject.scene != "watcher" and texts_of(subject.item, "watcher_nodes"):
        yield forbidden(f"{subject.where}.watcher_nodes", "dump_scene", "watcher", unless=True)


@refusal(
    ITEM_VALUES,
    "item-blacklist-size",
    "a blacklist must not have too many entries",
    "dump_list[0].opname_blacklist",
    dumping(dump_level="op", dump_list=[{"opname_blacklist": [{"name": "a"}] * (MAX_BLACKLIST + 1)}]),
    dumping(dump_level="op", dump_list=[{"opname_blacklist": [{"name": "a"}] * MAX_BLACKLIST}]),
)
def _item_blacklist_size(subject: AdumpItem) -> Iterator[Hit]:
    for key in BLACKLISTS:
        entries = subject.item.get(key)
        if isinstance(entries, list) and len(entries) > MAX_BLACKLIST:
            reason = f"The value size exceeds the maximum limit of {MAX_BLACKLIST}"
            hint = f"keep at most {MAX_BLACKLIST} entries"
            yield wrong_value(str(len(entries)), f"{subject.where}.{key}", reason, hint)


@refusal(
    ITEM_VALUES,
    "item-blacklist-level",
    "blacklists need a dump of operators, not of kernels",
    "dump_list[0].opname_blacklist",
    listing(opname_blacklist=[{"name": "a"}]),
    dumping(dump_level="op", dump_list=[{"opname_blacklist": [{"name": "a"}]}]),
)
def _item_blacklist_level(subject: AdumpItem) -> Iterator[Hit]:
    for key in BLACKLISTS:
        if subject.item.get(key) and isinstance(subject.item[key], list) and subject.level != "op":
            yield forbidden(f"{subject.where}.{key}", "dump_level", "op", unless=True)


@refusal(
    ITEM_VALUES,
    "item-range",
    "a range needs a model and the names of its first and last operator",
    "dump_list[0].opname_range[0]",
    dumping(dump_level="op", dump_list=[{"model_name": "m", "opname_range": [{"begin": "a"}]}]),
    dumping(dump_level="op", dump_list=[{"model_name": "m", "opname_range": [{"begin": "a", "end": "b"}]}]),
)
def _item_range(subject: AdumpItem) -> Iterator[Hit]:
    ranges = objects_of(subject.item, "opname_range")
    if not ranges:
        return
    if subject.level != "op":
        yield forbidden(f"{subject.where}.opname_range", "dump_level", "op", unless=True)
    if "model_name" not in subject.item:
        yield wrong_item(f"{subject.where}.model_name", *NOT_FOUND)
    elif subject.item["model_name"] == "":
        yield wrong_item(f"{subject.where}.model_name", *EMPTY)
    for index, entry in ranges:
        begin, end = text_of(entry, "begin"), text_of(entry, "end")
        if not begin or not end:
            reason = "The item is incomplete, begin and end must be configured together and non-empty"
            where = f"{subject.where}.opname_range[{index}]"
            yield wrong_value(f"begin={begin}, end={end}", where, reason, 'give both "begin" and "end"')


@refusal(
    REFUSALS,
    "stats",
    "a choice of statistics needs a dump of statistics",
    "dump_stats",
    dumping(dump_stats=["Max"]),
    dumping(dump_data="stats", dump_stats=["Max"]),
)
def _stats(subject: AdumpSubject) -> Iterator[Hit]:
    statistics = subject.dump.get("dump_stats")
    if not subject.selects or not isinstance(statistics, list):
        return
    if not statistics:
        yield wrong_item("dump_stats", *EMPTY)
    elif text_of(subject.dump, "dump_data", "tensor") == "tensor":
        yield forbidden("dump_stats", "dump_data", "tensor")

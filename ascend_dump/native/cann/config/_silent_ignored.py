"""Rules for parts of a configuration that CANN ignores, while the dump works otherwise."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ascend_dump.native.cann.config._access import items_of, objects_of, text_of, texts_of
from ascend_dump.native.cann.config._adump_subjects import dumping
from ascend_dump.native.cann.config._subjects import AclSubject
from ascend_dump.native.cann.config.ge import POSITION, dropped_items
from ascend_dump.native.cann.config.keys import BLACKLIST_ENTRY, BLACKLISTS, DUMP, ITEM, RANGE_ENTRY
from ascend_dump.native.rules import Example, Hit, RuleTable

__all__ = ["RULES"]

RULES = RuleTable(AclSubject.of_example)

_PATTERN = re.compile(r"[*?]|\[[^\[\n]*\]|^re:")
_JOINED = re.compile(r"[,;]|\S\s+\S")


@RULES.rule(
    "unknown-key",
    "AD113",
    "keys that adump and GE do not know are ignored",
    "adump dump_config_converter",
    where="dump.dump_steps",
    trips=dumping(dump_list=[{}], dump_steps="0"),
    passes=dumping(dump_list=[{}], dump_step="0"),
)
def _unknown_key(subject: AclSubject) -> Iterator[Hit]:
    yield from _unknown(subject.dump, DUMP, "dump")
    for index, item in items_of(subject.dump):
        where = f"dump.dump_list[{index}]"
        yield from _unknown(item, ITEM, where)
        for key in (*BLACKLISTS, "opname_range"):
            keys = RANGE_ENTRY if key == "opname_range" else BLACKLIST_ENTRY
            for position, entry in objects_of(item, key):
                yield from _unknown(entry, keys, f"{where}.{key}[{position}]")


def _unknown(holder: Mapping[str, Any], keys: Iterable[str], where: str) -> Iterator[Hit]:
    names = list(keys)
    for key in holder:
        if key in names:
            continue
        path = f"{where}.{key}"
        if key == "quant_dumpable" and where == "dump":
            # torchair writes this key into every file that it generates; 0 is the default.
            if str(holder[key]) != "0":
                yield Hit(path, "the dump service does not read it", "set it as the option ge.quant_dumpable")
            continue
        near = difflib.get_close_matches(str(key).lower(), names, n=1)
        misplaced = "dump.dump_list[i]" if where == "dump" and key in ITEM else "dump" if key in DUMP else ""
        hint = f"put it into {misplaced}" if misplaced else f"did you mean {near[0]!r}?" if near else ""
        yield Hit(path, f"{key!r} is not a key of this object and is ignored", hint or f"known: {', '.join(names)}")


@RULES.rule(
    "duplicate-key",
    "AD113",
    "if a key is given twice, only the last value is used",
    "nlohmann::json",
    where="dump.dump_mode",
    trips=Example('{"dump":{"dump_path":"$DIR","dump_mode":"input","dump_mode":"all","dump_list":[{}]}}'),
    passes=Example('{"dump":{"dump_path":"$DIR","dump_mode":"all","dump_list":[{}]}}'),
)
def _duplicate_key(subject: AclSubject) -> Iterator[Hit]:
    for path in subject.parsed.duplicates:
        yield Hit(path, "the key is given more than once, and only the last value is used", "keep one of them")


@RULES.rule(
    "overflow-ignores",
    "AD113",
    "with overflow detection on, these keys are neither checked nor used",
    "adump dump_config_converter, dump_setting DumpOverflowInit",
    where="dump.dump_step",
    trips=dumping(dump_debug="on", dump_step="0"),
    passes=dumping(dump_debug="off", dump_list=[{}], dump_step="0"),
)
def _overflow_ignores(subject: AclSubject) -> Iterator[Hit]:
    # (assumption cann.overflow_at_every_step)
    reasons = {
        "dump_step": "overflow is detected at every step",
        "dump_stats": "overflow files contain tensors",
        "dump_data": "overflow files contain tensors",
        "dump_mode": "overflow files contain inputs and outputs",
    }
    plain = {"dump_data": "tensor", "dump_mode": "all"}
    for key, reason in reasons.items() if subject.overflow else ():
        if subject.dump.get(key) and subject.dump[key] != plain.get(key):
            yield Hit(f"dump.{key}", f'ignored with "dump_debug": "on": {reason}', "remove it")


@RULES.rule(
    "exception-ignores",
    "AD113",
    "an exception scene dumps the operator that failed; selections are neither checked nor used",
    "adump dump_config_converter; GE dump_manager",
    where="dump.dump_list",
    trips=Example({"dump": {"dump_scene": "aic_err_norm_dump", "dump_list": [{}]}}),
    passes=Example({"dump": {"dump_scene": "aic_err_norm_dump"}}),
)
def _exception_ignores(subject: AclSubject) -> Iterator[Hit]:
    for key in ("dump_list", "dump_step", "dump_stats", "dump_data", "dump_mode") if subject.exception else ():
        if subject.dump.get(key):
            yield Hit(
                f"dump.{key}",
                f"ignored in the scene {subject.scene!r}, which dumps only the operator that raised an exception",
                'remove it, or remove "dump_scene" to dump models',
            )


@RULES.rule(
    "item-dropped",
    "AD113",
    "GE ignores items with an empty name or an empty list of layers",
    "GE dump_callback",
    where="dump.dump_list[0].layer",
    trips=dumping(dump_op_switch="on", dump_list=[{"model_name": "m", "layer": []}]),
    passes=dumping(dump_op_switch="on", dump_list=[{"model_name": "m", "layer": ["a"]}]),
)
def _item_dropped(subject: AclSubject) -> Iterator[Hit]:
    # If dump_op_switch is off, adump refuses these items, and another rule reports that.
    if not subject.selects or text_of(subject.dump, "dump_op_switch") != "on":
        return
    dropped = dropped_items(subject.dump)
    everything = len(dropped) == len(items_of(subject.dump))
    for index, key in dropped:
        effect = ", and because no item is left, every operator of every model is dumped" if everything else ""
        yield Hit(f"dump.dump_list[{index}].{key}", f"it is empty, so GE ignores the item{effect}", "give a value")


@RULES.rule(
    "item-replaced",
    "AD113",
    "of items with the same model name (or without one) only the last one is used",
    "GE dump_properties AddPropertyValue",
    where="dump.dump_list[0]",
    trips=dumping(dump_list=[{"layer": ["a"]}, {"layer": ["b"]}]),
    passes=dumping(dump_list=[{"layer": ["a", "b"]}]),
)
def _item_replaced(subject: AclSubject) -> Iterator[Hit]:
    # (assumption ge.last_item_wins)
    items = list(_effective_items(subject))
    last = {model: (index, item) for index, model, item in items}
    for index, model, item in items:
        final, winner = last[model]
        if final == index:
            continue
        lost = [key for key in ("layer", "watcher_nodes", "opname_range") if _loses(item, winner, key)]
        if lost:
            which = f"for the model {model!r}" if model else "without model_name"
            yield Hit(
                f"dump.dump_list[{index}]",
                f"dump_list[{final}] is also {which} and replaces the {', '.join(lost)} of this item",
                "write one item with the names of both",
            )


def _loses(item: Mapping[str, Any], winner: Mapping[str, Any], key: str) -> bool:
    """Return True if an item selects something with `key` that its replacement `winner` does not select."""
    later, earlier = winner.get(key) or [], item.get(key) or []
    # Values other than lists select nothing.
    if not isinstance(later, list) or not isinstance(earlier, list) or not later:
        return False
    if key == "layer" and not earlier:
        return True  # without layers the item selects every operator
    return any(entry not in later for entry in earlier)


@RULES.rule(
    "unnamed-hides-named",
    "AD113",
    "if an item has no model name, it is used for every model, and items with a model name are ignored",
    "GE dump_properties IsNeedDump",
    where="dump.dump_list[0]",
    trips=dumping(dump_list=[{"model_name": "m", "layer": ["a"]}, {"layer": ["b"]}]),
    passes=dumping(dump_list=[{"model_name": "m", "layer": ["a"]}, {"model_name": "n", "layer": ["b"]}]),
)
def _unnamed_hides(subject: AclSubject) -> Iterator[Hit]:
    items = list(_effective_items(subject))
    unnamed = [index for index, model, _ in items if not model]
    for index, model, _ in items if unnamed else ():
        if model:
            yield Hit(
                f"dump.dump_list[{index}]",
                f"ignored, because dump_list[{unnamed[-1]}] has no model_name and is used for {model!r} too",
                "give a model_name in all items, or in none",
            )


@RULES.rule(
    "blacklist-position",
    "AD113",
    "blacklist positions other than input0, output1, … are skipped",
    "GE dump_manager IsValidFormat",
    where="dump.dump_list[0].optype_blacklist[0].pos[1]",
    trips=dumping(dump_level="op", dump_list=[{"optype_blacklist": [{"name": "Add", "pos": ["input0", "in1"]}]}]),
    passes=dumping(dump_level="op", dump_list=[{"optype_blacklist": [{"name": "Add", "pos": ["input0", "output1"]}]}]),
)
def _blacklist_position(subject: AclSubject) -> Iterator[Hit]:
    for where, entry in _blacklist_entries(subject):
        for index, position in enumerate(texts_of(entry, "pos")):
            if not POSITION.fullmatch(position):
                yield Hit(
                    f"{where}.pos[{index}]",
                    f"{position!r} is skipped",
                    'write "input" or "output" and an index: input0',
                )


@RULES.rule(
    "blacklist-empty",
    "AD113",
    "a blacklist entry without name or positions does nothing",
    "GE dump_properties",
    where="dump.dump_list[0].optype_blacklist[0]",
    trips=dumping(dump_level="op", dump_list=[{"optype_blacklist": [{"name": "Add"}]}]),
    passes=dumping(dump_level="op", dump_list=[{"optype_blacklist": [{"name": "Add", "pos": ["input0"]}]}]),
)
def _blacklist_empty(subject: AclSubject) -> Iterator[Hit]:
    for where, entry in _blacklist_entries(subject):
        if not text_of(entry, "name"):
            yield Hit(where, "it has no name, so no tensor is left out", 'give "name"')
        elif not texts_of(entry, "pos"):
            yield Hit(where, "it has no position, so no tensor is left out", 'give "pos": ["input0", "output0"]')


@RULES.rule(
    "layer-not-a-name",
    "AD113",
    "names are compared exactly: a pattern, or several names in one text, match nothing",
    "GE dump_properties IsNeedDump",
    where="dump.dump_list[0].layer[1]",
    trips=dumping(dump_list=[{"layer": ["add", "*conv*"]}]),
    passes=dumping(dump_list=[{"layer": ["add", "conv"]}]),
)
def _layer_not_a_name(subject: AclSubject) -> Iterator[Hit]:
    for index, item in items_of(subject.dump) if subject.selects else ():
        for key in ("layer", "watcher_nodes"):
            for position, name in enumerate(texts_of(item, key)):
                where = f"dump.dump_list[{index}].{key}[{position}]"
                if not name.strip() or name != name.strip():
                    yield Hit(
                        where,
                        f"the blanks count as part of the name {name!r}, which matches nothing",
                        "give the exact name",
                    )
                elif _PATTERN.search(name):
                    yield Hit(where, f"{name!r} matches nothing: CANN compares exact names", "list the names")
                elif _JOINED.search(name):
                    yield Hit(
                        where, f"{name!r} is used as one name", "write each name as a separate text", severity="warning"
                    )


@RULES.rule(
    "model-not-a-name",
    "AD113",
    "the name of a model does not include the suffix of its file",
    "offline model user document; GE dump_properties",
    where="dump.dump_list[0].model_name",
    trips=dumping(dump_list=[{"model_name": "resnet.om"}]),
    passes=dumping(dump_list=[{"model_name": "resnet"}]),
)
def _model_not_a_name(subject: AclSubject) -> Iterator[Hit]:
    for index, item in items_of(subject.dump) if subject.selects else ():
        model = text_of(item, "model_name")
        if model.endswith(".om"):
            short = model.rpartition("/")[2][: -len(".om")]
            yield Hit(
                f"dump.dump_list[{index}].model_name",
                f"{model!r} is the name of a file, not of a model",
                f"write {short!r}",
            )


@RULES.rule(
    "watcher-nodes-unused",
    "AD113",
    "an empty `watcher_nodes` is accepted outside the watcher scene and does nothing",
    "adump dump_config_converter",
    where="dump.dump_list[0].watcher_nodes",
    trips=dumping(dump_list=[{"watcher_nodes": []}]),
    passes=dumping(dump_list=[{"layer": ["a"]}]),
)
def _watcher_nodes_unused(subject: AclSubject) -> Iterator[Hit]:
    for index, item in items_of(subject.dump) if not subject.watcher else ():
        if item.get("watcher_nodes") == []:
            yield Hit(
                f"dump.dump_list[{index}].watcher_nodes",
                "it is empty, and the scene is not watcher: nothing is watched",
                'give names and "dump_scene": "watcher", or remove it',
            )


def _effective_items(subject: AclSubject) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (index, model name, item) for the items of `dump_list` that GE does not drop."""
    dropped = {index for index, _ in dropped_items(subject.dump)}
    for index, item in items_of(subject.dump) if subject.selects else ():
        if index not in dropped:
            yield index, text_of(item, "model_name"), item


def _blacklist_entries(subject: AclSubject) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, item in items_of(subject.dump) if subject.selects else ():
        for key in BLACKLISTS:
            for position, entry in objects_of(item, key):
                yield f"dump.dump_list[{index}].{key}[{position}]", entry

"""Judge a dump JSON like GE, CANN's graph engine: find the operators that it selects, or the reason why it refuses.

After its own checks adump passes the JSON to GE and ignores GE's answer. So if only GE refuses a configuration, acl
reports success and no model is dumped. Sources: GE `dump_callback` (validation, parsing), `dump_manager` (settings,
E10001, E10056) and `dump_properties` (selection of operators and models).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from ascend_dump.native.cann.config._access import items_of, objects_of, text_of, texts_of
from ascend_dump.native.cann.config._dump_path import has_plain_characters, is_ip_path
from ascend_dump.native.cann.config.adump import Verdict
from ascend_dump.native.cann.config.keys import BLACKLISTS, EXCEPTION_SCENES

__all__ = ["POSITION", "Blacklist", "GeSettings", "GeVerdict", "dropped_items", "judge"]

#: The form of positions in a blacklist; GE ignores all others.
POSITION = re.compile(r"(input|output)([0-9]+)")

_COLLECT_PATHS = ("NPU_COLLECT_PATH_EXE", "NPU_COLLECT_PATH")


class Blacklist(NamedTuple):
    """The indices of inputs and outputs that a blacklist excludes for an operator type, or for a named operator."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


class GeSettings(NamedTuple):
    """The settings that GE reads from a dump JSON.

    status     True if the normal dump of models, or an exception dump, is on
    debug      True if overflow detection is on
    exception  the exception scene, or ""
    every      True if all operators of all models are dumped
    unnamed    the operators that the item without a model name selects in every model (empty: all); None if there is no
               such item
    models     the selected operators by model name (empty: all)
    watched    the watched operators
    types, names  blacklists by operator type and by operator name, for each model name ("": item without a model name)
    ranges     (begin, end) pairs of operator ranges, for each model name
    """

    status: bool
    debug: bool
    exception: str
    op_switch: bool
    path: str
    step: str
    mode: str
    data: str
    every: bool = False
    unnamed: Optional[frozenset[str]] = None
    models: Mapping[str, frozenset[str]] = {}
    watched: frozenset[str] = frozenset()
    types: Mapping[str, Mapping[str, Blacklist]] = {}
    names: Mapping[str, Mapping[str, Blacklist]] = {}
    ranges: Mapping[str, tuple[tuple[str, str], ...]] = {}

    def wants(self, op_name: str, model: str, om_name: str = "") -> bool:
        """Return True if the normal dump selects this operator. Ranges of operators are not evaluated.

        model: the name of the model. om_name: the name in its file, which is compared first
        """
        if not self.status:
            return False
        if self.every:
            return True
        if self.unnamed is not None:
            return not self.unnamed or op_name in self.unnamed
        name = om_name if om_name in self.models else model
        if name not in self.models:
            return False
        layers = self.models[name]
        return op_name in layers if layers or self.ranges.get(name) else True


class GeVerdict(NamedTuple):
    """GE's answer to a dump JSON.

    asked  False if adump does not pass the JSON to GE
    rule   for a refusal: the id of the rule in `silent` that explains it
    error  for a refusal: the code in GE's log, which the caller of acl does not see
    where  for a refusal: the path of the refused key
    """

    asked: bool
    accepted: bool = True
    rule: str = ""
    error: str = ""
    where: str = ""
    settings: Optional[GeSettings] = None


def judge(config: Any, verdict: Verdict, *, env: Optional[Mapping[str, str]] = None) -> GeVerdict:
    """Judge a configuration by GE's rules. verdict: adump's verdict on the same configuration."""
    if not (verdict.accepted and verdict.need_dump):
        return GeVerdict(asked=False)
    dump: Mapping[str, Any] = config["dump"]
    env = env or {}
    scene, debug = text_of(dump, "dump_scene"), text_of(dump, "dump_debug") == "on"
    if not scene:
        if not _takes_path(text_of(dump, "dump_path")):
            return GeVerdict(True, False, "ge-path-characters", "E19999", "dump.dump_path")
        if debug and dump.get("dump_list"):
            return GeVerdict(True, False, "ge-debug-with-list", "E19999", "dump.dump_list")
    settings = _settings(dump, env)
    listed = settings.every or settings.unnamed is not None or bool(settings.models)
    if settings.status and not settings.exception and not listed:
        return GeVerdict(True, False, "ge-empty-list", "E10001", "dump.dump_list")
    if (settings.status or settings.debug) and not settings.exception and any(env.get(name) for name in _COLLECT_PATHS):
        return GeVerdict(True, False, "ge-collect-path", "E10056", "dump")
    return GeVerdict(True, settings=settings)


def dropped_items(dump: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return (index, key) for the items of `dump_list` that GE ignores, with a warning in its log.

    The item's value of the key is empty, which is the reason.
    """
    dropped = []
    for index, item in items_of(dump):
        if item.get("model_name") == "":
            dropped.append((index, "model_name"))
        elif item.get("layer") == []:
            dropped.append((index, "layer"))
    return dropped


def _takes_path(path: str) -> bool:
    # (assumption ge.path_characters)
    return has_plain_characters(path.partition(":")[2] if is_ip_path(path) else path)


def _settings(dump: Mapping[str, Any], env: Mapping[str, str]) -> GeSettings:
    scene = text_of(dump, "dump_scene")
    exception = scene if scene in EXCEPTION_SCENES else ""
    debug = text_of(dump, "dump_debug") == "on"
    path = text_of(dump, "dump_path")
    settings = GeSettings(
        status=bool(exception) or (not debug and text_of(dump, "dump_level", "all") != "kernel"),
        debug=debug,
        exception=exception,
        op_switch=text_of(dump, "dump_op_switch") == "on",
        path=env.get("ASCEND_WORK_PATH", path) if exception else path,
        step=text_of(dump, "dump_step"),
        mode=text_of(dump, "dump_mode", "output"),
        data=text_of(dump, "dump_data", "tensor"),
    )
    return _select(settings, dump) if settings.status and not exception else settings


def _select(settings: GeSettings, dump: Mapping[str, Any]) -> GeSettings:
    """Return the settings with the selected operators of each model.

    If several items have the same model name, the last one replaces the others.
    """
    dropped = {index for index, _ in dropped_items(dump)}
    items = [item for index, item in items_of(dump) if index not in dropped]
    if dump.get("dump_list") == []:
        # GE treats an empty list like a list with one item without keys, which selects everything.
        items = [{}]
    layers: dict[str, frozenset[str]] = {}
    watched: frozenset[str] = frozenset()
    lists: dict[str, dict[str, dict[str, Blacklist]]] = {key: {} for key in BLACKLISTS}
    ranges: dict[str, tuple[tuple[str, str], ...]] = {}
    for item in items:
        model = text_of(item, "model_name")
        layers[model] = frozenset(texts_of(item, "layer"))
        watched = frozenset(texts_of(item, "watcher_nodes")) or watched
        for key in BLACKLISTS:
            _merge_blacklists(lists[key].setdefault(model, {}), item, key)
        pairs = tuple((text_of(each, "begin"), text_of(each, "end")) for _, each in objects_of(item, "opname_range"))
        if pairs:
            ranges[model] = pairs
    return settings._replace(
        every=not items and settings.op_switch,
        unnamed=layers.pop("", None),
        models=layers,
        watched=watched,
        types=lists["optype_blacklist"],
        names=lists["opname_blacklist"],
        ranges=ranges,
    )


def _merge_blacklists(by_name: dict[str, Blacklist], item: Mapping[str, Any], key: str) -> None:
    for _, entry in objects_of(item, key):
        name = text_of(entry, "name")
        positions = [match.groups() for match in map(POSITION.fullmatch, texts_of(entry, "pos")) if match]
        blacklist = by_name.get(name, Blacklist())
        by_name[name] = Blacklist(
            blacklist.inputs | {int(number[:20]) for side, number in positions if side == "input"},
            blacklist.outputs | {int(number[:20]) for side, number in positions if side == "output"},
        )

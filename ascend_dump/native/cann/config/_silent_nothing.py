"""Rules for settings with which CANN dumps nothing at all, or no model."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ascend_dump.native.cann.config._access import items_of, text_of, texts_of
from ascend_dump.native.cann.config._adump_subjects import dumping
from ascend_dump.native.cann.config._dump_path import is_ip_path
from ascend_dump.native.cann.config._subjects import AclSubject
from ascend_dump.native.cann.config.keys import DUMP
from ascend_dump.native.rules import Example, Hit, RuleTable

__all__ = ["RULES"]

RULES = RuleTable(AclSubject.of_example)

_SELECT = 'add "dump_list" ([{}] means every operator of every model) or "dump_op_switch": "on"'
_UINT64_MAX = 2**64 - 1


@RULES.rule(
    "empty-file",
    "AD112",
    "a file of zero bytes is accepted and configures nothing",
    "acl json_parser",
    where="",
    trips=Example(""),
    passes=Example("{}"),
)
def _empty_file(subject: AclSubject) -> Iterator[Hit]:
    # (assumption acl.empty_file)
    if subject.parsed.empty:
        yield Hit("", "the file is empty: acl accepts it and dumps nothing", 'write {"dump": {...}} into it')


@RULES.rule(
    "no-dump-key",
    "AD112",
    "without the key `dump` nothing is dumped",
    "adump dump_config_converter",
    where="",
    trips=Example({"dump_path": "$DIR", "dump_list": [{}]}),
    passes=dumping(dump_list=[{}]),
)
def _no_dump_key(subject: AclSubject) -> Iterator[Hit]:
    config = subject.parsed.value
    if subject.parsed.empty or subject.parsed.refusal or (isinstance(config, dict) and "dump" in config):
        return
    if not isinstance(config, dict):
        yield Hit("", "the top level is not an object, so nothing is dumped", 'write {"dump": {...}}')
        return
    loose = [key for key in config if key in DUMP]
    near = difflib.get_close_matches("dump", [str(key).lower() for key in config], n=1)
    hint = 'write {"dump": {...}}'
    if loose:
        hint = f'put {", ".join(loose)} inside "dump": {{...}}'
    elif near:
        hint = f'should the key {near[0]!r} be "dump"? Upper and lower case differ'
    yield Hit("", 'there is no key "dump", so nothing is dumped', hint)


@RULES.rule(
    "empty-dump",
    "AD112",
    "an empty object `dump` is accepted and configures nothing",
    "adump dump_config_converter",
    where="dump",
    trips=Example({"dump": {}}),
    passes=dumping(dump_list=[{}]),
)
def _empty_dump(subject: AclSubject) -> Iterator[Hit]:
    if isinstance(subject.parsed.value, dict) and subject.parsed.value.get("dump") == {}:
        yield Hit("dump", "the object is empty, so nothing is dumped", f'give "dump_path", and {_SELECT}')


@RULES.rule(
    "nothing-selected",
    "AD112",
    "without dump_list, dump_op_switch, dump_debug or dump_scene nothing is dumped",
    "adump dump_config_converter NeedDump",
    where="dump.dump_list",
    trips=dumping(dump_list=[]),
    passes=dumping(dump_list=[{}]),
)
def _nothing_selected(subject: AclSubject) -> Iterator[Hit]:
    dump, verdict = subject.dump, subject.verdict
    if dump and verdict.accepted and not verdict.need_dump and not verdict.kernel_data:
        what = '"dump_list" is empty' if "dump_list" in dump else 'there is no "dump_list"'
        yield Hit(
            "dump.dump_list" if "dump_list" in dump else "dump",
            f"{what} and dump_op_switch, dump_debug and dump_scene are off: nothing is dumped",
            _SELECT,
        )


@RULES.rule(
    "ge-path-characters",
    "AD111",
    "GE accepts only letters, digits and -=[];\\,./!@#$%^&*()_+{}:? in a path, and refuses the configuration otherwise",
    "GE dump_callback",
    native="E19999",
    where="dump.dump_path",
    trips=Example({"dump": {"dump_path": "$DIR/a b", "dump_list": [{}]}}),
    passes=dumping(dump_list=[{}]),
)
def _ge_path(subject: AclSubject) -> Iterator[Hit]:
    if subject.ge.rule == "ge-path-characters":
        path = text_of(subject.dump, "dump_path")
        odd = sorted({mark for mark in path if not (mark.isascii() and (mark.isalnum() or mark in _MARKS))})
        yield Hit(
            subject.ge.where,
            f"the path {path!r} has characters that GE refuses ({' '.join(map(repr, odd))}): acl reports success, "
            "no model is dumped",
            "use a path of letters, digits, - _ . / only",
        )


_MARKS = "-=[];\\,./!@#$%^&*()_+{}:?"


@RULES.rule(
    "ge-debug-with-list",
    "AD111",
    "GE refuses overflow detection together with a list of models, so no overflow is detected in models",
    "GE dump_callback",
    native="E19999",
    where="dump.dump_list",
    trips=dumping(dump_debug="on", dump_list=[{}]),
    passes=dumping(dump_debug="on", dump_list=[]),
)
def _ge_debug(subject: AclSubject) -> Iterator[Hit]:
    if subject.ge.rule == "ge-debug-with-list":
        yield Hit(
            subject.ge.where,
            'GE refuses "dump_debug": "on" together with a "dump_list": acl reports success, '
            "models run without overflow detection",
            'remove "dump_list"; overflow detection covers every model',
        )


@RULES.rule(
    "ge-empty-list",
    "AD111",
    "the watcher scene without `dump_list` is accepted by adump and refused by GE, so nothing is watched",
    "GE dump_manager",
    native="E10001",
    where="dump",
    trips=dumping(dump_scene="watcher"),
    passes=dumping(dump_scene="watcher", dump_list=[{"watcher_nodes": ["C"]}]),
)
def _ge_empty(subject: AclSubject) -> Iterator[Hit]:
    if subject.ge.rule == "ge-empty-list":
        yield Hit(
            "dump.dump_list" if "dump_list" in subject.dump else "dump",
            "GE finds no operators to dump and refuses the configuration: acl reports success, nothing is watched",
            'give "dump_list": [{"layer": [...], "watcher_nodes": [...]}]',
        )


@RULES.rule(
    "kernel-level",
    "AD112",
    "at level `kernel` GE dumps no model; only kernels called one by one are dumped",
    "GE dump_callback",
    where="dump.dump_level",
    trips=dumping(dump_list=[{}], dump_level="kernel"),
    passes=dumping(dump_list=[{}], dump_level="op"),
)
def _kernel_level(subject: AclSubject) -> Iterator[Hit]:
    # (assumption cann.kernel_level)
    listed = bool(subject.dump.get("dump_list")) or subject.watcher
    if subject.selects and listed and text_of(subject.dump, "dump_level") == "kernel":
        yield Hit(
            "dump.dump_level",
            'with "kernel" no model is dumped, and "dump_list" has no effect',
            'use "op" for models, or "all" for models and kernels',
        )


@RULES.rule(
    "step-too-large",
    "AD112",
    "a step of more than 64 bits is accepted by the host; the device then dumps nothing of the model",
    "adump dump_config_converter; aicpu_schedule dump_task_manager",
    where="dump.dump_step[1]",
    trips=dumping(dump_list=[{}], dump_step="0|99999999999999999999"),
    passes=dumping(dump_list=[{}], dump_step="0|18446744073709551615"),
)
def _step_too_large(subject: AclSubject) -> Iterator[Hit]:
    for index, part in enumerate(text_of(subject.dump, "dump_step").split("|")):
        pieces = [piece.lstrip("0") for piece in part.split("-") if piece.isascii() and piece.isdigit()]
        if any(len(piece) > 20 or int(piece or "0") > _UINT64_MAX for piece in pieces):
            yield Hit(
                f"dump.dump_step[{index}]",
                f"{part[:40]!r} needs more than 64 bits: the host accepts it, the device dumps nothing",
                "give smaller step numbers",
            )


@RULES.rule(
    "ip-path",
    "AD112",
    "an address before the path is removed, and the data is written on this machine",
    "adump adx_dump_record",
    where="dump.dump_path",
    trips=Example({"dump": {"dump_path": "10.0.0.1:/data", "dump_list": [{}]}}),
    passes=dumping(dump_list=[{}]),
)
def _ip_path(subject: AclSubject) -> Iterator[Hit]:
    # (assumption cann.address_path)
    path = text_of(subject.dump, "dump_path")
    if is_ip_path(path) and not subject.exception:
        address_path = path.partition(":")[2]
        yield Hit(
            "dump.dump_path",
            f"the address is removed, and the data is written to {address_path!r} below the working directory on "
            "this machine",
            "give a plain directory and copy the data afterwards",
        )


@RULES.rule(
    "watcher-same-operator",
    "AD112",
    "an operator in both `layer` and `watcher_nodes` writes only one file, and there is no pair to compare",
    "torchair user document, dump_config_path",
    where="dump.dump_list[0].layer[1]",
    trips=dumping(dump_scene="watcher", dump_list=[{"layer": ["A", "C"], "watcher_nodes": ["C"]}]),
    passes=dumping(dump_scene="watcher", dump_list=[{"layer": ["A"], "watcher_nodes": ["C"]}]),
)
def _watcher_same(subject: AclSubject) -> Iterator[Hit]:
    for index, item in items_of(subject.dump) if subject.watcher else ():
        watched = set(texts_of(item, "watcher_nodes"))
        for position, name in enumerate(texts_of(item, "layer")):
            if name in watched:
                yield Hit(
                    f"dump.dump_list[{index}].layer[{position}]",
                    f"{name!r} is in layer and watcher_nodes: it writes only one file, so there is no pair to compare",
                    "list under layer only operators suspected of overwriting the watched ones",
                )

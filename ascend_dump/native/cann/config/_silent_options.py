"""GE session options that are taken and ignored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ascend_dump.native.cann.config._silent_rule import Hit, Options, rule_table
from ascend_dump.native.cann.config.keys import (
    DEBUG_MODE,
    DUMP_DATA,
    DUMP_LAYER,
    DUMP_MODE,
    DUMP_PATH,
    DUMP_STEP,
    ENABLE_DEBUG,
    ENABLE_DUMP,
    ENABLE_EXCEPTION,
    GE_OPTIONS,
    QUANT,
)

__all__ = ["RULES"]

RULES, _rule = rule_table()

_NEEDS_ENABLE = (DUMP_STEP, DUMP_MODE, DUMP_DATA, DUMP_LAYER)
_NO_NAME = re.compile(r"[*?,;|]|\[.*\]|^re:")
#: Beginnings of the names of A2 and A3, where only AI Core overflow exists.
_ONE_DEBUG_MODE = ("Ascend910B", "Ascend910_93")


@_rule(
    "option-debug-without-mode",
    "AD113",
    "overflow detection without a mode is off, with a warning in the log only",
    "GE dump_properties SetDumpDebugOptions",
)
def _debug_without_mode(given: Options) -> Iterator[Hit]:
    if given.debug and DEBUG_MODE not in given.options:
        yield Hit(ENABLE_DEBUG, f"without {DEBUG_MODE} no overflow is detected", f'add "{DEBUG_MODE}": "all"')


@_rule(
    "option-mode-without-debug",
    "AD113",
    "a mode of overflow detection alone turns nothing on",
    "GE dump_properties SetDumpDebugOptions",
)
def _mode_without_debug(given: Options) -> Iterator[Hit]:
    if not given.debug and given.options.get(DEBUG_MODE):
        yield Hit(DEBUG_MODE, f"nothing without {ENABLE_DEBUG}", f'add "{ENABLE_DEBUG}": "1"')


@_rule(
    "option-debug-mode-platform",
    "AD114",
    "A2 and A3 report AI Core overflow only, by the mode `all`",
    "overflow user documents; GE data_dumper",
)
def _debug_mode_platform(given: Options) -> Iterator[Hit]:
    mode = given.options.get(DEBUG_MODE)
    if (
        given.debug
        and given.situation.soc.startswith(_ONE_DEBUG_MODE)
        and mode in ("aicore_overflow", "atomic_overflow")
    ):
        yield Hit(DEBUG_MODE, f"{given.situation.soc} has no {mode!r} mode", 'give "all"')


@_rule(
    "option-without-enable",
    "AD113",
    "without ge.exec.enableDump the other options are not even checked",
    "GE dump_properties InitByOptions, SetDumpOptions",
)
def _without_enable(given: Options) -> Iterator[Hit]:
    if given.dump:
        return
    named = [name for name in _NEEDS_ENABLE if given.options.get(name)]
    for name in named:
        why = f"ignored with {ENABLE_DEBUG}" if given.debug else f"nothing is dumped without {ENABLE_DUMP}"
        yield Hit(name, why, "remove it" if given.debug else f'add "{ENABLE_DUMP}": "1"')
    if not given.debug and not named and given.options.get(DUMP_PATH):
        yield Hit(DUMP_PATH, f"nothing is dumped without {ENABLE_DUMP}", f'add "{ENABLE_DUMP}": "1"')


@_rule(
    "option-data-unchecked",
    "AD113",
    "a misspelt ge.exec.dumpData means tensor",
    "GE data_dumper",
)
def _data_unchecked(given: Options) -> Iterator[Hit]:
    if given.dump and given.options.get(DUMP_DATA, "tensor") not in ("tensor", "stats"):
        yield Hit(
            DUMP_DATA, f"{given.options[DUMP_DATA]!r} is not checked and means tensor", 'give "tensor" or "stats"'
        )


@_rule(
    "option-layer-not-a-name",
    "AD113",
    "operator names are separated by blanks and compared as they are",
    "GE dump_properties SetDumpList",
)
def _layer_not_a_name(given: Options) -> Iterator[Hit]:
    layers = given.options.get(DUMP_LAYER, "") if given.dump else ""
    if layers and not layers.split():
        yield Hit(DUMP_LAYER, "it holds blanks only and selects every operator", "remove it or name operators")
    for name in layers.split():
        if _NO_NAME.search(name):
            yield Hit(DUMP_LAYER, f"{name!r} is one exact name here and matches nothing", "separate names by blanks")


@_rule(
    "option-operator-unknown",
    "AD114",
    "a name no operator has selects nothing",
    "GE davinci_model",
)
def _operator_unknown(given: Options) -> Iterator[Hit]:
    if not given.dump or given.situation.operators is None:
        return
    known = given.situation.names()
    for name in given.options.get(DUMP_LAYER, "").split():
        if name not in known and not _NO_NAME.search(name):
            yield Hit(DUMP_LAYER, f"the graph has no operator {name!r}", "take names from the graph: `ascend-dump ops`")


@_rule(
    "option-exception-value",
    "AD113",
    "values other than 1 and 2 turn on no exception dump",
    "GE dump_manager Init",
)
def _exception_value(given: Options) -> Iterator[Hit]:
    value = given.options.get(ENABLE_EXCEPTION, "")
    if value not in ("", "0", "1", "2"):
        yield Hit(ENABLE_EXCEPTION, f"{value!r} turns nothing on", 'give "1" (normal) or "2" (brief)')


@_rule(
    "option-exception-outranked",
    "AD114",
    "with NPU_COLLECT_PATH set the option is not looked at",
    "GE dump_manager Init",
)
def _exception_outranked(given: Options) -> Iterator[Hit]:
    if given.options.get(ENABLE_EXCEPTION) in ("1", "2") and given.situation.env.get("NPU_COLLECT_PATH"):
        yield Hit(ENABLE_EXCEPTION, "NPU_COLLECT_PATH is set and decides instead", "unset it")


@_rule("option-quant-value", "AD113", "only 1 turns the dump before quantisation on", "GE ge_common_api_types")
def _quant_value(given: Options) -> Iterator[Hit]:
    if given.options.get(QUANT, "0") not in ("0", "1"):
        yield Hit(QUANT, f"{given.options[QUANT]!r} is neither 1 nor 0 and turns nothing on", 'give "1"')


@_rule(
    "option-outranked-by-acl",
    "AD114",
    "a dump set through acl outranks the session options",
    "GE dump_manager GetDumpProperties",
)
def _outranked(given: Options) -> Iterator[Hit]:
    if (given.dump or given.debug) and given.situation.acl_dump:
        name = ENABLE_DUMP if given.dump else ENABLE_DEBUG
        yield Hit(name, "a dump set through acl outranks the session options", "use one of the two")


@_rule("option-unknown", "AD113", "GE does not know the option and ignores it", "GE ge_common_api_types")
def _unknown(given: Options) -> Iterator[Hit]:
    lowered = {name.lower(): name for name in GE_OPTIONS}
    for name in given.options:
        if name in GE_OPTIONS or "dump" not in name.lower() or not name.lower().startswith("ge."):
            continue
        near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.85)
        if near:
            yield Hit(name, "GE knows no such option", f"did you mean {lowered[near[0]]!r}?")

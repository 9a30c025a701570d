"""Rules for GE session options that are accepted and ignored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ascend_dump.native.cann.config._subjects import GRAPH, GeSubject
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
from ascend_dump.native.rules import Example, Hit, RuleTable

__all__ = ["RULES"]

RULES = RuleTable(GeSubject.of_example)

_NEEDS_ENABLE = (DUMP_STEP, DUMP_MODE, DUMP_DATA, DUMP_LAYER)
_NO_NAME = re.compile(r"[*?,;|]|\[[^\[\n]*\]|^re:")
#: Prefixes of the SoC names of the devices A2 and A3, which detect only AI Core overflow.
_ONE_DEBUG_MODE = ("Ascend910B", "Ascend910_93")


@RULES.rule(
    "option-debug-without-mode",
    "AD113",
    "without a mode no overflow is detected; the only sign is a warning in the log",
    "GE dump_properties SetDumpDebugOptions",
    where="ge.exec.enableDumpDebug",
    trips=Example({"ge.exec.enableDumpDebug": "1", "ge.exec.dumpPath": "$DIR"}),
    passes=Example({"ge.exec.enableDumpDebug": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpDebugMode": "all"}),
)
def _debug_without_mode(subject: GeSubject) -> Iterator[Hit]:
    # (assumption ge.debug_without_mode)
    if subject.debug and DEBUG_MODE not in subject.options:
        yield Hit(ENABLE_DEBUG, f"without {DEBUG_MODE} no overflow is detected", f'add "{DEBUG_MODE}": "all"')


@RULES.rule(
    "option-mode-without-debug",
    "AD113",
    "a mode of overflow detection does not turn it on",
    "GE dump_properties SetDumpDebugOptions",
    where="ge.exec.dumpDebugMode",
    trips=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpDebugMode": "all"}),
    passes=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR"}),
)
def _mode_without_debug(subject: GeSubject) -> Iterator[Hit]:
    if not subject.debug and subject.options.get(DEBUG_MODE):
        yield Hit(DEBUG_MODE, f"has no effect without {ENABLE_DEBUG}", f'add "{ENABLE_DEBUG}": "1"')


@RULES.rule(
    "option-debug-mode-platform",
    "AD114",
    "A2 and A3 detect AI Core overflow only, and only in the mode `all`",
    "overflow user documents; GE data_dumper",
    where="ge.exec.dumpDebugMode",
    trips=Example(
        {"ge.exec.enableDumpDebug": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpDebugMode": "atomic_overflow"}
    ).given(soc="Ascend910B3"),
    passes=Example({"ge.exec.enableDumpDebug": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpDebugMode": "all"}).given(
        soc="Ascend910B3"
    ),
)
def _debug_mode_platform(subject: GeSubject) -> Iterator[Hit]:
    # (assumption cann.overflow_modes)
    mode = subject.options.get(DEBUG_MODE)
    if (
        subject.debug
        and subject.situation.soc.startswith(_ONE_DEBUG_MODE)
        and mode in ("aicore_overflow", "atomic_overflow")
    ):
        yield Hit(DEBUG_MODE, f"{subject.situation.soc} has no {mode!r} mode", 'give "all"')


@RULES.rule(
    "option-without-enable",
    "AD113",
    "without ge.exec.enableDump the other options are neither checked nor used",
    "GE dump_properties InitByOptions, SetDumpOptions",
    where="ge.exec.dumpStep",
    trips=Example({"ge.exec.dumpPath": "$DIR", "ge.exec.dumpStep": "0"}),
    passes=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpStep": "0"}),
)
def _without_enable(subject: GeSubject) -> Iterator[Hit]:
    if subject.dump:
        return
    named = [name for name in _NEEDS_ENABLE if subject.options.get(name)]
    for name in named:
        why = f"ignored with {ENABLE_DEBUG}" if subject.debug else f"nothing is dumped without {ENABLE_DUMP}"
        yield Hit(name, why, "remove it" if subject.debug else f'add "{ENABLE_DUMP}": "1"')
    if not subject.debug and not named and subject.options.get(DUMP_PATH):
        yield Hit(DUMP_PATH, f"nothing is dumped without {ENABLE_DUMP}", f'add "{ENABLE_DUMP}": "1"')


@RULES.rule(
    "option-data-unchecked",
    "AD113",
    "a misspelt ge.exec.dumpData has the effect of `tensor`",
    "GE data_dumper",
    where="ge.exec.dumpData",
    trips=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpData": "statistics"}),
    passes=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpData": "stats"}),
)
def _data_unchecked(subject: GeSubject) -> Iterator[Hit]:
    # (assumption ge.data_unchecked)
    if subject.dump and subject.options.get(DUMP_DATA, "tensor") not in ("tensor", "stats"):
        yield Hit(
            DUMP_DATA,
            f"{subject.options[DUMP_DATA]!r} is unknown and has the effect of tensor",
            'give "tensor" or "stats"',
        )


@RULES.rule(
    "option-layer-not-a-name",
    "AD113",
    "operator names are separated by blanks and compared exactly",
    "GE dump_properties SetDumpList",
    where="ge.exec.dumpLayer",
    trips=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpLayer": "a,b"}),
    passes=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpLayer": "a b"}),
)
def _layer_not_a_name(subject: GeSubject) -> Iterator[Hit]:
    layers = subject.options.get(DUMP_LAYER, "") if subject.dump else ""
    if layers and not layers.split():
        yield Hit(DUMP_LAYER, "it contains blanks only and selects every operator", "remove it or name operators")
    for name in layers.split():
        if _NO_NAME.search(name):
            yield Hit(DUMP_LAYER, f"{name!r} is used as one exact name and matches nothing", "separate names by blanks")


@RULES.rule(
    "option-operator-unknown",
    "AD114",
    "a name that no operator has selects nothing",
    "GE davinci_model",
    where="ge.exec.dumpLayer",
    trips=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpLayer": "add cnov"}).given(
        operators=GRAPH
    ),
    passes=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpLayer": "add relu1"}).given(
        operators=GRAPH
    ),
)
def _operator_unknown(subject: GeSubject) -> Iterator[Hit]:
    if not subject.dump or subject.situation.operators is None:
        return
    operators = subject.situation.names()
    for name in subject.options.get(DUMP_LAYER, "").split():
        if name not in operators and not _NO_NAME.search(name):
            yield Hit(DUMP_LAYER, f"the graph has no operator {name!r}", "take names from the graph: `ascend-dump ops`")


@RULES.rule(
    "option-exception-value",
    "AD113",
    "values other than 1 and 2 do not turn on an exception dump",
    "GE dump_manager Init",
    where="ge.exec.enable_exception_dump",
    trips=Example({"ge.exec.enable_exception_dump": "on"}),
    passes=Example({"ge.exec.enable_exception_dump": "1"}),
)
def _exception_value(subject: GeSubject) -> Iterator[Hit]:
    value = subject.options.get(ENABLE_EXCEPTION, "")
    if value not in ("", "0", "1", "2"):
        yield Hit(ENABLE_EXCEPTION, f"{value!r} turns nothing on", 'give "1" (normal) or "2" (brief)')


@RULES.rule(
    "option-exception-outranked",
    "AD114",
    "if NPU_COLLECT_PATH is set, the option is ignored",
    "GE dump_manager Init",
    where="ge.exec.enable_exception_dump",
    trips=Example({"ge.exec.enable_exception_dump": "2"}).given(env={"NPU_COLLECT_PATH": "$DIR"}),
    passes=Example({"ge.exec.enable_exception_dump": "2"}).given(env={}),
)
def _exception_outranked(subject: GeSubject) -> Iterator[Hit]:
    if subject.options.get(ENABLE_EXCEPTION) in ("1", "2") and subject.situation.env.get("NPU_COLLECT_PATH"):
        yield Hit(ENABLE_EXCEPTION, "ignored, because NPU_COLLECT_PATH is set", "unset NPU_COLLECT_PATH")


@RULES.rule(
    "option-quant-value",
    "AD113",
    "only 1 turns on the dump of values before quantisation",
    "GE ge_common_api_types",
    where="ge.quant_dumpable",
    trips=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.quant_dumpable": "true"}),
    passes=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.quant_dumpable": "1"}),
)
def _quant_value(subject: GeSubject) -> Iterator[Hit]:
    if subject.options.get(QUANT, "0") not in ("0", "1"):
        yield Hit(QUANT, f"{subject.options[QUANT]!r} is neither 1 nor 0 and turns nothing on", 'give "1"')


@RULES.rule(
    "option-outranked-by-acl",
    "AD114",
    "a dump configured through acl replaces the session options",
    "GE dump_manager GetDumpProperties",
    where="ge.exec.enableDump",
    trips=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR"}).given(acl_dump=True),
    passes=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR"}).given(acl_dump=False),
)
def _outranked(subject: GeSubject) -> Iterator[Hit]:
    if (subject.dump or subject.debug) and subject.situation.acl_dump:
        name = ENABLE_DUMP if subject.dump else ENABLE_DEBUG
        yield Hit(name, "ignored, because a dump is configured through acl", "use one of the two")


@RULES.rule(
    "option-every-step",
    "AD115",
    "without ge.exec.dumpStep each execution of a graph adds data to the dump",
    "TensorFlow and torchair user documents",
    severity="warning",
    where="ge.exec.dumpStep",
    trips=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR"}).given(whole_run=True),
    passes=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpStep": "0"}).given(
        whole_run=True
    ),
)
def _every_step(subject: GeSubject) -> Iterator[Hit]:
    if subject.situation.whole_run and subject.dump and not subject.options.get(DUMP_STEP):
        message = "it is not set: each execution of a graph adds data to the dump"
        yield Hit(DUMP_STEP, message, 'set it to a few iterations, such as "0|3-5"')


@RULES.rule(
    "option-unknown",
    "AD113",
    "GE does not know the option and ignores it",
    "GE ge_common_api_types",
    where="ge.exec.dump_step",
    trips=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dump_step": "0"}),
    passes=Example({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "$DIR", "ge.exec.dumpStep": "0"}),
)
def _unknown(subject: GeSubject) -> Iterator[Hit]:
    lowered = {name.lower(): name for name in GE_OPTIONS}
    for name in subject.options:
        if name in GE_OPTIONS or "dump" not in name.lower() or not name.lower().startswith("ge."):
            continue
        near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.85)
        if near:
            yield Hit(name, "GE does not know this option", f"did you mean {lowered[near[0]]!r}?")

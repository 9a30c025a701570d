"""Rules for selections in a dump JSON that match nothing, and for parts of a program that MindSpore cannot dump."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ascend_dump.native.mindspore.config.keys import BLOCKS, COMMON, E2E
from ascend_dump.native.mindspore.config.known import DumpJson, example
from ascend_dump.native.mindspore.config.select import KernelSelector, iteration_ranges, kernel_kind, unused_parts
from ascend_dump.native.rules import Hit, RuleTable

__all__ = ["KEY_RULES", "PYNATIVE_HIT", "RULES"]

#: Rules that are applied even to a dump JSON that MindSpore refuses.
KEY_RULES = RuleTable(DumpJson.of_example)
RULES = RuleTable(DumpJson.of_example)

_DOCUMENT = "Using Dump in the Graph Mode"
_CPU = "MindSpore 2.10.0 on a CPU"
_PARSER = "dump_json_parser.cc"
_ITERATION, _KERNELS = f"{COMMON}.iteration", f"{COMMON}.kernels"
_MATMUL, _RELU = "Default/fc-Dense/MatMul-op0", "Default/relu-ReLU/ReLU-op0"
#: The finding for a program that runs operators one by one.
PYNATIVE_HIT = Hit(
    "",
    "in PyNative mode only functions compiled by @jit are dumped, no single operators",
    "decorate the function with @jit, or use GRAPH_MODE",
)


@KEY_RULES.rule(
    "mindspore-unknown-key",
    "AD278",
    "MindSpore ignores unknown keys without a message",
    _CPU,
    where=f"{COMMON}.net",
    trips=example(net="x"),
    passes=example(net_name="x"),
)
def _unknown_key(dump: DumpJson) -> Iterator[Hit]:
    message, hint = "MindSpore ignores this key", "correct or remove it"
    value = dump.reading.value
    for block, keys in BLOCKS.items():
        settings = dump.common if block == COMMON else dump.e2e
        for key in settings:
            if key not in keys:
                yield Hit(f"{block}.{key}", message, hint)
    for key in value if isinstance(value, dict) else ():
        if key == "async_dump_settings":
            yield Hit(key, "MindSpore does not read this block any more", f"use {E2E} with enable false")
        elif key not in BLOCKS:
            yield Hit(key, message, hint)


@RULES.rule(
    "mindspore-exception-iteration",
    "AD272",
    "an exception dump covers every iteration",
    _PARSER,
    where=_ITERATION,
    trips=example(op_debug_mode=4, iteration="0"),
    passes=example(op_debug_mode=4, iteration="all"),
)
def _exception_iteration(dump: DumpJson) -> Iterator[Hit]:
    if dump.settings.op_debug_mode == 4 and dump.common["iteration"] != "all":
        yield Hit(_ITERATION, "with op_debug_mode 4 it is ignored: every iteration is covered", 'write "all"')


@RULES.rule(
    "mindspore-no-iteration",
    "AD272",
    "parts of iteration that are neither numbers nor ascending ranges select nothing",
    _CPU,
    where=_ITERATION,
    trips=example(iteration="0|1-"),
    passes=example(iteration="0|1-2"),
)
def _no_iteration(dump: DumpJson) -> Iterator[Hit]:
    settings = dump.settings
    if settings.op_debug_mode == 4:
        return
    iteration = dump.common["iteration"]
    ranges = iteration_ranges(settings.iteration)
    if ranges == []:
        message = f"{iteration!r} selects no iteration, so nothing is dumped"
        yield Hit(_ITERATION, message, "write numbers and ascending ranges, such as 0|3-5")
        return
    for part in unused_parts(settings.iteration):
        yield Hit(_ITERATION, f"the part {part!r} selects nothing", "write a range as 5-10")
    if ranges is not None and all(high < settings.initial_iteration for _, high in ranges):
        message = f"the first iteration is {settings.initial_iteration}, so {iteration!r} selects no iteration"
        yield Hit(_ITERATION, message, "count from initial_iteration")


@RULES.rule(
    "mindspore-several-graphs",
    "AD272",
    "successive graphs of a process share the count of iterations",
    _CPU,
    severity="warning",
    where=_ITERATION,
    trips=example("cpu", iteration="0").given(graphs=2),
    passes=example("cpu", iteration="0").given(graphs=1),
)
def _several_graphs(dump: DumpJson) -> Iterator[Hit]:
    several = dump.known.graphs is not None and dump.known.graphs > 1
    if several and dump.settings.op_debug_mode != 4 and iteration_ranges(dump.settings.iteration):
        message = "a graph that runs directly after another graph is dumped with the iteration number of that graph"
        yield Hit(_ITERATION, message, 'write "all" to see every graph')


@RULES.rule(
    "mindspore-no-kernels",
    "AD273",
    "an empty list of kernels selects every operator",
    _CPU,
    where=_KERNELS,
    trips=example(dump_mode=1),
    passes=example(dump_mode=1, kernels=["relu"]),
)
def _no_kernels(dump: DumpJson) -> Iterator[Hit]:
    if dump.settings.dump_mode == 1 and not any(dump.settings.kernels):
        yield Hit(_KERNELS, "with an empty list everything is dumped", "name operators, or use dump_mode 0")


@RULES.rule(
    "mindspore-unread-kernels",
    "AD273",
    "kernels select operators with dump_mode 1 only",
    _CPU,
    where=_KERNELS,
    trips=example(kernels=["relu"]),
    passes=example(dump_mode=1, kernels=["relu"]),
)
def _unread_kernels(dump: DumpJson) -> Iterator[Hit]:
    mode = dump.common["dump_mode"]
    if mode != 1 and any(dump.common["kernels"]):
        selected = "operators that set_dump marks are" if mode else "every operator is"
        message = f"with dump_mode {mode} MindSpore does not read it: {selected} dumped"
        yield Hit(_KERNELS, message, "use dump_mode 1, or an empty list")


@RULES.rule(
    "mindspore-unmatched-kernel",
    "AD273",
    "an entry of kernels that matches no operator is accepted",
    _CPU,
    where=f"{_KERNELS}[0]",
    trips=example(dump_mode=1, kernels=["MatMul-op0"]),
    passes=example(dump_mode=1, kernels=[_MATMUL]).given(operators=[_MATMUL, _RELU]),
)
def _unmatched_kernel(dump: DumpJson) -> Iterator[Hit]:
    if dump.settings.dump_mode != 1:
        return
    operators = dump.known.operators
    for number, entry in enumerate(dump.settings.kernels):
        where = f"{_KERNELS}[{number}]"
        if "\\" in entry:
            message = "MindSpore doubles every backslash, so this expression never matches"
            yield Hit(where, message, "write [0-9] for \\d and [.] for \\.")
        elif entry == "name-regex()":
            yield Hit(where, "an empty expression matches no name", "write name-regex(.*)")
        elif kernel_kind(entry) == "name" and "/" not in entry:
            message = f"{entry!r} is compared with full names, which begin with a scope such as Default/"
            yield Hit(where, message, "write the full name, or name-regex(.*/" + entry + ")")
        elif operators is not None and entry and not any(map(KernelSelector([entry]).matches, operators)):
            message = f"{entry!r} matches none of the {len(operators)} known operators"
            hint = "the numbers after -op depend on all graphs of a process: take the name from files of a dump"
            yield Hit(where, message, hint)


@RULES.rule(
    "mindspore-path",
    "AD275",
    "if the directory cannot be created, MindSpore logs it and continues without a dump",
    _CPU,
    where=f"{COMMON}.path",
    trips=example(path="/proc/nothing/here"),
    passes=example(path="$DIR/new/one"),
)
def _path(dump: DumpJson) -> Iterator[Hit]:
    existing = Path(dump.settings.path)
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    where = f"{COMMON}.path"
    if not existing.is_dir():
        yield Hit(where, f"{existing} is not a directory, so nothing is written", "give a directory")
    elif not os.access(existing, os.W_OK | os.X_OK) or str(existing).startswith("/proc"):
        message = f"{existing} cannot be written: MindSpore logs it and continues without a dump"
        yield Hit(where, message, "give a directory in which this user may create files")


@RULES.rule(
    "mindspore-complex",
    "AD279",
    "a graph with complex numbers is not compiled while MindSpore dumps",
    _CPU,
    severity="error",
    where="",
    trips=example("cpu").given(complex=True),
    passes=example("cpu").given(complex=False),
)
def _complex(dump: DumpJson) -> Iterator[Hit]:
    if dump.known.complex:
        message = "MindSpore cannot compile a graph with complex numbers while it dumps (Unexpected type Complex)"
        yield Hit("", message, "dump without the part that computes with complex numbers")


@RULES.rule(
    "mindspore-pynative",
    "AD279",
    "in PyNative mode MindSpore dumps only functions compiled by @jit",
    _DOCUMENT,
    severity="warning",
    where="",
    trips=example("cpu").given(pynative=True),
    passes=example("cpu").given(pynative=False),
)
def _pynative(dump: DumpJson) -> Iterator[Hit]:
    if dump.known.pynative:
        yield PYNATIVE_HIT


@RULES.rule(
    "mindspore-device-list",
    "AD274",
    "nothing is dumped on a device that is not in support_device",
    f"{_PARSER} DumpEnabled",
    where=f"{COMMON}.support_device",
    trips=example(support_device=[0, 1]).given(device_id=3),
    passes=example(support_device=[0, 3]).given(device_id=3),
)
def _device_list(dump: DumpJson) -> Iterator[Hit]:
    device = dump.known.device_id
    if dump.where.device == "Ascend" and device is not None and device not in dump.settings.support_device:
        yield Hit(
            f"{COMMON}.support_device", f"device {device} is not in the list, so this process dumps nothing", "add it"
        )


@RULES.rule(
    "mindspore-o2-sink-size",
    "AD279",
    "under O2 a dump needs a sink size of 1",
    f"{_DOCUMENT}, Notices",
    where="",
    trips=example("ascend-o2").given(sink=True, sink_size=-1),
    passes=example("ascend-o2").given(sink=True, sink_size=1),
)
def _o2_sink_size(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.ge and dump.known.sink and dump.known.sink_size not in (None, 1):
        yield Hit(
            "",
            f"under jit_level O2 MindSpore dumps with a sink size of 1 only, the program has {dump.known.sink_size}",
            "call model.train(..., sink_size=1) or mindspore.data_sink(..., sink_size=1)",
        )


@RULES.rule(
    "mindspore-gpu-sink",
    "AD279",
    "on a GPU a dump has every step only without dataset_sink_mode",
    f"{_DOCUMENT}, CPU/GPU Mode",
    where="",
    trips=example("gpu").given(sink=True),
    passes=example("gpu").given(sink=False),
)
def _gpu_sink(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.device == "GPU" and dump.known.sink:
        message = "on a GPU a program with dataset_sink_mode does not dump every step"
        yield Hit("", message, "call model.train(..., dataset_sink_mode=False)")


@RULES.rule(
    "mindspore-heterogeneous",
    "AD279",
    "training on a CPU and another device together cannot be dumped",
    f"{_DOCUMENT}, introduction",
    where="",
    trips=example().given(heterogeneous=True),
    passes=example().given(heterogeneous=False),
)
def _heterogeneous(dump: DumpJson) -> Iterator[Hit]:
    if dump.known.heterogeneous:
        message = "some operators run on another device, and Dump does not support heterogeneous training"
        yield Hit("", message, "leave out Primitive.set_device in the run that is dumped")


@RULES.rule(
    "mindspore-print",
    "AD279",
    "a text that is an input of Print cannot be dumped",
    f"{_DOCUMENT}, Notices",
    severity="warning",
    where="",
    trips=example().given(operators=["Default/Print-op0", _RELU]),
    passes=example().given(operators=[_MATMUL, _RELU]),
)
def _print(dump: DumpJson) -> Iterator[Hit]:
    names = dump.known.operators or ()
    if dump.known.prints or any(name.rpartition("/")[2].startswith("Print-op") for name in names):
        message = "MindSpore logs an error for a text that is an input of Print; other tensors are dumped"
        yield Hit("", message, "ignore the error in the log, or leave Print out")


@RULES.rule(
    "mindspore-ge-dump",
    "AD331",
    "ENABLE_MS_GE_DUMP works for jit_level O2 up to MindSpore 2.5 only",
    f"{_DOCUMENT}, Other Dump Function",
    where="ENABLE_MS_GE_DUMP",
    trips=example("ascend").given(env={"ENABLE_MS_GE_DUMP": "1"}),
    passes=example("ascend-o2").given(env={"ENABLE_MS_GE_DUMP": "1"}),
)
def _ge_dump(dump: DumpJson) -> Iterator[Hit]:
    name = "ENABLE_MS_GE_DUMP"
    if (dump.known.env or {}).get(name) != "1":
        return
    if not dump.where.old_ge:
        yield Hit(name, "it has no effect: it works for jit_level O2 up to MindSpore 2.5 only", "unset it")
    elif dump.settings.op_debug_mode == 4:
        yield Hit(name, "op_debug_mode 4 is not supported if it is set", "unset it, or use op_debug_mode 0 or 3")


@RULES.rule(
    "mindspore-saved-graphs",
    "AD331",
    "saving graphs may change the numbers in the names of operators",
    f"{_DOCUMENT}, kernels",
    severity="warning",
    where="MS_DEV_SAVE_GRAPHS",
    trips=example(dump_mode=1, kernels=[_MATMUL]).given(env={"MS_DEV_SAVE_GRAPHS": "2"}),
    passes=example(dump_mode=1, kernels=["relu"]).given(env={"MS_DEV_SAVE_GRAPHS": "2"}),
)
def _saved_graphs(dump: DumpJson) -> Iterator[Hit]:
    name = "MS_DEV_SAVE_GRAPHS"
    chosen = dump.settings.dump_mode == 1 and any(kernel_kind(entry) == "name" for entry in dump.settings.kernels)
    if chosen and (dump.known.env or {}).get(name, "0") not in ("", "0"):
        message = "saving graphs may change the numbers after -op in the names in kernels"
        yield Hit(name, message, "set it as in the run from which you took the names")


@RULES.rule(
    "mindspore-o2-exception-dump",
    "AD331",
    "together with a dump under O2 only the full exception dump works",
    f"{_DOCUMENT}, Notices",
    where="ascend_config.exception_dump",
    trips=example("ascend-o2").given(exception_dump="2"),
    passes=example("ascend-o2").given(exception_dump="1"),
)
def _o2_exception_dump(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.ge and dump.known.exception_dump == "2":
        message = "the lite exception dump does not work together with a dump under jit_level O2"
        yield Hit("ascend_config.exception_dump", message, 'use "1", the full exception dump')

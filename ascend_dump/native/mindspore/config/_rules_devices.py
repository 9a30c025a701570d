"""Rules for settings that MindSpore accepts but ignores on some devices or under some jit_levels."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_dump.native.mindspore.config.keys import COMMON, DEVICE_STATISTICS, E2E
from ascend_dump.native.mindspore.config.known import DumpJson, example
from ascend_dump.native.mindspore.config.select import kernel_kind
from ascend_dump.native.rules import Example, Hit, RuleTable

__all__ = ["RULES"]

RULES = RuleTable(DumpJson.of_example)

_DOCUMENT = "Using Dump in the Graph Mode"
_O0, _O2, _CPU = (f"{_DOCUMENT}, {name}" for name in ("Ascend O0/O1 Mode", "Ascend O2 Mode", "CPU/GPU Mode"))
_PARSER = "dump_json_parser.cc"
_MODE = f"{COMMON}.op_debug_mode"


def _without_e2e(on: str) -> Example:
    # (assumption mindspore.without_e2e)
    tried = example(on)
    return tried._replace(config={COMMON: tried.config[COMMON]})


def _with_e2e(on: str, **settings: object) -> Example:
    tried = example(on)
    return tried._replace(config={**tried.config, E2E: settings})


@RULES.rule(
    "mindspore-ge-reads-nothing",
    "AD274",
    "since MindSpore 2.6 the GE backend reads no dump JSON",
    "libmindspore_ge_backend: Dump Deprecated Alert",
    where="",
    trips=example("ascend-ge"),
    passes=example("ascend-o2"),
)
def _ge_reads_nothing(dump: DumpJson) -> Iterator[Hit]:
    # (assumption mindspore.o2_writes_nothing)
    if dump.where.ge and not dump.where.old_ge:
        yield Hit(
            "",
            "jit_level O2 (the GE backend) reads no dump JSON since MindSpore 2.6: nothing is dumped",
            "run with jit_level O0 or O1, or use CANN's dump through an acl.json",
        )


@RULES.rule(
    "mindspore-e2e-block",
    "AD274",
    "without the block e2e_dump_settings kernels that run one by one are not dumped on Ascend",
    f"{_PARSER} Dump Alert",
    where=E2E,
    trips=_without_e2e("ascend"),
    passes=example(),
)
def _e2e_block(dump: DumpJson) -> Iterator[Hit]:
    if dump.settings.e2e or dump.where.ge:
        return
    hint = 'add {"enable": true, "trans_flag": true}'
    if dump.where.device == "Ascend":
        yield Hit(E2E, "without it nothing is dumped", hint)
    else:
        yield Hit(E2E, "without it each start waits three seconds", hint, "warning")


@RULES.rule(
    "mindspore-cpu-overflow",
    "AD274",
    "a CPU detects no overflow and dumps every operator instead",
    "MindSpore 2.10.0 on a CPU",
    where=_MODE,
    trips=example("cpu", op_debug_mode=3),
    passes=example("ascend", op_debug_mode=3),
)
def _cpu_overflow(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.device == "CPU" and dump.settings.op_debug_mode == 3:
        message = "on a CPU this has the effect of 0: every operator is dumped, with or without overflow"
        yield Hit(_MODE, message, "use 0, and search the dump for inf and nan")


@RULES.rule(
    "mindspore-cpu-exception",
    "AD274",
    "on a CPU an exception dump contains no operator",
    f"{_PARSER}: Abnormal dump is not supported on CPU backend",
    where=_MODE,
    trips=example("cpu", op_debug_mode=4),
    passes=example("ascend", op_debug_mode=4),
)
def _cpu_exception(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.device == "CPU" and dump.settings.op_debug_mode == 4:
        yield Hit(_MODE, "on a CPU only parameters are dumped, in every iteration, and no operators", "use 0")


@RULES.rule(
    "mindspore-cpu-devices",
    "AD274",
    "a CPU has no devices that could be selected",
    f"{_CPU}, support_device",
    where=f"{COMMON}.support_device",
    trips=example("cpu", support_device=[1]),
    passes=example("cpu", support_device=[0, 1]),
)
def _cpu_devices(dump: DumpJson) -> Iterator[Hit]:
    devices = dump.settings.support_device
    if dump.where.device == "CPU" and devices and 0 not in devices:
        message = "on a CPU it selects nothing: every process dumps"
        yield Hit(f"{COMMON}.support_device", message, "write [0]; the key is required")


@RULES.rule(
    "mindspore-gpu-debug-mode",
    "AD274",
    "a GPU has neither overflow nor exception dumps",
    _CPU,
    where=_MODE,
    trips=example("gpu", op_debug_mode=3),
    passes=example("gpu"),
)
def _gpu_debug_mode(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.device == "GPU" and dump.settings.op_debug_mode:
        yield Hit(_MODE, "for a GPU MindSpore's documents mention 0 only", "use 0")


@RULES.rule(
    "mindspore-only-ascend",
    "AD274",
    "only Ascend has samples, arguments of operators and statistics computed on the device",
    f"{_DOCUMENT}, the table of modes",
    where=f"{E2E}.sample_mode",
    trips=example("cpu", e2e={"sample_mode": 1}),
    passes=example("ascend", e2e={"sample_mode": 1}),
)
def _only_ascend(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.device == "Ascend":
        return
    for key in ("sample_mode", "save_kernel_args", "device_stat_precision_mode"):
        if dump.e2e.get(key) not in (None, 0, False, "high"):
            yield Hit(f"{E2E}.{key}", "it has an effect on Ascend only", "remove it")
    if dump.settings.stat_calc_mode == "device":
        yield Hit(
            f"{E2E}.stat_calc_mode", "it has an effect on Ascend only; statistics are computed on the host", "use host"
        )


@RULES.rule(
    "mindspore-file-format",
    "AD274",
    "only jit_level O2 can write bin in place of npy",
    _O2,
    where=f"{COMMON}.file_format",
    trips=example("cpu", file_format="bin"),
    passes=example("ascend-o2", file_format="bin"),
)
def _file_format(dump: DumpJson) -> Iterator[Hit]:
    if "file_format" in dump.common and not dump.where.ge:
        yield Hit(f"{COMMON}.file_format", "it has an effect under jit_level O2 only; files are npy", "remove it")


@RULES.rule(
    "mindspore-conflict",
    "AD274",
    "if settings conflict, MindSpore changes them and only logs it",
    _PARSER,
    where=COMMON,
    trips=example(op_debug_mode=3, input_output=1),
    passes=example(op_debug_mode=3),
)
def _conflict(dump: DumpJson) -> Iterator[Hit]:
    for warning in dump.reading.warnings:
        if "should be set to" in warning:
            yield Hit(COMMON, f"two settings conflict: {warning}", "set the value that MindSpore gives")


@RULES.rule(
    "mindspore-device-statistics",
    "AD274",
    "the device computes four statistics only",
    _O0,
    where=f"{COMMON}.statistic_category",
    trips=example(saved_data="statistic", statistic_category=["max", "md5"], e2e={"stat_calc_mode": "device"}),
    passes=example(saved_data="statistic", statistic_category=["max", "avg"], e2e={"stat_calc_mode": "device"}),
)
def _device_statistics(dump: DumpJson) -> Iterator[Hit]:
    # (assumption mindspore.device_statistics)
    settings = dump.settings
    if settings.saved_data == "tensor" or not dump.where.by_kernel or settings.stat_calc_mode != "device":
        return
    for name in settings.statistic_category:
        if name not in DEVICE_STATISTICS:
            message = f"the device does not compute {name!r}, which is left out"
            yield Hit(f"{COMMON}.statistic_category", message, "use stat_calc_mode host")


@RULES.rule(
    "mindspore-device-statistics-of-tensors",
    "AD274",
    "if tensors are dumped too, statistics are computed on the host",
    _PARSER,
    where=f"{E2E}.stat_calc_mode",
    trips=example(saved_data="full", e2e={"stat_calc_mode": "device"}),
    passes=example(saved_data="statistic", e2e={"stat_calc_mode": "device"}),
)
def _device_statistics_of_tensors(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.by_kernel and dump.settings.saved_data == "full" and dump.e2e.get("stat_calc_mode") == "device":
        message = 'with saved_data "full" statistics are computed on the host'
        yield Hit(f"{E2E}.stat_calc_mode", message, 'use "host", or saved_data "statistic"')


@RULES.rule(
    "mindspore-unused-statistics",
    "AD274",
    "if saved_data has no statistics, the settings of statistics have no effect",
    f"{_O0}, statistic_category",
    where=f"{COMMON}.statistic_category",
    trips=example(saved_data="tensor", statistic_category=["max"]),
    passes=example(saved_data="full", statistic_category=["max"]),
)
def _unused_statistics(dump: DumpJson) -> Iterator[Hit]:
    settings, e2e = dump.settings, dump.e2e if dump.where.by_kernel else {}
    if settings.saved_data == "tensor":
        message, hint = 'with saved_data "tensor" there are no statistics', 'use saved_data "statistic" or "full"'
        if "statistic_category" in dump.common:
            yield Hit(f"{COMMON}.statistic_category", message, f"remove it, or {hint}")
        if e2e.get("stat_calc_mode") == "device" and settings.op_debug_mode != 3:
            yield Hit(f"{E2E}.stat_calc_mode", message, 'remove it, or use saved_data "statistic"')
    if e2e.get("device_stat_precision_mode") == "low" and (settings.saved_data, settings.stat_calc_mode) != (
        "statistic",
        "device",
    ):
        message = "the device computes no statistics"
        yield Hit(
            f"{E2E}.device_stat_precision_mode", message, 'use saved_data "statistic" and stat_calc_mode "device"'
        )


@RULES.rule(
    "mindspore-sample-number",
    "AD274",
    "the size of a sample is read with sample_mode 1 only",
    f"{_PARSER} ParseSampleNum",
    where=f"{E2E}.sample_num",
    trips=example(e2e={"sample_num": 10}),
    passes=example(e2e={"sample_mode": 1, "sample_num": 10}),
)
def _sample_number(dump: DumpJson) -> Iterator[Hit]:
    if "sample_num" in dump.e2e and not dump.settings.sample_mode and not dump.where.ge:
        yield Hit(f"{E2E}.sample_num", "without sample_mode 1 tensors are dumped whole", "add sample_mode 1")


@RULES.rule(
    "mindspore-older-debug-modes",
    "AD274",
    "op_debug_mode 1 and 2 of older versions are 3 now",
    _PARSER,
    where=_MODE,
    trips=example(op_debug_mode=1),
    passes=example(op_debug_mode=3),
)
def _older_debug_modes(dump: DumpJson) -> Iterator[Hit]:
    mode = dump.common.get("op_debug_mode")
    if mode in (1, 2) and not isinstance(mode, bool):
        yield Hit(_MODE, f"{mode} has the effect of 3: only operators with overflow are dumped", "write 3")


@RULES.rule(
    "mindspore-overflow-statistics",
    "AD274",
    "statistics are dumped with op_debug_mode 0 only",
    f"{_O0}, saved_data",
    where=f"{COMMON}.saved_data",
    trips=example(op_debug_mode=3, saved_data="statistic"),
    passes=example(op_debug_mode=3, saved_data="tensor"),
)
def _overflow_statistics(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.device == "Ascend" and dump.settings.op_debug_mode == 3 and dump.settings.saved_data != "tensor":
        message = f"saved_data {dump.settings.saved_data!r} needs op_debug_mode 0; overflow dumps contain tensors"
        yield Hit(f"{COMMON}.saved_data", message, 'use "tensor"')


@RULES.rule(
    "mindspore-overflow-device-statistics",
    "AD274",
    "with op_debug_mode 3 statistics are computed on the host",
    f"{_O0}, stat_calc_mode",
    where=f"{E2E}.stat_calc_mode",
    trips=example(op_debug_mode=3, e2e={"stat_calc_mode": "device"}),
    passes=example(op_debug_mode=3, e2e={"stat_calc_mode": "host"}),
)
def _overflow_device_statistics(dump: DumpJson) -> Iterator[Hit]:
    settings = dump.settings
    if dump.where.by_kernel and settings.op_debug_mode == 3 and settings.stat_calc_mode == "device":
        yield Hit(f"{E2E}.stat_calc_mode", 'op_debug_mode 3 supports "host" only', 'use "host"')


@RULES.rule(
    "mindspore-debug-sampling",
    "AD274",
    "tensors are sampled with op_debug_mode 0 only",
    f"{_O0}, sample_mode",
    where=f"{E2E}.sample_mode",
    trips=example(op_debug_mode=3, e2e={"sample_mode": 1}),
    passes=example(op_debug_mode=0, e2e={"sample_mode": 1}),
)
def _debug_sampling(dump: DumpJson) -> Iterator[Hit]:
    settings = dump.settings
    if dump.where.by_kernel and settings.op_debug_mode and settings.sample_mode:
        message = f"with op_debug_mode {settings.op_debug_mode} tensors are dumped whole"
        yield Hit(f"{E2E}.sample_mode", message, "remove it, or use op_debug_mode 0")


@RULES.rule(
    "mindspore-exception-outputs",
    "AD274",
    "of an operator that fails only inputs are dumped",
    f"{_O0}, input_output",
    where=f"{COMMON}.input_output",
    trips=example(op_debug_mode=4, input_output=2),
    passes=example(op_debug_mode=4, input_output=1),
)
def _exception_outputs(dump: DumpJson) -> Iterator[Hit]:
    settings = dump.settings
    if dump.where.device == "Ascend" and settings.op_debug_mode == 4 and settings.input_output == 2:
        message = "op_debug_mode 4 saves only inputs of the operator that failed, so with outputs only nothing is saved"
        yield Hit(f"{COMMON}.input_output", message, "use 1")


@RULES.rule(
    "mindspore-kernel-arguments",
    "AD274",
    "arguments of operators are saved in synchronous dumps only",
    f"{_O0}, save_kernel_args",
    where=f"{E2E}.save_kernel_args",
    trips=example(e2e={"enable": False, "save_kernel_args": True}),
    passes=example(e2e={"enable": True, "save_kernel_args": True}),
)
def _kernel_arguments(dump: DumpJson) -> Iterator[Hit]:
    settings = dump.settings
    if dump.where.by_kernel and settings.save_kernel_args and not settings.enable:
        message = "arguments of operators are saved only when enable is true"
        yield Hit(f"{E2E}.save_kernel_args", message, "set enable to true")


@RULES.rule(
    "mindspore-o2-iteration",
    "AD272",
    "under O2 an overflow or exception dump covers every iteration",
    f"{_O2}, iteration",
    where=f"{COMMON}.iteration",
    trips=example("ascend-o2", op_debug_mode=3, iteration="0|2"),
    passes=example("ascend-o2", op_debug_mode=3, iteration="all"),
)
def _o2_iteration(dump: DumpJson) -> Iterator[Hit]:
    # The rule mindspore-exception-iteration reports the same for op_debug_mode 4, under all jit_levels.
    if dump.where.ge and dump.settings.op_debug_mode == 3 and dump.settings.iteration != "all":
        message = "under jit_level O2 iterations can be selected with op_debug_mode 0 only"
        yield Hit(f"{COMMON}.iteration", message, 'write "all"')


@RULES.rule(
    "mindspore-o2-block",
    "AD274",
    "the block e2e_dump_settings is for kernels that run one by one",
    f"{_O2}; {_DOCUMENT}, the table of modes",
    where=E2E,
    trips=_with_e2e("ascend-o2", sample_mode=1),
    passes=example("ascend-o2"),
)
def _o2_block(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.old_ge and dump.settings.e2e:
        message = f"under jit_level O2 it has no effect: {', '.join(dump.e2e) or 'it is empty'}"
        yield Hit(E2E, message, "remove it, or run with jit_level O0 or O1")


@RULES.rule(
    "mindspore-o2-operator-types",
    "AD273",
    "under O2 operators are selected by full names or expressions, not by types",
    f"{_O2}, kernels",
    where=f"{COMMON}.kernels[0]",
    trips=example("ascend-o2", dump_mode=1, kernels=["conv"]),
    passes=example("ascend-o2", dump_mode=1, kernels=["name-regex(.*conv.*)", "Default/Conv2D-op1"]),
)
def _o2_operator_types(dump: DumpJson) -> Iterator[Hit]:
    if not dump.where.ge or dump.settings.dump_mode != 1:
        return
    for number, entry in enumerate(dump.settings.kernels):
        if entry and kernel_kind(entry) == "type":
            message = f"{entry!r} is an operator type, and jit_level O2 accepts full names and expressions only"
            yield Hit(f"{COMMON}.kernels[{number}]", message, f"write name-regex(.*{entry}.*)")


@RULES.rule(
    "mindspore-o2-overflow-number",
    "AD274",
    "under O2 overflow_number works for npy files only",
    f"{_O2}, overflow_number",
    where=f"{COMMON}.overflow_number",
    trips=example("ascend-o2", op_debug_mode=3, overflow_number=2, file_format="bin"),
    passes=example("ascend-o2", op_debug_mode=3, overflow_number=2, file_format="npy"),
)
def _o2_overflow_number(dump: DumpJson) -> Iterator[Hit]:
    if dump.where.ge and dump.settings.overflow_number and dump.settings.file_format == "bin":
        message = "with file_format bin it is ignored and every overflow is dumped"
        yield Hit(f"{COMMON}.overflow_number", message, 'use file_format "npy", or remove it')

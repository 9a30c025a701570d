"""Convert a DumpRequest to MindSpore's dump JSON.

`OPTIONS` lists the `options` of a request. A request that MindSpore cannot express raises an error. Settings that
MindSpore would accept and ignore are converted nevertheless; `check_mindspore_config` reports them. `ranks` and
`max_bytes` are not converted: the capture applies them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.common.patterns import text_matcher
from ascend_dump.errors import ConfigError, NotSupported
from ascend_dump.native.mindspore.config.keys import (
    COMMON,
    DATA,
    DEBUG_MODES,
    DEVICE_STATISTICS,
    E2E,
    HOST_STATISTICS,
    MODES,
    STATISTICS,
    WORDS,
)
from ascend_dump.native.mindspore.runtime import JIT_LEVELS, RUNTIMES, Runtime
from ascend_dump.native.scenes import SCENES

if TYPE_CHECKING:
    from ascend_dump.common.problem import Problem
    from ascend_dump.request import DumpRequest

__all__ = ["OPTIONS", "left_out", "mindspore_config"]

#: The names that `DumpRequest.options` may contain for MindSpore, with their help texts.
OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "on": f"where it runs: {', '.join((*RUNTIMES, *JIT_LEVELS))}",
        "set_dump": "True: dump only what mindspore.set_dump marks, on Ascend",
        "devices": "ids of the devices that are dumped; by default 0 to 7",
        "sync": "False: asynchronous dump on Ascend (e2e_dump_settings.enable)",
        "trans_flag": "False: keep the layout of the device instead of NCHW",
        "stat_calc_mode": "host or device: where statistics are computed",
        "device_stat_precision_mode": "high or low",
        "sample_num": "dump only this many elements of each tensor",
        "save_kernel_args": "True: save the arguments that operators were created with",
        "overflow_number": "for scene='overflow': stop after this number of overflows; 0 is no limit",
        "initial_iteration": "the number of the first iteration, since MindSpore 2.10",
        "statistic_category": "statistics in MindSpore's own words, instead of stats=",
        "file_format": "npy or bin, for jit_level O2 up to MindSpore 2.5",
    }
)

#: Characters with a meaning in regular expressions. They are written as sets such as [.], and not escaped by a
#: backslash, because MindSpore doubles backslashes.
_SPECIAL = set("^$.*+?()[]{}|")
_E2E_OPTIONS = ("stat_calc_mode", "device_stat_precision_mode", "sample_num", "save_kernel_args", "trans_flag", "sync")


def mindspore_config(
    request: DumpRequest,
    *,
    names: Optional[Iterable[str]] = None,
    runtime: Optional[Runtime] = None,
    known_options: Iterable[str] = (),
) -> dict[str, Any]:
    """Build the content of a dump JSON.

    names: full names of the graph's operators; with them a pattern in `layers` that matches no operator is an error.
    Patterns are converted to MindSpore's expressions. runtime: replaces `options['on']`. known_options: names of
    options that other parts of the adapter use. Raises ConfigError and NotSupported.
    """
    options = _options(request, known_options)
    where = runtime or Runtime.named(str(options.get("on", "ascend")))
    _refuse(request, where)
    request = _as_the_scene_has_it(request)
    layers = _kernels(request.layers, None if names is None else list(names))
    common: dict[str, Any] = {
        "op_debug_mode": DEBUG_MODES[request.scene],
        "dump_mode": _dump_mode(layers, options, where),
        "path": os.fspath(request.path),
        "net_name": request.models[0] if request.models else "Net",
        "iteration": request.steps.to_mindspore(),
        "saved_data": DATA[request.data],
        "input_output": MODES[request.mode],
        "kernels": layers,
        "support_device": _devices(options),
    }
    if request.data != "tensor" or request.stats or "statistic_category" in options:
        common["statistic_category"] = _statistics(request, options)
    if "overflow_number" in options:
        if request.scene != "overflow":
            raise ConfigError(
                "options['overflow_number'] without scene='overflow' is refused by MindSpore",
                hint="set scene='overflow' or leave it out",
                code="AD270",
            )
        common["overflow_number"] = _number(options, "overflow_number")
    if "initial_iteration" in options:
        common["initial_iteration"] = _number(options, "initial_iteration")
    if where.ge:
        common["file_format"] = _choice(options, "file_format", "npy")
        return {COMMON: common}
    return {COMMON: common, E2E: _e2e(options, where)}


def left_out(request: DumpRequest) -> list[Problem]:
    """Return problems: settings of a request that `mindspore_config` ignores, because the scene determines them."""
    # `models` is not reported, because MindSpore uses it as the name of a directory, in all scenes.
    return list(SCENES.problems(request.replace(models=())))


def _as_the_scene_has_it(request: DumpRequest) -> DumpRequest:
    """Return the request with the settings that its scene determines in MindSpore; `left_out` reports the changes."""
    if request.scene is None:
        return request
    steps = None if request.scene == "exception" else request.steps
    return request.replace(layers=(), mode="all", data="tensor", stats=(), steps=steps)


def _options(request: DumpRequest, known_options: Iterable[str]) -> Mapping[str, Any]:
    for name in request.options:
        if name not in OPTIONS and name not in set(known_options):
            raise ConfigError(f"options: {name!r} is unknown", hint=f"known: {', '.join(OPTIONS)}")
    return request.options


def _refuse(request: DumpRequest, where: Runtime) -> None:
    unsupported = {
        "scene='watch'": request.scene == "watch",
        "quant=True": request.quant,
        f"level={request.level!r}": request.level != "all",
    }
    for what, is_requested in unsupported.items():
        if is_requested:
            owner = "PyTorch on the host" if what == "level='module'" else "CANN's own dump"
            raise NotSupported(f"MindSpore has no {what}", hint=f"leave it out; it is for {owner}")
    if len(request.models) > 1:
        raise NotSupported(
            f"MindSpore accepts one net_name, models= has {len(request.models)}",
            hint="give one name; it is only used for the directory of the dump",
        )
    if where.ge:
        given_options = [name for name in _E2E_OPTIONS if name in request.options]
        if given_options:
            raise NotSupported(
                f"options[{given_options[0]!r}] needs jit_level O0 or O1", hint="leave it out with jit_level O2"
            )
    elif "file_format" in request.options:
        raise NotSupported(
            "options['file_format'] needs jit_level O2 and MindSpore up to 2.5", hint="leave it out; files are npy"
        )


def _dump_mode(layers: list[str], options: Mapping[str, Any], where: Runtime) -> int:
    if not _flag(options, "set_dump", False):
        return 1 if layers else 0
    if layers:
        raise ConfigError("options['set_dump'] and layers= cannot be combined", hint="keep one of them")
    if where.device != "Ascend":
        raise NotSupported(
            f"mindspore.set_dump selects nothing on {where.device}, and MindSpore refuses dump_mode 2 there",
            hint="select operators with layers=",
        )
    return 2


def _kernels(layers: Iterable[str], operators: Optional[list[str]]) -> list[str]:
    kernels = []
    for text in layers:
        pattern = text.startswith("re:") or re.search(r"[*?]|\[.*\]", text) is not None
        native = text if not pattern or text.startswith("name-regex(") else f"name-regex({_expression(text)})"
        if pattern and operators is not None and not any(map(text_matcher(text), operators)):
            raise ConfigError(f"layers={text!r} matches no operator of the graph", hint="see `ascend-dump ops`")
        if " " in native or '"' in native:
            raise NotSupported(
                f"layers={text!r}: MindSpore removes blanks and quotes", hint="write . for any character"
            )
        kernels.append(native)
    return kernels


def _expression(pattern: str) -> str:
    """Return MindSpore's expression for a pattern (a glob, or `re:` and an expression). It matches whole names.

    Raises NotSupported for a backslash, which MindSpore doubles.
    """
    if pattern.startswith("re:"):
        text_matcher(pattern)
        body = pattern[3:]
        if "\\" in body:
            raise NotSupported(
                f"layers={pattern!r}: MindSpore doubles every backslash, so it never matches",
                hint="write [0-9] for \\d and [.] for \\.",
            )
        return f".*(?:{body}).*"
    out, position = "", 0
    while position < len(pattern):
        char = pattern[position]
        end = pattern.find("]", position + 2) if char == "[" else -1
        if end > 0:
            inner = pattern[position + 1 : end]
            out += f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
            position = end
        elif char in "*?":
            out += ".*" if char == "*" else "."
        elif char == "\\":
            raise NotSupported(f"layers={pattern!r}: no name contains a backslash", hint="write * or ?")
        else:
            out += "." if char in "^]" else f"[{char}]" if char in _SPECIAL else char
        position += 1
    return out


def _statistics(request: DumpRequest, options: Mapping[str, Any]) -> list[str]:
    if "statistic_category" in options:
        option = options["statistic_category"]
        names = [option] if isinstance(option, str) else list(option)
        wrong = [name for name in names if name not in HOST_STATISTICS]
        if wrong:
            raise ConfigError(
                f"options['statistic_category']: MindSpore has no statistic {wrong[0]!r}",
                hint=f"give some of {', '.join(HOST_STATISTICS)}",
            )
        return names
    if request.stats:
        return [_statistic(name) for name in request.stats]
    if options.get("stat_calc_mode") == "device":
        return list(DEVICE_STATISTICS)
    return [*STATISTICS.values(), "count", "negative zero count", "positive zero count"]


def _statistic(name: str) -> str:
    if name in STATISTICS:
        return STATISTICS[name]
    reason = ""
    if name.endswith("zero"):
        reason = ": its 'negative zero count' and 'positive zero count' count the elements below and above zero"
    raise NotSupported(
        f"MindSpore has no statistic {name!r}{reason}",
        hint="dump with data='tensor' and compute it when reading, with ascend_dump.statistics, or use "
        "options['statistic_category']",
    )


def _devices(options: Mapping[str, Any]) -> list[int]:
    option = options.get("devices", range(8))
    devices = [option] if isinstance(option, int) else option
    if isinstance(devices, (str, bytes)) or not all(isinstance(device, int) and device >= 0 for device in devices):
        raise ConfigError(f"options['devices']={option!r}: expected device ids", hint="such as [0, 1]")
    return list(devices)


def _e2e(options: Mapping[str, Any], where: Runtime) -> dict[str, Any]:
    block: dict[str, Any] = {
        "enable": _flag(options, "sync", True),
        "trans_flag": _flag(options, "trans_flag", True),
    }
    if where.device == "Ascend" or "stat_calc_mode" in options:
        block["stat_calc_mode"] = _choice(options, "stat_calc_mode", "host")
    if "device_stat_precision_mode" in options:
        block["device_stat_precision_mode"] = _choice(options, "device_stat_precision_mode", "high")
    if "sample_num" in options:
        number = _number(options, "sample_num")
        if not number:
            raise ConfigError("options['sample_num']=0: expected at least 1", hint="leave it out to dump all elements")
        block.update(sample_mode=1, sample_num=number)
    if "save_kernel_args" in options:
        block["save_kernel_args"] = _flag(options, "save_kernel_args", False)
    return block


def _flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name, default)
    if value is True or value is False:
        return bool(value)
    raise ConfigError(f"options[{name!r}]={value!r}: expected True or False", hint=OPTIONS[name])


def _choice(options: Mapping[str, Any], name: str, default: str) -> str:
    value, words = options.get(name, default), WORDS[name]
    if value in words:
        return str(value)
    raise ConfigError(f"options[{name!r}]={value!r}: expected {' or '.join(words)}", hint=OPTIONS[name])


def _number(options: Mapping[str, Any], name: str) -> int:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"options[{name!r}]={value!r}: expected a number of 0 or more", hint=OPTIONS[name])
    return value

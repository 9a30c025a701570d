"""Options that the C++ side of the TensorFlow adapter reads from a session's ConfigProto, and the errors it raises.

Source: hicann/tensorflow tf_adapter/util/npu_attrs.cc (SetNpuOptimizerAttr, GetInitOptions, CheckPath,
checkDumpStep, checkDumpMode, checkDumpDebugMode). The entries named NpuOptimizer are read in order into the same
variables, so the last entry with a key decides. A value of the wrong kind reads as zero of the right kind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from ascend_dump.native.cann.config import keys

__all__ = [
    "OPTIMIZER",
    "Attributes",
    "Invalid",
    "OptionRefused",
    "ProcessAborted",
    "read_attributes",
    "read_device",
    "read_init_options",
]

OPTIMIZER = "NpuOptimizer"

_MAX_STEP_PARTS = 100
_DIGITS = re.compile(r"[0-9]*")
_TOO_MANY_STEPS = "dump_step only support dump <= 100 sets of data"
_BAD_STEPS = "dump_step string style is error, correct example:'0|5|10|50-100'"
_REVERSED_RANGE = "in range steps, the first step is >= second step, correct example:'0|5|10-20'"


class OptionRefused(Exception):
    """A refused option. The adapter returns the status Internal, and `Session.run` raises `tf.errors.InternalError`."""


class Invalid(OptionRefused):
    """A refused option with the status InvalidArgument."""


class ProcessAborted(BaseException):
    """LOG(FATAL): SIGABRT ends the real process here, and cannot be caught."""


class Attributes(NamedTuple):
    """The options of a session.

    offline  use_off_line: False if its graphs run on the host's CPU instead of the NPU
    """

    offline: bool
    options: dict[str, str]


class _Values:
    """The variables of SetNpuOptimizerAttr that concern a dump."""

    def __init__(self) -> None:
        self.dump = self.debug = False
        self.offline = True
        self.path = self.step = self.layer = self.quant = ""
        self.mode, self.debug_mode = "output", "all"

    def options(self) -> dict[str, str]:
        options = {
            keys.ENABLE_DUMP: str(int(self.dump)),
            keys.ENABLE_DEBUG: str(int(self.debug)),
            keys.DUMP_PATH: self.path,
            keys.DUMP_STEP: self.step,
            keys.DUMP_MODE: self.mode,
            keys.DEBUG_MODE: self.debug_mode,
            keys.DUMP_LAYER: self.layer,
        }
        return {**options, **({keys.QUANT: self.quant} if self.quant else {})}


def read_attributes(config: Any, *, cwd: str) -> Optional[Attributes]:
    """Return the settings of a session with this ConfigProto; None without an entry named NpuOptimizer.

    Raises OptionRefused and ProcessAborted.
    """
    entries = _entries(config)
    if not entries:
        return None
    values = _Values()
    for parameters in entries:
        _read_entry(values, parameters, cwd)
    return Attributes(values.offline, values.options())


def read_init_options(config: Any) -> dict[str, str]:
    """Return the options for GEInitialize; only those of the first call in a process have an effect.

    Raises OptionRefused.
    """
    options = {keys.DUMP_DATA: "tensor", keys.ENABLE_EXCEPTION: "2"}
    for parameters in _entries(config):
        options.update(_init_options(parameters))
    return options


def read_device(config: Any, environ: Mapping[str, str]) -> Optional[int]:
    """Return the device in settings or environment, in the order of GetDeviceID; None if unset.

    DEVICE_ID is a physical number, read as a logical one here. Raises Invalid.
    """
    device_ids = [
        parameters["session_device_id"].i for parameters in _entries(config) if "session_device_id" in parameters
    ]
    if device_ids:
        return int(device_ids[-1])
    for name in ("ASCEND_DEVICE_ID", "DEVICE_ID"):
        text = environ.get(name, "")
        if text:
            if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
                raise Invalid(f"{name} is invalid, should be int, such as 0, 1, 2.")
            if int(text) < 0:
                raise Invalid(f"{name} should be >= 0.")
            return int(text)
    return None


def _init_options(parameters: Any) -> dict[str, str]:
    """Return the options in one entry. Raises OptionRefused. (assumption npu_bridge.init_keys)"""
    options = {}
    if "enable_exception_dump" in parameters:
        exception = parameters["enable_exception_dump"].i
        if not 0 <= exception <= 2:
            raise OptionRefused("enable_exception_dump should be one of 0, 1 and 2.")
        options[keys.ENABLE_EXCEPTION] = str(exception)
    if "dump_data" in parameters:
        options[keys.DUMP_DATA] = _text(parameters, "dump_data")
        if options[keys.DUMP_DATA] not in ("tensor", "stats"):
            raise OptionRefused("dump_data should be 'tensor' or 'stats'.")
    return options


def _entries(config: Any) -> list[Any]:
    """Return the maps of the entries, in order; None is an absent configuration."""
    if config is None:
        return []
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    return [entry.parameter_map for entry in optimizers if entry.name == OPTIMIZER]


def _read_entry(values: _Values, parameters: Any, cwd: str) -> None:
    """Read one entry, checking keys in the order of the C++ code.

    After an entry has enabled a dump, each later entry needs dump_path too.

    (assumption npu_bridge.last_entry)
    """
    if "enable_dump" in parameters:
        values.dump = parameters["enable_dump"].b
    if "enable_dump_debug" in parameters:
        values.debug = parameters["enable_dump_debug"].b
    if values.dump or values.debug:
        if "dump_path" not in parameters:
            raise OptionRefused("if use dump function, dump_path must be set.")
        values.path = _check_path(_text(parameters, "dump_path"), cwd)
    if values.dump and "dump_step" in parameters:
        values.step = _text(parameters, "dump_step")
        _check_steps(values.step)
    if values.dump and "dump_mode" in parameters:
        values.mode = _text(parameters, "dump_mode")
        if values.mode not in ("input", "output", "all"):
            raise ProcessAborted("dump mode should be one of the list:[input, output, all]")
    if values.debug and "dump_debug_mode" in parameters:
        values.debug_mode = _text(parameters, "dump_debug_mode")
        if values.debug_mode not in ("aicore_overflow", "atomic_overflow", "all"):
            raise ProcessAborted("dump debug mode should be one of the list:[aicore_overflow, atomic_overflow, all]")
    if "quant_dumpable" in parameters:
        values.quant = _text(parameters, "quant_dumpable")
    if "graph_run_mode" in parameters and parameters["graph_run_mode"].i > 1:
        raise ProcessAborted("graph_run_mode value must be 0 or 1")
    if "use_off_line" in parameters:
        values.offline = parameters["use_off_line"].b
    _init_options(parameters)  # only for its checks
    if "session_device_id" in parameters and parameters["session_device_id"].i < 0:
        raise ProcessAborted("session_device_id must be nonnegative integer.")
    if "dump_layer" in parameters:
        values.layer = _text(parameters, "dump_layer")


def _text(parameters: Any, key: str) -> str:
    value: bytes = parameters[key].s
    return value.decode("utf-8", "surrogateescape")


def _check_path(path: str, cwd: str) -> str:
    absolute = os.path.join(cwd, path)
    # mmIsDir uses lstat, so a link is not a directory.
    if not path or not os.path.isdir(absolute) or os.path.islink(absolute):
        raise OptionRefused(f"the path {path} is not directory.")
    real = os.path.realpath(absolute)
    if not os.access(real, os.R_OK | os.W_OK):
        raise OptionRefused(f"the path {path} does't have read, write permissions.")
    return real


def _check_steps(text: str) -> None:
    parts = _split(text, "|")
    if len(parts) > _MAX_STEP_PARTS:
        raise OptionRefused(_TOO_MANY_STEPS)
    for part in parts:
        pieces = _split(part, "-")
        if len(pieces) not in (1, 2) or not all(_DIGITS.fullmatch(piece) for piece in pieces):
            raise OptionRefused(_BAD_STEPS)
        if len(pieces) == 2 and int(pieces[0] or 0) >= int(pieces[1] or 0):
            raise OptionRefused(_REVERSED_RANGE)


def _split(text: str, separator: str) -> list[str]:
    """Split as getline does: nothing follows a separator at the end, and an empty text has no part."""
    parts = text.split(separator)
    return parts[:-1] if parts[-1] == "" else parts

"""Read the options in a session's ConfigProto as the C++ code of CANN's TensorFlow adapter does, with its errors.

The options are in the optimizer entries named NpuOptimizer. All entries are read in order into the same variables, so
the last entry with a key decides. A value of the wrong kind is read as the zero of the right kind: 0, False or "".
Source: hicann/tensorflow tf_adapter/util/npu_attrs.cc (SetNpuOptimizerAttr, GetInitOptions, CheckPath, checkDumpStep,
checkDumpMode, checkDumpDebugMode).
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

#: The name of the optimizer entries that contain options for the NPU.
OPTIMIZER = "NpuOptimizer"

_MAX_STEP_PARTS = 100
_DIGITS = re.compile(r"[0-9]*")
_TOO_MANY_STEPS = "dump_step only support dump <= 100 sets of data"
_BAD_STEPS = "dump_step string style is error, correct example:'0|5|10|50-100'"
_REVERSED_RANGE = "in range steps, the first step is >= second step, correct example:'0|5|10-20'"


class OptionRefused(Exception):
    """Raised for an option that the adapter refuses with the status Internal.

    `Session.run` then raises `tf.errors.InternalError`.
    """


class Invalid(OptionRefused):
    """Raised for an option that the adapter refuses with the status InvalidArgument."""


class ProcessAborted(BaseException):
    """Raised where the real adapter kills the process (LOG(FATAL), SIGABRT), which a program cannot catch."""


class Attributes(NamedTuple):
    """The options of a session.

    offline  the value of use_off_line: True if the session's graphs run on the NPU, False if on the CPU
    options  GE's session options
    """

    offline: bool
    options: dict[str, str]


class _Values:
    """The values that all entries of a session set together. They are variables of SetNpuOptimizerAttr."""

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
    """Return the options in a ConfigProto; None if it has no entry named NpuOptimizer.

    cwd: the directory of relative paths. Raises OptionRefused and ProcessAborted.
    """
    entries = _entries(config)
    if not entries:
        return None
    values = _Values()
    for parameters in entries:
        _read_entry(values, parameters, cwd)
    return Attributes(values.offline, values.options())


def read_init_options(config: Any) -> dict[str, str]:
    """Return the options in a ConfigProto that are passed to GEInitialize. Raises OptionRefused.

    GE uses only those of its first initialisation in the process.
    """
    options = {keys.DUMP_DATA: "tensor", keys.ENABLE_EXCEPTION: "2"}
    for parameters in _entries(config):
        options.update(_init_options(parameters))
    return options


def read_device(config: Any, environ: Mapping[str, str]) -> Optional[int]:
    """Return the number of the device that the options or the environment set; None if neither does.

    As in GetDeviceID, `session_device_id` comes first, then ASCEND_DEVICE_ID, then DEVICE_ID. DEVICE_ID is a physical
    number, but is read as a logical one here. Raises Invalid for a text that is no number, or is negative.
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
    """Return the options for GEInitialize in one entry. Raises OptionRefused. (assumption npu_bridge.init_keys)"""
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
    """Return the parameters of each NpuOptimizer entry, in order. There are none if `config` is None."""
    if config is None:
        return []
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    return [entry.parameter_map for entry in optimizers if entry.name == OPTIMIZER]


def _read_entry(values: _Values, parameters: Any, cwd: str) -> None:
    """Read one entry into `values`. Keys are checked in the order of the C++ code, so the first error is the same.

    Once an entry enabled a dump, later entries need dump_path too, unless they disable the dump.

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
    _init_options(parameters)  # called for its checks
    if "session_device_id" in parameters and parameters["session_device_id"].i < 0:
        raise ProcessAborted("session_device_id must be nonnegative integer.")
    if "dump_layer" in parameters:
        values.layer = _text(parameters, "dump_layer")


def _text(parameters: Any, key: str) -> str:
    value: bytes = parameters[key].s
    return value.decode("utf-8", "surrogateescape")


def _check_path(path: str, cwd: str) -> str:
    absolute = os.path.join(cwd, path)
    # CANN's mmIsDir uses lstat, so a symbolic link to a directory is refused.
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
    """Split a text as C++'s getline does: an empty text, and the text after a last separator, are no parts."""
    parts = text.split(separator)
    return parts[:-1] if parts[-1] == "" else parts

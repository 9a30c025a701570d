"""Parse a dump JSON key by key, in the order of MindSpore's parser and with its messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Optional

from ascend_dump.native.mindspore.config.keys import (
    COMMON,
    DEBUG_MODES,
    DEFAULTS,
    E2E,
    HOST_STATISTICS,
    MODES,
    REQUIRED,
    WORDS,
)
from ascend_dump.native.mindspore.config.select import kernel_text, regex_refusal
from ascend_dump.native.mindspore.config.settings import DumpJsonReading, DumpJsonSettings, Refusal
from ascend_dump.native.mindspore.runtime import Runtime

__all__ = ["Parser"]

PATH_VARIABLE = "MS_DIAGNOSTIC_DATA_PATH"

_PATH = re.compile(r"[A-Za-z0-9\-_/]*", re.ASCII)
_NET_NAME = re.compile(r"[A-Za-z0-9\-_]+", re.ASCII)
_ITERATION = re.compile(r"[0-9\-|]+|all", re.ASCII)
_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


class Parser:
    """A parser of one dump JSON. Unlike MindSpore's parser it continues after an error, to find all of them."""

    def __init__(self, value: Any, runtime: Runtime, env: Mapping[str, str]) -> None:
        self._value = value
        self._runtime = runtime
        self._env = env
        self._refusals: list[Refusal] = []
        self._warnings: list[str] = []
        self._found: dict[str, Any] = {}

    def read(self) -> DumpJsonReading:
        top = self._value if isinstance(self._value, dict) else {}
        self._found["e2e"] = E2E in top
        if E2E in top:
            self._e2e(top[E2E] if isinstance(top[E2E], dict) else {})
        elif not self._runtime.ge:
            self._warnings += [
                f"[Dump Alert {turn}/3]: For 'Dump', in the scenario where 'backend' is 'ms_backend', please configure "
                "'e2e_dump_setting', otherwise there will be no data."
                for turn in (1, 2, 3)
            ]
        if COMMON not in top:
            self._refuse(f"Check dump json failed, {COMMON} not found", COMMON)
        else:
            self._common(top[COMMON] if isinstance(top[COMMON], dict) else {})
        return DumpJsonReading(
            DumpJsonSettings(**self._found), tuple(self._refusals), tuple(self._warnings), self._value
        )

    def _refuse(self, message: str, where: str) -> None:
        self._refusals.append(Refusal(message, where))

    def _e2e(self, block: dict[str, Any]) -> None:
        for key in ("enable", "trans_flag", "save_kernel_args"):
            if key in block:
                if isinstance(block[key], bool):
                    self._found[key] = block[key]
                else:
                    # MindSpore's message names `enable` for each of the three keys.
                    self._refuse("Dump Json Parse Failed. 'enable' should be boolean type", f"{E2E}.{key}")
        for key in ("stat_calc_mode", "device_stat_precision_mode"):
            words = WORDS[key]
            value = block.get(key, DEFAULTS[key])
            if not isinstance(value, str):
                self._refuse(_no_text(key), f"{E2E}.{key}")
            elif value in words:
                self._found[key] = value
            else:
                self._refuse(
                    f"Dump Json parse failed, '{key}' only supports '{words[0]}' or '{words[1]}', but got: {value}. "
                    f"Please set 'stat_cal_mode' to '{words[0]}' or '{words[1]}'",
                    f"{E2E}.{key}",
                )
        self._sample(block)

    def _sample(self, block: dict[str, Any]) -> None:
        where = f"{E2E}.sample_mode"
        mode = block.get("sample_mode", DEFAULTS["sample_mode"])
        if not _is_unsigned(mode):
            self._refuse(_no_unsigned("sample_mode"), where)
            return
        if mode > 1:
            self._refuse("Dump Json Parse Failed. sample_mode should be 0, 1", where)
            return
        self._found["sample_mode"] = mode
        number = block.get("sample_num", DEFAULTS["sample_num"])
        if not mode:
            return
        where = f"{E2E}.sample_num"
        if not _is_unsigned(number):
            # MindSpore's message names the wrong key.
            self._refuse(_no_unsigned("sample_mode"), where)
        elif not number:
            self._refuse("Dump Json Parse Failed. sample_num should be greater than 0", where)
        else:
            self._found["sample_num"] = number

    def _common(self, common: dict[str, Any]) -> None:
        missing = [key for key in REQUIRED if key not in common]
        for key in missing:
            self._refuse(f"Check dump json failed, {key} not found", f"{COMMON}.{key}")
        for key, read in (
            ("dump_mode", self._dump_mode),
            ("path", self._path),
            ("net_name", self._net_name),
            ("iteration", self._iteration),
            ("input_output", self._input_output),
            ("kernels", self._kernels),
            ("support_device", self._support_device),
            ("op_debug_mode", self._op_debug_mode),
            ("overflow_number", self._overflow_number),
            ("saved_data", self._saved_data),
            ("initial_iteration", self._initial_iteration),
            ("statistic_category", self._statistic_category),
            ("file_format", self._file_format),
        ):
            if key not in missing:
                read(common, f"{COMMON}.{key}")

    def _unsigned(self, common: dict[str, Any], key: str, where: str, default: int = 0) -> Optional[int]:
        value = common.get(key, default)
        if _is_unsigned(value):
            return int(value)
        self._refuse(_no_unsigned(key), where)
        return None

    def _dump_mode(self, common: dict[str, Any], where: str) -> None:
        mode = self._unsigned(common, "dump_mode", where)
        if mode is None:
            return
        if mode > 2:
            self._refuse(f"Dump config parse failed, dump_mode should be 0, 1 or 2, but got {mode}", where)
        elif mode == 2 and self._runtime.device != "Ascend":
            self._refuse("Set dump is only supported in Ascend async dump. Please set dump_mode to 0 or 1.", where)
        else:
            self._found["dump_mode"] = mode

    def _path(self, common: dict[str, Any], where: str) -> None:
        path = common.get("path", DEFAULTS["path"])
        if not isinstance(path, str):
            self._refuse(_no_text("path"), where)
            return
        if not path:
            base = self._env.get(PATH_VARIABLE, "")
            if not base:
                self._refuse(
                    f"Dump path is empty. Please set it in dump json file or environment variable `{PATH_VARIABLE}`.",
                    where,
                )
                return
            path = f"{base}/debug_dump"
        if not _PATH.fullmatch(path):
            self._refuse(f"Dump path only support alphabets, digit or {{'-', '_', '/'}}, but got:{path}", where)
        elif not path.startswith("/"):
            self._refuse("Dump path only support absolute path and should start with '/'", where)
        else:
            self._found["path"] = path

    def _net_name(self, common: dict[str, Any], where: str) -> None:
        name = common["net_name"]
        if not isinstance(name, str):
            self._refuse(_no_text("net_name"), where)
        elif not _NET_NAME.fullmatch(name):
            self._refuse(f"net_name only supports alphabetic, digit, or {{'-', '_'}}, but got: {name}", where)
        else:
            self._found["net_name"] = name

    def _iteration(self, common: dict[str, Any], where: str) -> None:
        text = common["iteration"]
        if not isinstance(text, str):
            self._refuse(_no_text("iteration"), where)
        elif not _ITERATION.fullmatch(text):
            self._refuse(f"iteration only supports digits, {{'-', '|'}}, or just \"all\" but got: {text}", where)
        else:
            self._found["iteration"] = text

    def _input_output(self, common: dict[str, Any], where: str) -> None:
        value = self._unsigned(common, "input_output", where)
        if value is not None and value not in MODES.values():
            self._refuse("Dump Json Parse Failed. input_output should be 0, 1, 2", where)
        elif value is not None:
            self._found["input_output"] = value

    def _kernels(self, common: dict[str, Any], where: str) -> None:
        kernels = common["kernels"]
        if not isinstance(kernels, list):
            self._refuse("Dump config parse failed, kernels should be array type", where)
            return
        if self._found.get("dump_mode") != 1:
            return
        accepted: list[str] = []
        for position, kernel in enumerate(kernels):
            text = kernel_text(kernel)
            reason = regex_refusal(text)
            if reason:
                self._refuse(reason, f"{where}[{position}]")
            elif text in accepted:
                self._warnings.append(f"Duplicate dump kernel name:{text}")
            else:
                accepted.append(text)
        self._found["kernels"] = tuple(accepted)

    def _support_device(self, common: dict[str, Any], where: str) -> None:
        devices = common["support_device"]
        if not isinstance(devices, list):
            self._refuse("Dump config parse failed, support_device should be array type", where)
            return
        accepted: list[Any] = []
        for position, device in enumerate(devices):
            if not isinstance(device, (int, float)):
                kind = _TYPES.get(type(device), "string")
                message = f"[json.exception.type_error.302] type must be number, but is {kind}"
                self._refuse(message, f"{where}[{position}]")
            elif int(device) in accepted:
                self._warnings.append(f"Duplicate support device:{int(device)}")
            else:
                accepted.append(int(device))
        self._found["support_device"] = tuple(accepted)

    def _op_debug_mode(self, common: dict[str, Any], where: str) -> None:
        if "op_debug_mode" not in common and not self._found["e2e"] and self._runtime.device == "Ascend":
            self._refuse("Check dump json failed, op_debug_mode not found", where)
            return
        mode = self._unsigned(common, "op_debug_mode", where)
        if mode is None:
            return
        if mode > max(DEBUG_MODES.values()):
            self._refuse("Dump Json Parse Failed. op_debug_mode should be 0, 3, 4", where)
            return
        mode = 3 if mode in (1, 2) else mode
        self._found["op_debug_mode"] = mode
        if mode and self._found.get("dump_mode"):
            self._warnings.append("When the `op_debug_mode` is set to 3 or 4, `dump_mode` should be set to 0.")
            self._found["dump_mode"] = 0
        if mode == 3 and self._found.get("input_output"):
            self._warnings.append("When the `op_debug` mode is set to 3, `input_output` should be set to 0.")
            self._found["input_output"] = 0
        if mode == 4:
            if self._runtime.device == "CPU":
                self._warnings.append(
                    "Abnormal dump is not supported on CPU backend, and none operator data would be saved when "
                    "abnormal dump is enabled. "
                )
            if self._found["e2e"] or self._runtime.device != "Ascend":
                if self._found.get("iteration") != "all":
                    self._warnings.append(
                        "For e2e exception dump, it is not support to specify iteration, set iteration to all."
                    )
                self._found["iteration"] = "all"

    def _overflow_number(self, common: dict[str, Any], where: str) -> None:
        if "overflow_number" not in common:
            return
        if self._found.get("op_debug_mode") != 3:
            self._refuse("overflow_number only need to be set when op_debug_mode is 3.", where)
            return
        number = self._unsigned(common, "overflow_number", where)
        if number is not None:
            self._found["overflow_number"] = number

    def _saved_data(self, common: dict[str, Any], where: str) -> None:
        data = common.get("saved_data", DEFAULTS["saved_data"])
        if not isinstance(data, str):
            self._refuse(_no_text("saved_data"), where)
            return
        if data not in WORDS["saved_data"]:
            self._refuse(
                f"Dump Json parse failed, saved_data only supports statistic, tensor, or full, but got: {data}. "
                "Please set saved_data to either statistic, tensor, or full",
                where,
            )
            return
        if data != "tensor" and self._found.get("op_debug_mode") == 4:
            self._warnings.append("When the `op_debug_mode` is set to 4, `saved_data` should be set to tensor.")
            data = "tensor"
        if data != "tensor" and self._runtime.device == "CPU":
            self._refuse(
                "Dump Json parse failed, storing statistic dump is only supported on GPU and Ascend, please set "
                "saved_data to tensor or use a GPU or Ascend device",
                where,
            )
            return
        if data != "tensor" and self._async_ascend() and common.get("file_format") != "npy":
            self._refuse(
                "Dump Json parse failed, storing statistic dump is only supported on Ascend when file_format is set "
                "to 'npy'.",
                where,
            )
            return
        self._found["saved_data"] = data
        if self._found.get("stat_calc_mode") == "device" and data == "full":
            self._warnings.append("The 'stat_calc_mode' is 'host' for saved_data 'full'.")
            self._found["stat_calc_mode"] = "host"

    def _initial_iteration(self, common: dict[str, Any], where: str) -> None:
        number = self._unsigned(common, "initial_iteration", where)
        if number is not None:
            self._found["initial_iteration"] = number

    def _statistic_category(self, common: dict[str, Any], where: str) -> None:
        if self._found.get("saved_data", "tensor") == "tensor" or "statistic_category" not in common:
            return
        category = common["statistic_category"]
        if not isinstance(category, list):
            self._refuse("Dump config parse failed, statistic_category should be array type", where)
            return
        wrong = [entry for entry in category if entry not in HOST_STATISTICS]
        if wrong:
            shown = ", ".join(kernel_text(entry) if not isinstance(entry, str) else entry for entry in wrong)
            self._refuse(
                f"The following statistic_category is invalid:{shown}, the valid statistic_category are as follows:"
                f"[{', '.join(HOST_STATISTICS)}]",
                where,
            )
            return
        self._found["statistic_category"] = tuple(category)

    def _file_format(self, common: dict[str, Any], where: str) -> None:
        if not self._async_ascend():
            return
        value = common.get("file_format", DEFAULTS["file_format"])
        if value in WORDS["file_format"]:
            self._found["file_format"] = value
        else:
            shown = value if isinstance(value, str) else json.dumps(value)
            self._refuse(
                f"Dump Json Parse Failed. 'file_format' should be either 'npy' or 'bin', but got: {shown}", where
            )

    def _async_ascend(self) -> bool:
        return self._runtime.device == "Ascend" and not self._found["e2e"]


def _is_unsigned(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _no_unsigned(key: str) -> str:
    return f"Dump config parse failed, {key} should be unsigned int type"


def _no_text(key: str) -> str:
    return f"Dump config parse failed, {key} should be string type"

"""The state of torch_npu's C++ code in one process: the initialisation of the NPU, and the two dump interfaces.

One dump interface (Module.cpp: `_npu_initDump`, `_npu_setDump`, `_npu_finalizeDump`) raises an error if acl refuses a
call. The other one (EnvVariables.cpp, OptionRegister.cpp: the options `mdldumpswitch` and `mdldumpconfigpath`) waits
until the NPU is initialised, and ignores acl's return codes. Sources: torch_npu 2.13, these files and npu_sys_ctrl.cpp
(initialisation, acl_default.json); Ascend/pytorch 9e73e708, csrc/core/npu (the overflow mode).
"""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from ascend_dump.fakes.acl.process import process_of
from ascend_dump.fakes.torch_npu._graphs import CaptureCode, captures_of
from ascend_dump.native.cann.acl_codes import AclError

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["TorchNpuRuntime"]

#: The variable that names a configuration file for aclInit, instead of torch_npu's own file.
INIT_CONFIG = "TORCH_ACL_INIT_CONFIG_PATH"
_OWN_CONFIG = Path(__file__).with_name("_acl_default.json")
_ACL_DUMP_DATA = "ACL_DUMP_DATA"
#: acl's code ACL_ERROR_RT_INVALID_DEVICEID.
_INVALID_DEVICEID = 107001
#: The variable that lists the devices that a process sees.
VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"

#: Name prefixes of the devices on which results out of range are Inf and NaN unless the user disables that mode.
_INF_NAN_SOCS = ("Ascend910B", "Ascend910_93")

#: The sentences with which torch_npu explains acl's codes.
_WORDS = {
    AclError.INVALID_PARAM: "The input parameter is invalid.",
    AclError.UNINITIALIZE: "ACL is not initialized.",
    AclError.REPEAT_INITIALIZE: "Repeated initialization or repeated loading.",
    AclError.INVALID_FILE: "Invalid file.",
    AclError.PARSE_FILE: "Failed to parse the file.",
    AclError.INVALID_DUMP_CONFIG: "Invalid dump configuration.",
    AclError.DUMP_NOT_RUN: "The dump function is not enabled.",
}


class TorchNpuRuntime:
    """The state of torch_npu's C++ code in one process."""

    def __init__(self, npu: Npu) -> None:
        self.npu = npu
        self.initialised = False
        #: The number of the current device.
        self.current = self._own = npu.device_id
        self._acl = process_of(npu)
        self._captures = captures_of(npu)
        self._waiting: list[Callable[[], object]] = []

    # Initialisation.

    def lazy_init(self) -> None:
        """Initialise the NPU, at the first call only. Raises RuntimeError if acl refuses a call."""
        if self.initialised:
            return
        self._check(self._acl.init(self._init_config()), "aclInit", but=AclError.REPEAT_INITIALIZE)
        is_dump_requested = _is_on(os.environ.get(_ACL_DUMP_DATA, ""))
        if is_dump_requested:
            self._check(self._acl.init_dump(), "aclmdlInitDump()")
        self._check(self._acl.set_device(self.npu.device_id), "aclrtSetDevice")
        if is_dump_requested:
            self._check(self._acl.set_dump("acl.json"), "aclmdlSetDump(aclConfigPath)")
        for option in self._waiting:
            option()
        self._waiting.clear()
        self.npu.saturates = not self.supports_inf_nan()
        self.initialised = True

    def supports_inf_nan(self) -> bool:
        """Return True if results out of range are Inf and NaN, False if they saturate at the largest number.

        Raises RuntimeError for settings that the device does not support.
        (NpuVariables.cpp:75, npu_sys_ctrl.cpp:264)
        (assumption torch_npu.overflow_mode)
        """
        soc, env = self.npu.soc, self.npu.environ
        if soc.startswith("Ascend950"):
            return True
        disabled = env.get("INF_NAN_MODE_FORCE_DISABLE") == "1"
        if env.get("INF_NAN_MODE_ENABLE", "1") == "0" and soc.startswith(_INF_NAN_SOCS) and not disabled:
            raise RuntimeError(
                "INF_NAN_MODE_ENABLE shouldn't be set to 0 on the current device. If you want to disable inf-nan mode, "
                "please export INF_NAN_MODE_FORCE_DISABLE=1"
            )
        return soc.startswith(_INF_NAN_SOCS) and not disabled

    def _init_config(self) -> str:
        # (assumption torch_npu.initial_config)
        path = os.environ.get(INIT_CONFIG)
        if path is None:
            return os.fspath(_OWN_CONFIG)
        if not os.path.isfile(path):
            raise RuntimeError(f"{INIT_CONFIG} {path} is invalid. Please set the environment variable")
        try:
            config = json.loads(Path(path).read_bytes())
        except ValueError as error:
            raise RuntimeError(f"Failed to parse user acl json {path}. Error: {error}") from None
        if not isinstance(config, dict) or config.get("defaultDevice", {}).get("default_device") != "0":
            raise RuntimeError(f"User acl json {path} lacks 'defaultDevice' object, required for lazy set_device mode.")
        return path

    # The dump interface that raises errors.

    def init_dump(self) -> None:
        self._check(self._acl.init_dump(), "aclmdlInitDump()")

    def set_dump(self, cfg_file: Any) -> None:
        if not isinstance(cfg_file, str):
            raise TypeError("npu set dump error, cfg_file must string")
        self._check(self._acl.set_dump(cfg_file), "aclmdlSetDump(cfg_file.c_str())")

    def finalize_dump(self) -> None:
        self._check(self._acl.finalize_dump(), "aclmdlFinalizeDump()")

    # The dump interface that ignores return codes.

    def set_option(self, options: dict[str, str]) -> None:
        # (assumption torch_npu.waiting_interface)
        for name, value in options.items():
            if name == "mdldumpswitch":
                self.when_initialised(self._acl.init_dump if value == "enable" else self._acl.finalize_dump)
            elif name == "mdldumpconfigpath":
                self.when_initialised(functools.partial(self._acl.set_dump, value))

    def when_initialised(self, call: Callable[[], object]) -> None:
        """Call a function when the NPU is initialised; at once if it is initialised already."""
        if self.initialised:
            call()
        else:
            self._waiting.append(call)

    # Device.

    def device_count(self) -> int:
        """Return the number of devices that the process sees.

        ASCEND_RT_VISIBLE_DEVICES lists them. Without this variable there is one for each process that torchrun starts
        on this machine (LOCAL_WORLD_SIZE, default 1), and more if the number of this process's own device is higher.
        """
        visible = self.npu.environ.get(VISIBLE_DEVICES)
        if visible is not None:
            return len([number for number in visible.split(",") if number.strip()])
        return max(self._own + 1, int(self.npu.environ.get("LOCAL_WORLD_SIZE", "1")))

    def set_device(self, device: int) -> None:
        self.lazy_init()
        self.check_device(device)
        self.current = device

    def check_device(self, device: int) -> None:
        """Raise RuntimeError for a device that does not exist."""
        if not 0 <= device < self.device_count():
            self._check(_INVALID_DEVICEID, "aclrtSetDevice")

    def synchronize(self) -> None:
        # (assumption torch_npu.capturing)
        if self._captures.current is not None:
            self._captures.broken = True
            self._check(CaptureCode.MODE_NOT_SUPPORT, "aclrtSynchronizeDevice")
        self._check(self._acl.synchronize_device(), "aclrtSynchronizeDevice")

    def _check(self, code: int, call: str, *, but: int = AclError.SUCCESS) -> None:
        """Raise torch_npu's RuntimeError for a code other than SUCCESS and `but`. call: name of acl's function."""
        # (assumption torch_npu.checked_interface)
        if code in (AclError.SUCCESS, but):
            return
        error = AclError.known(code)
        words = "" if error is None else f"\n[Error]: {_WORDS.get(error, error.name)}"
        message = self._acl.recent_message()
        raise RuntimeError(
            f"NPU function error: {call}, error code is {int(code)}\nERR00100 PTA call acl api failed{words}\n{message}"
        )


def _is_on(text: str) -> bool:
    number = re.match(r"\s*[+-]?([0-9]+)", text)  # as strtol reads it
    return number is not None and int(number[1]) != 0

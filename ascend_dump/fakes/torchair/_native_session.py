"""The GE session of torchair's native module. A process initialises it once.

A dump is set either by GE's options or through acl. Sources: torchair's concrete_graph/session.cpp; for the dump
through acl, which the published source does not contain, the messages in `_torchair.so` of torch_npu 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Optional

from ascend_dump.fakes.acl.process import process_of
from ascend_dump.native.cann.acl_codes import AclError

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["NativeSession"]

_DEVICE = "ge.exec.deviceId"
_ACL_CONFIG = "ge_dump_with_acl_config"
_WITH_TORCH_NPU = "ge_run_with_torch_npu"


class NativeSession:
    """The state of torchair's native module in one process.

    options   GE's options of the first call of `initialize`; None before it and after `finalize`
    """

    def __init__(self, npu: Npu) -> None:
        self.npu = npu
        self.options: Optional[dict[str, str]] = None
        self._acl = process_of(npu)
        self._failure = ""
        self._dump_begun = False
        self._models: list[int] = []

    def initialize(self, options: Mapping[str, str]) -> None:
        """Start GE with the options of the first call. The options of later calls are ignored.

        Raises RuntimeError if acl or GE refuses the options. After a refusal by GE, later calls raise the error again.

        (assumption torchair.first_graph)
        """
        if self.options is None:
            ge_options = dict(options)
            if _DEVICE not in ge_options:
                raise RuntimeError("Device id is not specified when initializing GE")
            ge_options.pop(_WITH_TORCH_NPU, None)
            config = ge_options.pop(_ACL_CONFIG, None)
            if config is not None:
                self._set_dump(config)
            if self.npu.arm_ge(ge_options):
                self._failure = f"Failed to initialize GE {self._reasons()}"
            code = self._acl.set_device(int(ge_options[_DEVICE]))
            if code != AclError.SUCCESS:
                raise RuntimeError(f"ACL set device id failed, return {code}: {self._acl.recent_message()}")
            self.options = ge_options
        self.ensure()

    def ensure(self) -> None:
        """Raise RuntimeError if GE is not initialised or its initialisation failed."""
        if self.options is None:
            raise RuntimeError("Session is not initialized")
        if self._failure:
            raise RuntimeError(self._failure)

    def set_dump(self, config: str) -> None:
        """Pass the path of a dump JSON to acl. A refusal by acl is only written to the device's log.

        (assumption torchair.refusal_dropped)
        """
        try:
            self._set_dump(config)
        except RuntimeError as error:
            self.npu.log.append(f"AclmdlSetDump: {error}")

    def _set_dump(self, config: str) -> None:
        # On a real device, GE or torch_npu has already initialised acl.
        self._acl.initialised = True
        if not self._dump_begun:
            code = self._acl.init_dump()
            if code != AclError.SUCCESS:
                raise RuntimeError(f"Fail in acl init dump, return {code}: {self._acl.recent_message()}")
            self._dump_begun = True
        code = self._acl.set_dump(config)
        if code != AclError.SUCCESS:
            raise RuntimeError(f"Fail in acl set dump, return {code}: {self._acl.recent_message()}")

    def load(self, model_id: int) -> int:
        """Register a loaded model, so that it is unloaded when the session ends, and return its id."""
        self._models.append(model_id)
        return model_id

    def finalize(self) -> None:
        """End the session and its dump, and unload its models.

        Raises RuntimeError if the program already ended the dump through acl.
        """
        if self.options is None:
            return
        for model_id in self._models:
            self.npu.unload_model(model_id)
        self._models.clear()
        self.npu.disarm_ge()
        self.options, self._failure = None, ""
        if self._dump_begun:
            self._dump_begun = False
            code = self._acl.finalize_dump()
            if code != AclError.SUCCESS:
                raise RuntimeError(f"Fail in acl finalize dump, return {code}: {self._acl.recent_message()}")

    def _reasons(self) -> str:
        return "; ".join(f"{error.code} {error.message}" for error in self.npu.errors)

"""The GE session of torchair's native module: initialised once in a process, with a dump by GE's options or by acl.

Sources: torchair's concrete_graph/session.cpp, and the messages in `_torchair.so` of torch_npu 2.13 for the dump
through acl, which is not in the published source.
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
    """The state of torchair's C++ side in one process.

    options   GE's options of the first initialisation; None before
    """

    def __init__(self, npu: Npu) -> None:
        self.npu = npu
        self.options: Optional[dict[str, str]] = None
        self._acl = process_of(npu)
        self._failure = ""
        self._dump_begun = False
        self._models: list[int] = []

    def initialize(self, options: Mapping[str, str]) -> None:
        """Start GE with the options of the first call; later calls are ignored.

        Raises RuntimeError if acl or GE refuses the options, and again at later calls.

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
        """Pass a dump JSON to acl. acl's refusal is only in the log of the device.

        (assumption torchair.refusal_dropped)
        """
        try:
            self._set_dump(config)
        except RuntimeError as error:
            self.npu.log.append(f"AclmdlSetDump: {error}")

    def _set_dump(self, config: str) -> None:
        # GE and torch_npu have initialised acl in a process with a device.
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
        """Keep a model loaded until the session ends."""
        self._models.append(model_id)
        return model_id

    def finalize(self) -> None:
        """End the session, its models and its dump. Raises RuntimeError if acl's dump has already ended."""
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

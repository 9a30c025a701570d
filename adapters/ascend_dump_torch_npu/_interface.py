"""Use the two dump interfaces of torch_npu, which both have `init_dump`, `set_dump` and `finalize_dump`.

The functions in `torch_npu.npu.utils` initialise the NPU and raise the errors of acl. The functions in `torch_npu.npu`
come from `npu_config`; they set options that take effect when the NPU is initialised, and drop the return codes of acl.
Sources: torch_npu 2.13, `npu/__init__.py`, `npu/utils.py`, `npu/npu_config.py`, OptionRegister.cpp, EnvVariables.cpp.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from ascend_dump import AdapterError
from ascend_dump.adapter.acl_interface import refusal
from ascend_dump.native.cann.acl_codes import AclError

__all__ = ["DumpInterface", "overflow_once"]

_NAMES = ("init_dump", "set_dump", "finalize_dump")
_CODE = re.compile(r"error code is (\d{6})\b")


class DumpInterface:
    """Switches the dump of this process on and off. (assumption torch_npu.checked_interface)"""

    def __init__(self) -> None:
        self._npu: Any = importlib.import_module("torch_npu").npu
        utils = getattr(self._npu, "utils", None)
        #: True if errors of acl are raised.
        self.checked = all(hasattr(utils, name) for name in _NAMES)
        self._utils: Any = utils if self.checked else self._npu
        self._waits = False

    @property
    def initialised(self) -> bool:
        return bool(self._npu.is_initialized())

    @property
    def capturing(self) -> bool:
        """True if a graph (NPUGraph) is being captured in the current stream; waiting for the device would break it.

        (assumption torch_npu.capturing)
        """
        ask = getattr(self._npu, "is_current_stream_capturing", None)
        return ask is not None and self.initialised and bool(ask())

    @property
    def supports_inf_nan(self) -> Optional[bool]:
        """True in INF_NAN mode, False in saturation mode, None if torch_npu does not say.

        (assumption torch_npu.overflow_mode)
        """
        ask = getattr(getattr(self._npu, "utils", None), "is_support_inf_nan", None)
        return bool(ask()) if ask is not None and self.initialised else None

    def begin(self, config: str) -> None:
        """Start dumping, with the settings in the file `config`.

        If the NPU is not initialised yet, the dump starts when the NPU is initialised, so that the program can still
        choose the device. Raises the typed errors of `acl_interface.refusal`.

        (assumption acl.begin_again)
        (assumption torch_npu.waiting_interface)
        """
        self._waits = not self.initialised
        if self._waits:
            self._npu.init_dump()
            self._npu.set_dump(config)
            return
        self.synchronize()
        with _typed("torch_npu.npu.init_dump"):
            self._utils.init_dump()
        try:
            with _typed("torch_npu.npu.set_dump"):
                self._utils.set_dump(config)
            self.synchronize()
        except BaseException:
            self._utils.finalize_dump()
            raise

    def end(self) -> None:
        """Stop dumping. Raises the errors of `begin`, also if a delayed dump could not start.

        (assumption torch_npu.set_between_kernels)
        """
        if not self.initialised:
            self._npu.finalize_dump()
            return
        try:
            self.synchronize()
        finally:
            with _typed("torch_npu.npu.finalize_dump"):
                self._utils.finalize_dump()

    def synchronize(self) -> None:
        """Wait until all kernels launched so far have run, because they are launched asynchronously.

        Raises AdapterError if a kernel failed.

        (assumption torch_npu.step_numbering)
        """
        if not self.initialised:
            return
        try:
            self._npu.synchronize()
        except RuntimeError as error:
            first = (str(error).splitlines() or [""])[0]
            raise AdapterError(
                f"a kernel that the program launched failed on the device: {first}",
                hint="run the program without a capture: it gets the same error where it waits for the device",
            ) from error


def overflow_once() -> None:
    """Run a kernel on one element that overflows, and wait for it."""
    import torch

    with torch.no_grad():
        (torch.full((1,), 6e4, dtype=torch.float16, device="npu") * 2).cpu()


@contextmanager
def _typed(call: str) -> Iterator[None]:
    """Convert errors of torch_npu inside the with block to the typed error for acl's return code."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        match = _CODE.search(str(error))
        if match is None:
            raise AdapterError(f"{call} failed: {error}", hint="see the log of CANN in ~/ascend/log") from error
        code = int(match[1])
        if code == AclError.DUMP_NOT_RUN:
            raise AdapterError(
                f"{call} reports that no dump is on: it could not begin, or something else has ended it",
                hint="leave init_dump, set_dump and finalize_dump to the capture",
            ) from error
        raise refusal(call, code, str(error)) from error

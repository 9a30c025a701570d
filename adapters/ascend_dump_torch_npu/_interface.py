"""torch_npu's dump interface, of which there are two.

`torch_npu.npu.utils` has `init_dump`, `set_dump` and `finalize_dump` that initialise the NPU and raise what acl
refuses. `torch_npu.npu` itself shows those of `npu_config`, which are options: before the NPU is initialised they wait
for it, and what acl returns is dropped. Sources: torch_npu 2.13, `npu/__init__.py`, `npu/utils.py`,
`npu/npu_config.py`, OptionRegister.cpp, EnvVariables.cpp.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ascend_dump import AdapterError
from ascend_dump.adapter.acl_interface import refusal
from ascend_dump.native.cann.acl_codes import AclError

__all__ = ["DumpInterface"]

_NAMES = ("init_dump", "set_dump", "finalize_dump")
_CODE = re.compile(r"error code is (\d{6})\b")


class DumpInterface:
    """Switches the dump of this process on and off. (assumption torch_npu.checked_interface)"""

    def __init__(self) -> None:
        self._npu: Any = importlib.import_module("torch_npu").npu
        utils = getattr(self._npu, "utils", None)
        #: Whether what acl refuses is raised.
        self.checked = all(hasattr(utils, name) for name in _NAMES)
        self._utils: Any = utils if self.checked else self._npu
        self._waits = False

    @property
    def initialised(self) -> bool:
        return bool(self._npu.is_initialized())

    @property
    def capturing(self) -> bool:
        """Whether a graph (NPUGraph) is being captured in the current stream: waiting for the device would break it.

        (assumption torch_npu.capturing)
        """
        ask = getattr(self._npu, "is_current_stream_capturing", None)
        return ask is not None and self.initialised and bool(ask())

    def begin(self, config: str) -> None:
        """Dump what is launched from now on, as the file says.

        Raises the typed error of `cann.interface.refusal`. Before the NPU is initialised the dump waits for it,
        so that the program still chooses the device.

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
        """Dump nothing more. Raises as `begin`; also where a dump that waited could not begin.

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
        """Wait for the kernels of the step: the host is ahead of the device, and of what launches them.

        Raises AdapterError for a kernel that failed meanwhile.

        (assumption torch_npu.step_numbering)
        """
        if not self.initialised:
            return
        try:
            self._npu.synchronize()
        except RuntimeError as error:
            first = (str(error).splitlines() or [""])[0]
            raise AdapterError(
                f"the device reports an error of what the program launched: {first}",
                hint="the program meets it where it waits for the device itself; run it without a capture to see where",
            ) from error


@contextmanager
def _typed(call: str) -> Iterator[None]:
    """Turn torch_npu's RuntimeError into the error of its code."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        found = _CODE.search(str(error))
        if found is None:
            raise AdapterError(f"{call} failed: {error}", hint="see the log of CANN in ~/ascend/log") from error
        code = int(found[1])
        if code == AclError.DUMP_NOT_RUN:
            raise AdapterError(
                f"{call} says that no dump is on: it could not begin, or something else has ended it",
                hint="leave init_dump, set_dump and finalize_dump to the capture",
            ) from error
        raise refusal(call, code, str(error)) from error

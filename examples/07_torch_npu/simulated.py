"""The switch between a real device and the simulated one; a program of your own needs none of this.

ASCEND_DUMP_FAKE=torch_npu           the simulated device
ASCEND_DUMP_FAKE=torch_npu,overflow  and on it the second layer's MatMul overflows
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def simulated_device() -> Iterator[None]:
    """Put the fake `torch_npu` in place for the block where the environment asks for it."""
    asked = os.environ.get("ASCEND_DUMP_FAKE", "").split(",")
    if "torch_npu" not in asked:
        yield
        return
    import ascend_dump.fakes

    # Each process has its own device, as with torchrun.
    with ascend_dump.fakes.install("torch_npu", device_id=int(os.environ.get("LOCAL_RANK", "0"))) as npu:
        if "overflow" in asked:
            npu.overflow("aclnnAddmm")
        yield

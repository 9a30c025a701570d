"""The switch between a real device and the simulated one; a program of your own needs none of this.

ASCEND_DUMP_FAKE=torchair                            the simulated torchair and device
ASCEND_DUMP_FAKE=torchair_native TORCHAIR=DIRECTORY  the real torchair on the simulated device; DIRECTORY is the
                                                     `torch_npu/dynamo` of an unpacked wheel of torch_npu
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def device() -> Iterator[str]:
    """The name of the device to compute on, for as long as the block lasts."""
    asked = os.environ.get("ASCEND_DUMP_FAKE", "")
    if not asked:
        import torch_npu  # it makes the device known to PyTorch

        torch_npu.npu.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        yield "npu"
        return
    import ascend_dump.fakes

    if asked == "torchair_native":
        sys.path.append(os.environ["TORCHAIR"])
    with ascend_dump.fakes.install(asked):
        yield "cpu"

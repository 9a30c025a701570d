"""The switch between a real device and the simulated one; a program of your own needs none of this.

ASCEND_DUMP_FAKE=tensorflow   the simulated device, and a stand-in for TensorFlow
ASCEND_DUMP_FAKE=npu_bridge   the simulated device under a real TensorFlow
nothing                       whatever is installed: with npu_bridge the device, without it the host
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def simulated_device() -> Iterator[None]:
    """Put the fakes in place for the block where the environment asks for them."""
    names = {"tensorflow": ("tensorflow", "npu_bridge"), "npu_bridge": ("npu_bridge",)}.get(
        os.environ.get("ASCEND_DUMP_FAKE", "")
    )
    if names is None:
        yield
        return
    import ascend_dump.fakes

    with ascend_dump.fakes.install(*names):
        yield

"""The switch between a real device and the simulated one; an application of your own needs none of this.

ASCEND_DUMP_FAKE=acl          the simulated device
ASCEND_DUMP_FAKE=acl,trample  and on it `dense2` overwrites a part of the output of `square`
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator


@contextlib.contextmanager
def simulated_device() -> Iterator[None]:
    """Put the fake `acl` in place for the block where the environment asks for it."""
    asked = os.environ.get("ASCEND_DUMP_FAKE", "").split(",")
    if "acl" not in asked:
        yield
        return
    import ascend_dump.fakes

    with ascend_dump.fakes.install("acl") as npu:
        if "trample" in asked:
            # Elements 3 and 4 of float16.
            npu.trample("dense2", "square", offset=6, data=struct.pack("<2e", -1.0, -1.0))
        yield

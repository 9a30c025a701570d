"""What a program needs before it imports torchair: the simulated NPU below it, or the fake torchair instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ascend_dump import fakes
from ascend_dump.fakes.npu import Npu


@contextlib.contextmanager
def installed(version: str, **device: Any) -> Iterator[Npu]:
    """version: of torch_npu, whose torchair is on the path, or "fake"."""
    import torch.fx.experimental.symbolic_shapes as shapes

    if not hasattr(shapes, "hint_int"):
        # torchair of 2.9.0 is made for PyTorch 2.9, which had this name.
        shapes.hint_int = lambda value, fallback=None: int(value)
    with fakes.install("torchair" if version == "fake" else "torchair_native", **device) as npu:
        yield npu

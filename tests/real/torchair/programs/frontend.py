"""What a program needs before it imports torchair: the simulated NPU below it, or the fake torchair instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ascend_dump import fakes
from ascend_dump.fakes.device.npu import Npu


def prepare() -> None:
    """Let the torchair of 2.9.0 be imported with a later PyTorch than it is made for."""
    import torch.fx.experimental.symbolic_shapes as shapes

    if not hasattr(shapes, "hint_int"):
        # `int` of a symbolic size would specialise it, so that each size is compiled as a graph of its own.
        shapes.hint_int = lambda value, fallback=None: value.node.hint if hasattr(value, "node") else int(value)


@contextlib.contextmanager
def installed(version: str, **device: Any) -> Iterator[Npu]:
    """version: of torch_npu, whose torchair is on the path, or "fake"."""
    prepare()
    with fakes.install("torchair" if version == "fake" else "torchair_native", **device) as npu:
        yield npu

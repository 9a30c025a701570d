"""3D and transposed convolutions of GE, and gradients of 2D and 3D convolutions, computed with torch.

(Conv2D is in `npu_ops`.) As in torchair's graphs, images are NCHW or NCDHW, and weights OIHW or OIDHW.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from ascend_dump import NotSupported
from ascend_dump.fakes.kernels._ge_table import integers, operator
from ascend_dump.fakes.kernels.ge_model import GeOp

__all__: list[str] = []

_LAYOUTS = ("NCHW", "NCDHW")


class _Convolution:
    """The attributes of a convolution, converted to the arguments of ATen's operators.

    Raises NotSupported for other layouts, and if the two sides of an axis are padded differently.
    """

    def __init__(self, op: GeOp) -> None:
        if op.attrs.get("data_format", "NCHW") not in _LAYOUTS:
            raise NotSupported(
                f"{op.type} {op.name!r} has the layout {op.attrs['data_format']}, which the simulated device lacks: it "
                "computes NCHW and NCDHW",
                hint="keep torchair's default layout",
            )
        before, after = op.attrs["pads"][::2], op.attrs["pads"][1::2]
        if before != after:
            raise NotSupported(f"{op.type} {op.name!r} pads its sides differently: torch has no operator for it")
        self.stride = op.attrs["strides"][2:]
        self.padding = before
        self.dilation = op.attrs.get("dilations", [1] * 5)[2:][: len(before)]
        self.output_padding = op.attrs.get("output_padding", [0] * 5)[2:][: len(before)]
        self.groups = op.attrs.get("groups", 1)

    def forward(self, x: Any, weight: Any, bias: Optional[Any], *, transposed: bool) -> Any:
        added = self.output_padding if transposed else [0] * len(self.padding)
        settings = (self.stride, self.padding, self.dilation, transposed, added, self.groups)
        return torch.ops.aten.convolution(x, weight, bias, *settings)

    def gradients(self, gradient: Any, x: Any, weight: Any, mask: Sequence[bool]) -> Any:
        settings = (self.stride, self.padding, self.dilation, False, [0] * len(self.padding), self.groups)
        return torch.ops.aten.convolution_backward(gradient, x, weight, None, *settings, list(mask))


@operator("Conv3D")
def _conv3d(op: GeOp, x: Any, weight: Any, bias: Optional[Any] = None, offset: Optional[Any] = None) -> Any:
    return _Convolution(op).forward(x, weight, bias, transposed=False)


@operator("Conv2DTranspose", "Conv3DTranspose")
def _transposed(
    op: GeOp, size: Any, x: Any, weight: Any, bias: Optional[Any] = None, offset: Optional[Any] = None
) -> Any:
    """Compute a transposed convolution. Raises ValueError if `size` is not the shape that the attributes imply."""
    result = _Convolution(op).forward(x, weight, bias, transposed=True)
    if list(result.shape) != integers(size):
        raise ValueError(f"input_size is {integers(size)}, the attributes imply {list(result.shape)}")
    return result


@operator("Conv2DBackpropInput", "Conv3DBackpropInput")
def _input_gradient(op: GeOp, size: Any, weight: Any, gradient: Any) -> Any:
    x = gradient.new_zeros(integers(size))
    return _Convolution(op).gradients(gradient, x, weight, (True, False, False))[0]


@operator("Conv2DBackpropFilter", "Conv3DBackpropFilter")
def _weight_gradient(op: GeOp, x: Any, size: Any, gradient: Any) -> Any:
    weight = gradient.new_zeros(integers(size))
    # The device accumulates this gradient in float32, and returns it as float32.
    return _Convolution(op).gradients(gradient, x, weight, (False, True, False))[1].float()

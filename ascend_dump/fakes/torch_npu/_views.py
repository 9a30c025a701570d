"""The kernels that put a view in order before an API call, and those that write a result to a view after it.

A tensor is *in order* if its elements are in memory in the order of its dimensions, without gaps. APIs of aclnn compute
on such tensors. The rules are those of `Contiguous` and `ViewCopy` in hicann/ops-math c4193324,
conversion/contiguous/op_host/op_api/contiguous.cpp:286-418 and 616-713. Only their list of three layouts that always
use AsStrided is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from ascend_dump.fakes.device.npu import Kernel

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["DeviceTensor", "brought_in_order", "written_to"]

#: CANN prefers AsStrided to a slice and a transpose if the length of a row is a multiple of this number of elements.
_ALIGNED_ROW = 64


class DeviceTensor(NamedTuple):
    """A tensor of the device.

    storage  the whole storage, as an array with one dimension
    view     the tensor's view of the storage
    address  the address of the storage on the device

    In a dump, an API call has the storage (op_plugin/utils/op_api_common.cpp:256), without the offset of the view
    (opbase, op_dfx.cpp:792). A kernel has the elements of the view. (assumption torch_npu.levels)
    """

    storage: _Array
    view: _Array
    address: int = 0

    def is_in_order(self) -> bool:
        return bool(self.view.flags.c_contiguous)

    def memory_order(self) -> _Array:
        """Return the view with its dimensions in the order of memory: for a transposed matrix the original matrix."""
        order = sorted(range(self.view.ndim), key=lambda axis: -self.view.strides[axis])
        transposed: _Array = self.view.transpose(order)
        return transposed

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in elements."""
        return tuple(stride // self.view.itemsize for stride in self.view.strides)

    @property
    def offset(self) -> int:
        """The index in the storage of the view's first element."""
        first, storage = (array.__array_interface__["data"][0] for array in (self.view, self.storage))
        return int(first - storage) // self.view.itemsize


class _Axis(NamedTuple):
    """An axis of a view that is neither repeated (stride 0) nor of length 1.

    stride    in elements
    position  its number among such axes of the view
    """

    stride: int
    position: int
    length: int


def brought_in_order(tensor: DeviceTensor) -> tuple[list[Kernel], _Array]:
    """Return the kernels that put a view in order, and its elements in order. If it is in order, there is no kernel."""
    ordered: _Array = np.asarray(tensor.view, order="C")
    if tensor.is_in_order() or not ordered.size:
        return [], ordered
    axes = _axes(tensor)
    repeats = 0 in tensor.strides
    if repeats and _are_in_order(axes):
        return _repeated(ordered, _once(tensor)), ordered
    by_stride = sorted(axes, key=lambda axis: -axis.stride)
    first = None if _are_in_order(by_stride) else _cut(tensor, by_stride)
    if first is None and not _are_in_order(by_stride):
        return [Kernel("AsStridedAiCore", [tensor.storage[tensor.offset :]], [ordered])], ordered
    kernels = [] if first is None else [first]
    current: _Array = np.asarray(_once(tensor).transpose(_by_stride_of(tensor)), order="C")
    if by_stride != axes:
        turned = np.asarray(_once(tensor), order="C")
        kernels.append(Kernel("TransposeAiCore", [current], [turned]))
    if repeats:
        kernels += _repeated(ordered, _once(tensor))
    return kernels, ordered


def written_to(target: DeviceTensor, result: _Array, before: _Array) -> list[Kernel]:
    """Return the kernel that writes a result to a view that is not in order; none for a view in order.

    before: the storage of the view before the call.
    """
    if target.is_in_order() or not result.size:
        return []
    axes = _axes(target)
    by_stride = sorted(axes, key=lambda axis: -axis.stride)
    if 0 not in target.strides and by_stride != axes and _are_in_order(by_stride):
        return [Kernel("TransposeAiCore", [result], [np.asarray(target.memory_order(), order="C")])]
    return [Kernel("ViewCopyAiCore", [before, result], [target.storage])]


def _axes(tensor: DeviceTensor) -> list[_Axis]:
    kept = [(stride, length) for stride, length in zip(tensor.strides, tensor.view.shape) if stride and length != 1]
    return [_Axis(stride, position, length) for position, (stride, length) in enumerate(kept)]


def _are_in_order(axes: Sequence[_Axis]) -> bool:
    expected = 1
    for axis in reversed(axes):
        if axis.stride != expected:
            return False
        expected *= axis.length
    return True


def _once(tensor: DeviceTensor) -> _Array:
    """Return the view without repetition: axes with stride 0 have length 1."""
    index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.strides)
    once: _Array = tensor.view[index]
    return once


def _by_stride_of(tensor: DeviceTensor) -> list[int]:
    return sorted(range(tensor.view.ndim), key=lambda axis: -tensor.strides[axis])


def _repeated(ordered: _Array, once: _Array) -> list[Kernel]:
    """Return the kernels that repeat `once` to the shape of `ordered`. Booleans are cast to integers and back."""
    source = np.asarray(once, order="C")
    if ordered.dtype != bool:
        return [Kernel("BroadcastToAiCore", [source], [ordered])]
    numbers = source.astype("int32"), ordered.astype("int32")
    return [
        Kernel("CastAiCore", [source], [numbers[0]]),
        Kernel("BroadcastToAiCore", [numbers[0]], [numbers[1]]),
        Kernel("CastAiCore", [numbers[1]], [ordered]),
    ]


def _cut(tensor: DeviceTensor, axes: Sequence[_Axis]) -> Optional[Kernel]:
    """Return the kernel that reads the view as a box of its storage; None if the view is not a box.

    A box is what a slice of a multi-dimensional array selects. axes: those of the view, by descending stride.
    """
    shape, strides = [axis.length for axis in axes], [axis.stride for axis in axes]
    if len(axes) == 1:
        shape, strides = [*shape, 1], [*strides, 1]
    if any(outer < stride * (length - 1) for outer, stride, length in zip(strides, strides[1:], shape[1:])):
        return None
    if strides[-1] == 1 and all(outer % stride == 0 for outer, stride in zip(strides, strides[1:])):
        is_turned = any(axis.position != position for position, axis in enumerate(axes))
        if is_turned and tensor.strides[-1] == 1 and tensor.view.shape[-1] % _ALIGNED_ROW == 0:
            return None
        return _box("SliceAiCore", tensor, strides, strides, shape)
    block = math.gcd(*strides[:-1])
    if block > 1 and block >= strides[-1] * shape[-1]:
        return _box("StridedSliceAiCore", tensor, _rows(strides, block), strides, shape)
    return None


def _rows(strides: Sequence[int], block: int) -> list[int]:
    """Return the strides of the storage as an array with rows of `block` elements."""
    units = [block, 1]
    for outer in reversed(strides[:-2]):
        units.insert(0, outer // units[0] * units[0])
    return units


def _box(
    name: str, tensor: DeviceTensor, units: Sequence[int], strides: Sequence[int], shape: Sequence[int]
) -> Optional[Kernel]:
    """Return the kernel that reads a box; None if the box is not inside the storage.

    units: the strides of the storage as a multi-dimensional array. strides, shape: those of the box.
    """
    source = [tensor.storage.size // units[0], *(outer // unit for outer, unit in zip(units, units[1:]))]
    if any(stride % unit for stride, unit in zip(strides, units)):
        return None
    index, offset = [], tensor.offset
    for unit, stride, length, available in zip(units, strides, shape, source):
        start, step = offset // unit, stride // unit
        offset %= unit
        if start + (length - 1) * step >= available:
            return None
        index.append(slice(start, start + (length - 1) * step + 1, step))
    box = tensor.storage[: math.prod(source)].reshape(source)
    return Kernel(name, [box], [np.asarray(box[tuple(index)], order="C")])

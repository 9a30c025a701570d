"""Convert between plain layouts (NCHW, NHWC, …) and the blocked layouts of the device.

The layouts are those of GE's format transfers (base/formats/format_transfers). Each letter is an axis. C is split into
C1 blocks of C0 elements; the last block is padded with zeros. In FRACTAL_Z, N is split too, into N1 blocks of 16.

    NC1HWC0       N C1 H W C0
    NDC1HWC0      N D C1 H W C0
    FRACTAL_Z     (G C1 H W) N1 N0 C0        G: groups of a convolution that share a block
    FRACTAL_Z_3D  (G D C1 H W) N1 N0 C0
    FRACTAL_NZ    ... W1 H1 H0 W0            of a matrix H by W
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Union

if TYPE_CHECKING:
    import numpy as np

    _Array = np.ndarray[Any, Any]

__all__ = [
    "Extents",
    "Groups",
    "pack_channels",
    "pack_matrix",
    "pack_weight",
    "unpack_channels",
    "unpack_matrix",
    "unpack_weight",
]

#: Number of rows of a block, for all types (GE kNiSize, kCubeSize).
CUBE = 16
#: Blocks of up to this many bytes are copied as one item, which is faster than element by element (measured).
_WHOLE_BLOCK = 64

#: Lengths of the axes of a tensor in a plain layout, by letter. C is counted in one group, N in all groups together.
Extents = dict[str, int]


class Groups(NamedTuple):
    """The packing of the weight of a grouped convolution.

    number  number of groups
    merged  number of groups that share a block (GE: e_mult)
    c, n    length of C and of N of one group
    """

    number: int
    merged: int
    c: int
    n: int

    @classmethod
    def of(cls, number: int, c: int, n: int, c0: int) -> Groups:
        n //= number
        if number == 1 or not c or not n:
            return cls(number, 1, c, n)
        return cls(number, min(math.lcm(math.lcm(c, c0) // c, math.lcm(n, CUBE) // n), number), c, n)

    @property
    def blocks(self) -> int:
        return -(-self.number // self.merged)


def unpack_channels(array: _Array, layout: str, c: int) -> _Array:
    """Convert NC1HWC0 or NDC1HWC0 to `layout` (NCHW, NDHWC, ...) with `c` channels. Return a contiguous array."""
    axes = ["N", "D", "C1", "H", "W", "C0"] if array.ndim == 6 else ["N", "C1", "H", "W", "C0"]
    return _unpack(array, axes, layout, c)


def unpack_weight(array: _Array, layout: str, extents: Extents, groups: Groups) -> _Array:
    """Convert FRACTAL_Z or FRACTAL_Z_3D to `layout`. Return a contiguous array."""
    import numpy as np

    if 0 in extents.values():
        return np.empty([extents[letter] for letter in layout], array.dtype)
    depth, height, width = extents.get("D", 1), extents["H"], extents["W"]
    c0 = array.shape[-1]
    rows = array.shape[1] * array.shape[2]
    blocks = array.reshape(groups.blocks, depth, -1, height, width, rows, c0)
    axes = ["D", "C1", "H", "W", "N", "C0"]
    if groups.blocks == 1 and groups.merged == 1:
        whole = blocks[0][..., : extents["N"], :]
        if "D" not in layout:
            return _unpack(whole[0], axes[1:], layout, extents["C"])
        return _unpack(whole, axes, layout, extents["C"])
    out = np.empty((groups.number, groups.n, groups.c, depth, height, width), array.dtype)
    # G D C1 H W N C0 -> G N (C1 C0) D H W
    merged = blocks.transpose(0, 5, 2, 6, 1, 3, 4).reshape(groups.blocks, rows, -1, depth, height, width)
    for group in range(groups.merged):
        part = out[group :: groups.merged]
        n, c = group * groups.n, group * groups.c
        part[...] = merged[: len(part), n : n + groups.n, c : c + groups.c]
    plain = out.reshape(-1, groups.c, depth, height, width)
    letters = "NCDHW"
    if "D" not in layout:
        plain, letters = plain[:, :, 0], "NCHW"
    return np.ascontiguousarray(plain.transpose([letters.index(letter) for letter in layout]))


def unpack_matrix(array: _Array, shape: tuple[int, ...]) -> _Array:
    """Convert FRACTAL_NZ to matrices of `shape` (at least one dimension). Return a contiguous array."""
    import numpy as np

    w1, h1, h0, w0 = array.shape[-4:]
    height = shape[-2] if len(shape) > 1 else 1
    blocks = array.reshape(math.prod(array.shape[:-4]), w1, h1 * h0, w0)
    out = np.empty((blocks.shape[0], height, shape[-1]), array.dtype)
    _gather(out, 2, blocks[:, :, :height].transpose(0, 2, 1, 3))
    return out.reshape(shape)


def pack_channels(array: _Array, layout: str, c0: int) -> _Array:
    """Convert `layout` to NC1HWC0, or to NDC1HWC0 if the layout has D."""
    import numpy as np

    plain = _in_order(array, layout, "NDCHW" if "D" in layout else "NCHW")
    axis = plain.ndim - 3
    c1 = -(-plain.shape[axis] // c0)
    out = np.zeros((*plain.shape[:axis], c1, *plain.shape[axis + 1 :], c0), array.dtype)
    _scatter(np.moveaxis(out, -1, axis + 1), axis, plain)
    return out


def pack_weight(array: _Array, layout: str, groups: int, c0: int) -> _Array:
    """Convert `layout` to FRACTAL_Z, or to FRACTAL_Z_3D if it has D. groups: number of groups of the convolution."""
    import numpy as np

    plain = _in_order(array, layout, "NCDHW")
    n, c, depth, height, width = plain.shape
    how = Groups.of(groups, c, n, c0)
    c1 = -(-how.merged * c // c0)
    rows = -(-how.merged * how.n // CUBE) * CUBE
    out = np.zeros((how.blocks, depth, c1, height, width, rows, c0), array.dtype)
    # G D C1 H W N C0 -> G N (C1 C0) D H W
    merged = np.zeros((how.blocks, rows, c1 * c0, depth, height, width), array.dtype)
    source = plain.reshape(how.number, how.n, c, depth, height, width)
    for group in range(how.merged):
        part = source[group :: how.merged]
        first_n, first_c = group * how.n, group * c
        merged[: len(part), first_n : first_n + how.n, first_c : first_c + c] = part
    out[...] = merged.reshape(how.blocks, rows, c1, c0, depth, height, width).transpose(0, 4, 2, 5, 6, 1, 3)
    # Not -1 for the first axis, because numpy cannot compute its length if there are no elements.
    return out.reshape(how.blocks * depth * c1 * height * width, rows // CUBE, CUBE, c0)


def pack_matrix(array: _Array, c0: int) -> _Array:
    """Convert matrices to FRACTAL_NZ. An array with one dimension is a matrix of one row."""
    import numpy as np

    lead = array.shape[:-2]
    height = array.shape[-2] if array.ndim > 1 else 1
    width = array.shape[-1]
    h1, w1 = -(-height // CUBE), -(-width // c0)
    out = np.zeros((math.prod(lead), w1, h1 * CUBE, c0), array.dtype)
    rows = array.reshape(out.shape[0], height, width)
    _scatter(out[:, :, :height].transpose(0, 2, 1, 3), 2, rows)
    return out.reshape(*lead, w1, h1, CUBE, c0)


def _unpack(array: _Array, axes: list[str], layout: str, c: int) -> _Array:
    import numpy as np

    order: list[int] = []
    shape: list[int] = []
    for letter in layout:
        if letter == "C":
            order += [axes.index("C1"), axes.index("C0")]
            shape.append(c)
        else:
            order.append(axes.index(letter))
            shape.append(array.shape[axes.index(letter)])
    out = np.empty(shape, array.dtype)
    _gather(out, layout.index("C"), array.transpose(order))
    return out


def _in_order(array: _Array, layout: str, letters: str) -> _Array:
    """Return a view of `array` with the axes in the order of `letters`. Axes that the layout lacks get length 1."""
    view = array
    for letter in letters:
        if letter not in layout:
            view, layout = view[None], letter + layout
    ordered: _Array = view.transpose([layout.index(letter) for letter in letters])
    return ordered


def _gather(out: _Array, axis: int, source: _Array) -> None:
    """Fill `out` from `source`, in which `axis` is two axes: (number of blocks, length of a block).

    The last block may end with padding, which is left out.
    """
    block = source.shape[axis + 1]
    full, padded = divmod(out.shape[axis], block)
    if full and out.size:
        head = out[_along(axis, slice(0, full * block))]
        # Splitting one axis never copies, so this writes into `out`.
        split = head.reshape(*out.shape[:axis], full, block, *out.shape[axis + 1 :])
        _copy(split, source[_along(axis, slice(0, full))])
    if padded:
        _copy(out[_along(axis, slice(full * block, None))], source[_along(axis, full, slice(0, padded))])


def _scatter(target: _Array, axis: int, plain: _Array) -> None:
    """Do the reverse of `_gather`: fill the blocks of `target` from `plain`. Padding is not written."""
    block = target.shape[axis + 1]
    full, padded = divmod(plain.shape[axis], block)
    if full:
        head = plain[_along(axis, slice(0, full * block))]
        split = head.reshape(*plain.shape[:axis], full, block, *plain.shape[axis + 1 :])
        target[_along(axis, slice(0, full))] = split
    if padded:
        target[_along(axis, full, slice(0, padded))] = plain[_along(axis, slice(full * block, None))]


def _along(axis: int, *items: Union[int, slice]) -> tuple[Union[int, slice], ...]:
    """Return an index with `items` for `axis` and the axes after it."""
    return (*(slice(None) for _ in range(axis)), *items)


def _copy(out: _Array, source: _Array) -> None:
    """Copy `source` to `out`. Small blocks that are contiguous in both are copied as one item each, which is faster."""
    import numpy as np

    size = out.shape[-1] * out.itemsize
    contiguous = out.strides[-1] == source.strides[-1] == out.itemsize
    if contiguous and out.shape[-1] > 1 and size <= _WHOLE_BLOCK and not out.dtype.hasobject:
        item = np.dtype((np.void, size))
        try:
            out.view(item)[...] = source.view(item)
        except ValueError:  # numpy before 1.23 cannot view a transposed array as another type
            out[...] = source
    else:
        out[...] = source

"""Decode and convert values like msaccucmp 26, including its mistakes, for comparisons with old results.

The memory layout of arrays is the same too. msaccucmp saves views, and a view that is contiguous in Fortran's order
becomes an `.npy` file in this order. So the transpositions here must not be simplified.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ascend_dump.errors import CorruptDump, NotSupported

if TYPE_CHECKING:
    import numpy as np

    _Array = np.ndarray[Any, Any]

__all__ = ["FORMATS", "TYPES", "convert_layout", "decode_as_msaccucmp", "slice_to"]

#: numpy's types by the numbers of CANN's types. A tensor of a type that is missing here makes the whole file fail.
TYPES = {
    0: "int8",
    1: "float32",
    2: "float16",
    3: "int8",
    4: "uint8",
    5: "int16",
    6: "uint16",
    7: "int32",
    8: "int64",
    9: "uint32",
    10: "uint64",
    11: "bool",
    12: "float64",
    16: "complex64",
    17: "complex128",
    23: "int64",
    27: "bfloat16",
    29: "uint8",
    33: "hifloat8",
    34: "float8_e5m2",
    35: "float8_e4m3fn",
}
_BLOCK = 16
_MISSING = (28, 35)
_RENAMED = {
    15: "DECONV_SP_STRIDE8_TRANS",
    20: "LOOKUP_LOOKUPS",
    21: "LOOKUP_KEYS",
    22: "LOOKUP_VALUE",
    23: "LOOKUP_OUTPUT",
    24: "LOOKUP_HITS",
    255: "MAX",
}


@functools.cache
def _format_names() -> dict[int, str]:
    from ascend_dump.native.cann.formats import format_name

    names = {number: format_name(number) for number in range(47) if number not in _MISSING}
    return {**names, **_RENAMED}


class _Formats:
    """The layouts for which msaccucmp has names."""

    def name(self, number: int) -> str:
        """Return msaccucmp's name of a layout. Raises NotSupported if it has none."""
        name = _format_names().get(number)
        if name is None:
            raise NotSupported(f"msaccucmp has no name for format {number} (its error 22)", hint=_HINT)
        return name

    def __contains__(self, name: object) -> bool:
        return name in _format_names().values()


FORMATS = _Formats()
_HINT = "leave --msaccucmp-compat out"


def decode_as_msaccucmp(data: _Array, data_type: int, shape: Sequence[int]) -> _Array:
    """Return the elements of a payload as a flat array; if a dimension is 0, as an empty array of `shape`.

    Raises NotSupported for a type that msaccucmp cannot read, CorruptDump for data with which it stops.
    """
    import numpy as np

    if 0 in shape:
        try:
            return np.empty(tuple(shape))
        except (ValueError, OverflowError):
            raise CorruptDump(f"numpy has no array of shape {tuple(shape)}") from None
    if data_type not in TYPES:
        raise NotSupported(f"msaccucmp does not read data type {data_type} (its error 21)", hint=_HINT)
    count = math.prod(shape)
    if data_type in (33, 34, 35):
        values: _Array = _float8_values(data_type)[data[:count]]
        return values
    name = TYPES[data_type]
    if name == "bfloat16":
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    else:
        dtype = np.dtype(name)
    data = data[: dtype.itemsize * count]
    if data.size % dtype.itemsize:
        raise CorruptDump(f"{data.size} bytes are not a whole number of {name} elements: msaccucmp stops")
    array: _Array = data.view(dtype)
    if data_type == 29:
        return np.unpackbits(data)
    if data_type == 27:
        return array.astype(np.float32)
    return array


@functools.cache
def _float8_values(data_type: int) -> _Array:
    import ml_dtypes
    import numpy as np

    from ascend_dump.native.cann.dtypes import hifloat8_values

    codes = np.arange(256, dtype=np.uint8)
    if data_type == 35:
        values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        values[0x7F], values[0xFF] = 480, -480
    elif data_type == 34:
        values = codes.view(ml_dtypes.float8_e5m2).astype(np.float64)
        values[0xFC] = np.inf
        values[np.isnan(values)] = np.nan  # gives all NaN the same bits
    else:
        values = hifloat8_values().astype(np.float64)
        for code in range(0x08, 0x20):
            # msaccucmp reads bits of the dot field as mantissa bits and as the sign of the exponent.
            width, exponent = (5, 0) if code < 0x10 else (4, -1)
            values[code] = 2.0**exponent * (1 + (code & ((1 << width) - 1)) / (1 << width))
            values[code | 0x80] = -values[code]
        values[0xEF] = np.inf
    table: _Array = values
    return table


def convert_layout(
    array: _Array, source: str, target: str, shape: Sequence[int], to: Sequence[int], group: int
) -> _Array:
    """Return a flat array in another layout. to: the original shape, which msaccucmp takes for the target's.

    Raises NotSupported for layouts between which msaccucmp has no conversion, CorruptDump if its conversion fails.
    """
    converter = _CONVERTERS.get((source, target))
    if converter is None:
        raise NotSupported(f"msaccucmp has no conversion from {source} to {target} (its error 22)", hint=_HINT)
    if group >= 2 and target != "FRACTAL_Z":
        # msaccucmp's other conversions fail if there is more than one group.
        raise NotSupported(f"msaccucmp cannot convert {source} with {group} groups (its error 26)", hint=_HINT)
    try:
        converted: _Array = converter(array, list(shape), list(to), max(group, 1))
        return converted
    except (ValueError, IndexError, ZeroDivisionError, OverflowError, MemoryError) as error:
        raise CorruptDump(f"msaccucmp's conversion fails (its error 26): {error}") from None


def slice_to(array: _Array, shape: Sequence[int]) -> _Array:
    """Return the array cut to the original shape, as msaccucmp does after a conversion.

    `shape` is used as if it were in the target layout.

    Raises CorruptDump if the shapes do not fit: then msaccucmp leaves the array uncut.
    """
    lengths = list(array.shape)
    if len(lengths) < len(shape):
        ours, theirs = ([length for length in side if length != 1] for side in (lengths, shape))
        if ours != theirs:
            raise CorruptDump("the shapes do not fit")
        return array
    lengths += [1] * (4 - len(lengths))
    target = [*shape, *[1] * (len(lengths) - len(shape))]
    unit_axes = lengths[: array.ndim].count(1)
    if math.prod(target) == math.prod(lengths) and unit_axes >= array.ndim - 1:
        return array
    for length, want in zip(lengths, target):
        if length < want:
            raise CorruptDump("the shapes do not fit")
        if length > want:
            break
    else:
        return array
    array = array.reshape(lengths)
    return array[tuple(slice(want) for want in target)] if array.ndim in (4, 5) else array


def _cut(padded: int, length: int) -> Any:
    """Return the end of the slice that cuts `padded` elements to `length`, counted from the back like in msaccucmp.

    So the result is wrong if `length` exceeds `padded`.
    """
    return None if padded == length else length - padded


def _from_nz(array: _Array, shape: list[int], to: list[int], _: int) -> Any:
    height = to[-2] if len(to) > 1 else 1
    lead = math.prod(to[:-2]) if len(to) > 2 else 1
    w1, h1, h0, w0 = shape[-4:]
    blocks = array.reshape(lead, w1, h1, h0, w0).transpose(0, 2, 3, 1, 4)
    rows = blocks.reshape(lead, h1 * h0, w1 * w0)[:, : _cut(h1 * h0, height), : _cut(w1 * w0, to[-1])]
    return rows.reshape(rows.shape[1:]) if len(to) <= 2 else rows


def _from_channels(order: tuple[int, ...]) -> Callable[..., Any]:
    """Return a converter of NC1HWC0: its axes are put into this order, then C1 and C0 are merged."""

    def convert(array: _Array, shape: list[int], _to: list[int], _: int) -> Any:
        blocks = array.reshape(shape[:5]).transpose(order)
        merged = list(blocks.shape)
        axis = order.index(1)
        merged[axis : axis + 2] = [merged[axis] * merged[axis + 1]]
        return blocks.reshape(merged)

    return convert


def _from_channels_3d(array: _Array, shape: list[int], to: list[int], _: int) -> Any:
    n, d, c1, h, w, c0 = shape
    merged = array.reshape(shape).transpose(0, 2, 5, 1, 3, 4).reshape(n, c1 * c0, d, h, w)
    return merged[:, : _cut(c1 * c0, to[1])]


def _from_channels_3d_to_nd(array: _Array, shape: list[int], to: list[int], group: int) -> Any:
    return _from_channels_3d(array, shape, to if len(to) == 5 else [1, shape[2] * shape[5]], group)


def _from_weight(layout: str) -> Callable[..., Any]:
    def convert(array: _Array, shape: list[int], to: list[int], _: int) -> Any:
        extents = {letter: to[layout.index(letter)] for letter in layout}
        h, w = extents["H"], extents["W"]
        first, n1, n0, c0 = shape[:4]
        c1 = first // (h * w)
        n, c = _cut(n1 * n0, extents["N"]), _cut(c1 * c0, extents["C"])
        blocks = array.reshape(c1, h, w, n1, n0, c0)
        if layout == "NCHW":
            return blocks.transpose(3, 4, 0, 5, 1, 2).reshape(n1 * n0, c1 * c0, h, w)[:n, :c]
        return blocks.transpose(1, 2, 0, 5, 3, 4).reshape(h, w, c1 * c0, n1 * n0)[:, :, :c, :n]

    return convert


def _to_weight(layout: str) -> Callable[..., Any]:
    def convert(array: _Array, shape: list[int], _to: list[int], group: int) -> Any:
        import numpy as np

        plain = array.reshape(shape[:4]).transpose([layout.index(letter) for letter in "NCHW"])
        c, h, w = plain.shape[1:]
        n = plain.shape[0] // group
        merged = min(math.lcm(math.lcm(c, _BLOCK) // c, math.lcm(n, _BLOCK) // n), group)
        c1, n1 = -(-merged * c // _BLOCK), -(-merged * n // _BLOCK)
        out = np.zeros((-(-group // merged) * c1 * h * w, n1, _BLOCK, _BLOCK), array.dtype)
        cells = np.arange(h * w).reshape(h, w)
        for number in range(group):
            to_c = (number % merged) * c + np.arange(c)
            to_n = (number % merged) * n + np.arange(n)
            # msaccucmp's mistake: the offset of a block of groups is too small, so groups after the first block
            # overwrite others.
            first = (number // merged + 1) * (to_c // _BLOCK)[:, None, None] * h * w + cells
            rows, columns = to_n[:, None, None, None], to_c[:, None, None]
            out[first, rows // _BLOCK, rows % _BLOCK, columns % _BLOCK] = plain[number * n : (number + 1) * n]
        return out

    return convert


def _permutation(source: str, target: str) -> Callable[..., Any]:
    def convert(array: _Array, shape: list[int], _to: list[int], _: int) -> Any:
        return array.reshape(shape[:4]).transpose([source.index(letter) for letter in target])

    return convert


_CONVERTERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("FRACTAL_NZ", "ND"): _from_nz,
    ("FRACTAL_NZ", "NCHW"): _from_nz,
    ("FRACTAL_NZ", "NHWC"): _from_nz,
    ("NC1HWC0", "NCHW"): _from_channels((0, 1, 4, 2, 3)),
    ("NC1HWC0", "NHWC"): _from_channels((0, 2, 3, 1, 4)),
    ("NC1HWC0", "HWCN"): _from_channels((2, 3, 1, 4, 0)),
    ("NDC1HWC0", "NCDHW"): _from_channels_3d,
    ("NDC1HWC0", "ND"): _from_channels_3d_to_nd,
    ("FRACTAL_Z", "NCHW"): _from_weight("NCHW"),
    ("FRACTAL_Z", "HWCN"): _from_weight("HWCN"),
    **{(layout, "FRACTAL_Z"): _to_weight(layout) for layout in ("NCHW", "NHWC", "HWCN")},
    **{
        (source, target): _permutation(source, target)
        for source, target in (
            ("NCHW", "NHWC"),
            ("NHWC", "NCHW"),
            ("NHWC", "HWCN"),
            ("HWCN", "NCHW"),
            ("HWCN", "NHWC"),
        )
    },
}

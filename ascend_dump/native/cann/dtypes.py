"""CANN's data types: their numbers in a dump header, and conversions between their bytes and arrays.

Sizes are metadef's `GetSizeByDataType`; types smaller than a byte are packed (`GetSizeInBytes`
counts bits). The order of packed elements, and its source:

- INT4: the element of the lower index is in the lower nibble (GE onnx_constant_parser packs DT_INT4 as ONNX does).
  For INT2, UINT2, FLOAT4 and FLOAT6 the same order is assumed: the lower index in the lower bits. No source states it,
  and it is not verified on hardware.
- UINT1: the lower index in the higher bit, as msaccucmp unpacks it.

In these cases the values differ from those of msaccucmp, because ours follow the definition of the type:

- float8_e4m3fn 0x7f and 0xff are NaN (msaccucmp: 480 and -480);
- float8_e5m2 0xfc is -Inf (msaccucmp: +Inf);
- HIFLOAT8 0xef is -Inf (msaccucmp: +Inf), and the codes 0x08-0x1f and 0x88-0x9f, whose exponent is
  0, 1 or -1, have three mantissa bits (msaccucmp uses dot bits as mantissa and exponent). The
  definition is in GE hif8_t and adump's HiFloat8::GetValue;
- bfloat16 stays bfloat16 (msaccucmp widens to float32);
- a shape without dimensions gives shape () (msaccucmp: (1,)), and a dimension of 0 keeps the
  type (msaccucmp: float64);
- UNDEFINED is raw uint8 (msaccucmp: int8).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.errors import CorruptDump, NotSupported

if TYPE_CHECKING:
    import numpy as np

    _Array = np.ndarray[Any, Any]
    _Raw = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["DataType", "data_type", "decode", "encode", "from_ge", "to_ge"]

#: The kinds of storage. plain: as in numpy; packed: several elements in a byte; code: a code whose value is in a table;
#: pair: two float16; raw: unknown; blocks: blocks of elements whose scales are in another tensor.
_PLAIN, _PACKED, _CODE, _PAIR, _RAW, _BLOCKS = "plain", "packed", "code", "pair", "raw", "blocks"


class DataType(NamedTuple):
    """A data type.

    value    its number in the header
    name     CANN's name
    numpy    the name in numpy or ml_dtypes of the type to which it is decoded; "" if it cannot be decoded
    bits     bits per element; 0 for types without a fixed size, whose payload is decoded to flat uint8
    storage  the kind of storage, see above
    """

    value: int
    name: str
    numpy: str
    bits: int
    storage: str = _PLAIN


_TYPES = {
    entry.value: entry
    for entry in (
        DataType(0, "UNDEFINED", "uint8", 0, _RAW),
        DataType(1, "FLOAT", "float32", 32),
        DataType(2, "FLOAT16", "float16", 16),
        DataType(3, "INT8", "int8", 8),
        DataType(4, "UINT8", "uint8", 8),
        DataType(5, "INT16", "int16", 16),
        DataType(6, "UINT16", "uint16", 16),
        DataType(7, "INT32", "int32", 32),
        DataType(8, "INT64", "int64", 64),
        DataType(9, "UINT32", "uint32", 32),
        DataType(10, "UINT64", "uint64", 64),
        DataType(11, "BOOL", "bool", 8),
        DataType(12, "DOUBLE", "float64", 64),
        DataType(13, "STRING", "uint8", 0, _RAW),
        DataType(14, "DUAL_SUB_INT8", "int8", 8),
        DataType(15, "DUAL_SUB_UINT8", "uint8", 8),
        DataType(16, "COMPLEX64", "complex64", 64),
        DataType(17, "COMPLEX128", "complex128", 128),
        # Quantised types are decoded to the stored integers, because scale and offset are not in the file.
        DataType(18, "QINT8", "int8", 8),
        DataType(19, "QINT16", "int16", 16),
        DataType(20, "QINT32", "int32", 32),
        DataType(21, "QUINT8", "uint8", 8),
        DataType(22, "QUINT16", "uint16", 16),
        DataType(23, "RESOURCE", "int64", 64),
        DataType(24, "STRING_REF", "uint8", 0, _RAW),
        DataType(25, "DUAL", "uint8", 0, _RAW),
        DataType(26, "VARIANT", "uint8", 0, _RAW),
        DataType(27, "BF16", "bfloat16", 16),
        DataType(28, "INT4", "int4", 4, _PACKED),
        DataType(29, "UINT1", "uint8", 1, _PACKED),
        DataType(30, "INT2", "int2", 2, _PACKED),
        DataType(31, "UINT2", "uint2", 2, _PACKED),
        DataType(32, "COMPLEX32", "complex64", 32, _PAIR),
        DataType(33, "HIFLOAT8", "float32", 8, _CODE),
        DataType(34, "FLOAT8_E5M2", "float8_e5m2", 8),
        DataType(35, "FLOAT8_E4M3FN", "float8_e4m3fn", 8),
        DataType(36, "FLOAT8_E8M0", "float8_e8m0fnu", 8),
        DataType(37, "FLOAT6_E3M2", "float6_e3m2fn", 6, _PACKED),
        DataType(38, "FLOAT6_E2M3", "float6_e2m3fn", 6, _PACKED),
        DataType(39, "FLOAT4_E2M1", "float4_e2m1fn", 4, _PACKED),
        DataType(40, "FLOAT4_E1M2", "float32", 4, _CODE),
        DataType(41, "HIFLOAT4", "", 4, _BLOCKS),
        DataType(42, "HIFLOAT4_SCALE", "uint8", 0, _RAW),
    )
}

#: The header's number by GE's number, for numbers that differ. From 29 on, GE's number is the header's plus one.
_FROM_GE = {0: 1, 1: 2, 2: 3, 3: 7, 6: 5, 7: 6, 8: 9, 9: 8, 11: 12, 12: 11, 28: 0}
_TO_GE = {value: ge for ge, value in _FROM_GE.items()}


def data_type(value: int) -> DataType:
    """Return the type with a number. An unknown number becomes a type `DT_<number>`, which is read as raw bytes.

    (assumption cann.dtype_numbers)
    """
    return _TYPES.get(value) or DataType(value, f"DT_{value}", "uint8", 0, _RAW)


def from_ge(value: int) -> int:
    """Return the header's number for a ge::DataType, which nano files and `original_op` use."""
    return value - 1 if value > 28 else _FROM_GE.get(value, value)


def to_ge(value: int) -> int:
    """Return the ge::DataType for a number of the header."""
    return value + 1 if value > 27 else _TO_GE.get(value, value)


def decode(raw: _Raw, value: int, shape: tuple[int, ...]) -> _Array:
    """Return the array of `shape` at the beginning of a payload. The bytes after it are padding.

    The array is a view if its bytes need no conversion, otherwise a copy. For types without a fixed size (strings,
    handles, unknown types) the whole payload is returned as flat uint8. Raises CorruptDump if the payload is too short,
    NotSupported for block formats and for types that the installed ml_dtypes lacks.
    """
    cann_type = data_type(value)
    if cann_type.storage == _RAW:
        return raw
    if cann_type.storage == _BLOCKS:
        raise NotSupported(
            f"{cann_type.name} cannot be decoded: its scales are in another tensor (HIFLOAT4_SCALE), whose "
            "layout CANN does not publish",
            hint="`ascend-dump convert --type bin` writes the packed bytes",
        )
    count = math.prod(shape)
    needed = (count * cann_type.bits + 7) // 8
    if raw.size < needed:
        raise CorruptDump(
            f"the payload has {raw.size} bytes, {cann_type.name} of shape {shape} needs {needed}",
            hint="the device recorded a shape that does not belong to the payload; --type bin writes the bytes",
        )
    try:
        return _elements(raw[:needed], cann_type, count).reshape(shape)
    except (ValueError, OverflowError):
        # Possible only for a shape without elements, or with more dimensions than numpy allows.
        raise CorruptDump(f"numpy has no array of shape {shape}") from None


def _elements(raw: _Raw, cann_type: DataType, count: int) -> _Array:
    import numpy as np

    if cann_type.value == 11:
        # For the device any byte except 0 means true, but numpy's bool needs bytes that are 0 or 1.
        return raw.view(np.bool_) if not count or raw.max() <= 1 else raw != 0
    if cann_type.storage == _PLAIN:
        return raw.view(_numpy_dtype(cann_type.numpy))
    if cann_type.storage == _PAIR:
        return raw.view(np.float16).astype(np.float32).view(np.complex64)
    codes: _Raw = _unpack(raw, cann_type.bits, count) if cann_type.bits < 8 else raw
    if cann_type.storage == _CODE:
        table: _Array = (hifloat8_values() if cann_type.bits == 8 else float4_e1m2_values())[codes]
        return table
    if cann_type.numpy.startswith("int"):
        half = np.uint8(1 << (cann_type.bits - 1))
        signed: _Array = (codes ^ half) - half
        return signed.view(_numpy_dtype(cann_type.numpy))
    return codes.view(_numpy_dtype(cann_type.numpy))


def _unpack(raw: _Raw, bits: int, count: int) -> _Raw:
    """Return `count` packed elements as codes, one per byte."""
    import numpy as np

    if bits == 1:
        return np.unpackbits(raw, count=count)
    if bits == 6:
        padded = np.zeros((raw.size + 2) // 3 * 3, np.uint32)
        padded[: raw.size] = raw
        groups: _Array = padded[0::3] | padded[1::3] << 8 | padded[2::3] << 16
        shifts = np.arange(0, 24, 6, dtype=np.uint32)
    else:
        groups = raw
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = np.empty((groups.size, shifts.size), np.uint8)
    for column, shift in enumerate(shifts):
        codes[:, column] = (groups >> shift) & ((1 << bits) - 1)
    return codes.reshape(-1)[:count]


def _pack(codes: _Raw, bits: int) -> _Raw:
    import numpy as np

    if bits == 1:
        return np.packbits(codes)
    lanes = np.zeros((codes.size, bits), np.uint8)
    for bit in range(bits):
        lanes[:, bit] = (codes >> bit) & 1
    return np.packbits(lanes.reshape(-1), bitorder="little")


def encode(array: _Array, value: Optional[int] = None) -> tuple[int, _Raw]:
    """Return the number of CANN's type and the payload for an array.

    value: the number of the type, if several types of CANN are the same type in numpy; None: the first of these types.
    Raises NotSupported for an element type that has no number in CANN. For HIFLOAT8 and FLOAT4_E1M2, which are float32
    in numpy, it is also raised for a value that the type cannot represent exactly.
    """
    import numpy as np

    cann_type = _type_of(array.dtype) if value is None else data_type(value)
    flat = np.ascontiguousarray(array).reshape(-1)
    if cann_type.storage == _PAIR:
        data = flat.view(np.float32).astype(np.float16).view(np.uint8)
    elif cann_type.storage == _CODE:
        codes = _codes_of(flat, hifloat8_values() if cann_type.bits == 8 else float4_e1m2_values(), cann_type)
        data = codes if cann_type.bits == 8 else _pack(codes, cann_type.bits)
    elif cann_type.storage == _PACKED:
        data = _pack(flat.view(np.uint8) & np.uint8((1 << cann_type.bits) - 1), cann_type.bits)
    else:
        data = flat.view(np.uint8) if flat.size else np.empty(0, np.uint8)
    return cann_type.value, data


def _codes_of(values: _Array, table: _Array, cann_type: DataType) -> _Raw:
    import numpy as np

    # Values are compared by their bits, so that -0 gets a code of its own if the type has one.
    value_bits, bits = (
        np.where(np.isnan(array), np.float32(np.nan), array).view(np.uint32) for array in (values, table)
    )
    if 1 << 31 not in bits:
        value_bits = np.where(values == 0, np.uint32(0), value_bits)
    order = np.argsort(bits)
    nearest = np.minimum(np.searchsorted(bits[order], value_bits), table.size - 1)
    codes: _Raw = order[nearest].astype(np.uint8)
    if not np.array_equal(table[codes], values, equal_nan=True):
        raise NotSupported(f"not every value has a code in {cann_type.name}", hint="round the values first")
    return codes


@functools.cache
def _type_of(dtype: np.dtype[Any]) -> DataType:
    for cann_type in _TYPES.values():
        if cann_type.numpy == dtype.name and cann_type.storage in (_PLAIN, _PACKED) and cann_type.value != 29:
            return cann_type
    raise NotSupported(
        f"CANN has no data type for {dtype.name}", hint="convert the array, for example with astype('float32')"
    )


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        if not hasattr(ml_dtypes, name):
            raise NotSupported(
                f"the installed ml_dtypes {ml_dtypes.__version__} has no {name}", hint="pip install -U 'ml-dtypes>=0.5'"
            ) from None
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


@functools.cache
def hifloat8_values() -> _Array:
    """Return the value of each of the 256 codes, as float32.

    The fields are sign, dot, exponent and mantissa. The dot field is the number of exponent bits. The exponent is a
    sign and a magnitude, whose leading 1 is implied. Sources: "Ascend HiFloat8 Format for Deep Learning"
    (arXiv 2409.16626), GE hif8_t.
    """
    import numpy as np

    values = np.empty(256, np.float32)
    for code in range(128):
        values[code] = _hifloat8(code)
        values[code | 0x80] = -values[code]
    values[0x6F], values[0xEF], values[0x80] = np.inf, -np.inf, np.nan
    return values


def _hifloat8(code: int) -> float:
    if code < 8:
        return 2.0 ** (code - 23) if code else 0.0
    if code < 0x10:
        width, exponent_bits = 3, 0
    elif code < 0x20:
        width, exponent_bits = 3, 1
    else:
        exponent_bits = (code >> 5) + 1
        width = 5 - exponent_bits
    exponent = 0
    if exponent_bits:
        field = (code >> width) & ((1 << exponent_bits) - 1)
        leading = 1 << (exponent_bits - 1)
        exponent = -(field | leading) if field & leading else field | leading
    return float(2.0**exponent * (1 + (code & ((1 << width) - 1)) / (1 << width)))


@functools.cache
def float4_e1m2_values() -> _Array:
    """Return the value of each of the 16 codes: sign, one exponent bit (bias 1), two mantissa bits (en_dtypes)."""
    import numpy as np

    positive = np.arange(8, dtype=np.float32) / 4
    return np.concatenate([positive, -positive])

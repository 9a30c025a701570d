"""Every data type: its values, and where the real converter's differ from them."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import places
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_dump import CorruptDump, NotSupported
from ascend_dump.native.cann import dtypes
from ascend_dump.native.cann.dump_file import Tensor, decode, read_header

DATA = places.DATA / "cann"
GOLDEN = sorted((DATA / "msaccucmp_npy").glob("*.npy"))

#: File -> what differs from the real converter's output, each by its reason in the docstring of dtypes.
DIFFERENT = {
    "Cast.bf16": "widened to float32",
    "Cast.e4m3fn": "NaN read as 480",
    "Cast.e5m2": "-Inf read as +Inf",
    "Cast.hif8": "codes near 1 and -Inf",
    "Cast.undef": "int8",
    "Empty.e": "float64",
    "Scalar.s": "shape (1,)",
}


def raw(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


def split_name(path: Path) -> tuple[str, str, int]:
    name, io, index, _ = path.name.rsplit(".", 3)
    return name, io, int(index)


def ours_and_theirs(path: Path) -> tuple[np.ndarray, np.ndarray]:
    name, io, index = split_name(path)
    dump = read_header(DATA / "in" / name)
    (tensor,) = (found for found in dump.tensors if (found.io, found.index) == (io, index))
    return decode(dump, tensor), np.load(path)


def differing(ours: np.ndarray, theirs: np.ndarray) -> list[int]:
    wide, other = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    return list(np.flatnonzero(~((wide == other) | (np.isnan(wide) & np.isnan(other)))))


EQUAL = [path for path in GOLDEN if not path.name.startswith(tuple(DIFFERENT))]


@pytest.mark.parametrize("path", EQUAL, ids=lambda path: path.name)
def test_values_equal_the_real_converter(path: Path) -> None:
    ours, theirs = ours_and_theirs(path)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def golden(prefix: str) -> tuple[np.ndarray, np.ndarray]:
    return ours_and_theirs(next(path for path in GOLDEN if path.name.startswith(prefix)))


def test_bfloat16_is_not_widened() -> None:
    ours, theirs = golden("Cast.bf16")
    assert (ours.dtype, theirs.dtype) == (ml_dtypes.bfloat16, np.float32)
    np.testing.assert_array_equal(ours.astype(np.float32), theirs)


def test_float8_e4m3fn_has_nan() -> None:
    ours, theirs = golden("Cast.e4m3fn")
    assert ours.dtype == ml_dtypes.float8_e4m3fn
    assert differing(ours, theirs) == [0x7F, 0xFF]
    assert np.isnan(ours[[0x7F, 0xFF]].astype(np.float32)).all()
    assert list(theirs[[0x7F, 0xFF]]) == [480, -480]


def test_float8_e5m2_has_minus_infinity() -> None:
    ours, theirs = golden("Cast.e5m2")
    assert ours.dtype == ml_dtypes.float8_e5m2
    assert differing(ours, theirs) == [0xFC]
    assert (float(ours[0xFC]), theirs[0xFC]) == (-math.inf, math.inf)


def test_hifloat8_differences() -> None:
    ours, theirs = golden("Cast.hif8")
    near_one = [*range(0x08, 0x20), *range(0x88, 0xA0)]
    assert differing(ours, theirs) == [*near_one, 0xEF]
    assert (ours[0xEF], theirs[0xEF]) == (-math.inf, math.inf)
    # 0x08 is 0|0001|000: no exponent bits, mantissa 0. The converter makes a mantissa of dot bits.
    assert (ours[0x08], theirs[0x08]) == (1.0, 1.25)


def test_undefined_is_raw_bytes() -> None:
    ours, theirs = golden("Cast.undef")
    assert (ours.dtype, theirs.dtype) == (np.uint8, np.int8)
    assert ours.tobytes() == theirs.tobytes()


def test_without_elements_the_type_stays() -> None:
    ours, theirs = golden("Empty.e")
    assert (ours.dtype, theirs.dtype) == (np.float32, np.float64)
    assert ours.shape == theirs.shape == (0, 3)


def test_a_scalar_has_no_dimension() -> None:
    ours, theirs = golden("Scalar.s")
    assert (ours.shape, theirs.shape) == ((), (1,))
    assert ours == theirs[0] == 3.5


# the types the real converter does not read


def test_int4_has_the_lower_index_in_the_lower_nibble() -> None:
    array = dtypes.decode(raw(0x21, 0xF8), 28, (4,))
    assert array.dtype == ml_dtypes.int4
    assert list(array.astype(int)) == [1, 2, -8, -1]


def test_two_bit_types() -> None:
    assert list(dtypes.decode(raw(0b11_10_01_00), 31, (4,)).astype(int)) == [0, 1, 2, 3]
    assert list(dtypes.decode(raw(0b11_10_01_00), 30, (4,)).astype(int)) == [0, 1, -2, -1]


def test_uint1_has_the_lower_index_in_the_higher_bit() -> None:
    assert list(dtypes.decode(raw(0b1011_0001, 0b1000_0000), 29, (9,))) == [1, 0, 1, 1, 0, 0, 0, 1, 1]


def test_an_odd_number_of_packed_elements() -> None:
    assert list(dtypes.decode(raw(0x21, 0x03, 0xFF), 28, (3,)).astype(int)) == [1, 2, 3]
    with pytest.raises(CorruptDump, match="needs 2"):
        dtypes.decode(raw(0x21), 28, (3,))


@pytest.mark.parametrize(
    ("value", "type_", "codes", "values"),
    [
        (39, "float4_e2m1fn", [0, 1, 2, 3, 4, 5, 6, 7, 9], [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5]),
        (40, "float32", [0, 1, 2, 3, 4, 5, 6, 7, 12], [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, -1]),
    ],
)
def test_four_bit_floats(value: int, type_: str, codes: list[int], values: list[float]) -> None:
    packed = dtypes._pack(raw(*codes), 4)
    array = dtypes.decode(packed, value, (9,))
    assert array.dtype.name == type_
    assert list(array.astype(np.float32)) == values


@pytest.mark.parametrize("name", ["float6_e3m2fn", "float6_e2m3fn"])
def test_six_bit_floats_take_six_bits(name: str) -> None:
    value = {"float6_e3m2fn": 37, "float6_e2m3fn": 38}[name]
    # 0b000001, 0b100010, 0b011111, 0b111111 from the lowest bit on.
    stream = 0b000001 | 0b100010 << 6 | 0b011111 << 12 | 0b111111 << 18
    array = dtypes.decode(np.frombuffer(stream.to_bytes(3, "little"), np.uint8), value, (2, 2))
    expected = np.array([0b000001, 0b100010, 0b011111, 0b111111], np.uint8).view(getattr(ml_dtypes, name))
    np.testing.assert_array_equal(array.ravel().astype(np.float32), expected.astype(np.float32))
    assert array.shape == (2, 2)


def test_scales_are_powers_of_two() -> None:
    array = dtypes.decode(raw(0, 127, 128, 255), 36, (4,)).astype(np.float32)
    assert array[1:3].tolist() == [1, 2]
    assert array[0] == np.float32(2.0**-127)
    assert np.isnan(array[3])


def test_complex32_is_exact_in_complex64() -> None:
    halves = np.array([1.5, -2, np.inf, 2**-24], np.float16)
    array = dtypes.decode(halves.view(np.uint8), 32, (2,))
    assert array.dtype == np.complex64
    assert array[0] == 1.5 - 2j
    assert (array[1].real, array[1].imag) == (np.inf, 2**-24)


@pytest.mark.parametrize(
    ("value", "type_"), [(18, "int8"), (19, "int16"), (20, "int32"), (21, "uint8"), (22, "uint16"), (14, "int8")]
)
def test_quantised_types_give_the_stored_integers(value: int, type_: str) -> None:
    stored = np.array([-3, 5]).astype(type_)
    array = dtypes.decode(stored.view(np.uint8), value, (2,))
    assert array.dtype == type_
    np.testing.assert_array_equal(array, stored)


@pytest.mark.parametrize("value", [0, 13, 24, 25, 26, 42, 77])
def test_types_without_a_size_give_the_bytes(value: int) -> None:
    data = raw(1, 2, 3)
    np.testing.assert_array_equal(dtypes.decode(data, value, (7, 7)), data)
    assert dtypes.data_type(value).bits == 0


def test_hifloat4_says_why_not() -> None:
    with pytest.raises(NotSupported, match="scales are in another tensor"):
        dtypes.decode(raw(1, 2), 41, (4,))


def test_any_byte_but_zero_is_true() -> None:
    array = dtypes.decode(raw(0, 1, 2, 255), 11, (4,))
    assert array.tolist() == [False, True, True, True]
    assert array.sum() == 3
    assert dtypes.decode(raw(), 11, (0, 2)).shape == (0, 2)


# hifloat8


def test_hifloat8_by_its_definition() -> None:
    values = dtypes.hifloat8_values()
    known = {
        0x00: 0.0,
        0x01: 2.0**-22,
        0x07: 2.0**-16,
        0x08: 1.0,
        0x0F: 1.875,
        0x10: 2.0,
        0x17: 3.75,
        0x18: 0.5,
        0x20: 4.0,
        0x27: 7.5,
        0x38: 2.0**-3,
        0x40: 16.0,
        0x5C: 2.0**-7,
        0x60: 256.0,
        0x6E: 32768.0,
        0x7E: 2.0**-15,
        0x7F: 1.5 * 2.0**-15,
    }
    for code, value in known.items():
        assert values[code] == value, hex(code)
        if code:
            assert values[code | 0x80] == -value, hex(code)
    assert np.isnan(values[0x80])
    assert (values[0x6F], values[0xEF]) == (np.inf, -np.inf)
    finite = values[np.isfinite(values)]
    assert finite.size == np.unique(finite).size == 253


# both ways


def test_ge_numbers_are_a_permutation() -> None:
    known = list(range(43))
    assert sorted(dtypes.to_ge(value) for value in known) == [0, 1, 2, 3, 4, *range(6, 44)]
    assert [dtypes.from_ge(dtypes.to_ge(value)) for value in known] == known
    assert [dtypes.from_ge(value) for value in (0, 1, 3, 9, 11, 12, 27, 28, 29)] == [1, 2, 7, 8, 12, 11, 27, 0, 28]


@pytest.mark.parametrize(
    "value", [value for value in range(43) if dtypes.data_type(value).bits and dtypes.data_type(value).numpy]
)
def test_every_type_round_trips(value: int) -> None:
    found = dtypes.data_type(value)
    count = 48
    codes = np.random.default_rng(value).integers(0, 256, count * found.bits // 8, dtype=np.uint8)
    if value == 11:
        codes &= 1
    array = dtypes.decode(codes, value, (6, 8))
    assert array.dtype.name == found.numpy
    again, data = dtypes.encode(array, value)
    assert again == value
    if value == 32:  # a NaN comes back as one, with other bits
        np.testing.assert_array_equal(dtypes.decode(data, value, (6, 8)), array)
    else:
        np.testing.assert_array_equal(data, codes)


NUMPY = """
    float32 float16 float64 bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 complex64 complex128
    bfloat16 float8_e5m2 float8_e4m3fn float8_e8m0fnu float6_e3m2fn float6_e2m3fn float4_e2m1fn int4 int2 uint2
"""


@pytest.mark.parametrize("name", NUMPY.split())
def test_an_array_knows_its_type(name: str) -> None:
    array = np.zeros((2, 4), np.dtype(getattr(ml_dtypes, name, name)))
    value, data = dtypes.encode(array)
    decoded = dtypes.decode(data, value, (2, 4))
    assert decoded.dtype == array.dtype
    np.testing.assert_array_equal(decoded, array)


def test_an_array_cann_has_no_type_for() -> None:
    with pytest.raises(NotSupported, match="no data type for float8_e4m3b11fnuz"):
        dtypes.encode(np.zeros(2, ml_dtypes.float8_e4m3b11fnuz))
    with pytest.raises(NotSupported, match="code in HIFLOAT8"):
        dtypes.encode(np.float32([1.0, 1.01]), 33)


def test_a_type_the_installed_ml_dtypes_lacks() -> None:
    with pytest.raises(NotSupported, match="has no float3_e1m1") as caught:
        dtypes._numpy_dtype("float3_e1m1")
    assert "pip install" in caught.value.hint


@given(st.binary(max_size=40), st.integers(-2, 60), st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), max_size=5))
def test_any_payload_gives_an_array_or_a_typed_error(data: bytes, value: int, shape: list[int]) -> None:
    try:
        array = dtypes.decode(np.frombuffer(data, np.uint8), value, tuple(shape))
    except (CorruptDump, NotSupported):
        return
    assert array.nbytes <= 64 * max(1, len(data))


def test_the_header_type_is_an_ir_number_not_a_ge_one() -> None:
    tensor = Tensor("output", 0, 1, 2, (2,))
    assert dtypes.data_type(tensor.data_type).name == "FLOAT"
    assert dtypes.data_type(dtypes.from_ge(1)).name == "FLOAT16"

"""Layouts: by definition, against the real converter, and both ways."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import places
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ascend_dump import ConfigError, CorruptDump, NotSupported
from ascend_dump.native.cann import formats
from ascend_dump.native.cann.dump_file import decode, read_header
from ascend_dump.native.cann.formats import ORIGINAL, convert

DATA = places.DATA / "cann"


def numbered(*shape: int, dtype: str = "float32") -> np.ndarray:
    # Small enough for float16 to hold each number.
    return (np.arange(math.prod(shape)) % 2000 + 1).reshape(shape).astype(dtype)


# against the real converter


@pytest.mark.parametrize(
    ("name", "target"), [("Conv2D.conv1.6.7.1589195081588418", "NCHW"), ("MatMul.mm1.6.7.1589195081588419", "ND")]
)
@pytest.mark.parametrize("original", [False, True])
def test_values_equal_the_real_converter(name: str, target: str, original: bool) -> None:
    dump = read_header(DATA / "in" / name)
    (path,) = (DATA / "msaccucmp_fmt").glob(f"{name}_*/*.npy")
    array = decode(dump, dump.tensors[0], format=ORIGINAL if original else target)
    theirs = np.load(path)
    np.testing.assert_array_equal(array, theirs)
    assert array.dtype == theirs.dtype
    assert array.flags.c_contiguous


def test_the_original_shape_does_not_cut_another_layout() -> None:
    # NCHW (1, 2, 3, 4): the real converter cuts NHWC (1, 3, 4, 2) to (1, 2, 3, 2), taking the
    # original shape for one in NHWC.
    dump = read_header(DATA / "in" / "TransData.nchw.6.7.1589195081588421")
    array = decode(dump, dump.tensors[0], format="NHWC")
    assert array.shape == (1, 3, 4, 2)
    np.testing.assert_array_equal(array, decode(dump, dump.tensors[0]).transpose(0, 2, 3, 1))


def test_nhwc_of_a_blocked_tensor_is_cut_to_its_channels() -> None:
    # The real converter fails to cut here and keeps 32 channels of which 20 exist.
    dump = read_header(DATA / "in" / "Conv2D.conv1.6.7.1589195081588418")
    array = decode(dump, dump.tensors[0], format="NHWC")
    assert array.shape == (1, 2, 3, 20)
    np.testing.assert_array_equal(array, decode(dump, dump.tensors[0], format="NCHW").transpose(0, 2, 3, 1))


# by definition, element by element


def test_nc1hwc0() -> None:
    plain = numbered(2, 20, 3, 2)
    blocked = convert(plain, "NCHW", "NC1HWC0")
    assert blocked.shape == (2, 2, 3, 2, 16)
    for n, c1, h, w, c0 in np.ndindex(blocked.shape):
        c = c1 * 16 + c0
        assert blocked[n, c1, h, w, c0] == (plain[n, c, h, w] if c < 20 else 0)


def test_nc1hwc0_c04() -> None:
    plain = numbered(1, 3, 2, 2)
    blocked = convert(plain, "NCHW", "NC1HWC0_C04")
    assert blocked.shape == (1, 1, 2, 2, 4)
    np.testing.assert_array_equal(blocked[0, 0, :, :, :3], plain[0].transpose(1, 2, 0))
    np.testing.assert_array_equal(convert(blocked, "NC1HWC0_C04", "NCHW", original_shape=(1, 3, 2, 2)), plain)


def test_fractal_nz() -> None:
    plain = numbered(2, 18, 20)
    blocked = convert(plain, "ND", "FRACTAL_NZ")
    assert blocked.shape == (2, 2, 2, 16, 16)
    for b, w1, h1, h0, w0 in np.ndindex(blocked.shape):
        h, w = h1 * 16 + h0, w1 * 16 + w0
        assert blocked[b, w1, h1, h0, w0] == (plain[b, h, w] if h < 18 and w < 20 else 0)


@pytest.mark.parametrize(("groups", "n", "c"), [(1, 20, 17), (2, 4, 3), (3, 12, 3), (4, 8, 16), (6, 6, 5), (5, 80, 8)])
def test_fractal_z_with_groups(groups: int, n: int, c: int) -> None:
    # Index formula of GE's format_transfer_fractal_z (TransFormatHwcnToFzWithGroups).
    kh, kw = 2, 3
    plain = numbered(n, c, kh, kw, dtype="int32")
    cout = n // groups
    merged = min(math.lcm(math.lcm(c, 16) // c, math.lcm(cout, 16) // cout), groups)
    cin_opt = -(-merged * c // 16) * 16
    cout_opt = -(-merged * cout // 16) * 16
    c1 = cin_opt // 16
    flat = np.zeros(-(-groups // merged) * c1 * kh * kw * cout_opt * 16, np.int32)
    for g, ci, h, w, k in itertools.product(range(groups), range(c), range(kh), range(kw), range(cout)):
        e = g % merged
        dst_c, dst_n = e * c + ci, e * cout + k
        block = (g // merged) * c1 + dst_c // 16
        flat[(((block * kh + h) * kw + w) * cout_opt + dst_n) * 16 + dst_c % 16] = plain[g * cout + k, ci, h, w]
    blocked = convert(plain, "NCHW", "FRACTAL_Z", groups=groups)
    np.testing.assert_array_equal(blocked.ravel(), flat)
    assert blocked.shape == (flat.size // (cout_opt * 16), cout_opt // 16, 16, 16)
    back = convert(blocked, "FRACTAL_Z", "NCHW", original_shape=plain.shape, original_format="NCHW", groups=groups)
    np.testing.assert_array_equal(back, plain)


def test_fractal_z_3d() -> None:
    plain = numbered(18, 3, 2, 2, 3)  # NCDHW
    blocked = convert(plain, "NCDHW", "FRACTAL_Z_3D")
    assert blocked.shape == (2 * 1 * 2 * 3, 2, 16, 16)
    view = blocked.reshape(2, 1, 2, 3, 32, 16)  # D C1 H W N C0
    for d, _, h, w, n, c in np.ndindex(view.shape):
        assert view[d, 0, h, w, n, c] == (plain[n, c, d, h, w] if n < 18 and c < 3 else 0)
    original = (2, 2, 3, 3, 18)  # DHWCN
    back = convert(blocked, "FRACTAL_Z_3D", "NCDHW", original_shape=original, original_format="DHWCN")
    np.testing.assert_array_equal(back, plain)


# both ways

extent = st.integers(1, 5)
PAIRS = [
    *((plain, "NC1HWC0") for plain in ("NCHW", "NHWC", "HWCN", "CHWN")),
    *((plain, "NC1HWC0_C04") for plain in ("NCHW", "NHWC")),
    *((plain, "NDC1HWC0") for plain in ("NCDHW", "NDHWC", "DHWCN", "DHWNC")),
    *((plain, "FRACTAL_Z") for plain in ("NCHW", "NHWC", "HWCN", "CHWN")),
    *((plain, "FRACTAL_Z_3D") for plain in ("NCDHW", "NDHWC", "DHWCN", "DHWNC")),
]


@settings(deadline=None)
@given(st.sampled_from(PAIRS), st.data())
def test_blocks_round_trip(pair: tuple[str, str], data: st.DataObject) -> None:
    plain, blocked = pair
    extents = {letter: data.draw(st.integers(1, 40) if letter in "NC" else extent) for letter in plain}
    groups = data.draw(st.sampled_from([1, 2, 3, 6])) if blocked.startswith("FRACTAL") else 1
    extents["N"] *= groups
    dtype = data.draw(st.sampled_from(["int8", "float16", "float32", "complex128", "bfloat16"]))
    shape = tuple(extents[letter] for letter in plain)
    array = numbered(*shape, dtype=getattr(ml_dtypes, dtype, dtype))
    c0 = data.draw(st.sampled_from([8, 16, 32]))
    packed = convert(array, plain, blocked, groups=groups, c0=c0)
    assert packed.dtype == array.dtype
    assert packed.flags.c_contiguous
    hints = {"original_shape": shape, "original_format": plain, "groups": groups}
    back = convert(packed, blocked, plain, **hints)
    assert back.dtype == array.dtype
    assert back.flags.c_contiguous
    assert back.tobytes() == array.tobytes()
    # Any other plain layout is the same values with the axes moved.
    others = [layout for layout, _ in PAIRS if sorted(layout) == sorted(plain)]
    other = data.draw(st.sampled_from(others))
    moved = convert(packed, blocked, other, **hints)
    assert moved.tobytes() == np.ascontiguousarray(array.transpose([plain.index(a) for a in other])).tobytes()
    assert convert(array, plain, other).tobytes() == moved.tobytes()


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sampled_from([8, 16, 32]), st.sampled_from("Bhd"))
def test_matrices_round_trip(shape: list[int], c0: int, dtype: str) -> None:
    array = numbered(*shape, dtype=dtype)
    packed = convert(array, "ND", "FRACTAL_NZ", c0=c0)
    for target in ("ND", ORIGINAL):
        np.testing.assert_array_equal(convert(packed, "FRACTAL_NZ", target, original_shape=shape), array)


@given(st.permutations("NCHW"), st.permutations("NCHW"))
def test_plain_layouts_are_permutations(first: list[str], second: list[str]) -> None:
    source, target = "".join(first), "".join(second)
    known = ("NCHW", "NHWC", "HWCN", "CHWN")
    if source not in known or target not in known:
        return
    array = numbered(2, 3, 4, 5)
    moved = convert(array, source, target)
    assert moved.shape == tuple(array.shape[source.index(letter)] for letter in target)
    np.testing.assert_array_equal(convert(moved, target, source), array)


# what the header says about the original


def test_the_original_layout_is_recognised_by_its_fit() -> None:
    blocked = convert(numbered(2, 3, 5, 20), "NHWC", "NC1HWC0")
    array = convert(blocked, "NC1HWC0", ORIGINAL, original_shape=(2, 3, 5, 20))
    np.testing.assert_array_equal(array, numbered(2, 3, 5, 20))
    assert convert(blocked, "NC1HWC0", "NCHW", original_shape=(2, 3, 5, 20)).shape == (2, 20, 3, 5)


def test_two_layouts_that_fit_give_the_same_channels() -> None:
    plain = numbered(1, 3, 3, 3)
    blocked = convert(plain, "NCHW", "NC1HWC0")
    np.testing.assert_array_equal(convert(blocked, "NC1HWC0", "NCHW", original_shape=(1, 3, 3, 3)), plain)
    with pytest.raises(NotSupported, match="fits NCHW and NHWC"):
        convert(blocked, "NC1HWC0", ORIGINAL, original_shape=(1, 3, 3, 3))
    array = convert(blocked, "NC1HWC0", ORIGINAL, original_shape=(1, 3, 3, 3), original_format="NHWC")
    np.testing.assert_array_equal(array, plain.transpose(0, 2, 3, 1))


def test_an_ambiguous_weight_is_refused_not_guessed() -> None:
    # 16 x 3 x 5 x 3 is N C H W = 16 3 5 3 or N H W C = 16 3 5 3: the same blocks, other values.
    blocked = convert(numbered(16, 3, 5, 3), "NCHW", "FRACTAL_Z")
    with pytest.raises(NotSupported, match="fits FRACTAL_Z as NCHW and NHWC"):
        convert(blocked, "FRACTAL_Z", "NCHW", original_shape=(16, 3, 5, 3))
    array = convert(blocked, "FRACTAL_Z", "NCHW", original_shape=(16, 3, 5, 3), original_format="NCHW")
    np.testing.assert_array_equal(array, numbered(16, 3, 5, 3))


def test_without_an_original_shape_the_padding_stays() -> None:
    plain = numbered(1, 3, 2, 2)
    blocked = convert(plain, "NCHW", "NC1HWC0")
    array = convert(blocked, "NC1HWC0", "NCHW")
    assert array.shape == (1, 16, 2, 2)
    np.testing.assert_array_equal(array[:, :3], plain)
    matrix = convert(numbered(3, 5), "ND", "FRACTAL_NZ")
    assert convert(matrix, "FRACTAL_NZ", "ND").shape == (16, 16)
    with pytest.raises(NotSupported, match="no original shape"):
        convert(convert(plain, "NCHW", "FRACTAL_Z"), "FRACTAL_Z", "NCHW")
    with pytest.raises(NotSupported, match="does not say what shape"):
        convert(blocked, "NC1HWC0", ORIGINAL)


@pytest.mark.parametrize(
    ("source", "shape", "original"),
    [
        ("NC1HWC0", (1, 2, 3, 3, 16), (1, 40, 3, 3)),
        ("NC1HWC0", (1, 2, 3, 3, 16), (1, 20, 3)),
        ("NC1HWC0", (1, 2, 3, 3), (1, 20, 3, 3)),
        ("NC1HWC0", (1, 2, 3, 3, 0), (1, 20, 3, 3)),
        ("FRACTAL_Z", (4, 1, 16, 16), (17, 16, 2, 2)),
        ("FRACTAL_Z", (4, 1, 16), (16, 16, 2, 2)),
        ("FRACTAL_Z", (4, 1, 16, 0), (16, 16, 2, 2)),
        ("FRACTAL_Z", (4, 1, 0, 16), (16, 16, 2, 2)),
        ("FRACTAL_NZ", (2, 2, 16, 16), (33, 20)),
        ("FRACTAL_NZ", (3, 2, 2, 16, 16), (2, 30, 20)),
        ("FRACTAL_NZ", (2, 16, 16), (30, 20)),
    ],
)
def test_shapes_that_do_not_fit_are_corrupt(source: str, shape: tuple[int, ...], original: tuple[int, ...]) -> None:
    with pytest.raises(CorruptDump):
        convert(np.zeros(shape), source, "NCHW" if source != "FRACTAL_NZ" else "ND", original_shape=original)


def test_nd_and_tensors_of_another_rank_stay_as_they_are() -> None:
    array = numbered(2, 3)
    assert convert(array, "ND", "NCHW") is array
    assert convert(array, "NCHW", "NHWC") is array
    assert convert(array, "NCHW", "ND") is array


def test_a_matrix_in_a_named_layout() -> None:
    plain = numbered(1, 2, 18, 20)
    packed = convert(plain, "ND", "FRACTAL_NZ")
    np.testing.assert_array_equal(convert(packed, "FRACTAL_NZ", "NCHW", original_shape=plain.shape), plain)
    moved = convert(packed, "FRACTAL_NZ", "NHWC", original_shape=plain.shape, original_format="NCHW")
    np.testing.assert_array_equal(moved, plain.transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("source", "target"), [("NC1HWC0", "FRACTAL_Z"), ("FRACTAL_Z_C04", "NCHW"), ("NCHW", "NCDHW"), ("NC1HWC0", "NCDHW")]
)
def test_pairs_without_a_conversion(source: str, target: str) -> None:
    shape = (1, 1, 2, 2, 16) if source == "NC1HWC0" else (1, 1, 16, 16)
    with pytest.raises(NotSupported, match=f"no conversion from {source} to {target}"):
        convert(np.zeros(shape), source, target)


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="'NHCW'"):
        convert(np.zeros((1, 1, 1, 1)), "NCHW", "NHCW")
    with pytest.raises(ConfigError, match="CANN has no such layout"):
        formats.format_number("nchw")
    with pytest.raises(ConfigError, match="groups=3"):
        convert(np.zeros((4, 1, 1, 1)), "NCHW", "FRACTAL_Z", groups=3)
    assert formats.format_name(200) == "FORMAT_200"


@pytest.mark.parametrize(
    ("number", "name"), [(0, "NCHW"), (3, "NC1HWC0"), (16, "HWCN"), (29, "FRACTAL_NZ"), (47, "NCL")]
)
def test_numbers(number: int, name: str) -> None:
    assert formats.format_name(number) == name
    assert formats.format_number(name) == number


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(["NC1HWC0", "NDC1HWC0", "FRACTAL_Z", "FRACTAL_Z_3D", "FRACTAL_NZ", "NCHW", "ND", "MD"]),
    st.sampled_from(formats.TARGETS),
    st.lists(st.integers(0, 4), max_size=6),
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), max_size=6),
    st.sampled_from([None, "NCHW", "NHWC", "DHWCN", "ND"]),
    st.integers(1, 2**31),
)
@example("NCHW", "FRACTAL_Z", [0, 0, 0, 0], [], None, 1)
def test_any_shapes_give_an_array_or_a_typed_error(source, target, shape, original, origin, groups) -> None:
    array = np.zeros(shape, np.int8)
    try:
        result = convert(array, source, target, original_shape=original, original_format=origin, groups=groups)
    except (CorruptDump, NotSupported, ConfigError):
        return
    # Into blocks, each dimension may be padded to a block.
    assert result.size <= max(1, array.size) * 16 * 16 * 16

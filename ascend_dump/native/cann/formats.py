"""Tensor layouts: their numbers in a dump header, and conversions between them.

The field `original_shape` of a header is in the layout of the model. For inputs the header does not say which layout
that is, so it is found by comparing the original shape with the shape on the device. Results are always complete:
padding is removed, and all elements are copied exactly. msaccucmp instead assumes the target layout and cuts the tensor
to that shape, which silently drops data: from NCHW (1,2,3,4) to NHWC its result has the shape (1,2,3,2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.errors import ConfigError, CorruptDump, NotSupported

if TYPE_CHECKING:
    import numpy as np

    _Array = np.ndarray[Any, Any]

__all__ = ["ORIGINAL", "TARGETS", "Arranged", "arrange", "convert", "format_name", "format_number"]

#: The name of the target that means the layout of the model.
ORIGINAL = "original"

#: Names of layouts in the order of their numbers. Sources: dump_data.proto; from NCL on ge::Format.
_IN_ORDER = """
    NCHW NHWC ND NC1HWC0 FRACTAL_Z NC1C0HWPAD NHWC1C0 FSR_NCHW FRACTAL_DECONV C1HWNC0
    FRACTAL_DECONV_TRANSPOSE FRACTAL_DECONV_SP_STRIDE_TRANS NC1HWC0_C04 FRACTAL_Z_C04 CHWN
    FRACTAL_DECONV_SP_STRIDE8_TRANS HWCN NC1KHKWHWC0 BN_WEIGHT FILTER_HWCK HASHTABLE_LOOKUP_LOOKUPS
    HASHTABLE_LOOKUP_KEYS HASHTABLE_LOOKUP_VALUE HASHTABLE_LOOKUP_OUTPUT HASHTABLE_LOOKUP_HITS C1HWNCoC0
    MD NDHWC FRACTAL_ZZ FRACTAL_NZ NCDHW DHWCN NDC1HWC0 FRACTAL_Z_3D CN NC DHWNC FRACTAL_Z_3D_TRANSPOSE
    FRACTAL_ZN_LSTM FRACTAL_Z_G RESERVED ALL NULL ND_RNN_BIAS FRACTAL_ZN_RNN YUV YUV_A NCL FRACTAL_Z_WINO
    C1HWC0 FRACTAL_NZ_C0_16 FRACTAL_NZ_C0_32
"""
_NAMES = dict(enumerate(_IN_ORDER.split()))
_NUMBERS = {name: number for number, name in _NAMES.items()}

#: Plain layouts, which differ only in the order of their axes, by number of axes.
_PLAIN = {2: ("NC", "CN"), 3: ("NCL",), 4: ("NCHW", "NHWC", "HWCN", "CHWN"), 5: ("NCDHW", "NDHWC", "DHWCN", "DHWNC")}
_RANK = {layout: rank for rank, layouts in _PLAIN.items() for layout in layouts}
#: Layouts that are tried as the layout of the model, by number of axes, in this order. CHWN and DHWNC are tried only
#: if the header names them.
_ORIGINALS = {4: ("NCHW", "NHWC", "HWCN"), 5: ("NCDHW", "NDHWC", "DHWCN")}

_CHANNELS = {"NC1HWC0": 5, "NC1HWC0_C04": 5, "NDC1HWC0": 6}
_WEIGHTS = {"FRACTAL_Z": 4, "FRACTAL_Z_3D": 5}
_MATRICES = ("FRACTAL_NZ", "FRACTAL_NZ_C0_16", "FRACTAL_NZ_C0_32")

#: All possible values of the argument `target` of `convert`.
TARGETS = (ORIGINAL, "ND", *_RANK, *_CHANNELS, *_WEIGHTS, *_MATRICES)


def format_name(number: int) -> str:
    """Return CANN's name of the layout with a number; for an unknown number `FORMAT_<number>`."""
    return _NAMES.get(number & 0xFF, f"FORMAT_{number & 0xFF}")


def format_number(name: str) -> int:
    """Return the number of a layout. Raises ConfigError for an unknown name."""
    if name not in _NUMBERS:
        raise ConfigError(f"format={name!r}: CANN has no such layout", hint=f"layouts: {', '.join(TARGETS)}")
    return _NUMBERS[name]


class Arranged(NamedTuple):
    """An array and its layout; ND if its axes have no names."""

    array: _Array
    layout: str


def convert(
    array: _Array,
    source: str,
    target: str,
    *,
    original_shape: Sequence[int] = (),
    original_format: Optional[str] = None,
    groups: int = 1,
    c0: int = 16,
) -> _Array:
    """Rearrange `array` from one layout to another.

    original_shape   the shape in the model's layout; without it the padding of channels is kept, and FRACTAL_Z cannot
                     be converted
    original_format  the model's layout, if known; ignored if the original shape cannot have this layout
    groups           number of groups of a grouped convolution (FRACTAL_Z)
    c0               number of channels in a block, for conversions to a blocked layout

    A conversion to a plain layout returns the tensor unchanged (from FRACTAL_NZ: as a matrix) if it is unknown which
    axis is which: if the source is ND, or if the numbers of axes of tensor, source and target differ.
    Raises ConfigError for an unknown target, NotSupported if there is no such conversion or if the original layout is
    ambiguous, CorruptDump if the shapes contradict each other.
    """
    return arrange(
        array,
        source,
        target,
        original_shape=original_shape,
        original_format=original_format,
        groups=groups,
        c0=c0,
    ).array


def arrange(
    array: _Array,
    source: str,
    target: str,
    *,
    original_shape: Sequence[int] = (),
    original_format: Optional[str] = None,
    groups: int = 1,
    c0: int = 16,
) -> Arranged:
    """As `convert`, and also return the layout of the result, which may differ from the target."""
    if target not in TARGETS:
        raise ConfigError(f"format={target!r} is not a layout to convert to", hint=f"layouts: {', '.join(TARGETS)}")
    if source == target:
        return Arranged(array, source)
    original = tuple(original_shape)
    if source in _CHANNELS:
        return _from_channels(array, source, target, original, original_format)
    if source in _WEIGHTS:
        return _from_weight(array, source, target, original, original_format, groups)
    if source in _MATRICES:
        return _from_matrix(array, source, target, original, original_format)
    if source not in _RANK and source != "ND":
        raise _no_conversion(source, target)
    layout = source if _RANK.get(source) == array.ndim else "ND"
    if target in _RANK or target in ("ND", ORIGINAL):
        return _permute(array, layout, target, original, original_format)
    return Arranged(_to_blocks(array, layout, target, groups, c0), target)


def _no_conversion(source: str, target: str) -> NotSupported:
    return NotSupported(
        f"there is no conversion from {source} to {target}", hint="leave the format out to get the device's layout"
    )


def _permute(
    array: _Array, source: str, target: str, original: tuple[int, ...], original_format: Optional[str]
) -> Arranged:
    import numpy as np

    if source == "ND" or target == "ND":
        return Arranged(array, source)
    if target == ORIGINAL:
        extents = dict(zip(source, array.shape))
        fitting = [
            layout
            for layout in _candidates(array.ndim, original_format)
            if tuple(extents[letter] for letter in layout) == original
        ]
        if source in fitting or not fitting:
            return Arranged(array, source)
        target = fitting[0]
    if sorted(source) != sorted(target):
        raise _no_conversion(source, target)
    moved = array.transpose([source.index(letter) for letter in target])
    return Arranged(np.ascontiguousarray(moved), target)


def _candidates(rank: int, original_format: Optional[str]) -> tuple[str, ...]:
    """Return the layouts that an original shape with `rank` axes may have, the most likely first."""
    usual = _ORIGINALS.get(rank, ())
    if original_format is not None and _RANK.get(original_format) == rank:
        return (original_format, *(layout for layout in usual if layout != original_format))
    return usual


def _check_rank(array: _Array, source: str, rank: int) -> None:
    if array.ndim != rank or not array.shape[-1]:
        raise CorruptDump(
            f"{source} needs {rank} dimensions, the shape is {array.shape}",
            hint="read it without a format: the header's layout does not belong to the shape",
        )


def _unfit(source: str, array: _Array, original: tuple[int, ...]) -> CorruptDump:
    return CorruptDump(
        f"original shape {original} does not fit {source} of shape {array.shape}",
        hint="give the shape of the tensor in the model (--shape), or read it without a format",
    )


def _target_layout(target: str, source: str, fitting: Sequence[str], rank: int, original_format: Optional[str]) -> str:
    if target == ORIGINAL:
        if len(fitting) == 1 or (fitting and fitting[0] == original_format):
            return fitting[0]
        if not fitting:
            raise NotSupported(
                f"the header does not say what shape {source} had in the model", hint=f"ask for {_PLAIN[rank][0]}"
            )
        raise NotSupported(
            f"the original shape fits {' and '.join(fitting)}", hint=f"ask for one of them, format={fitting[0]!r}"
        )
    if _RANK.get(target) != rank:
        raise _no_conversion(source, target)
    return target


def _from_channels(
    array: _Array, source: str, target: str, original: tuple[int, ...], original_format: Optional[str]
) -> Arranged:
    from ascend_dump.native.cann._fractal import unpack_channels

    _check_rank(array, source, _CHANNELS[source])
    rank = array.ndim - 1
    letters = "NDCHW" if rank == 5 else "NCHW"
    extents = dict(zip(letters, array.shape))
    c1, c0 = extents.pop("C"), array.shape[-1]
    fitting = []
    channels = c1 * c0
    for layout in _candidates(len(original), original_format) if len(original) == rank else ():
        sizes = dict(zip(layout, original))
        c = sizes.pop("C")
        if sizes == extents and -(-c // c0) == c1:
            fitting.append(layout)
            # If several layouts fit, they have the same C, because the axes in which they differ have equal lengths.
            channels = c
    if target == "ND" and not original:
        target = letters.replace("DC", "CD")
    elif target == "ND":
        target = ORIGINAL
    if original and not fitting:
        raise _unfit(source, array, original)
    layout = _target_layout(target, source, fitting, rank, original_format)
    return Arranged(unpack_channels(array, layout, channels), layout)


def _from_weight(
    array: _Array,
    source: str,
    target: str,
    original: tuple[int, ...],
    original_format: Optional[str],
    groups: int,
) -> Arranged:
    from ascend_dump.native.cann._fractal import Groups, unpack_weight

    _check_rank(array, source, 4)
    rank = _WEIGHTS[source]
    if not original:
        raise NotSupported(
            f"{source} does not say how its first axis is divided, and the header has no original shape",
            hint="give the shape of the weight in the model (--shape)",
        )
    first, n1, n0, c0 = array.shape
    if not n0 or not c0:
        raise _unfit(source, array, original)
    fitting: dict[str, dict[str, int]] = {}
    for layout in _candidates(len(original), original_format) if len(original) == rank else ():
        extents = dict(zip(layout, original))
        if groups > 1 and extents["N"] % groups:
            continue
        how = Groups.of(groups, extents["C"], extents["N"], c0)
        c1 = -(-how.merged * how.c // c0)
        rows = how.blocks * extents.get("D", 1) * extents["H"] * extents["W"] * c1
        if rows == first and n1 == -(-how.merged * how.n // n0):
            fitting[layout] = extents
    if not fitting:
        raise _unfit(source, array, original)
    if target == "ND":
        target = ORIGINAL
    result_layout = _target_layout(target, source, list(fitting), rank, original_format)
    chosen = (
        original_format
        if original_format in fitting
        else result_layout
        if result_layout in fitting
        else next(iter(fitting))
    )
    if original_format not in fitting and any(extents != fitting[chosen] for extents in fitting.values()):
        raise NotSupported(
            f"original shape {original} fits {source} as {' and '.join(fitting)}, with different values",
            hint="give the layout of the model: --original-format, or original_format=",
        )
    extents = fitting[chosen]
    how = Groups.of(groups, extents["C"], extents["N"], c0)
    return Arranged(unpack_weight(array, result_layout, extents, how), result_layout)


def _from_matrix(
    array: _Array, source: str, target: str, original: tuple[int, ...], original_format: Optional[str]
) -> Arranged:
    from ascend_dump.native.cann._fractal import unpack_matrix

    if array.ndim < 4 or not array.shape[-1] or not array.shape[-2]:
        raise CorruptDump(
            f"{source} has at least 4 dimensions, the shape is {array.shape}", hint="read it without a format"
        )
    *lead, w1, h1, h0, w0 = array.shape
    shape = original or (*lead, h1 * h0, w1 * w0)
    height = shape[-2] if len(shape) > 1 else 1
    fits = math.prod(shape[:-2]) == math.prod(lead) and (-(-height // h0), -(-shape[-1] // w0)) == (h1, w1)
    if not fits:
        raise _unfit(source, array, original)
    matrix = unpack_matrix(array, shape)
    model_layout = original_format if original_format and _RANK.get(original_format) == matrix.ndim else None
    if target in ("ND", ORIGINAL):
        return Arranged(matrix, model_layout or "ND")
    if _RANK.get(target) != matrix.ndim:
        if target not in _RANK:
            raise _no_conversion(source, target)
        return Arranged(matrix, "ND")
    # If the model's layout is unknown, it is assumed to be the target.
    return _permute(matrix, model_layout or target, target, original, None)


def _to_blocks(array: _Array, source: str, target: str, groups: int, c0: int) -> _Array:
    from ascend_dump.native.cann import _fractal

    if target in _MATRICES and array.ndim:
        return _fractal.pack_matrix(array, c0)
    if target in _CHANNELS and _RANK.get(source) == _CHANNELS[target] - 1:
        return _fractal.pack_channels(array, source, 4 if target == "NC1HWC0_C04" else c0)
    if target in _WEIGHTS and _RANK.get(source) == _WEIGHTS[target]:
        if groups > 1 and array.shape[source.index("N")] % groups:
            raise ConfigError(f"groups={groups} does not divide N in {source} of shape {array.shape}")
        return _fractal.pack_weight(array, source, groups, c0)
    raise _no_conversion(source, target)

"""Tensors that a device keeps in blocks or in another order of axes, in the layout that the other side has.

Blocks are filled up where a tensor does not fill them; what lies there is no value of the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.errors import ConfigError, NotSupported, ReadError
from ascend_dump.native.cann.formats import convert
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Stored", "as_in_model", "in_one_layout", "may_differ_in_layout", "shape_in_model"]

_MATRIX = "FRACTAL_NZ"
_BLOCKS = ("NC1HWC0", "NDC1HWC0", "FRACTAL_Z", _MATRIX)
#: Layouts of models that name their axes, those that are tried first before the others.
_NAMED = ("NCHW", "NHWC", "HWCN", "NCDHW", "NDHWC", "DHWCN")


class Stored(NamedTuple):
    """Two arrays of one shape, and in words how they were stored: "NC1HWC0→NCHW", of the reference if it says so."""

    actual: np.ndarray
    reference: np.ndarray
    name: str


def may_differ_in_layout(a: Record, b: Record) -> bool:
    """Whether the layouts that two records name may make one tensor of what they hold."""
    named = [one.format in _NAMED for one in (a, b)]
    return _is_blocked(a) or _is_blocked(b) or (all(named) and a.format != b.format)


def in_one_layout(a: Record, b: Record) -> Optional[Stored]:
    """Both in one layout of a model, in which they have one shape; None where there is none.

    Raises what reading a record as it is stored raises.
    """
    if not may_differ_in_layout(a, b):
        return None
    known = [one.format for one in (b, a) if one.format in _NAMED]
    others = ("ND", *_NAMED) if any((one.format or "").startswith(_MATRIX) for one in (a, b)) else (*_NAMED, "ND")
    for layout in dict.fromkeys((*known, *others)):
        left, right = _read(a, layout), _read(b, layout)
        if left is not None and right is not None and left.shape == right.shape:
            return Stored(left, right, _name(a, b, layout))
    return None


def as_in_model(record: Record) -> np.ndarray:
    """The tensor in the layout that it has in the model, as far as its dump says; else as it is stored."""
    if _is_blocked(record):
        for layout in ("original", "ND", *_NAMED):
            try:
                return record.numpy(format=layout)
            except (ConfigError, NotSupported, ReadError):
                continue
    return record.numpy()


def shape_in_model(record: Record) -> Optional[tuple[int, ...]]:
    """The shape that the tensor has in the model, as far as its dump says; else as it is stored."""
    if record.format is not None and _is_blocked(record):
        return tuple(record.attrs.get("original_shape") or ()) or record.shape
    return record.shape


def _is_blocked(record: Record) -> bool:
    return (record.format or "").startswith(_BLOCKS)


def _read(record: Record, layout: str) -> Optional[np.ndarray]:
    """The array in a layout; one that does not name its axes is taken to be in it."""
    if not _is_blocked(record) and record.format not in _NAMED:
        return record.numpy()
    stored, original = record.numpy(), record.attrs.get("original_op") or {}
    try:
        return convert(
            stored,
            record.format or "ND",
            layout,
            original_shape=record.attrs.get("original_shape") or (),
            # A header that does not name it leaves open which axis is which, where several layouts fit.
            original_format=original.get("format", layout),
            groups=max(1, record.attrs.get("sub_format", 1)),
        )
    except (ConfigError, NotSupported, ReadError):
        return None


def _name(a: Record, b: Record, layout: str) -> str:
    done = [f"{one.format}→{layout}" if one.format != layout and one.format != "ND" else "" for one in (a, b)]
    if done[0] and done[0] == done[1]:
        return done[0]
    return ", ".join(text for text in (done[0], done[1] and f"{done[1]} of the reference") if text)

"""Convert tensors that a device stores in blocks, or in another order of axes, to the layout of the other side.

Blocks may contain padding, which is no value of the program and is removed.
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
#: Layouts of models that name their axes, in the order in which they are tried.
_NAMED = ("NCHW", "NHWC", "HWCN", "NCDHW", "NDHWC", "DHWCN")


class Stored(NamedTuple):
    """Two arrays of one shape. name: their conversion, such as "NC1HWC0→NCHW" or "FRACTAL_NZ→ND of the reference"."""

    actual: np.ndarray
    reference: np.ndarray
    name: str


def may_differ_in_layout(a: Record, b: Record) -> bool:
    """Return True if one of the records is stored in blocks, or both name their axes in different orders."""
    named = [record.format in _NAMED for record in (a, b)]
    return _is_blocked(a) or _is_blocked(b) or (all(named) and a.format != b.format)


def in_one_layout(a: Record, b: Record) -> Optional[Stored]:
    """Return both tensors in one layout of models, and one shape.

    None if the records cannot differ in layout, or if no layout gives the tensors the same shape. Raises the
    same errors as reading a record.
    """
    if not may_differ_in_layout(a, b):
        return None
    named = [record.format for record in (b, a) if record.format in _NAMED]
    is_matrix = any((record.format or "").startswith(_MATRIX) for record in (a, b))
    candidates = ("ND", *_NAMED) if is_matrix else (*_NAMED, "ND")
    for layout in dict.fromkeys((*named, *candidates)):
        array_a, array_b = _read(a, layout), _read(b, layout)
        if array_a is not None and array_b is not None and array_a.shape == array_b.shape:
            return Stored(array_a, array_b, _name(a, b, layout))
    return None


def as_in_model(record: Record) -> np.ndarray:
    """Return the tensor in the layout that it has in the model; as it is stored if it cannot be converted."""
    if _is_blocked(record):
        for layout in ("original", "ND", *_NAMED):
            try:
                return record.numpy(format=layout)
            except (ConfigError, NotSupported, ReadError):
                continue
    return record.numpy()


def shape_in_model(record: Record) -> Optional[tuple[int, ...]]:
    """Return the shape that the tensor has in the model, if the dump records it; else the stored shape."""
    if record.format is not None and _is_blocked(record):
        return tuple(record.attrs.get("original_shape") or ()) or record.shape
    return record.shape


def _is_blocked(record: Record) -> bool:
    return (record.format or "").startswith(_BLOCKS)


def _read(record: Record, layout: str) -> Optional[np.ndarray]:
    """Return the array in a layout; None if it cannot be converted.

    A record that is neither in blocks nor names its axes is assumed to have this layout already.
    """
    if not _is_blocked(record) and record.format not in _NAMED:
        return record.numpy()
    stored, original = record.numpy(), record.attrs.get("original_op") or {}
    try:
        return convert(
            stored,
            record.format or "ND",
            layout,
            original_shape=record.attrs.get("original_shape") or (),
            # If the header does not name the original layout, assume the wanted one: shapes decide which layout fits.
            original_format=original.get("format", layout),
            groups=max(1, record.attrs.get("sub_format", 1)),
        )
    except (ConfigError, NotSupported, ReadError):
        return None


def _name(a: Record, b: Record, layout: str) -> str:
    done = ["" if x.format in (layout, "ND") else f"{x.format}→{layout}" for x in (a, b)]
    if done[0] and done[0] == done[1]:
        return done[0]
    return ", ".join(text for text in (done[0], done[1] and f"{done[1]} of the reference") if text)

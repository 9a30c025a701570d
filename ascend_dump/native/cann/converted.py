"""Parse the file names of converted dump files, which msaccucmp and `ascend-dump convert` write.

A tensor becomes `{dump file}.{io}.{index}.{suffix}`, with more fields before the suffix if the writer knows them:

    .2x3                  the shape, after a conversion of the layout
    .NCHW                 the layout, in msaccucmp's type msnpy
    .2_3.float32.NCHW     shape, type of the elements, layout: in files of type bin
    .float32.2x3.NCHW     the same fields, by `ascend-dump convert --names ours`

A buffer in the L1 memory becomes `{dump file}.l1buffer.{index}.bin`, a workspace `{dump file}.space.{index}.bin`, an
overflow record `{dump file}.output.{index}.json`, and with type npz all tensors of an operator `{dump file}.npz`.

Sources: msaccucmp 26, dump_parse/dump_data_parser.py, conversion/shape_format_conversion.py, cmp_utils/utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Optional

__all__ = ["ARCHIVE_MEMBER", "RENAMED", "ConvertedName", "parse_converted"]

#: The hashed name on disk of a file whose name was too long. `mapping.csv` contains the original name.
RENAMED = re.compile(r"[0-9a-f]{32}\.(?:npy|npz|pt|bin|txt|csv|json)", re.ASCII)
#: The name of an array in an npz file. Groups: io and index.
ARCHIVE_MEMBER = re.compile(r"(input|output|l1buffer|space)\.(\d{1,9})\.npy", re.ASCII)

_NAME = re.compile(
    r"(.+)\.(input|output|l1buffer|Nonebuffer|space)\.(\d{1,9})((?:\.[^.]*){0,3})\.(npy|pt|bin|txt|csv|json)",
    re.ASCII | re.DOTALL,
)
_SUFFIXES = (".npy", ".pt", ".bin", ".txt", ".csv", ".json")
#: A shape. For a shape without dimensions msaccucmp writes nothing, and `ascend-dump convert` writes "scalar".
_SHAPE = re.compile(r"(?:\d{1,19}(?:[x_]\d{1,19})*|scalar)?", re.ASCII)
_WORD = re.compile(r"[A-Za-z]\w*", re.ASCII)


class ConvertedName(NamedTuple):
    """The fields of a file name. A field that is not in the name is None.

    dump    name of the dump file
    io      input, output, buffer or space; "" for an npz file, which contains all tensors of the operator
    type    npy, npz, pt, bin, txt, csv or json
    dtype   type of the elements, in numpy, ml_dtypes, or CANN (in lower case)
    layout  such as NCHW
    """

    dump: str
    io: str
    index: int  # type: ignore[assignment]  # hides tuple.index, of no use here
    type: str
    dtype: Optional[str] = None
    shape: Optional[tuple[int, ...]] = None
    layout: Optional[str] = None


def parse_converted(name: str) -> Optional[ConvertedName]:
    """Return the fields of a file name; None if no converter writes such names.

    The part `dump`, the name of the dump file, is not checked.
    """
    if name.endswith(".npz"):
        return ConvertedName(name[: -len(".npz")], "", 0, "npz")
    # The suffix is checked first, because most files of a dump are not converted files, and the pattern is slow.
    match = _NAME.fullmatch(name) if name.endswith(_SUFFIXES) else None
    if match is None:
        return None
    dump, io, index, middle, suffix = match.groups()
    fields = middle.split(".")[1:]
    if io not in ("input", "output"):
        io = "space" if io == "space" else "buffer"
        return ConvertedName(dump, io, int(index), suffix, "uint8") if suffix == "bin" and not fields else None
    if suffix == "json":
        return ConvertedName(dump, io, int(index), suffix) if io == "output" and not fields else None
    details = _parse_details(fields, suffix)
    return None if details is None else ConvertedName(dump, io, int(index), suffix, *details)


_Details = tuple[Optional[str], Optional[tuple[int, ...]], Optional[str]]


def _parse_details(fields: Sequence[str], suffix: str) -> Optional[_Details]:
    """Return (dtype, shape, layout) from the fields before the file suffix; None if a field is not recognised."""
    if not fields:
        # A bin file without dtype and shape in its name cannot be read as a tensor.
        return (None, None, None) if suffix != "bin" else None
    if len(fields) == 1 and suffix != "bin":
        if _SHAPE.fullmatch(fields[0]):
            return None, _shape(fields[0]), None
        return (None, None, fields[0]) if suffix == "npy" and _WORD.fullmatch(fields[0]) else None
    if len(fields) != 3:
        return None
    dtype, shape, layout = fields if _SHAPE.fullmatch(fields[1]) else (fields[1], fields[0], fields[2])
    if not (_WORD.fullmatch(dtype) and _SHAPE.fullmatch(shape) and _WORD.fullmatch(layout)):
        return None
    return dtype, _shape(shape), layout


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.split("[x_]", text))) if text not in ("", "scalar") else ()

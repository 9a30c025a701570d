"""Read and write CANN's statistics files: a CSV file instead of the dump file of an operator, with a row per tensor.

There are two writers. The device's CPU (aicpu_schedule dump_task) writes 13 columns and numbers with six significant
digits; if it cannot compute the statistics of a tensor, seven fields are empty. The host writes the statistics that AI
Cores computed (adump adx_dump_record). It writes the same columns if the six default statistics were requested.
Otherwise `Count` is directly after `Shape`, followed by the requested statistics, with `l2norm` in lower case. A failed
statistic is `NA`, and the header may be repeated within the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from ascend_dump.errors import ReadError
from ascend_dump.storage.files import NotRegularFile, text_lines

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.native.cann.dump_file import Tensor

__all__ = [
    "HEADER",
    "CannStatisticsRow",
    "format_row",
    "format_statistics",
    "format_tensor",
    "parse_statistics",
    "read_statistics",
]

HEADER = (
    "Input/Output,Index,Data Size,Data Type,Format,Shape,"
    "Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,Positive Inf Count"
)
_FIELD_OF = {
    "index": "position",
    "data size": "size",
    "data type": "dtype",
    "format": "format",
    "shape": "shape",
    "max value": "max",
    "min value": "min",
    "avg value": "avg",
    "count": "count",
    "nan count": "nan",
    "negative inf count": "neginf",
    "positive inf count": "posinf",
    "l2norm": "l2norm",
}
_COUNTS = ("size", "count", "nan", "neginf", "posinf")
_VALUES = ("max", "min", "avg", "l2norm")
#: The texts that the writers print for a type or format that they do not know.
_UNKNOWN = ("", "-", "UNKNOW", "UNKNOWN", "NA")
#: Names of layouts that the host spells differently from the device, with the device's spelling.
_FORMATS = {"DHWCH": "DHWCN", "NYUV": "YUV", "NYUV_A": "YUV_A"}
_FLOATING = ("FLOAT", "DOUBLE", "BF16", "HIFLOAT")
#: The types of which the device's CPU computes statistics (FLOAT to DOUBLE), and the last type (DUAL) and layout
#: (RESERVED) whose names it knows.
_COMPUTED = range(1, 13)
_LAST_TYPE, _LAST_FORMAT = 25, 40
#: Maximum lengths in characters of a number, a shape and a line; both writers write shorter ones.
_LONGEST_NUMBER = 40
_LONGEST_SHAPE = 1024
_LONGEST_LINE = 64 * 1024

Number = Union[int, float]


class CannStatisticsRow(NamedTuple):
    """A row, which is about one tensor. A value that the file lacks is None.

    dtype, format  CANN's names without `DT_` and `FORMAT_`
    shape          () if the writer printed no dimensions and at most one element
    failed         True if the device could not compute the statistics of this tensor
    problem        the reason why the line cannot be used; the other fields are meaningless then
    """

    line: int
    io: str = "output"
    position: int = 0
    size: Optional[int] = None
    dtype: Optional[str] = None
    format: Optional[str] = None
    shape: Optional[tuple[int, ...]] = None
    max: Optional[Number] = None
    min: Optional[Number] = None
    avg: Optional[float] = None
    l2norm: Optional[float] = None
    elements: Optional[int] = None
    nan: Optional[int] = None
    neginf: Optional[int] = None
    posinf: Optional[int] = None
    failed: bool = False
    problem: str = ""


def read_statistics(path: Union[str, os.PathLike[str]]) -> Iterator[CannStatisticsRow]:
    """Yield the rows of a statistics file. Raises ReadError if it cannot be opened."""
    try:
        yield from parse_statistics(text_lines(path, most=_LONGEST_LINE))
    except NotRegularFile as error:
        raise ReadError(error.what, path=path) from None
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from None


def parse_statistics(lines: Iterable[str]) -> Iterator[CannStatisticsRow]:
    """Yield the rows of a statistics file of either writer. A line that cannot be used becomes a row with a `problem`.

    If already the first line is neither a header nor a row, only one row with a problem is yielded.
    """
    columns = _columns(HEADER)
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        if not line.strip():
            continue
        kind = line[: line.find(",")].strip().lower()
        if kind == "input/output":
            columns = _columns(line)
        elif kind in ("input", "output"):
            yield _parse_row(number, kind, line, columns)
        else:
            yield CannStatisticsRow(number, problem="neither a header nor a row of an input or output")
            if number == 1:
                return


def format_statistics(array: np.ndarray) -> tuple[str, ...]:
    """Return the texts of max, min, avg, count, nan, neginf and posinf as the device's CPU prints them.

    Max and min begin with the first element and are compared with > and <: if the first element is NaN, both are NaN;
    NaN in other elements are ignored. The mean is updated element by element (aicpu_schedule dump_task.h,
    UpdateAvgValue). If there are infinities of one sign only, the mean is that infinity, even with NaN.

    (assumption cann.stats_numbers)
    """
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind != "f":
        numbers = (int(flat.max()), int(flat.min()))
        return (*map(str, numbers), _running_mean(flat.astype("f8")), str(flat.size), "0", "0", "0")
    wide = flat.astype("f8")
    nan = np.isnan(wide)
    nans, posinf, neginf = int(nan.sum()), int((wide == math.inf).sum()), int((wide == -math.inf).sum())
    if nan[0]:
        highest = lowest = wide[0]
    else:
        # argmax returns the first of equal elements, as the device does, so that -0 or 0 is chosen alike.
        highest = wide[np.argmax(np.where(nan, -math.inf, wide))]
        lowest = wide[np.argmin(np.where(nan, math.inf, wide))]
    mean = _mean(wide, nan, posinf, neginf)
    return (_print(highest), _print(lowest), mean, str(flat.size), str(nans), str(neginf), str(posinf))


def format_tensor(tensor: Tensor, payload: Optional[Union[bytes, np.ndarray]]) -> str:
    """Return the line of a tensor as the device's CPU prints it. The statistics include padding of the payload.

    payload: None for a null address. Then, and for types that the CPU does not support, the statistics are empty.

    (assumption cann.stats_header)
    """
    import numpy as np

    from ascend_dump.native.cann.dtypes import data_type
    from ascend_dump.native.cann.formats import format_name

    kind = data_type(tensor.data_type)
    statistics = None
    if payload is not None and tensor.data_type in _COMPUTED:
        raw = np.frombuffer(payload, np.uint8)
        values = raw[: raw.size // (kind.bits // 8) * (kind.bits // 8)].view(kind.numpy)
        statistics = format_statistics(values) if values.size else None
    return format_row(
        tensor.io,
        tensor.index,
        tensor.size,
        f"DT_{kind.name}" if tensor.data_type <= _LAST_TYPE else "-",
        format_name(tensor.format) if tensor.format <= _LAST_FORMAT else "-",
        tensor.shape,
        statistics,
    )


def format_row(
    io: str,
    position: int,
    size: int,
    dtype: str,
    format: str,
    shape: Sequence[int],
    statistics: Optional[Sequence[str]],
) -> str:
    """Return a line as the device's CPU prints it. statistics: None if the CPU cannot compute them.

    dtype, format: CANN's names, or `-` for types after DUAL and layouts after RESERVED, which the CPU does not know.
    """
    dims = "x".join(map(str, shape)) if shape else "-"
    values = ",".join(statistics) if statistics is not None else "," * 6
    kind = "Input" if io == "input" else "Output"
    return f"{kind},{position},{size},{dtype},{format},{dims},{values}\n"


def _columns(header: str) -> list[str]:
    return [_FIELD_OF.get(name.strip().lower(), "") for name in header.split(",")]


def _parse_row(number: int, io: str, line: str, columns: list[str]) -> CannStatisticsRow:
    texts = line.split(",")
    if len(texts) != len(columns):
        return CannStatisticsRow(number, problem=f"{len(texts)} fields, but the header has {len(columns)}")
    said = {name: text.strip() for name, text in zip(columns, texts) if name}
    try:
        counts = {name: _whole(said.get(name, "")) for name in _COUNTS}
        values = {name: _number(said.get(name, "")) for name in _VALUES}
        position = _whole(said.get("position", ""))
        shape = _shape(said.get("shape", ""), counts["count"])
    except ValueError as error:
        return CannStatisticsRow(number, problem=str(error))
    dtype = _known(said.get("dtype", ""), "DT_")
    layout = _known(said.get("format", ""), "FORMAT_")
    if dtype == "UINT32":
        # The host prints the maximum and minimum of unsigned 32-bit numbers as signed numbers.
        for name in ("max", "min"):
            value = values[name]
            values[name] = value % 2**32 if isinstance(value, int) else value
    if dtype is not None and dtype.startswith(_FLOATING):
        values = {name: None if value is None else float(value) for name, value in values.items()}
    return CannStatisticsRow(
        number,
        io,
        position or 0,
        counts["size"],
        dtype,
        layout if layout is None else _FORMATS.get(layout, layout),
        shape,
        values["max"],
        values["min"],
        values["avg"],
        values["l2norm"],
        counts["count"],
        counts["nan"],
        counts["neginf"],
        counts["posinf"],
        failed=all(value is None for value in values.values())
        and all(counts[name] is None for name in ("nan", "neginf", "posinf")),
    )


def _known(text: str, prefix: str) -> Optional[str]:
    if text in _UNKNOWN:
        return None
    return text[len(prefix) :] if text.startswith(prefix) else text


def _whole(text: str) -> Optional[int]:
    if text in _UNKNOWN:
        return None
    if not (len(text) <= _LONGEST_NUMBER and text.isdecimal() and text.isascii()):
        raise ValueError(f"{text[:_LONGEST_NUMBER]!r} is not a count")
    return int(text)


def _number(text: str) -> Optional[Number]:
    if text in _UNKNOWN:
        return None
    if len(text) > _LONGEST_NUMBER or "_" in text:
        raise ValueError(f"{text[:_LONGEST_NUMBER]!r} is not a number")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _shape(text: str, count: Optional[int]) -> Optional[tuple[int, ...]]:
    if text in _UNKNOWN:
        return () if count in (None, 1) else None
    if len(text) > _LONGEST_SHAPE:
        raise ValueError(f"a shape of {len(text)} characters, the limit is {_LONGEST_SHAPE}")
    dims = tuple(_whole(dim) for dim in text.split("x"))
    if None in dims:
        raise ValueError(f"{text[:_LONGEST_NUMBER]!r} is not a shape")
    return tuple(dim for dim in dims if dim is not None)


def _mean(wide: np.ndarray, nan: np.ndarray, posinf: int, neginf: int) -> str:
    import numpy as np

    if posinf and neginf:
        # inf - inf is a NaN, whose sign bit is set on x86, where these texts were recorded. An earlier NaN keeps its
        # own sign.
        both = max(int(np.argmax(wide == math.inf)), int(np.argmax(wide == -math.inf)))
        return _print(wide[np.argmax(nan)]) if nan[:both].any() else "-nan"
    if posinf or neginf:
        return "inf" if posinf else "-inf"
    if nan.any():
        return _print(wide[np.argmax(nan)])
    return _running_mean(wide)


def _running_mean(wide: np.ndarray) -> str:
    """Return the text of the mean, rounded like the device's, which updates the mean element by element."""
    average = 0.0
    for count, value in enumerate(wide.tolist(), 1):
        average += (value - average) / count
    return f"{average:g}"


def _print(value: np.floating) -> str:
    """Return the text of a number as a C++ stream prints it, with the sign of a NaN."""
    number = float(value)
    return "-nan" if math.isnan(number) and math.copysign(1, number) < 0 else f"{number:g}"

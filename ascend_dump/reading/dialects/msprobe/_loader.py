"""Read values and statistics of tensors in a dump of msprobe."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.errors import CorruptDump, NotSupported, ReadError
from ascend_dump.reading._record import Record
from ascend_dump.statistics import Precision, Statistics
from ascend_dump.storage.files import is_there

if TYPE_CHECKING:
    import numpy as np

__all__ = ["StoredTensor", "TensorLoader", "content_hash", "numbers_of", "type_and_shape"]


class StoredTensor(NamedTuple):
    """The stored data of a tensor: its statistics, the CRC-32 of its bytes as hexadecimal text, and its file.

    None or "": msprobe did not store it.
    """

    statistics: Optional[Statistics] = None
    crc: str = ""
    file: Optional[Path] = None


class TensorLoader:
    """The loader of records whose `key` is a StoredTensor."""

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        if format not in (None, "ND"):
            raise NotSupported(f"{record} has no layout to convert", hint="leave format= out")
        stored: StoredTensor = record.key
        if stored.file is None:
            raise NotSupported(
                f"{record} has no values: msprobe recorded without them",
                hint='try its statistics(); dump with "task": "tensor" to store values',
            )
        array = _read(stored.file)
        if record.shape is not None and array.shape != record.shape:
            raise CorruptDump(
                f"it has a tensor of shape {list(array.shape)}, expected {list(record.shape)} as in its index",
                path=stored.file,
            )
        return array

    def statistics(self, record: Record) -> Optional[Statistics]:
        statistics: Optional[Statistics] = record.key.statistics
        return statistics

    def precision(self, record: Record) -> Precision:
        """Return the type in which msprobe computed the statistics.

        It converts integers and float64 to float32. For float16 and bfloat16, mean and norm have the tensor's type.
        """
        dtype = record.dtype or ""
        if dtype in ("float16", "bfloat16"):
            return Precision(sums=dtype)
        if dtype == "complex128":
            return Precision(elements="float64")
        return Precision(elements="" if dtype == "float32" else "float32", sums="float32")

    def content(self, record: Record) -> Optional[tuple[Hashable, ...]]:
        crc = record.key.crc
        return (f"crc32:{crc}", record.dtype, record.shape) if crc else None


def type_and_shape(file: Path) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of the tensor in a file. Raises ReadError; NotSupported if it is not a plain tensor."""
    if file.suffix == ".npy":
        from ascend_dump.native.npy import read_npy_header
        from ascend_dump.reading._npy import dtype_of

        header = read_npy_header(file)
        return dtype_of(header.dtype).name, header.shape
    from ascend_dump.reading._pt_file import describe_pt

    tensor = describe_pt(file)
    return tensor.dtype, tensor.shape


def _read(file: Path) -> np.ndarray:
    if not is_there(file):  # also False if the name is too long or no valid file name
        raise ReadError(
            "this file is named in the index, but missing",
            path=file,
            hint="copy dump_tensor_data together with the JSON files",
        )
    if file.suffix == ".npy":
        from ascend_dump.native.npy import read_npy_header
        from ascend_dump.reading._npy import read_array

        return read_array(file, read_npy_header(file))
    from ascend_dump.reading._pt_file import describe_pt, read_pt_array

    return read_pt_array(file, describe_pt(file))


def numbers_of(entry: Mapping[str, Any], shape: tuple[int, ...]) -> Optional[Statistics]:
    """Return the statistics of a tensor's entry in the index; None if it has none.

    msprobe writes NaN as maximum and minimum of a tensor with NaN. Both are unknown then.
    """
    values = [entry.get(name) for name in ("Max", "Min", "Mean", "Norm")]
    if all(value is None for value in values):
        return None
    high, low, mean, norm = (value if _is_number(value) else None for value in values)
    high, low = (None if value is None or math.isnan(value) else value for value in (high, low))
    # For a tensor without axes msprobe writes the element itself, with its sign, as the norm.
    return Statistics(math.prod(shape), max=high, min=low, mean=mean, l2norm=None if norm is None else abs(norm))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**64)


def content_hash(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return (CRC-32, XOR of all 64-bit words) of a tensor's bytes, each as hexadecimal text; "" if it is missing."""
    text = entry.get("md5")
    if not isinstance(text, str):
        return "", ""
    return ("", text[2:]) if text.startswith("0x") else (text, "")

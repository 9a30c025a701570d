"""Create records for the values in dictionaries and lists of a `torch.save` file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.errors import CorruptDump, NotSupported, ReadError
from ascend_dump.reading._pt_file import PtObject, PtTensor, read_pt_items
from ascend_dump.reading._record import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["PT_TENSOR", "items_as_records", "tensor_fields"]

_Fields = Callable[[tuple[str, ...]], Optional[dict[str, Any]]]


class _PtTensorLoader:
    """The loader of records whose `key` is a PtTensor in the file `path`."""

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        from ascend_dump.reading._pt_file import read_pt_array

        if format not in (None, "ND"):
            raise NotSupported(f"{record} has no layout to convert", hint="leave format= out")
        return read_pt_array(record.path, record.key)

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


PT_TENSOR = _PtTensorLoader()


def tensor_fields(tensor: PtTensor) -> dict[str, Any]:
    """Return the fields of a record for a tensor in a file."""
    from ascend_dump.reading._npy import dtype_of

    nbytes = math.prod(tensor.shape) * dtype_of(tensor.dtype).itemsize
    return {"key": tensor, "dtype": tensor.dtype, "shape": tensor.shape, "format": "ND", "nbytes": nbytes}


def items_as_records(path: Path, shared: dict[str, Any], fields_of: _Fields) -> Iterator[Record]:
    """Yield a record for each value in the file. If the file cannot be read, yield a record with the error.

    shared: the fields of all records. fields_of: a function from the path of keys to the other fields of a value; None
    leaves the value out.
    """
    items = read_pt_items(path)
    while True:
        try:
            keys, value = next(items)
        except StopIteration:
            return
        except (ReadError, NotSupported) as error:
            broken = error if isinstance(error, ReadError) else CorruptDump(str(error), path=path)
            yield Record(None, path=path, error=broken, **shared)
            return
        fields = fields_of(keys)
        if fields is None:
            continue
        merged = {**shared, **fields, "attrs": {**shared.get("attrs", {}), **fields.get("attrs", {})}}
        if isinstance(value, PtTensor):
            yield Record(PT_TENSOR, path=path, **tensor_fields(value), **merged)
        else:
            merged["attrs"] |= _of_other(value)
            yield Record(None, path=path, **merged)


def _of_other(value: Any) -> dict[str, Any]:
    if isinstance(value, PtObject):
        return {"no_tensor": True, "skipped": f"an object of {value.name}, which is not unpickled"}
    return {"no_tensor": True, "value": value, "skipped": f"not a tensor but {type(value).__name__}"}

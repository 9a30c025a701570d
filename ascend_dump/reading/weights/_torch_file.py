"""Read the tensors of a checkpoint of `torch.save`. Its pickle is interpreted as data; no function in it is called."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ascend_dump.errors import CorruptDump, DumpNotFound
from ascend_dump.reading._pt_file import PtTensor, read_pt_array, read_pt_items
from ascend_dump.reading.weights._tensor import FileBytes, WeightTensor, numpy_dtype
from ascend_dump.storage.files import open_regular, size_of

__all__ = ["torch_file"]

#: Keys under which trainers store the parameters. Beside them are the state of the optimizer and other values.
_WRAPPERS = ("model", "state_dict", "model_state_dict", "module", "params", "params_ema")
#: Bytes by which a tensor may exceed its storage in the file: a stride of 0 repeats elements.
_MOST_REPEATED = 64 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def torch_file(path: Path, *, follow_links: bool = True) -> Iterator[WeightTensor]:
    """Yield the tensors of a file.

    If no tensor is at the top level, and there is a key such as "model" or "state_dict", only the tensors below this
    key are yielded.

    Raises CorruptDump; NotSupported for a pickle with objects that are not interpreted.
    """
    source = path.resolve() if follow_links else path  # resolved here, because `read_pt_items` follows no links
    tensors = {keys: value for keys, value in read_pt_items(source) if isinstance(value, PtTensor)}
    wrapper = next((key for key in _WRAPPERS if any(len(keys) > 1 and keys[0] == key for keys in tensors)), None)
    if wrapper is not None and not any(len(keys) == 1 for keys in tensors):
        tensors = {keys[1:]: tensor for keys, tensor in tensors.items() if keys[0] == wrapper and len(keys) > 1}
    if not tensors:
        raise DumpNotFound(
            "contains no tensors",
            path=path,
            hint='expected a dictionary of tensors, or one below "model" or "state_dict"',
        )
    offsets = _member_offsets(source)
    file = FileBytes(source, follow_links=False)
    for keys, tensor in tensors.items():
        name = ".".join(keys) or path.stem
        if tensor.little and _is_row_major(tensor):
            offset = offsets[tensor.member] + tensor.offset * numpy_dtype(tensor.dtype).itemsize
            yield WeightTensor(name, tensor.dtype, tensor.shape, path, content=(file, offset))
        else:
            _check_size(path, name, tensor)
            yield WeightTensor(name, tensor.dtype, tensor.shape, path, load=partial(read_pt_array, source, tensor))


def _check_size(path: Path, name: str, tensor: PtTensor) -> None:
    """Raise CorruptDump if a tensor is much larger than its storage. Strides of 0 can repeat elements without limit."""
    nbytes = math.prod(tensor.shape) * numpy_dtype(tensor.dtype).itemsize
    if nbytes > tensor.size + _MOST_REPEATED:
        raise CorruptDump(f"{name!r} needs {nbytes} bytes for its shape, but has {tensor.size}", path=path)


def _is_row_major(tensor: PtTensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _member_offsets(path: Path) -> dict[str, int]:
    """Return the byte position of the content of each archive member. Raises CorruptDump."""
    offsets: dict[str, int] = {}
    with open_regular(path, follow_links=False) as file:
        size = size_of(file)
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
        for member in members:
            file.seek(member.header_offset)
            header = file.read(_LOCAL_HEADER.size)
            mark, name_size, extra_size = _LOCAL_HEADER.unpack(header.ljust(_LOCAL_HEADER.size, b"\0"))
            offset = member.header_offset + _LOCAL_HEADER.size + name_size + extra_size
            if mark != b"PK\x03\x04" or offset + member.file_size > size:
                raise CorruptDump(
                    f"the content of the member {member.filename[:100]!r} is not in the file",
                    path=path,
                    offset=member.header_offset,
                )
            offsets[member.filename] = offset
    return offsets

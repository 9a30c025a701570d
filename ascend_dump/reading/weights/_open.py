"""Find the tensors of a checkpoint (a file or a directory of files), or the parameters in a dump."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import msgspec

from ascend_dump.errors import ConfigError, CorruptDump, DumpNotFound, NotSupported, UnknownFormat
from ascend_dump.reading._dump import Dump
from ascend_dump.reading._open import open_dump
from ascend_dump.reading._record import Record
from ascend_dump.reading.weights._safetensors_file import safetensors_file
from ascend_dump.reading.weights._tensor import WeightTensor
from ascend_dump.reading.weights._torch_file import torch_file
from ascend_dump.storage import is_url
from ascend_dump.storage.files import FileTooLarge, read_regular, read_small

__all__ = ["Weights", "open_weights"]

_Source = Union[Dump, str, "os.PathLike[str]"]
_INDEX = ".index.json"
_LARGEST_INDEX = 256 << 20
_TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
#: If a directory has several of these files, only the first one in this order is read, as `from_pretrained` does.
_PREFERRED = (
    "model.safetensors.index.json",
    "model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)


class Weights(NamedTuple):
    """The tensors of a checkpoint by name, in the order of the files.

    is_complete  False for a dump: it has only the parameters that recorded operators read
    """

    source: str
    tensors: dict[str, WeightTensor]
    is_complete: bool = True

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def open_weights(source: _Source) -> Weights:
    """Open a checkpoint or the parameters in a dump; tensors are read later.

    source  a .safetensors file, a file of `torch.save` (.pt, .pth, .bin, .ckpt), a directory of these with or without
            an index of Hugging Face, a path or URL of a dump, PATH@STEP, or a Dump. The value of a parameter in a dump
            is the one that an operator read first

    Raises DumpNotFound if there are no tensors, CorruptDump for damaged files, ConfigError for a name in two files.
    """
    if isinstance(source, Dump):
        return _of_dump(source, str(source.root))
    text = os.fspath(source)
    if is_url(text):
        if text.endswith((".safetensors", _INDEX, *_TORCH_SUFFIXES)):
            raise NotSupported(f"{text} is a checkpoint in an object store", hint="copy it to a local disk first")
        return _of_dump(open_dump(text), text)
    path = Path(text)
    if path.is_dir():
        files = _files_of(path)
        if not files:
            return _of_dump(open_dump(text), text)
        return _collected(text, (tensor for file, may_link in files for tensor in _file(file, may_link)))
    if not os.path.lexists(path):
        if "@" in path.name:  # PATH@STEP, a single step of a dump
            return _of_dump(open_dump(text), text)
        raise DumpNotFound("does not exist", path=path, hint="expected a checkpoint or a dump")
    return _collected(text, _file(path, follow_links=True))


def _collected(source: str, tensors: Iterable[WeightTensor]) -> Weights:
    by_name: dict[str, WeightTensor] = {}
    for tensor in tensors:
        other = by_name.setdefault(tensor.name, tensor)
        if other is not tensor:
            raise ConfigError(
                f"{source}: {tensor.name!r} is in {other.path.name} and in {tensor.path.name}, expected it once",
                hint="give one of the files instead of the directory",
            )
    if not by_name:
        raise DumpNotFound("contains no tensors", path=source)
    return Weights(source, by_name)


def _file(path: Path, follow_links: bool) -> Iterator[WeightTensor]:
    """Return an iterator over the tensors of a file; for an index, over the tensors of all files in the index.

    Raises ReadError, NotSupported.
    """
    if path.name.endswith(_INDEX):
        return _indexed(path, follow_links)
    if path.name.endswith(".safetensors"):
        return safetensors_file(path, follow_links=follow_links)
    try:
        magic = read_regular(path, 4, follow_links=follow_links)
    except OSError as error:
        raise CorruptDump(f"cannot be read: {error.strerror}", path=path) from None
    if magic == b"PK\x03\x04":
        return torch_file(path, follow_links=follow_links)
    if magic[:1] == b"\x80":
        raise NotSupported(
            f"{path} is a bare pickle, the format of torch.save before PyTorch 1.6, which is never unpickled",
            hint="load it with torch.load(..., weights_only=True), and save it again",
        )
    raise UnknownFormat(
        "is no checkpoint: its name does not end with .safetensors, and it does not begin like a file of torch.save",
        path=path,
        hint="expected .safetensors, .pt, .pth, .bin, .ckpt, an .index.json, or a directory",
    )


def _indexed(index: Path, follow_links: bool) -> Iterator[WeightTensor]:
    """Yield the tensors of all files that an index names. Raises CorruptDump if it names files in other directories."""
    try:
        text = read_small(index, _LARGEST_INDEX, follow_links=follow_links)
        document: Any = msgspec.json.decode(text)
        weight_map = document["weight_map"]
        file_of = {str(name): str(file) for name, file in weight_map.items()}
    except FileTooLarge as error:
        raise CorruptDump(str(error), path=index) from None
    except OSError as error:
        raise CorruptDump(f"cannot be read: {error.strerror}", path=index) from None
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptDump(f'is no index with a "weight_map" of names and files: {error}', path=index) from None
    for name, file in file_of.items():
        if file in ("", ".", "..") or "/" in file or "\\" in file or "\0" in file or file.endswith(_INDEX):
            raise CorruptDump(
                f"it says that {name[:200]!r} is in {file[:200]!r}, expected the name of a file beside it", path=index
            )
    directory = index.parent
    for file in dict.fromkeys(file_of.values()):
        path, may_link = _child(directory, file)
        if not os.path.lexists(path):
            raise DumpNotFound("is named in the index, but missing", path=path, hint="download or copy all shards")
        names = set()
        for tensor in _file(path, may_link):
            names.add(tensor.name)
            yield tensor
        absent = next((name for name, in_file in file_of.items() if in_file == file and name not in names), None)
        if absent is not None:
            raise CorruptDump(f"it says that {absent[:200]!r} is in {file}, which lacks it", path=index)


def _files_of(directory: Path) -> list[tuple[Path, bool]]:
    """Return the files of a checkpoint in a directory, as pairs from `_child`; [] if it is no checkpoint.

    Raises CorruptDump for a link, unless it leads into the cache of Hugging Face.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if not entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise DumpNotFound(f"cannot be listed: {error.strerror}", path=directory) from None
    preferred = next((name for name in _PREFERRED if name in names), None)
    if preferred is not None:
        return [_child(directory, preferred)]
    indexes = [name for name in names if name.endswith((f".safetensors{_INDEX}", f".bin{_INDEX}"))]
    if len(indexes) == 1:
        return [_child(directory, indexes[0])]
    if indexes:
        raise ConfigError(f"{directory} has several indexes: {', '.join(indexes)}", hint="give one of them")
    files = [name for name in names if name.endswith(".safetensors")]
    files = files or [name for name in names if name.endswith(_TORCH_SUFFIXES)]
    return [_child(directory, name) for name in files]


def _child(directory: Path, name: str) -> tuple[Path, bool]:
    """Return the path of a file, and True if links have to be followed to read it.

    Links are accepted only in the cache of Hugging Face, from `snapshots` into `blobs` of the same model. Raises
    CorruptDump for all others.
    """
    path = directory / name
    if not path.is_symlink():
        return path, False
    real = Path(os.path.realpath(path))
    snapshots = next((parent for parent in path.absolute().parents if parent.name == "snapshots"), None)
    if snapshots is None or real.parent != Path(os.path.realpath(snapshots.parent / "blobs")):
        raise CorruptDump("is a link, which is not followed", path=path, hint="give the path that it points to")
    return path, True


def _of_dump(dump: Dump, source: str) -> Weights:
    """Return the parameters in a dump, each with the value that an operator read first.

    Raises DumpNotFound if the dump has no records with a parameter's name and values.
    """
    tensors: dict[str, WeightTensor] = {}
    for record in dump:
        name = _parameter(record)
        if name is not None and name not in tensors and record.dtype is not None and record.shape is not None:
            tensors[name] = WeightTensor(name, record.dtype, record.shape, record.path, load=record.numpy)
    if not tensors:
        raise DumpNotFound(
            "is not a checkpoint but a dump, and has no parameters with values",
            path=source,
            hint='record inputs and tensors (mode="all", data="tensor") of a step that calls the model',
        )
    return Weights(source, tensors, is_complete=False)


def _parameter(record: Record) -> Optional[str]:
    """Return the name of the parameter that a record contains; None for gradients, optimizer states and others."""
    name = record.parameter if record.io == "input" and _has_values(record) else None
    return None if name is None or name.endswith(".grad") or " of " in name else name


def _has_values(record: Record) -> bool:
    return record.error is None and not {"skipped", "no_tensor"} & record.attrs.keys()

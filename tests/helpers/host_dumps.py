"""Host dumps for tests, which are written with known content, read back and compared with it."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any, Optional

import numpy as np

from ascend_dump.reading import Dump, open_dump
from ascend_dump.writing import HostWriter, Item, Line, Payload

TIME = 1_700_000_000_000_000
RUN = Path("worldsize1_global_rank0", "20260101010101", "0", "Model", "0")


def rank_writer(root: Path, rank: int, ranks: int) -> HostWriter:
    """Return the writer of one rank, which has begun step 0."""
    folder = root / f"worldsize{ranks}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
    folder.mkdir(parents=True)
    writer = HostWriter(folder, metadata={})
    writer.begin_step(0)
    return writer


def model_directory(root: Path) -> Path:
    """A fresh directory for the steps of one model, where `HostRun` would put it."""
    directory = root / RUN
    directory.mkdir(parents=True)
    return directory


def content(seed: object, nbytes: int) -> bytes:
    """Bytes that are different for each seed."""
    return hashlib.shake_128(repr(seed).encode()).digest(nbytes)


def line(name: str, array: np.ndarray, *, io: str = "output", index: int = 0, **more: Any) -> Line:
    strides = tuple(step // array.itemsize for step in array.strides)
    found = Line(0, "aten::op", name, io, index, TIME, str(array.dtype), array.shape, array.nbytes, stride=strides)
    for field, value in more.items():
        setattr(found, field, value)
    return found


def item(name: str, array: np.ndarray, **more: Any) -> Item:
    """A record with a copy of its bytes."""
    payload = Payload(array.tobytes(), 0, array.nbytes, str(array.dtype), array.shape)
    return Item(line(name, array, **more), payload)


def in_memory(name: str, array: np.ndarray, **more: Any) -> Item:
    """A record whose bytes are not copied: the writer reads them from the memory of the program."""
    payload = Payload(array, array.ctypes.data, array.nbytes, str(array.dtype), array.shape)
    return Item(line(name, array, **more), payload)


def noise(seed: int, elements: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(elements).astype(np.float32)


def put(writer: HostWriter, *items: Item) -> None:
    writer.put(list(items), sum(one.payload.nbytes for one in items if one.payload is not None))


def write_step(writer: HostWriter, step: int, *items: Item) -> None:
    writer.begin_step(step)
    put(writer, *items)
    writer.end_step()


def lines_of(root: Path, step: Optional[int] = None) -> list[dict[str, Any]]:
    """The lines of all index files below, in order of step; fails unless each is a whole one."""
    found = []
    for index in sorted(root.rglob("index.jsonl*"), key=lambda path: int(path.parent.name)):
        if step is None or index.parent.name == str(step):
            text = index.read_bytes()
            if index.suffix == ".gz":
                text = gzip.decompress(text)
            assert not text or text.endswith(b"\n")
            found += [json.loads(one) for one in text.splitlines()]
    return found


def values(dump: Dump) -> dict[tuple[Any, ...], bytes]:
    """The bytes of each record by (step, name, io, index); reading must raise nothing."""
    found = {}
    for record in dump:
        array = record.numpy()
        assert array.nbytes == record.nbytes
        found[record.step, record.op_name, record.io, record.index] = array.tobytes()
    return found


def read(root: Path) -> dict[tuple[Any, ...], bytes]:
    return values(open_dump(root))


def open_shards(root: Path) -> dict[str, dict[str, bytes]]:
    """Return the tensors that the safetensors library reads from each shard, without the padding."""
    from safetensors import deserialize

    found = {}
    for path in sorted(root.rglob("*.safetensors")):
        tensors = {name: bytes(entry["data"]) for name, entry in deserialize(path.read_bytes())}
        kept = {name: data for name, data in tensors.items() if not name.startswith("__padding__")}
        found[f"{path.parent.name}/{path.name}"] = kept
    return found

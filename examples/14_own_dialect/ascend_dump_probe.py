"""A dialect as a third party would write and register it.

The format is that of an imaginary tool: `probe_STEP_TYPE_NAME.json` holds the shape and the values of one output.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump import CorruptDump, NotSupported, Statistics
from ascend_dump.reading import Directory, Entry, Record, rank_of, read_regular

if TYPE_CHECKING:
    import numpy as np

_NAME = re.compile(r"probe_(\d+)_([A-Za-z0-9]+)_(\w+)\.json")
_MOST_BYTES = 1 << 20


class _ProbeDialect:
    name = "probe"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        found = {name: match for name in directory.names for match in (_NAME.fullmatch(name),) if match}
        return [_ProbeFile(directory, match) for match in found.values()], set(found)


class _ProbeFile(Entry):
    """What the name of the file says; the file itself is opened by `records`."""

    __slots__ = ()

    def __init__(self, directory: Directory, match: re.Match[str]) -> None:
        step, op_type, op_name = match.groups()
        path = directory.path / match[0]
        super().__init__(path, op_type=op_type, op_name=op_name, step=int(step), rank=rank_of(directory.parts))

    def records(self) -> Iterator[Record]:
        known: dict[str, Any] = {"path": self.path, "op_type": self.op_type, "op_name": self.op_name}
        known.update(step=self.step, rank=self.rank)
        try:
            content = json.loads(read_regular(self.path, _MOST_BYTES))
            shape, values = tuple(content["shape"]), content["values"]
            if len(values) != math.prod(shape):
                raise ValueError(f"{len(values)} values for shape {shape}")
        except (OSError, ValueError, TypeError, KeyError) as error:
            yield Record(None, error=CorruptDump(f"no probe: {error}", path=self.path), **known)
            return
        nbytes = 4 * len(values)
        yield Record(_LOADER, key=values, dtype="float32", shape=shape, io="output", nbytes=nbytes, **known)


class _ProbeLoader:
    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        import numpy as np

        if format is not None:
            raise NotSupported(f"{record} has no layout to convert", hint="leave format away")
        return np.array(record.key, np.float32).reshape(record.shape or ())

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


DIALECT = _ProbeDialect()
_LOADER = _ProbeLoader()

"""A dialect for tests of everything that reads dumps: one JSON list of numbers per file.

File name: `STEP.TYPE.NAME.IO.INDEX.tiny`; a NAME with `~` means `/`. A file that is not JSON is a
record that cannot be read; the content `"late"` fails only when its values are asked for, and
`"bare"` holds no values at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from interpreters import register

from ascend_dump import CorruptDump
from ascend_dump.reading import Directory, Entry, Record, rank_of
from ascend_dump.statistics import Statistics

FORGED = {"late": [1.0, 2.0], "bare": [1.0]}


class TinyEntry(Entry):
    __slots__ = ("_io", "_index")

    def __init__(self, directory: Directory, name: str) -> None:
        step, op_type, op_name, io, index, _ = name.split(".")
        run = next((part[4:] for part in directory.parts if part.startswith("run_")), None)
        super().__init__(
            directory.path / name,
            op_type=op_type,
            op_name=op_name.replace("~", "/"),
            step=int(step) if step != "x" else None,
            rank=rank_of(directory.parts),
            run=run,
        )
        self._io, self._index = io, int(index)

    def records(self) -> list[Record]:
        text = self.path.read_text()
        place: dict[str, Any] = {"path": self.path, "step": self.step, "rank": self.rank, "run": self.run}
        try:
            values = json.loads(text)
        except ValueError:
            error = CorruptDump("not a list of numbers", path=self.path, offset=0)
            return [Record(None, op_name=self.op_name or "", error=error, **place)]
        array = np.array(FORGED.get(values, values) if isinstance(values, str) else values, dtype=np.float32)
        return [
            Record(
                None if values == "bare" else TinyLoader(),
                op_type=self.op_type or "",
                op_name=self.op_name or "",
                io=self._io,
                index=self._index,
                key=None if values == "late" else array,
                dtype="float32",
                shape=array.shape,
                nbytes=array.nbytes,
                phase="forward",
                module=(self.op_name or "").rpartition("/")[0],
                source="model.py:7",
                **place,
            )
        ]


class TinyLoader:
    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        if record.key is None:
            raise CorruptDump("cut off", path=record.path, offset=3)
        array: np.ndarray = record.key
        return array

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


class _TinyDialect:
    name = "tiny"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        mine = [name for name in directory.names if name.endswith(".tiny")]
        return [TinyEntry(directory, name) for name in mine], {*mine, *{"tiny.ignored"} & set(directory.names)}


DIALECT = _TinyDialect()


def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register it for the rest of the test, as pip would; `site` is an empty folder."""
    site.mkdir()
    register(site, "tiny-1", "ascend_dump.dialects", "tiny", f"{__name__}:DIALECT")
    monkeypatch.syspath_prepend(str(site))


def write(root: Path, name: str, values: Any) -> Path:
    """Write one file; `values` is a list, one of the special words, or None for a broken file."""
    path = root / f"{name}.tiny"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("not JSON" if values is None else json.dumps(values))
    return path

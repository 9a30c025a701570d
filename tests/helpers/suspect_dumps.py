"""Dumps on disk of small programs, for tests of the rules for suspects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ascend_dump.analysis.suspects import Row
from ascend_dump.dump_format import INDEX, Line
from ascend_dump.reading import Dump, open_dump

TIME = 1_700_000_000_000_000


def write_rows(root: Path, rows: Sequence[Row]) -> Dump:
    """A host dump with these records, one operator after the other."""
    seqs = {}
    for row in rows:
        place = (row.rank, row.step)
        last, seq = seqs.get(place, ("", -1))
        seq += row.op_name != last
        seqs[place] = (row.op_name, seq)
        directory = root / f"worldsize4_global_rank{row.rank}/2026010101010{row.rank or 0}/0/Model/0/{row.step}"
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / INDEX).open("ab") as index:
            index.write(msgspec.json.encode(_line(row, seq)) + b"\n")
    return open_dump(root)


def _line(row: Row, seq: int) -> Line:
    found = row.found
    count = 1000 if found is None else found.count
    line = Line(seq, row.op_type, row.op_name, row.io, row.index, TIME + seq, row.dtype, (count,), 4 * count)
    line.phase, line.module, line.storage, line.hash = row.phase, row.module, row.storage, row.hash
    line.skipped, line.requires_grad, line.parameter = row.skipped, row.requires_grad, row.parameter
    line.source, line.placement, line.collective = row.source, row.placement, row.collective
    if row.call:
        line.call = msgspec.Raw(row.call.encode())
    if row.storage >= 0:
        line.address, line.stride = 4096 * (row.storage + 1), (1,)
    if found is not None:
        line.stats = tuple(str(one) if isinstance(one, float) and one in (float("inf"),) else one for one in found)
    return line

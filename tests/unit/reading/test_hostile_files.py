"""An index with a hole in it, and odd times: the other records are read, in little memory and time."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec

import ascend_dump
from ascend_dump.dump_format import Line

PLACE = "worldsize1_global_rank0/20260102030405/0/Net/0/0"


def line(seq: int, at: int = 1) -> bytes:
    made = Line(
        seq=seq, op_type="aten::add", op_name=f"add_{seq}", io="output", index=0, time=at, dtype="float32",
        shape=(0,), nbytes=0,
    )  # fmt: skip
    return msgspec.json.encode(made) + b"\n"


def test_a_hole_in_an_index_is_passed_over_in_little_memory(tmp_path: Path) -> None:
    place = tmp_path / PLACE
    place.mkdir(parents=True)
    index = place / "index.jsonl"
    index.write_bytes(line(0))
    os.truncate(index, 1 << 29)  # more than the bound below
    with open(index, "ab") as file:
        file.write(b"\n" + line(1))
    program = (
        "import sys, ascend_dump\n"
        "print([(r.op_name, r.error is None) for r in ascend_dump.open(sys.argv[1])])\n"
        # Of this program alone: ru_maxrss begins with what the process held that started it.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    names, peak = done.stdout.splitlines()
    assert names == "[('add_0', True), ('', False), ('add_1', True)]"
    assert int(peak) < 300_000  # kilobytes


def test_of_many_lines_that_are_no_records_a_thousand_are_listed(tmp_path: Path) -> None:
    place = tmp_path / PLACE
    place.mkdir(parents=True)
    (place / "index.jsonl").write_bytes(line(0) + b"\x7f\n" * 500_000 + b"{}\n" * 3 + line(1))
    records = list(ascend_dump.open(tmp_path))
    assert [record.op_name for record in records if record.error is None] == ["add_0", "add_1"]
    broken = [record for record in records if record.error is not None]
    assert len(broken) == 1000
    assert "no others after it are listed" in str(broken[-1].error)
    frame = ascend_dump.open(tmp_path).catalog().collect() if find_spec("polars") else records
    assert len(frame) == 1002


def test_times_before_1970_are_read(tmp_path: Path) -> None:
    place = tmp_path / PLACE
    place.mkdir(parents=True)
    (place / "index.jsonl").write_bytes(line(0, at=-5_000_000))
    [read] = ascend_dump.open(tmp_path)
    assert (read.error, read.timestamp) == (None, -5_000_000)

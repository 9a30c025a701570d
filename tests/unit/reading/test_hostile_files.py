"""An index with a hole in it, and odd times: the other records are read, in little memory and time."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.dump_format import Line

PLACE = "worldsize1_global_rank0/20260102030405/0/Net/0/0"


def line(seq: int, at: int = 1) -> bytes:
    made = Line(
        seq=seq, op_type="aten::add", op_name=f"add_{seq}", io="output", index=0, time=at, dtype="float32",
        shape=(0,), nbytes=0,
    )  # fmt: skip
    return msgspec.json.encode(made) + b"\n"


def test_an_index_ends_at_a_hole(tmp_path: Path) -> None:
    place = tmp_path / PLACE
    place.mkdir(parents=True)
    index = place / "index.jsonl"
    index.write_bytes(line(0))
    os.truncate(index, 1 << 40)  # more than can be read
    program = (
        "import sys, ascend_dump\n"
        "print([(r.op_name, r.error is None) for r in ascend_dump.open(sys.argv[1])])\n"
        # Of this program alone: ru_maxrss begins with what the process held that started it.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    names, peak = done.stdout.splitlines()
    assert names == "[('add_0', True), ('', False)]"
    assert int(peak) < 300_000  # kilobytes


@pytest.mark.parametrize(
    "name",
    [
        "ge_proto_00000001_graph_1_Build.txt",
        "dynamo_original_graph_0_rank_0_pid_1_ts_20260102030405000000.py",
        "rank_0/Net/0/0/statistic.csv",
        "rank_0/graphs/ms_output_trace_code_graph_0.ir",
        "Add.a.1.2.1589195081588018.csv",
        "step0/rank0/dump.json",
        "mapping.csv",
    ],
)
@pytest.mark.parametrize("text", [b"", b"graph {\n  name: ", b'{"data": {"a": '])
def test_a_text_ends_at_a_hole(tmp_path: Path, name: str, text: bytes) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    os.truncate(path, 1 << 40)  # more than can be read
    (path.parent / "Cast.a-op0.0.0.1.output.0.DefaultFormat.npy").touch()  # asks for the mapping and the graph
    tracemalloc.start()
    try:
        for verb in (["ls"], ["ops"]):
            assert main([*verb, str(tmp_path if verb == ["ls"] else path)]) in (0, 1, 2, 3)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


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

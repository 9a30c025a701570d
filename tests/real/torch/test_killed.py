"""Dumps after `kill -9` at any moment of a training."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path
from typing import Any

from processes import PROGRAMS, run_python
from safetensors import safe_open

import ascend_dump
from ascend_dump import Record

KILLS = 12


def key(record: Record) -> tuple[Any, ...]:
    return record.step, record.attrs["seq"], record.op_name, record.io, record.index


def content(record: Record) -> tuple[str, str]:
    """The hash that was recorded, and one of the values as they are read."""
    values = "" if record.attrs.get("skipped") else hashlib.sha256(record.numpy().tobytes()).hexdigest()
    return record.attrs["hash"], values


def test_complete_records_read_back_as_if_nobody_had_killed_it(tmp_path: Path) -> None:
    done = run_python(PROGRAMS / "killed.py", tmp_path, KILLS)
    ends = json.loads(done.stdout)
    assert -signal.SIGKILL in ends, "every training had ended before it could be killed"

    whole = ascend_dump.open(tmp_path / "whole")
    expected = {key(record): content(record) for record in whole}
    order = list(expected)
    left = []
    for number in range(KILLS):
        directory = tmp_path / f"killed-{number}"
        if not list(directory.rglob("index.jsonl*")):
            continue  # killed before the first record
        dump = ascend_dump.open(directory)
        records = list(dump)
        left.append(len(records))
        assert [key(record) for record in records] == order[: len(records)]
        for record in records:
            assert content(record) == expected[key(record)]
        for step in range(max((record.step for record in records), default=0)):
            # The steps that were closed are whole for every other reader too.
            for shard in dump.root.rglob(f"{step}/*.safetensors"):
                with safe_open(shard, framework="numpy") as tensors:
                    assert tensors.keys()
    assert left
    assert min(left) < len(order)

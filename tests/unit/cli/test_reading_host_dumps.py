"""The reading verbs on a dump as the host adapters write it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from host_dumps import item, model_directory, put
from safetensors.numpy import save_file

import ascend_dump
from ascend_dump.cli import Exit, main
from ascend_dump.dump_format import Line
from ascend_dump.writing import HostWriter

RUN = "20260102030405"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """One rank, two steps; at step 1 the second operator turns finite inputs into Inf."""
    root = tmp_path / "dumps"
    for step in (0, 1):
        place = root / "worldsize1_global_rank0" / RUN / "0" / "Net" / "0" / str(step)
        place.mkdir(parents=True)
        tensors = {
            "fc1/addmm_0.output.0": np.array([[1, -2], [3, 4]], dtype=np.float32),
            "act/exp_0.output.0": np.array([1.5, np.inf if step else 2.5], dtype=np.float32),
        }
        shard = place / "tensors-00000.safetensors"
        save_file(tensors, shard)
        header = json.loads(shard.read_bytes()[8 : 8 + int.from_bytes(shard.read_bytes()[:8], "little")])
        start = shard.stat().st_size - sum(array.nbytes for array in tensors.values())
        lines = []
        for seq, (name, array) in enumerate(tensors.items()):
            offset = start + header[name]["data_offsets"][0]
            op_name = name.split(".")[0]
            lines.append(
                Line(
                    seq=seq, op_type=f"aten::{op_name.split('/')[1][:-2]}", op_name=op_name, io="output", index=0,
                    time=1_700_000_000_000_000 + seq, dtype="float32", shape=array.shape, nbytes=array.nbytes,
                    phase="forward", module=op_name.split("/")[0], source="train.py:12",
                    stride=tuple(stride // 4 for stride in array.strides),
                    shard=f"{step}/{shard.name}", offset=offset, blob=(offset, array.nbytes),
                )
            )  # fmt: skip
        (place / "index.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return root


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    return (code, *capsys.readouterr())


def test_ls(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "ls", dump)
    assert (code, err) == (Exit.OK, "")
    assert [line.split()[:3] for line in out.splitlines()[1:5]] == [
        ["0", "fc1/addmm_0", "aten::addmm"],
        ["0", "act/exp_0", "aten::exp"],
        ["1", "fc1/addmm_0", "aten::addmm"],
        ["1", "act/exp_0", "aten::exp"],
    ]
    assert out.endswith("4 operators · 4 records · 48 B of tensors · 2 steps\n")


def test_show(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", dump, "--module", "fc1", "--step", 1, "--run", RUN)
    assert code == Exit.OK
    assert "[[ 1. -2.]\n [ 3.  4.]]" in out
    fields = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith("  ")}
    assert fields["source"] == ["train.py:12"]
    assert fields["rank"] == ["0"]
    assert fields["attrs.stride"] == ["[2,", "1]"]


def test_stats_finds_the_overflow(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "stats", dump, "--nonfinite", "--json")
    assert code == Exit.OK
    [record] = json.loads(out)["records"]
    assert (record["op_name"], record["step"], record["statistics"]["posinf"]) == ("act/exp_0", 1, 1)
    assert record["statistics"]["max"] == "Infinity"


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ({"state": "complete"}, ""),
        ({"state": "incomplete", "failure": "the disk is full"}, "the capture ended early: the disk is full"),
        (
            {"state": "running", "pid": 2**22 + 1},
            "process 4194305 is gone and did not complete its manifest",
        ),
        ({"state": "running", "pid": "own"}, "the capture has not ended: process {own} still runs"),
        ({"state": "running", "pid": 1, "host": "elsewhere"}, "another machine"),
        ({"state": "running", "pid": "x"}, "its manifest is incomplete"),
        ({"state": "running", "schema": "somebody/else"}, ""),
        ({"state": ["running"], "failure": 3}, ""),
        (b"[" * 100_000, ""),
        (b"[1]", ""),
        (b"\xff{", ""),
        (None, ""),
    ],
)
def test_ls_tells_of_runs_that_did_not_end(
    dump: Path, capsys: pytest.CaptureFixture[str], manifest: Any, expected: str
) -> None:
    root = dump / "worldsize1_global_rank0" / RUN
    expected = expected.format(own=os.getpid())
    if isinstance(manifest, dict):
        if manifest.get("pid") == "own":
            manifest = {**manifest, "pid": os.getpid()}
        manifest = json.dumps({"schema": "ascend-dump/host/1", "host": socket.gethostname(), **manifest}).encode()
    if manifest is not None:
        (root / "manifest.json").write_bytes(manifest)
    code, out, err = run(capsys, "ls", dump)
    assert code == Exit.OK
    assert out.endswith("2 steps · incomplete\n" if expected else "2 steps\n")
    assert (expected in err) if expected else (err == "")
    unended = json.loads(run(capsys, "ls", dump, "--json")[1])["unended"]
    assert [(one["path"], expected in one["reason"]) for one in unended] == ([(str(root), True)] if expected else [])
    # A part of the run, opened or selected, is of that run too.
    step = root.joinpath("0", "Net", "0", "1")
    for part in (ascend_dump.open(step), ascend_dump.open(dump).select(step=1), ascend_dump.open(step / "index.jsonl")):
        assert [one.path for one in part.runs() if one.state != "complete"] == ([root] if expected else [])
    assert ascend_dump.open(dump).select(step=7).runs() == []


def test_ls_tells_of_a_run_that_was_killed_before_its_first_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "worldsize1_global_rank0" / RUN
    root.mkdir(parents=True)
    manifest = {"schema": "ascend-dump/host/1", "host": socket.gethostname(), "state": "running", "pid": 2**22 + 1}
    (root / "manifest.json").write_text(json.dumps(manifest))
    _, _, err = run(capsys, "ls", tmp_path)
    assert f"incomplete: {root}: process 4194305 is gone and did not complete its manifest" in err


def test_stats_finds_who_made_nan_and_inf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = HostWriter(model_directory(tmp_path), metadata={})
    finite, wrong = np.ones(3, np.float32), np.array([1, np.inf, np.nan], np.float32)
    for step in (0, 1):
        writer.begin_step(step)
        for seq, (name, given, made) in enumerate(
            [("mask_0", None, wrong), ("div_0", finite, wrong if step else finite), ("sub_0", wrong, wrong)]
        ):
            if given is not None:
                put(writer, item(name, given, io="input", seq=seq))
            put(writer, item(name, made, seq=seq), item(name, wrong, seq=seq, index=1))
    writer.close()
    code, out, err = run(capsys, "stats", tmp_path, "--origin", "--json")
    assert code == Exit.OK, err
    shown = [(one["step"], one["op_name"], one["io"], one["index"]) for one in json.loads(out)["records"]]
    assert shown == [
        (0, "div_0", "input", 0),
        (0, "div_0", "output", 1),
        (1, "div_0", "input", 0),
        (1, "div_0", "output", 0),
    ]
    code, out, _ = run(capsys, "stats", tmp_path, "--origin", "--step", "1")
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [["1", "div_0", "input"], ["1", "div_0", "output"]]
    code, out, err = run(capsys, "stats", tmp_path, "--origin", "--op", "sub*")
    assert (code, out) == (Exit.OK, "")
    assert "no operator in 6 records made NaN or Inf of recorded finite inputs" in err


def test_a_value_that_cannot_be_read_is_told_while_looking_for_the_origin(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for shard in dump.rglob("*.safetensors"):
        shard.unlink()
    code, out, err = run(capsys, "stats", dump, "--origin")
    assert (code, out) == (Exit.UNREADABLE, "")
    assert "4 records cannot be read" in err


@pytest.mark.parametrize("verb", ["ls", "show", "stats"])
def test_a_missing_shard_and_a_cut_index_leave_the_rest(
    dump: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    first, second = sorted(dump.rglob("index.jsonl"))
    (first.parent / "tensors-00000.safetensors").unlink()
    lines = second.read_bytes().splitlines(keepends=True)
    second.write_bytes(b"garbage\n" + lines[1])
    code, out, err = run(capsys, verb, dump)
    assert code == Exit.UNREADABLE
    assert out.count("act/exp_0") == 2
    assert f"{second} at byte 0" in err
    # ls reads no tensor, so it cannot know of the shard.
    assert f"{'1 record' if verb == 'ls' else '3 records'} cannot be read" in err
    readable: list[Any] = [record for record in ascend_dump.open(dump) if record.error is None]
    assert len(readable) == 3

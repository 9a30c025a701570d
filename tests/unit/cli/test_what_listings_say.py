"""What the verbs print of odd names, skipped tensors and runs of equal operators."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import ascend_dump
from ascend_dump.cli import Exit, main
from ascend_dump.dump_format import Line
from ascend_dump.native.cann.dump_file import tensor_of, write
from ascend_dump.native.cann.mapping import hashed_name, mapping_line
from ascend_dump.native.cann.overflow import encode_overflow

STAMP = 1589195081588018
ESCAPE = "\x1b[31mred"


def put(path: Path, *tensors: tuple[str, Any], op_name: str = "a") -> Path:
    made = [tensor_of(io, at, np.asarray(values), address=1) for at, (io, values) in enumerate(tensors)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, made, op_name=op_name, dump_time=STAMP)
    return path


def test_two_neighbouring_kernels_of_one_name_are_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = np.ones(2, "f4")
    put(tmp_path / f"Add.add.1.2.{STAMP}", ("input", one), ("output", one), op_name="add")
    put(tmp_path / f"Add.add.1.2.{STAMP + 5}", ("input", one), ("input", one), ("output", one), op_name="add")
    assert main(["ls", str(tmp_path)]) == Exit.OK
    out = capsys.readouterr().out
    assert [line.split()[3:5] for line in out.splitlines() if "add" in line] == [["1", "1"], ["2", "1"]]
    assert "2 operators · 5 records" in out


def test_a_tensor_that_was_not_stored_gives_its_own_reason(tmp_path: Path) -> None:
    place = tmp_path / "worldsize1_global_rank0/20260102030405/0/Net/0/0"
    place.mkdir(parents=True)
    line = Line(
        seq=0, op_type="aten::empty", op_name="empty_0", io="output", index=0, time=1, dtype="float32", shape=(2,),
        nbytes=8, skipped="uninitialised memory",
    )  # fmt: skip
    (place / "index.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")
    [record] = ascend_dump.open(tmp_path)
    for read in (record.numpy, record.statistics):
        with pytest.raises(ascend_dump.NotSupported, match="was not stored: uninitialised memory") as caught:
            read()
        assert "data=" not in caught.value.hint


def test_the_reason_of_an_early_end_is_printed_in_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failure = "max_bytes=10 would be exceeded\nHint: raise max_bytes"
    manifest = {"schema": "ascend-dump/host/1", "state": "incomplete", "failure": failure, "host": socket.gethostname()}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    main(["ls", str(tmp_path)])
    err = capsys.readouterr().err
    assert "max_bytes=10 would be exceeded\n  Hint: raise max_bytes\n" in err
    assert "\\n" not in err


@pytest.mark.parametrize("verb", ["ls", "show", "stats", "overflow", "watch", "convert", "ops"])
def test_no_verb_prints_control_characters_of_paths_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    dump = tmp_path / ESCAPE
    one = np.ones(2, "f4")
    inf = np.array([np.inf, 1], "f4")
    put(dump / f"Exp.{ESCAPE}.1.2.{STAMP}", ("input", one), ("output", inf), op_name=ESCAPE)
    for number in range(5):
        put(dump / f"Exp.{ESCAPE}.1.2.{STAMP + 1 + number}", ("output", one), op_name=ESCAPE)
    for status in (0, 32):
        data = {"stream_id": 2, "task_id": 1, "context_id": 65535, "thread_id": 65535, "status": status}
        payload = np.frombuffer(encode_overflow({"magic": "", "acc_list": {"acc_type": "AIC", "data": data}}), "u1")
        put(dump / f"Opdebug.Node_OpDebug.9.9.{STAMP + 10 + status}", ("output", payload), op_name="Node_OpDebug")
    (dump / f"Bad.{ESCAPE}.1.2.{STAMP}").write_bytes(b"")
    (dump / f"{ESCAPE}.txt").write_bytes(b"")
    for arguments in ([verb, str(dump)], [verb, f"{dump}-missing"], [verb, str(dump), f"--{ESCAPE}"]):
        main(arguments)
    (tmp_path / "empty").mkdir()
    main([verb, str(tmp_path / "empty"), *(["--step", ESCAPE] if verb not in ("convert", "ops") else [])])
    out, err = capsys.readouterr()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out + err), repr(out + err)
    assert "\\x1b[31mred" in out + err


def test_without_an_output_the_current_directory_is_taken_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "dump" / f"Add.add.1.2.{STAMP}", ("output", np.ones(2, "f4")))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["convert", str(path)]) == Exit.OK
    assert capsys.readouterr().out.endswith(f" · in {tmp_path / 'here'}\n")
    assert [one.name for one in Path().iterdir()] == [f"{path.name}.output.0.npy"]


@pytest.mark.parametrize("whole", [True, False], ids=["directory", "file"])
def test_a_hashed_name_is_converted_under_the_name_it_stands_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: bool
) -> None:
    long_name = f"Add.{'n' * 240}.1.2.{STAMP}"
    on_disk = hashed_name(f"/dump/{long_name}")
    path = put(tmp_path / "dump" / on_disk, ("output", np.ones(2, "f4")))
    (path.parent / "mapping.csv").write_text(mapping_line(on_disk, long_name))
    source = path.parent if whole else path
    assert main(["convert", str(source), "-o", str(tmp_path / "out")]) == Exit.OK
    [written] = (tmp_path / "out").glob("*.npy")
    mapped = (tmp_path / "out" / "mapping.csv").read_text()
    assert mapped == f"{written.name},{long_name}.output.0.npy\n"
    (path.parent / "mapping.csv").unlink()
    capsys.readouterr()
    main(["convert", str(source), "-o", str(tmp_path / "other")])
    assert (
        "its name is a hash, and mapping.csv, which has the operator's name, is not beside it"
        in capsys.readouterr().err
    )
    assert [one.name for one in (tmp_path / "other").iterdir()] == [f"{on_disk}.output.0.npy"]


def test_names_of_the_documents_template_are_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "rank_0/Net/0/0"
    place.mkdir(parents=True)
    np.save(place / f"Conv2D.Conv2D-op107.2.2.{STAMP}.output.0.0.DefaultFormat.npy", np.ones(2, "f4"))
    assert main(["ls", str(tmp_path)]) == Exit.UNREADABLE
    out, err = capsys.readouterr()
    assert "Conv2D-op107" in out
    assert "an index and a slot" in err

"""The summary of a run at its end, however it was started."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.cli import Exit, main

torch = pytest.importorskip("torch")


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def train(model: Any, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, 16)).sum().backward()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages below warnings, without those of the compiler of statistics: they come once on a machine."""
    told = [record.getMessage() for record in caplog.records if record.levelno < logging.WARNING]
    return [text for text in told if not text.startswith("compiling")]


def files(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def counts(text: str) -> tuple[int, int, int]:
    found = re.search(r"dumped (\d+) steps?(?: each)?, (\d+) operators?, (\d+) records? into", text)
    assert found is not None, text
    return int(found[1]), int(found[2]), int(found[3])


def held(dump: ascend_dump.Dump) -> tuple[int, int, int]:
    """Steps, operators and records, counted in the files."""
    operators = {(one.step, one.attrs.get("seq"), one.op_name) for one in dump}
    return len({one.step for one in dump}), len(operators), len(dump)


def size_of(nbytes: int) -> str:
    for unit in ("B", "kB"):
        if nbytes < 1000 or unit == "kB":
            return f"{nbytes} B" if unit == "B" else f"{nbytes / 1000:.1f} kB"
    raise AssertionError


@pytest.mark.parametrize(
    "settings",
    [{}, {"steps": "1-3"}, {"keep": 2}, {"data": "stats"}, {"mode": "output"}, {"steps": "0|4", "layers": "0/*"}],
    ids=str,
)
def test_the_numbers_are_those_on_disk(settings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with ascend_dump.capture(model, path=tmp_path, **settings) as cap:
        train(model, 6)
    [text] = said(caplog)
    dump = cap.dump()
    assert counts(text) == held(dump)
    if "keep" not in settings:
        assert f"of {size_of(sum(one.nbytes or 0 for one in dump))} seen" in text
    assert ("recorded 6 steps, kept the last 2 (keep=2)" in text) == ("keep" in settings)
    command = text.splitlines()[-1].partition("ascend-dump ")[2]
    assert command == f"ls {cap.path}"
    assert main([*command.split(), "--json"]) == Exit.OK


def test_the_memory_of_a_recorder_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with ascend_dump.capture(model, path=tmp_path, keep=2, data="stats") as cap:
        train(model, 6)
    [text] = said(caplog)
    found = re.search(r"were in memory, up to (\d+) records \(about ([\d.]+) kB\), and were written every 20 s", text)
    assert found is not None, text
    # Those of the two steps that are kept, and of the open one; a step may have a record more than another.
    assert len(cap.dump()) <= int(found[1]) <= 1.6 * len(cap.dump())
    assert float(found[2]) == round(int(found[1]) * 0.9, 1)
    tally = json.loads((cap.path / "manifest.json").read_text())["tally"]
    assert tally["in_memory"] == int(found[1])


@pytest.mark.parametrize("settings", [{"keep": 2}, {"data": "stats"}], ids=str)
def test_nothing_is_told_of_memory_where_all_is_written_at_once(
    settings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = net()
    with ascend_dump.capture(model, path=tmp_path, **settings):
        train(model, 4)
    [text] = said(caplog)
    assert "in memory" not in text


def test_the_bytes_are_those_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    model = net()
    with ascend_dump.capture(model, path="here", data="stats", stats="max") as cap:
        train(model, 1)
    [text] = said(caplog)
    assert f"{size_of(files(cap.path))} on disk" in text
    assert f"ascend-dump ls {os.path.relpath(cap.path)}" in text


def test_what_recording_cost_is_a_part_of_what_the_steps_took(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with ascend_dump.capture(model, path=tmp_path):
        train(model, 1)
    [text] = said(caplog)
    found = re.search(r"recording cost ([\d.]+) (ms|s), the recorded steps took ([\d.]+) (ms|s)", text)
    assert found is not None
    cost, took = (float(found[at]) * {"ms": 0.001, "s": 1.0}[found[at + 1]] for at in (1, 3))
    assert 0 < cost <= took


def test_a_second_run_of_one_capture_is_told_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    cap = ascend_dump.capture(model, path=tmp_path)
    for steps in (1, 2):
        with cap:
            train(model, steps)
    assert [counts(text)[0] for text in said(caplog)] == [1, 2]


@pytest.mark.parametrize("target", [False, True], ids=["function", "function and model"])
def test_a_decorated_function_speaks_once(target: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()

    @ascend_dump.capture(model if target else None, path=tmp_path, steps="1-2")
    def step() -> None:
        train(model, 1)

    for _ in range(5):
        step()
    [text] = said(caplog)
    assert counts(text) == held(step.capture.dump())


def test_quiet_is_quiet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with ascend_dump.capture(model, path=tmp_path, quiet=True):
        train(model, 1)
    assert not said(caplog)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with ascend_dump.capture(model, path=tmp_path, quiet=True, steps="7"):
        train(model, 1)
    assert [record.levelno for record in caplog.records if record.levelno >= logging.WARNING] == [logging.WARNING]


def test_an_empty_dump_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with ascend_dump.capture(model, path=tmp_path, steps="7"):
        train(model, 1)
    assert not said(caplog)
    assert len(caplog.records) == 1


def test_that_nothing_overflowed_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with ascend_dump.capture(model, path=tmp_path, scene="overflow", steps="0-2"):
        train(model, 4)
    [text] = said(caplog)
    assert text.startswith("no operator produced NaN or Inf in 3 steps")


def test_a_full_budget_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with ascend_dump.capture(model, path=tmp_path, max_bytes=4000) as cap:
        train(model, 4)
    [text] = said(caplog)
    assert counts(text) == held(cap.dump())
    assert "not complete: max_bytes=4000 would be exceeded" in text
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("AD503" in record.getMessage() for record in told) == 1


def interrupted(model: Any) -> None:
    train(model, 2)
    raise KeyboardInterrupt


def test_an_interrupted_run_says_what_it_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    cap = ascend_dump.capture(model, path=tmp_path)
    with pytest.raises(KeyboardInterrupt), cap:
        interrupted(model)
    [text] = said(caplog)
    assert counts(text) == held(cap.dump())
    assert "not complete: the program was interrupted" in text


def test_a_level_that_the_program_sets_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with caplog.at_level(logging.ERROR, "ascend_dump"):
        logging.getLogger("ascend_dump.summary").setLevel(logging.NOTSET)
        with ascend_dump.capture(model, path=tmp_path):
            train(model, 1)
    assert not caplog.records


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("quiet", [False, True])
def test_a_long_run_says_how_far_it_is(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Nobody waits 10 seconds for the first word of progress.
    monkeypatch.setattr("ascend_dump.capturing._summary._FIRST_MESSAGE", 0.01)
    monkeypatch.setattr(sys, "stderr", _Terminal())
    model = net()
    with ascend_dump.capture(model, path=tmp_path, quiet=quiet) as cap:
        for _ in range(300):
            train(model, 1)
            if any(text.startswith("recording: ") for text in said(caplog)):
                break
            cap.dump()  # takes a while
    assert any(text.startswith("recording: ") for text in said(caplog)) != quiet


RANKS = """
import glob, json, os, sys, time, torch
import ascend_dump
model = torch.nn.Linear(4, 4)
rank = int(os.environ["RANK"])
with ascend_dump.capture(model, path="dumps", **json.loads(sys.argv[1])):
    for _ in range(2 + rank):
        model(torch.ones(1, 4))
    # As ranks that train together: none ends before the others have begun.
    while len(glob.glob("dumps/*/*/manifest.json")) < int(sys.argv[2]):
        time.sleep(0.01)
"""


def launch(directory: Path, settings: str, ranks: int = 3, runs: int = 3) -> list[str]:
    """Run a program on several ranks, some of which record, and return the summary of each."""
    program = directory / "train.py"
    program.write_text(textwrap.dedent(RANKS))
    children = []
    for rank in range(ranks):
        place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        command = [sys.executable, str(program), settings, str(runs)]
        children.append(subprocess.Popen(command, cwd=directory, env=environment, stderr=subprocess.PIPE, text=True))
    return [child.communicate(timeout=900)[1] for child in children]


def test_the_first_rank_speaks_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = launch(tmp_path, "{}")
    assert others == ["", ""]
    assert first.startswith("ascend-dump: ")
    told = "still writing: " in first
    assert told or first.startswith("ascend-dump: 3 ranks dumped 2 to 4 steps each, ")
    if not told:
        records = re.search(r"(\d+) records into dumps\n", first)
        assert records is not None
        assert int(records[1]) == len(ascend_dump.open(tmp_path / "dumps"))


def test_the_first_rank_that_is_selected_speaks(tmp_path: Path) -> None:
    first, second, third = launch(tmp_path, '{"ranks": "1"}', runs=1)
    assert (first, third) == ("", "")
    assert second.startswith("ascend-dump: rank 1 dumped 3 steps, ")


def test_messages_of_a_rank_carry_it(tmp_path: Path) -> None:
    for rank, text in enumerate(launch(tmp_path, '{"steps": "9"}', 2, 2)):
        assert text.startswith(f"ascend-dump: rank {rank}: the capture wrote nothing")


def test_records_that_were_lost_afterwards_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    with ascend_dump.capture(model, path=tmp_path, quiet=True) as cap:
        train(model, 3)
    dump = cap.dump()
    count = len(dump)
    assert dump.lost_records() == []
    shutil.copytree(tmp_path, whole := tmp_path.with_name("whole"))
    shutil.rmtree(next(tmp_path.rglob("0/1")))
    left = len(ascend_dump.open(tmp_path))
    assert left < count
    said = f"only {left} of the {count} written records are left: files are missing or cut off"
    lost, out = str(tmp_path), str(whole.with_name("out"))
    verbs = ("ls", "ls --records", "ls --by module", "stats", "stats --nonfinite", "overflow", "triage")
    commands = [[*verb.split(), lost] for verb in (*verbs, "show --limit 0")]
    commands += [["convert", lost, "-o", out], ["report", lost, "-o", f"{out}.html"]]
    commands += [["compare", lost, lost], ["triage", lost, lost]]
    for command in commands:
        assert main(command) == Exit.UNREADABLE, command
        printed = capsys.readouterr()
        assert said in printed.out + printed.err, command
    assert "not all checked" in Path(f"{out}.html").read_text(encoding="utf-8")
    # A difference is worse.
    assert main(["compare", lost, str(whole)]) == Exit.DIFFERENT
    assert said in capsys.readouterr().err
    for verb in (["ls", lost], ["compare", lost, lost], ["report", lost, "--overwrite", "-o", f"{out}.html"]):
        assert main([*verb, "--json"]) == Exit.UNREADABLE
        notes = [one["note"] for one in json.loads(capsys.readouterr().out)["notes"]]
        assert notes[0] == said
        # The other steps have tensors in the shard of the one that was lost.
        assert all("/1/tensors-00000.safetensors is missing; the tensors of " in note for note in notes[1:])
    # Of a selection and of a part of a run nobody knows.
    for words in ([str(tmp_path), "--step", "2"], [str(next(tmp_path.rglob("0/2")))]):
        assert main(["ls", *words]) == Exit.OK
        assert "were written" not in capsys.readouterr().err


def test_lost_records_of_one_run_are_not_made_up_for_by_another(tmp_path: Path) -> None:
    model = net()
    for _ in range(2):
        with ascend_dump.capture(model, path=tmp_path, quiet=True):
            train(model, 2)
    first, second = (run.path for run in ascend_dump.open(tmp_path).runs())
    # Its shards are there, and a shard without an index gives records too.
    next(first.rglob("1/index.jsonl")).unlink()
    index = next(second.rglob("1/index.jsonl"))
    index.write_bytes(index.read_bytes() * 2)
    [lost] = ascend_dump.open(tmp_path).lost_records()
    assert lost.run == first
    assert lost.found < lost.written


def test_lost_records_of_a_large_dump_are_counted_by_its_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("polars")
    monkeypatch.setattr("ascend_dump.reading._catalog_cache._WORTH_KEEPING", 0)
    # A graph beside the dump belongs to its catalog, by whatever path the dump is opened.
    (tmp_path / "ge_proto_00000000_graph_1_Build.txt").write_text('graph {\n  name: "g"\n}\n')
    root, model = tmp_path / "dumps", net()
    with ascend_dump.capture(model, path=root, quiet=True) as cap:
        train(model, 2)
    ascend_dump.open(root).catalog().collect()
    index = next(cap.path.rglob("1/index.jsonl"))
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join(lines[:-2]))
    dump = ascend_dump.open(root)
    read = dump.lost_records()
    assert [(one.run, one.written - one.found) for one in read] == [(cap.path, 2)]
    dump.catalog().collect()
    monkeypatch.setattr("ascend_dump.dump_format.open_index", None)  # no index is read again
    monkeypatch.chdir(root)
    for path in (root, Path(), Path("..", root.name)):
        assert [one.found for one in ascend_dump.open(path).lost_records()] == [one.found for one in read]


@pytest.mark.parametrize(
    "settings",
    [
        {"keep": 1},
        {"until": "nonfinite"},
        {"max_bytes": 20_000},
        {"level": "module"},
        {"scene": "overflow"},
        {"data": "stats"},
        {"steps": "1"},
        {"layers": "*nothing*"},
    ],
    ids=str,
)
def test_what_is_left_out_on_purpose_is_not_lost(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = net()
    with (
        contextlib.suppress(ascend_dump.AscendDumpError),
        ascend_dump.capture(model, path=tmp_path, quiet=True, **settings),
    ):
        train(model, 3)
    assert ascend_dump.open(tmp_path).lost_records() == []


def test_calls_of_a_decorated_function_have_lost_nothing(tmp_path: Path) -> None:
    model = net()

    @ascend_dump.capture(path=tmp_path, steps="0-1", quiet=True)
    def evaluate() -> None:
        model(torch.ones(2, 16))

    for _ in range(3):
        evaluate()
    dump = ascend_dump.open(tmp_path)
    assert len(dump)
    assert dump.lost_records() == []

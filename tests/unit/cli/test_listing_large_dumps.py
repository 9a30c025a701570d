"""Listings of large dumps come from their catalog, and say what is said without one."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from host_dumps import model_directory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import DATA

import ascend_dump
from ascend_dump.cli import main

pytestmark = pytest.mark.thorough

pytest.importorskip("polars")

COMMANDS: list[list[str]] = [
    ["ls"],
    ["ls", "--op", "*a*"],
    ["ls", "--io", "output", "--index", "0"],
    ["ls", "--op", "no such name"],
    ["ls", "--records", "--op", "*a*"],
    ["ls", "--json"],
    ["stats"],
    ["stats", "--all"],
    ["stats", "--op", "*a*"],
    ["stats", "--nonfinite"],
    ["stats", "--nonfinite", "--json"],
    ["stats", "--sort", "max", "--limit", "2"],
    ["stats", "--sort", "nan", "--limit", "1"],
    ["stats", "--sort", "mean", "--limit", "3", "--nonfinite"],
    ["stats", "--origin"],
]


def listed(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[int, str, str]]:
    said = {}
    for verb, *options in COMMANDS:
        code = main([verb, str(root), *options])
        out, err = capsys.readouterr()
        # A slow machine shows progress.
        said[" ".join([verb, *options])] = (int(code), out, re.sub(r"^\d+ \w+, \d+ s\n", "", err, flags=re.MULTILINE))
    return said


def assert_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ascend_dump.reading._dump._LARGE", 0)
        patch.setattr("ascend_dump.reading._catalog_cache._WORTH_KEEPING", 0)
        patch.setattr("ascend_dump.cli.shared.stats_columns._MOST_RECORDS", 1)
        by_columns = [listed(root, capsys), listed(root, capsys)]
        patch.setattr("ascend_dump.cli.shared.ls_columns._LARGE_STEP", 0)
        for rows in (7, 250_000):
            patch.setattr("ascend_dump.cli.shared.ls_columns._ROWS", rows)
            by_columns.append(listed(root, capsys))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "polars", None)
        without = listed(root, capsys)
    for command, said in without.items():
        assert by_columns[0][command] == said, command
        for kept in by_columns[1:]:
            assert kept[command] == said, f"{command}, from the kept catalog"


def line(number: int, **more: Any) -> dict[str, Any]:
    return {
        "seq": number // 2,
        "op_type": "aten::add",
        "op_name": f"layers.{number // 2}/add",
        "io": ("input", "output")[number % 2],
        "index": 0,
        "time": 1_700_000_000_000_000 + number,
        "dtype": "float32",
        "shape": [number % 5, 2],
        "nbytes": 8,
        "stats": [2, number, -1, 0.5, 1.25, 0, 0, 0, 0, 0, 0],
        **more,
    }


def write(root: Path, texts: list[bytes]) -> Path:
    place = model_directory(root)
    for step, text in enumerate(texts):
        (place / str(step)).mkdir()
        (place / str(step) / "index.jsonl").write_bytes(text)
    return root


def encoded(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


numbers = st.one_of(
    st.integers(-(2**66), 2**66),
    st.floats(-9, 9),
    st.floats(-1e9, 1e9),
    st.none(),
    st.sampled_from(["nan", "inf", "-inf", 0.0, -0.0, 0, 999_999, 1_000_000, 999_999.5, 1e6]),
)
calls = st.sampled_from(
    [
        {"op": "aten.add.Tensor", "args": {"self": {"input": 0}, "out": {"output": 0}}},
        {"op": "aten.cat.default", "args": {"tensors": {"inputs": [0, 2]}}},
        {"op": 1},
        [],
    ]
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "seq": st.integers(0, 3),
        "op_name": st.sampled_from(["other", "", "\x1b[31m", "layers.0/add"]),
        "op_type": st.sampled_from(["", "aten::mm"]),
        "io": st.sampled_from(["input", "output", "buffer"]),
        "dtype": st.sampled_from(["int32", "bits8", ""]),
        "shape": st.lists(st.integers(0, 2**63 - 1), max_size=3),
        "nbytes": st.sampled_from([0, 2**63 - 1]),
        "time": st.integers(0, 2**50),
        "shard": st.sampled_from(["0/tensors-00000.safetensors", "../../etc/passwd"]),
        "skipped": st.just("too large"),
        "unmeasured": st.just("no time"),
        "call": calls,
        "argument": st.sampled_from(["", "indices"]),
        "parameter": st.sampled_from(["fc.weight", "fc.weight.grad"]),
        "stats": st.tuples(st.integers(0, 9), *[numbers] * 4, *[st.integers(0, 2) | st.none()] * 3).map(list),
    },
)


@st.composite
def indexes(draw: st.DrawFn) -> list[bytes]:
    found = []
    first = [line(number) for number in range(draw(st.integers(1, 9)))]
    for at, change in draw(st.lists(st.tuples(st.integers(0, 8), changes), max_size=5)):
        first[at % len(first)].update(change)
    for _ in range(draw(st.integers(1, 4))):
        # Most steps repeat the first one, but for a few fields.
        lines = [dict(one) for one in first]
        for at, change in draw(st.lists(st.tuples(st.integers(0, 8), changes), max_size=2)):
            lines[at % len(lines)].update(change)
        texts = [json.dumps(one).encode() for one in lines]
        for at in draw(st.lists(st.integers(0, 8), max_size=1)):
            texts.insert(at, draw(st.sampled_from([b"", b"{", b"[]", b"\xff"])))
        found.append(b"\n".join(texts) + draw(st.sampled_from([b"\n", b"", b'\n{"seq'])))
    return found


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(texts=indexes())
def test_host_dumps(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], texts: list[bytes]
) -> None:
    assert_same(write(tmp_path_factory.mktemp("dump"), texts), capsys)


@pytest.mark.parametrize("name", ["cann", "mindspore"])
def test_other_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    root = Path(shutil.copytree(DATA / name, tmp_path / name))
    assert_same(root, capsys)
    assert list(root.glob(".ascend-dump-catalog/*.parquet"))


def test_zeros_keep_their_signs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zeros = [[2, zero, -zero, zero, 0.0, 0, 0, 0, 2, 2, 0] for zero in (0.0, -0.0, 0.0)]
    assert_same(write(tmp_path, [encoded([line(n, stats=stats) for n, stats in enumerate(zeros)])]), capsys)


@pytest.mark.parametrize("rows", [1, 7, 10, 39, 40, 41])
def test_operators_go_on_over_the_rows_that_are_read_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr("ascend_dump.cli.shared.ls_columns._ROWS", rows)
    assert_same(write(tmp_path, [encoded([line(n, seq=n // 7, op_name="x") for n in range(40)])]), capsys)


def test_a_selection_reads_what_a_kept_catalog_names_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "/home/user/a/long/path/to/a/file/of/a/model/train.py:1" * 3
    root = write(tmp_path, [encoded([line(number, source=source) for number in range(60_000)])])
    dump = ascend_dump.open(root)
    assert dump.is_large
    wanted = list(dump.select(op="layers.29999/*"))
    assert len(wanted) == 2
    assert not list(root.glob(".ascend-dump-catalog*")), "a selection makes no catalog"
    dump.catalog()
    made: list[int] = []
    make = ascend_dump.Record.of_line

    def counting(*args: Any, **fields: Any) -> ascend_dump.Record:
        made.append(1)
        return make(*args, **fields)

    monkeypatch.setattr(ascend_dump.Record, "of_line", counting)
    assert list(dump.select(op="layers.29999/*")) == wanted
    assert len(made) == 2
    [index] = root.rglob("index.jsonl")
    with open(index, "ab") as file:
        file.write(encoded([line(59_999)]))
    assert len(list(dump.select(op="layers.29999/*"))) == 3, "a catalog that does not fit is not used"

"""Tables, documents and histograms, without a dump."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_dump.report.documents import plain, write_document
from ascend_dump.report.plots import histogram
from ascend_dump.report.tables import Column, TableRows, escape, number, size, write_columns, write_table

COLUMNS = [Column("op_name", elastic=True), Column("bytes", right=True)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def table(rows: list[tuple[str, str]], out: io.StringIO) -> list[str]:
    assert write_table(COLUMNS, rows, out) == len(rows)
    return out.getvalue().splitlines()


LONG = "encoder.layers.0." * 8 + "addmm_0"


def test_columns_are_aligned_and_nothing_is_cut_in_a_pipe() -> None:
    lines = table([("a", "1"), (LONG, "12345")], io.StringIO())
    assert lines[0] == "op_name" + " " * (len(LONG) - 7) + "  bytes"
    assert lines[1] == "a" + " " * (len(LONG) - 1) + "      1"
    assert lines[2] == f"{LONG}  12345"


def test_no_rows_print_nothing() -> None:
    assert table([], io.StringIO()) == []


def test_rows_are_printed_before_the_last_is_known() -> None:
    out = io.StringIO()
    printed = []

    def rows() -> Any:
        for at in range(3000):
            printed.append(out.getvalue().count("\n"))
            yield (f"op{at}", str(at))

    assert write_table(COLUMNS, rows(), out) == 3000
    assert printed[999] == 0
    assert printed[2999] >= 2990


@pytest.mark.usefixtures("narrow")
def test_a_terminal_gets_both_ends_of_a_long_name_and_every_digit() -> None:
    lines = table([(LONG, "12345"), ("[red]x[/red]", "1")], Terminal())
    assert lines[0].startswith("\x1b[1mop_name ")
    assert lines[0].endswith("  bytes\x1b[0m")
    assert max(map(len, lines[1:])) <= 40
    assert lines[1].startswith("encoder.layers.")
    assert lines[1].endswith("addmm_0  12345")
    assert "…" in lines[1]
    assert lines[2].startswith("[red]x[/red] ")


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
@pytest.mark.usefixtures("narrow")
def test_colour_can_be_declined(monkeypatch: pytest.MonkeyPatch, setting: dict[str, str]) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    assert "\x1b" not in "\n".join(table([("a", "1")], Terminal()))


@pytest.mark.usefixtures("narrow")
def test_a_terminal_that_is_too_narrow_loses_nothing_but_parts_of_names() -> None:
    columns = [COLUMNS[0], *(Column(f"number{at}", right=True) for at in range(8))]
    out = Terminal()
    write_table(columns, [(LONG, *(str(10**7 + at) for at in range(8)))], out)
    assert out.getvalue().splitlines()[1].split()[1:] == [str(10**7 + at) for at in range(8)]


@pytest.mark.usefixtures("narrow")
def test_a_table_that_need_not_fit_keeps_everything() -> None:
    columns = [COLUMNS[0], *(Column(f"number{at}", spare=at) for at in range(8))]
    out = Terminal()
    write_table(columns, [(LONG, *(str(10**7 + at) for at in range(8)))], out, fit=False)
    assert out.getvalue().splitlines()[1].split() == [LONG, *(str(10**7 + at) for at in range(8))]


@given(st.text())
def test_escaped_text_is_one_printable_line(text: str) -> None:
    shown = escape(text)
    assert shown.isprintable()
    assert (shown == text) is text.isprintable()


def test_numbers_and_sizes() -> None:
    assert [number(value) for value in (None, 3, 1 / 3, math.inf, math.nan, 2**70)] == [
        "-", "3", "0.333333", "inf", "nan", str(2**70),
    ]  # fmt: skip
    assert [size(count) for count in (0, 999, 1000, 1_500_000, 2 * 10**9, 3 * 10**12, 4 * 10**15)] == [
        "0 B", "999 B", "1.0 kB", "1.5 MB", "2.0 GB", "3.0 TB", "4000.0 TB",
    ]  # fmt: skip


# Documents


def document(fields: dict[str, Any]) -> dict[str, Any]:
    out = io.StringIO()
    write_document(out, "ls", fields)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found: dict[str, Any] = json.loads(out.getvalue(), parse_constant=refuse)
    assert found.pop("schema") == "ascend-dump/ls/1"
    return found


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and not math.isfinite(left):
        return isinstance(right, str) and (float(right) == left or (math.isnan(left) and math.isnan(float(right))))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right and type(left) is type(right))


@given(values)
def test_what_goes_in_comes_out(value: Any) -> None:
    assert same(value, document({"value": value})["value"])


def test_streams_and_late_totals() -> None:
    seen: list[int] = []

    def stream() -> Any:
        for at in range(3):
            seen.append(at)
            yield {"at": at}

    found = document({"records": stream(), "none": iter(()), "totals": lambda: {"count": len(seen)}})
    assert found == {"records": [{"at": 0}, {"at": 1}, {"at": 2}], "none": [], "totals": {"count": 3}}


def test_plain_takes_what_records_hold() -> None:
    assert plain(Path("a") / "b") == os.path.join("a", "b")
    assert plain((1, 2)) == [1, 2]
    assert plain(1 - 2j) == [1.0, -2.0]
    assert plain(complex("nan+infj")) == ["NaN", "Infinity"]
    assert plain({1: {2}}) == {"1": [2]}
    assert plain(np.float32(0.5)) == 0.5
    assert plain(np.float64("-inf")) == "-Infinity"
    assert plain(np.array([[1, 2]], dtype=np.int8)) == [[1, 2]]
    assert plain(np.array([1.5, np.nan], dtype=ml_dtypes.bfloat16)) == [1.5, "NaN"]
    assert plain(np.array([1 + 1j])) == [[1.0, 1.0]]
    assert plain(ValueError("text")) == "text"
    json.dumps(plain(np.array([b"x", b"\xff"], dtype=object)))


# Histograms


def bars(lines: list[str]) -> list[int]:
    return [int(line.rsplit(" ", 1)[1]) for line in lines if " |" in line]


@given(st.lists(st.floats(width=32), min_size=1, max_size=60))
def test_every_finite_value_is_in_one_bar(numbers: list[float]) -> None:
    lines = histogram(np.array(numbers, dtype=np.float32))
    finite = sum(map(math.isfinite, numbers))
    assert sum(bars(lines)) == finite
    if finite < len(numbers):
        assert str(len(numbers) - finite) in lines[-1] or "no finite value" in lines[-1]


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 2, 2, 100], dtype=np.int8),
        np.array([True, False]),
        np.array([1.5, 2], dtype=ml_dtypes.bfloat16),
        np.array([0.5, 448], dtype=ml_dtypes.float8_e4m3fn),
        np.array([3 + 4j, 0]),
        np.array([-1.7e308, 1.7e308]),
        np.array(3.0),
        np.arange(12.0).reshape(3, 4)[:, ::2],
    ],
    ids=lambda array: str(array.dtype),
)
def test_histograms_of_every_kind(array: np.ndarray) -> None:
    lines = histogram(array)
    assert sum(bars(lines)) == array.size
    fullest = max(range(len(lines)), key=lambda at: bars(lines)[at])
    assert "#" * 50 in lines[fullest]


def test_histograms_of_nothing() -> None:
    assert histogram(np.array([])) == ["no finite value among 0"]
    assert histogram(np.array([math.nan])) == ["no finite value among 1"]
    assert len(histogram(np.full(9, 2.5))) == 1
    for array in (np.array(["text"]), np.array([b"x"], dtype=object), np.zeros(3, "V2"), np.zeros(3, "i4,f4")):
        assert histogram(array) == [f"no histogram of {array.dtype} values"]


cells = st.sampled_from(["a", "", "-", "\x1b[31m", "\0", "two\nlines", "é", "a longer cell", " "])


@given(
    parts=st.lists(
        st.tuples(st.lists(st.tuples(cells, cells, st.sampled_from(["-", "1234", "é"]))), st.lists(cells, max_size=3)),
        max_size=4,
    ),
    terminal=st.booleans(),
)
def test_columns_are_printed_as_rows_are(
    parts: list[tuple[list[tuple[str, str, str]], list[str]]], terminal: bool
) -> None:
    columns = [Column("step", right=True), *COLUMNS]
    made = [TableRows([list(column) for column in zip(*rows)] or [[], [], []], steps) for rows, steps in parts]
    rows = [(step, *row[1:]) if steps else row for rows, steps in parts for step in steps or [""] for row in rows]
    by_rows, by_columns = (Terminal() if terminal else io.StringIO() for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ascend_dump.report.tables._SAMPLE", 3)
        patch.setattr("ascend_dump.report.tables._BLOCK", 2)
        assert write_columns(columns, made, by_columns) == write_table(columns, rows, by_rows) == len(rows)
    assert by_columns.getvalue() == by_rows.getvalue()

"""The reading verbs, as a user sees them."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiny_dialect import install, write

from ascend_dump.cli import Exit, main
from ascend_dump.cli.shared.help_texts import explanations


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one document on stdout, by a parser that knows no NaN."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        document: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return document

    @property
    def rows(self) -> list[list[str]]:
        return [line.split() for line in self.out.splitlines() if line]


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        return Outcome(code, out, err)


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    install(tmp_path_factory.mktemp("site") / "packages", monkeypatch)
    monkeypatch.delenv("ASCEND_DUMP_LOG", raising=False)
    return Shell(capsys)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two steps of two operators, on one rank."""
    root = tmp_path / "dump"
    for step in (0, 1):
        write(root, f"{step}.MatMul.layer~fc1.input.0", [1, 2, 3])
        write(root, f"{step}.MatMul.layer~fc1.input.1", [7])
        write(root, f"{step}.MatMul.layer~fc1.output.0", [4, 5])
        write(root, f"{step}.Relu.layer~act.output.0", [0, 0.5, [math.inf, -1.25][step == 0]])
    return root


# ls


def test_ls_gives_each_operator_a_line(shell: Shell, dump: Path) -> None:
    seen = shell("ls", dump)
    assert (seen.code, seen.err) == (Exit.OK, "")
    assert seen.rows == [
        ["step", "op_name", "op_type", "in", "out", "dtype", "shape", "bytes"],
        ["0", "layer/fc1", "MatMul", "2", "1", "float32", "[2]", "24"],
        ["0", "layer/act", "Relu", "0", "1", "float32", "[3]", "12"],
        ["1", "layer/fc1", "MatMul", "2", "1", "float32", "[2]", "24"],
        ["1", "layer/act", "Relu", "0", "1", "float32", "[3]", "12"],
        ["4", "operators", "·", "8", "records", "·", "72", "B", "of", "tensors", "·", "2", "steps"],
    ]


def test_ls_gives_each_record_a_line(shell: Shell, dump: Path) -> None:
    seen = shell("ls", dump, "--records", "--step", 1, "--op", "*/fc1")
    assert seen.rows == [
        ["step", "op_name", "op_type", "io", "index", "dtype", "shape", "bytes"],
        ["1", "layer/fc1", "MatMul", "input", "0", "float32", "[3]", "12"],
        ["1", "layer/fc1", "MatMul", "input", "1", "float32", "[1]", "4"],
        ["1", "layer/fc1", "MatMul", "output", "0", "float32", "[2]", "8"],
        ["1", "operator", "·", "3", "records", "·", "24", "B", "of", "tensors"],
    ]
    long = shell("ls", dump, "--long", "--io", "output", "--step", 0, "--op", "*/fc1")
    assert long.rows[0][-2:] == ["timestamp", "path"]
    assert "model.py:7" in long.rows[1]
    assert str(dump / "0.MatMul.layer~fc1.output.0.tiny") in long.out


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--op", "re:act$"], 2),
        (["--op-type", "Mat*"], 6),
        (["--step", "0"], 4),
        (["--rank", "0"], 0),
        (["--io", "input"], 4),
        (["--index", "1"], 2),
        (["--model", "m"], 0),
        (["--phase", "forward"], 8),
        (["--module", "layer"], 8),
        (["--run", "x"], 0),
        (["--device", "0"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("verb", ["ls", "show", "stats"])
def test_every_reading_verb_takes_every_selector(
    shell: Shell, dump: Path, verb: str, arguments: list[str], count: int
) -> None:
    limit = ["--limit", "0"] if verb == "show" else []
    seen = shell(verb, dump, "--json", *arguments, *limit)
    assert seen.code == (Exit.OK if count else Exit.UNREADABLE)
    assert seen.document["schema"] == f"ascend-dump/{verb}/1"
    assert seen.document["path"] == str(dump)
    assert len(seen.document["records"]) == count


def test_ls_shows_ranks_and_runs_only_where_there_are_several(shell: Shell, tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"worldsize2_global_rank{rank}" / "run_a", "0.Add.sum.output.0", [1])
    seen = shell("ls", tmp_path)
    assert seen.rows[0][:2] == ["rank", "step"]
    assert [row[0] for row in seen.rows[1:3]] == ["0", "1"]
    assert seen.out.rstrip().endswith("2 ranks")
    write(tmp_path / "worldsize2_global_rank0" / "run_b", "0.Add.sum.output.0", [1])
    assert shell("ls", tmp_path).rows[0][:3] == ["run", "rank", "step"]


def test_ls_json_lists_every_field_and_the_sums(shell: Shell, dump: Path) -> None:
    document = shell("ls", dump, "--json").document
    first = document["records"][0]
    assert (first["op_name"], first["shape"], first["source"], first["task_id"]) == (
        "layer/fc1",
        [3],
        "model.py:7",
        None,
    )
    assert document["totals"] == {
        "records": 8, "operators": 4, "kernels": 0, "bytes": 72, "steps": 2, "ranks": 0, "unreadable": 0,
    }  # fmt: skip


def test_a_selection_that_matches_nothing_names_what_is_near(shell: Shell, dump: Path) -> None:
    for verb in ("ls", "show", "stats"):
        seen = shell(verb, dump, "--op", "*fc2", "--op-type", "matmul")
        assert (seen.code, seen.out) == (Exit.UNREADABLE, "")
        assert f"no record matches; {dump} holds 8 records of 2 operators" in seen.err
        assert "--op *fc2: the dump has layer/act, layer/fc1" in seen.err
        seen = shell(verb, dump, "--step", "9", "--io", "space", "--phase", "backward")
        assert seen.err.splitlines()[1:] == [
            "  --step 9: the dump has 0, 1",
            "  --io space: the dump has input, output",
            "  --phase backward: the dump has forward",
        ]
        seen = shell(verb, dump, "--io", "outputs")
        assert (seen.code, seen.out) == (Exit.USAGE, "")
        assert "did you mean 'output'?" in seen.err


def test_of_many_names_the_nearest_are_told(shell: Shell, tmp_path: Path) -> None:
    for number in range(9):
        write(tmp_path, f"{number}.Add.layer{number}.output.0", [1])
    assert "nearest to --op *lyer3: layer3" in shell("ls", tmp_path, "--op", "*lyer3").err


def test_ls_streams_more_rows_than_it_measures(shell: Shell, tmp_path: Path) -> None:
    for number in range(1500):
        write(tmp_path, f"{number:04}.Add.op.output.0", [1])
    write(tmp_path, f"1500.Add.{'long' * 30}.output.0", [1])
    seen = shell("ls", tmp_path)
    assert len(seen.rows) == 1 + 1501 + 1
    # Names are never cut where the output is no terminal.
    assert seen.rows[-2][1] == "long" * 30


def test_names_cannot_drive_the_terminal(shell: Shell, tmp_path: Path) -> None:
    write(tmp_path, "0.Add.\x1b[31mred\nline‮.output.0", [1])
    for verb in ("ls", "show", "stats"):
        seen = shell(verb, tmp_path)
        assert seen.code == Exit.OK
        assert "\x1b" not in seen.out
        assert "‮" not in seen.out
        assert "\\x1b[31mred\\nline\\u202e" in seen.out
    assert shell("ls", tmp_path, "--json").document["records"][0]["op_name"] == "\x1b[31mred\nline‮"


# show


def test_show_prints_fields_statistics_and_values(shell: Shell, dump: Path) -> None:
    seen = shell("show", dump, "--op", "*/fc1", "--io", "output", "--step", 0)
    assert seen.code == Exit.OK
    lines = seen.out.splitlines()
    assert lines[0] == "layer/fc1.output.0"
    assert lines[-1] == "[4. 5.]"
    fields = dict(line.split(maxsplit=1) for line in lines[1:-1])
    assert fields["source"] == "model.py:7"
    assert fields["shape"] == "[2]"
    assert fields["op_type"] == "MatMul"
    assert "task_id" not in fields
    assert fields["statistics"].startswith("count 2  max 5  min 4  mean 4.5")


def test_show_limits_itself_and_says_so(shell: Shell, dump: Path) -> None:
    seen = shell("show", dump)
    assert seen.out.count("  source ") == 4
    assert "more records match; --limit 0 shows all" in seen.err
    assert shell("show", dump, "--limit", 0).out.count("  source ") == 8
    exact = shell("show", dump, "--limit", 8)
    assert (exact.out.count("  source "), exact.err) == (8, "")


def test_show_prints_every_value_only_when_asked(shell: Shell, tmp_path: Path) -> None:
    write(tmp_path, "0.Add.big.output.0", list(range(2000)))
    short = shell("show", tmp_path).out
    assert "..." in short
    assert "7.770e+02" not in short
    full = shell("show", tmp_path, "--full").out
    assert "7.770e+02" in full
    assert max(map(len, full.splitlines())) <= 100 + len(str(tmp_path))
    [record] = shell("show", tmp_path, "--json").document["records"]
    assert record["values"] is None
    assert record["first_values"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert record["last_values"][-1] == 1999
    assert record["statistics"]["count"] == 2000
    [record] = shell("show", tmp_path, "--json", "--full").document["records"]
    assert record["values"] == list(range(2000))


def test_show_plots(shell: Shell, tmp_path: Path) -> None:
    write(tmp_path, "0.Add.a.output.0", [0.0] * 30 + [1.0] * 3 + [math.nan, -math.inf])
    seen = shell("show", tmp_path, "--plot")
    bars = [line for line in seen.out.splitlines() if " |" in line]
    assert len(bars) == 16
    assert bars[0].endswith(f"|{'#' * 50} 30")
    assert bars[-1].endswith("|##### 3")
    assert "2 of 35 values are NaN or Inf" in seen.out


def test_json_writes_nan_and_inf_as_text(shell: Shell, tmp_path: Path) -> None:
    write(tmp_path, "0.Add.a.output.0", [math.nan, math.inf, -math.inf, 0.5])
    [record] = shell("show", tmp_path, "--json").document["records"]
    assert record["values"] == ["NaN", "Infinity", "-Infinity", 0.5]
    assert record["statistics"]["nan"] == 1
    assert record["statistics"]["mean"] == "NaN"


# stats


def test_stats_gives_each_tensor_a_line(shell: Shell, dump: Path) -> None:
    seen = shell("stats", dump, "--io", "output", "--step", 0)
    assert seen.code == Exit.OK
    assert " ".join(seen.rows[0]) == "step op_name io index dtype shape count max min mean l2norm nan +inf -inf zero"
    assert seen.rows[1][:10] == ["0", "layer/fc1", "output", "0", "float32", "[2]", "2", "5", "4", "4.5"]
    assert seen.rows[2] == ["0", "layer/act", "output", "0", "float32", "[3]", "3", "0.5", "-1.25", "-0.25",
                            "1.34629", "0", "0", "0", "1"]  # fmt: skip


def test_stats_finds_what_is_not_finite(shell: Shell, dump: Path) -> None:
    seen = shell("stats", dump, "--nonfinite")
    assert [row[:2] for row in seen.rows[1:]] == [["1", "layer/act"]]
    assert len(shell("stats", dump, "--nonfinite", "--json").document["records"]) == 1
    none = shell("stats", dump, "--nonfinite", "--step", 0)
    assert (none.code, none.out) == (Exit.OK, "")
    assert "no NaN or Inf in 4 tensors" in none.err
    assert "no NaN or Inf in 4 tensors" in shell("stats", dump, "--nonfinite", "--step", 0, "--by", "module").err


def test_stats_sorts(shell: Shell, dump: Path, tmp_path: Path) -> None:
    write(dump, "2.Add.nan.output.0", [math.nan])
    write(dump, "3.Add.none.output.0", "bare")
    by_max = [row[1] for row in shell("stats", dump, "--sort", "mean").rows[1:]]
    assert by_max[0] == "nan"
    assert by_max[1] == "layer/act"
    assert by_max[-1] == "none"
    means = [row["statistics"] for row in shell("stats", dump, "--sort", "mean", "--json").document["records"][2:-1]]
    assert [one["mean"] for one in means] == sorted((one["mean"] for one in means), reverse=True)
    names = [row[1] for row in shell("stats", dump, "--sort", "op").rows[1:]]
    assert names == sorted(names)
    assert len(shell("stats", dump, "--sort", "zero", "--limit", 2).rows) == 3


def test_stats_says_how_many_records_hold_nothing(shell: Shell, tmp_path: Path) -> None:
    write(tmp_path, "0.Add.a.output.0", "bare")
    write(tmp_path, "0.Add.b.output.0", [1])
    seen = shell("stats", tmp_path)
    assert seen.code == Exit.OK
    assert seen.rows[1][6:] == ["-"] * 9
    assert "1 record has neither values nor statistics" in seen.err
    write(tmp_path, "1.Add.c.output.0", "bare")
    for words in ([], ["--sort", "op"], ["--nonfinite"]):
        err = shell("stats", tmp_path, "--limit", 1, *words).err
        assert "2 records have neither values nor statistics" in err, words
    assert "no NaN or Inf in 1 tensor\n" in shell("stats", tmp_path, "--nonfinite").err


@pytest.mark.parametrize("words", [["--nonfinite"], ["--origin"], ["--nonfinite", "--json"]], ids=str)
def test_stats_claims_nothing_of_records_without_values(shell: Shell, tmp_path: Path, words: list[str]) -> None:
    """A damaged index may have lost the statistics of all records."""
    write(tmp_path, "0.Add.a.output.0", "bare")
    seen = shell("stats", tmp_path, *words)
    assert (seen.code, "AD203" in seen.err, "no NaN" in seen.err) == (Exit.UNAVAILABLE, True, False)
    write(tmp_path, "0.Add.b.output.0", [1])
    assert shell("stats", tmp_path, *words).code == Exit.OK


# What cannot be read


@pytest.mark.parametrize("verb", ["ls", "show", "stats"])
def test_what_cannot_be_read_comes_after_all_that_can(shell: Shell, dump: Path, verb: str) -> None:
    write(dump, "0.Add.broken.output.0", None)
    limit = ["--limit", 0] if verb == "show" else []
    seen = shell(verb, dump, *limit)
    assert seen.code == Exit.UNREADABLE
    assert seen.out.count("layer/act") == 2
    assert "1 record cannot be read:" in seen.err
    assert "0.Add.broken.output.0.tiny at byte 0: not a list of numbers [AD401]" in seen.err
    in_json = shell(verb, dump, "--json", *limit)
    assert in_json.code == Exit.UNREADABLE
    [error] = [record["error"] for record in in_json.document["records"] if "error" in record]
    assert (error["code"], error["type"], error["offset"]) == ("AD401", "CorruptDump", 0)
    assert len(in_json.document["records"]) == 9


@pytest.mark.parametrize("verb", ["show", "stats"])
def test_values_that_cannot_be_read_are_counted_once(shell: Shell, dump: Path, verb: str) -> None:
    write(dump, "9.Add.late.output.0", "late")
    seen = shell(verb, dump, "--step", "9")
    assert seen.code == Exit.UNREADABLE
    assert "late" in seen.out
    assert "unreadable" in seen.out
    assert "1 record cannot be read:" in seen.err
    [record] = shell(verb, dump, "--step", "9", "--json").document["records"]
    assert record["error"]["code"] == "AD401"
    assert record["statistics"] is None
    # ls reads no values.
    assert shell("ls", dump, "--step", "9").code == Exit.OK


def test_only_the_first_unreadable_records_are_named(shell: Shell, tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path, f"{number}.Add.a.output.0", None)
    seen = shell("ls", tmp_path)
    assert seen.err.count("not a list of numbers") == 5
    assert "and 3 more" in seen.err
    assert "8 unreadable" in seen.out


# explain


def test_explain_prints_a_page(shell: Shell) -> None:
    seen = shell("explain", "ad102")
    assert seen.code == Exit.OK
    assert seen.out.startswith("# AD102: ")
    assert "## Fix" in seen.out
    [page] = shell("explain", "AD102", "--json").document["pages"]
    assert page["text"].rstrip() == seen.out.rstrip()


def test_explain_lists_every_code(shell: Shell) -> None:
    seen = shell("explain")
    assert seen.code == Exit.OK
    assert [row[0] for row in seen.rows] == [one.code for one in explanations()]
    assert len(seen.rows) >= 14
    assert len(shell("explain", "--json").document["pages"]) == len(seen.rows)


def test_explain_knows_the_nearest_code(shell: Shell) -> None:
    seen = shell("explain", "AD4O1")
    assert (seen.code, seen.out) == (Exit.USAGE, "")
    assert "no error has the code 'AD4O1'" in seen.err
    assert "did you mean 'AD401'?" in seen.err


def test_the_default_path_is_that_of_capture(shell: Shell, dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump.rename(dump.parent / "dumps")
    monkeypatch.chdir(dump.parent)
    assert len(shell("ls").rows) == 6


def test_progress_is_shown_only_on_a_terminal_and_only_when_it_takes_long(
    shell: Shell, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("stats", dump).err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert shell("stats", dump).err == ""
    clock = iter(range(1000))
    monkeypatch.setattr("ascend_dump.cli.shared.reading.monotonic", lambda: next(clock) * 0.6)
    told = shell("stats", dump)
    assert "2 tensors, 1 s" in told.err
    assert told.err.endswith("\r\x1b[K")
    assert "tensors," not in told.out


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(
    shell: Shell, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("ascend_dump.cli.shared.reading.monotonic", lambda: next(clock) * 6.0)
    assert shell("stats", dump).err.splitlines()[0] == "2 tensors, 12 s"

"""Two runs of many ranks are compared by their indexes: the first difference of each rank, and where it began."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional, Union

import msgspec
import pytest

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.dump_format import INDEX, UNINITIALISED, CollectiveCall, Line

pl = pytest.importorskip("polars")

from ascend_dump.analysis.ranks import IndexComparison, compare_indexes  # noqa: E402  # it has polars

RANKS, OPERATORS = 4, 12
#: These operators are all_reduces of all ranks.
JOINED = (4, 9)
Place = tuple[int, int]


def lines(rank: int, reached: dict[int, int], without: Optional[Place], statistics: bool) -> Iterator[Line]:
    """One step of a rank, other from the operator on that the difference has reached."""
    for number in range(OPERATORS):
        if (rank, number) == without:
            continue
        for io in ("input", "output"):
            changed = number > reached[rank] or (number == reached[rank] and io == "output")
            line = Line(
                number, "aten::op", f"fc/op_{number}", io, 0, 0, "float32", (2,), 8, source=f"train.py:{number}"
            )
            if statistics:
                line.stats = (2, 3.0 + changed, 1.0, 2.0, 3.0, 0, 0, 0, 0, 0, 0)
            else:
                line.hash = f"{number} {io} {rank} {changed}"
            if number in JOINED:
                line.op_type = "c10d::allreduce_"
                line.collective = CollectiveCall("all_reduce", "0", f"0-{RANKS - 1}", JOINED.index(number))
            yield line


def write(
    root: Path, wrong: Optional[Place] = None, *, without: Optional[Place] = None, statistics: bool = False
) -> Path:
    """A run in which an operator of a rank is wrong, and what that does to the others."""
    rank, at = wrong or (0, OPERATORS)
    meets = next((one for one in JOINED if one >= at), OPERATORS)
    reached = {one: at if one == rank else meets for one in range(RANKS)}
    for one in range(RANKS):
        step = root / f"worldsize{RANKS}_global_rank{one}" / f"2026010101010{one % 10}" / "0" / "Model" / "0" / "0"
        step.mkdir(parents=True)
        made = lines(one, reached, without, statistics)
        (step / INDEX).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in made))
    return root


def compared(tmp_path: Path, *wrong: Any, **more: Any) -> IndexComparison:
    statistics = more.get("statistics", False)
    reference = write(tmp_path / "reference", statistics=statistics)
    return compare_indexes(write(tmp_path / "actual", *wrong, **more), reference, work=tmp_path / "work")


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize(("rank", "at"), [(0, 0), (2, 3), (3, 7), (1, 11)])
def test_the_rank_where_it_began_is_named(rank: int, at: int, statistics: bool, tmp_path: Path) -> None:
    found = compared(tmp_path, (rank, at), statistics=statistics)
    assert found.verdict == "different"
    assert found.ranks["undecided"].sum() == (found.ranks["rows"].sum() - found.ranks["unequal"].sum()) * statistics
    [origin] = found.origins
    assert origin[:6] == ((rank,), "made", 0, "aten::op", f"fc/op_{at}", "output")
    assert origin.source == f"train.py:{at}"
    assert origin.follows == (RANKS - 1 if at < JOINED[-1] else 0)
    first = dict(found.ranks.select("rank", "position").iter_rows())
    assert first[rank] == 2 * at + 1


def test_a_collective_that_no_rank_made_wrong(tmp_path: Path) -> None:
    """All ranks have equal inputs, and another sum."""
    reference, actual = write(tmp_path / "reference"), tmp_path / "actual"
    for rank in range(RANKS):
        step = actual / f"worldsize{RANKS}_global_rank{rank}" / f"2026010101010{rank % 10}" / "0" / "Model" / "0" / "0"
        step.mkdir(parents=True)
        made = lines(rank, dict.fromkeys(range(RANKS), JOINED[0]), None, False)
        (step / INDEX).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in made))
    found = compare_indexes(actual, reference, work=tmp_path / "work")
    [origin] = found.origins
    assert (origin.ranks, origin.kind, origin.op_name) == ((0, 1, 2, 3), "collective", "fc/op_4")


def test_equal_runs(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert (found.verdict, found.origins, found.missing) == ("equal", (), ())
    assert found.ranks["rows"].to_list() == [2 * OPERATORS] * RANKS


def test_an_operator_that_one_run_lacks(tmp_path: Path) -> None:
    found = compared(tmp_path, without=(1, 6))
    assert found.verdict == "structure"
    assert found.ranks["alone"].to_list() == [0, 2, 0, 0]
    [origin] = found.origins
    assert (origin.ranks, origin.kind, origin.op_name) == ((1,), "structure", "fc/op_6")
    other = compare_indexes(tmp_path / "reference", tmp_path / "actual", work=tmp_path / "work")
    [origin] = other.origins
    assert (origin.ranks, origin.kind, origin.op_name) == ((1,), "structure", "fc/op_6")


def test_an_operator_that_one_run_lacks_comes_before_the_differences_behind_it(tmp_path: Path) -> None:
    """Rank 1 lacks an operator, and all that it computes afterwards differs."""
    found = compared(tmp_path, (1, 6), without=(1, 5))
    assert found.ranks["alone"].to_list() == [0, 2, 0, 0]
    assert found.ranks["position"].to_list() == [2 * 9 + 1, 2 * 5, 2 * 9 + 1, 2 * 9 + 1]
    [origin] = found.origins
    assert (origin.ranks, origin.kind, origin.op_name, origin.follows) == ((1,), "structure", "fc/op_5", RANKS - 1)


def test_hashes_and_statistics_tell_nothing_of_each_other(tmp_path: Path) -> None:
    """One run recorded tensors, the other one statistics only."""
    for sides in (("hashes", "statistics"), ("statistics", "hashes")):
        for side in sides:
            if not (tmp_path / side).exists():
                write(tmp_path / side, statistics=side == "statistics")
        found = compare_indexes(*(tmp_path / side for side in sides), work=tmp_path / "work")
        assert (found.verdict, found.ranks["undecided"].to_list()) == ("undecided", [2 * OPERATORS] * RANKS)


def slice_of(whole: str, begin: int, *, size: int = 32, **more: Any) -> Line:
    """Two columns of a matrix of 4 x 2 floats, from a column on, in stored bytes with this hash."""
    fields: dict[str, Any] = {"stride": (2, 1), "offset": 1000 + 4 * begin, "shard": "0/tensors-00000.safetensors"}
    fields |= {"shape": (4, 2), "blob": (1000, size), **more}
    return Line(
        0, "aten::slice", "fc/slice_0", "output", 0, 0, "float32", nbytes=32, **fields, hash=whole
    )  # fmt: skip


WHOLE = slice_of("a", 0)
#: Statistics that differ in the last digits of sums only.
SUMS = [(8, 3.0, 1.0, mean, 3.0, 0, 0, 0, 0, 0, 0) for mean in (2.0, 2.0000001)]
OTHER_MAX = (8, 4.0, 1.0, 2.0, 3.0, 0, 0, 0, 0, 0, 0)
MEASURED = slice_of("c", 0, shard="", blob=None, offset=0, stats=SUMS[0])


@pytest.mark.parametrize(
    ("actual", "reference", "verdict"),
    [
        (WHOLE, WHOLE, "equal"),
        (WHOLE, slice_of("a", 0, blob=(500, 32), offset=500), "equal"),  # elsewhere in its shard
        (WHOLE, slice_of("b", 0), "different"),
        (slice_of("a", 0, size=64, stride=(4, 1)), slice_of("a", 2, size=64, stride=(4, 1)), "undecided"),
        (WHOLE, slice_of("a", 0, stride=(1, 4)), "undecided"),
        (WHOLE, slice_of("a", 0, stored_stride=(1, 4)), "undecided"),
        (WHOLE, slice_of("a", 0, stride=(1, 4), stored_stride=(2, 1)), "equal"),
        (WHOLE, slice_of("b", 0, stride=(1, 4)), "undecided"),  # the same values may lie in another order
        (WHOLE, slice_of("a", 0, shape=(2, 4), stride=(4, 1)), "different"),
        (slice_of("a", 0, size=64), slice_of("b", 0, size=64), "undecided"),  # the rest of the bytes may differ
        (slice_of("a", 0, size=64, stats=SUMS[0]), slice_of("b", 0, size=64, stats=OTHER_MAX), "different"),
        (slice_of("a", 0, size=64, stats=SUMS[0]), slice_of("b", 0, size=64, stats=SUMS[1]), "different"),
        (slice_of("a", 0, stats=SUMS[0]), slice_of("a", 0, stride=(1, 4), stats=SUMS[1]), "undecided"),  # other order
        (slice_of("a", 0, stride=(0, 1), blob=None), slice_of("b", 0, stride=(0, 1), blob=None), "undecided"),
        (MEASURED, slice_of("a", 0, size=64), "undecided"),  # statistics only against tensors
        (MEASURED, slice_of("c", 0), "equal"),
    ],
)
def test_hashes_of_ranges_in_which_tensors_are_slices(
    actual: Line, reference: Line, verdict: str, tmp_path: Path
) -> None:
    for name, line in (("actual", actual), ("reference", reference)):
        step = tmp_path / name / "worldsize1_global_rank0" / "20260101010100" / "0" / "Model" / "0" / "0"
        step.mkdir(parents=True)
        (step / INDEX).write_bytes(msgspec.json.encode(line) + b"\n")
    for sides in (("actual", "reference"), ("reference", "actual")):
        found = compare_indexes(*(tmp_path / side for side in sides), work=tmp_path / "work")
        assert (found.verdict, len(found.origins)) == (verdict, int(verdict == "different"))
    pairs = [ascend_dump.open(tmp_path / side)[0].content for side in ("actual", "reference")]
    assert (verdict == "equal") == (pairs[0] == pairs[1])


def test_an_origin_behind_undecided_records_is_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, begin, value in (("actual", 0, "x"), ("reference", 2, "y")):
        step = tmp_path / name / "worldsize1_global_rank0" / "20260101010100" / "0" / "Model" / "0" / "0"
        step.mkdir(parents=True)
        made = Line(1, "aten::add", "fc/add_0", "output", 0, 0, "float32", (2,), 8, hash=value)
        some = [slice_of("a", begin, size=64, stride=(4, 1)), made]
        (step / INDEX).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in some))
    assert main(["compare", str(tmp_path / "actual"), str(tmp_path / "reference"), "--index-only"]) == 1
    out = capsys.readouterr().out
    assert (
        "different: 2 records of 1 rank, 1 differ, 1 undecided\nthe difference may have begun in one of the undecided"
        in out
    )


def test_a_rank_that_a_directory_has_twice_is_refused(tmp_path: Path) -> None:
    actual, reference = write(tmp_path / "actual"), write(tmp_path / "reference")
    shutil.copytree(actual / f"worldsize{RANKS}_global_rank2", actual / "worldsize8_global_rank2")
    with pytest.raises(ascend_dump.ConfigError, match="rank 2 twice: worldsize4_global_rank2 and worldsize8"):
        compare_indexes(actual, reference, work=tmp_path / "work")


def add_run(root: Path, of: Path, run: str, *, step: int = 0, without: Optional[int] = None) -> None:
    """The records of another directory as one more run of each rank, maybe as another step or without an operator."""
    for index in of.rglob(INDEX):
        rank = next(part for part in index.parts if "global_rank" in part)
        target = root / rank / run / "0" / "Model" / "0" / str(step)
        target.mkdir(parents=True)
        kept = [line for line in index.read_bytes().splitlines(keepends=True) if f'op_{without}"'.encode() not in line]
        (target / INDEX).write_bytes(b"".join(kept))


def test_a_step_that_a_rank_has_in_more_runs_than_the_other_side_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual, reference = write(tmp_path / "actual"), write(tmp_path / "reference")
    add_run(actual, write(tmp_path / "wrong", (2, 3)), "20250101010101")
    for sides in ((actual, reference), (reference, actual)):
        with pytest.raises(ascend_dump.ConfigError) as raised:
            compare_indexes(*sides, work=tmp_path / "work")
        assert "step 0 in 2 runs (20250101010101, 2026010101010" in str(raised.value)
        assert "select(run='2026010101010" in str(raised.value.hint)
    code, _, err = verb(capsys, actual, reference, "--workers", 2)
    assert code == 2
    assert "the runs to compare are ambiguous" in err


@pytest.mark.parametrize("catalogs", [False, True], ids=["directories", "catalogs"])
def test_the_catalog_of_the_chosen_run_is_compared(
    catalogs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the message of the refusal says can be run."""
    actual, reference = write(tmp_path / "actual"), write(tmp_path / "reference")
    add_run(actual, write(tmp_path / "wrong", (2, 3)), "20250101010101")
    ranks = [ascend_dump.open(actual / f"worldsize{RANKS}_global_rank{rank}") for rank in range(RANKS)]
    for name in ("catalogs", "chosen"):
        (tmp_path / name).mkdir()
    for rank, dump in enumerate(ranks):
        dump.catalog().sink_parquet(tmp_path / "catalogs" / f"rank-{rank}.parquet")
        dump.select(run="2026*").catalog().sink_parquet(tmp_path / "chosen" / f"rank-{rank}.parquet")
    with pytest.raises(ascend_dump.ConfigError) as raised:
        compare_indexes(tmp_path / "catalogs" if catalogs else actual, reference, work=tmp_path / "work")
    [command] = re.findall("`(.*)`", str(raised.value.hint))
    [written] = re.findall(r"rank-\d\.parquet(?='\)$)", command)
    monkeypatch.chdir(tmp_path / "chosen")
    Path(written).unlink()
    eval(command, {"ascend_dump": ascend_dump, "polars": pl})
    assert compare_indexes(tmp_path / "chosen", reference, work=tmp_path / "work").verdict == "equal"


def test_as_many_runs_of_a_step_are_compared_one_by_one(tmp_path: Path) -> None:
    """The first run lacks an operator: the one of the second run does not take its place."""
    whole, wrong = write(tmp_path / "whole"), write(tmp_path / "wrong", (2, 3))
    actual, reference = tmp_path / "actual", tmp_path / "reference"
    for side, first, second in ((actual, whole, wrong), (reference, whole, wrong)):
        add_run(side, first, "20260101010101", without=7 if side is actual else None)
        add_run(side, second, "20260202020202")
    found = compare_indexes(actual, reference, work=tmp_path / "work")
    assert found.ranks["unequal"].to_list() == [0] * RANKS
    assert found.ranks["alone"].to_list() == [2] * RANKS


def test_collectives_of_two_runs_are_different_ones(tmp_path: Path) -> None:
    """The second run goes wrong on one rank; the first one, and its collectives, are equal."""
    whole, wrong = write(tmp_path / "whole"), write(tmp_path / "wrong", (2, 3))
    actual, reference = tmp_path / "actual", tmp_path / "reference"
    for side, second in ((actual, wrong), (reference, whole)):
        add_run(side, whole, "20260101010101")
        add_run(side, second, "20260202020202")
    [origin] = compare_indexes(actual, reference, work=tmp_path / "work").origins
    assert (origin.ranks, origin.op_name, origin.follows) == ((2,), "fc/op_3", RANKS - 1)


def test_a_run_that_goes_on_with_later_steps_is_one_with_them(tmp_path: Path) -> None:
    actual, reference = write(tmp_path / "actual"), write(tmp_path / "reference")
    add_run(actual, write(tmp_path / "more"), "20270101010101", step=1)
    add_run(reference, tmp_path / "more", "20260101010109", step=1)
    found = compare_indexes(actual, reference, work=tmp_path / "work")
    assert (found.verdict, found.ranks["rows"].to_list()) == ("equal", [4 * OPERATORS] * RANKS)


def test_files_that_come_and_go_are_passed_over(tmp_path: Path) -> None:
    actual, reference = write(tmp_path / "actual"), write(tmp_path / "reference")
    (actual / f"worldsize{RANKS}_global_rank1" / "gone").symlink_to("nowhere")
    (actual / "rank7").write_text("of another program")
    assert compare_indexes(actual, reference, work=tmp_path / "work").verdict == "equal"


@pytest.mark.parametrize("content", [b"", b"junk", b"PAR1" * 5, "columns", "types"])
def test_a_file_that_is_no_catalog_is_told(content: Union[bytes, str], tmp_path: Path) -> None:
    for side in ("actual", "reference"):
        (tmp_path / side).mkdir()
        file = tmp_path / side / "rank-0.parquet"
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            rank = write(tmp_path / f"{side}-dump") / f"worldsize{RANKS}_global_rank0"
            catalog = ascend_dump.open(rank).catalog().collect()
            wrong = catalog.drop("hash") if content == "columns" else catalog.with_columns(step=pl.lit("first"))
            wrong.write_parquet(file)
    with pytest.raises(ascend_dump.CorruptDump, match=r"rank-0\.parquet: it is not the catalog of a rank"):
        compare_indexes(tmp_path / "actual", tmp_path / "reference", work=tmp_path / "work")


@pytest.mark.parametrize("attrs", ["{", '{"collective": 5}', '{"collective": {"nth": "x", "kind": 7}}', "[]"])
def test_collectives_of_a_catalog_that_cannot_be_read(attrs: str, tmp_path: Path) -> None:
    for side in ("actual", "reference"):
        (tmp_path / side).mkdir()
        rank = write(tmp_path / f"{side}-dump") / f"worldsize{RANKS}_global_rank0"
        catalog = ascend_dump.open(rank).catalog().collect()
        odd = pl.lit(attrs if "collective" in attrs else f'"collective" {attrs}')
        catalog.with_columns(attrs=odd).write_parquet(tmp_path / side / "rank-0.parquet")
    with pytest.raises(ascend_dump.CorruptDump, match="collective"):
        compare_indexes(tmp_path / "actual", tmp_path / "reference", work=tmp_path / "work")


def test_a_rank_that_one_run_lacks(tmp_path: Path) -> None:
    reference, actual = write(tmp_path / "reference"), write(tmp_path / "actual")
    shutil.rmtree(actual / f"worldsize{RANKS}_global_rank2")
    found = compare_indexes(actual, reference, work=tmp_path / "work")
    assert (found.verdict, found.missing) == ("structure", (2,))


def test_catalogs_of_ranks_and_an_executor_give_the_same(tmp_path: Path) -> None:
    plain = compared(tmp_path, (2, 3))
    for side in ("actual", "reference"):
        (tmp_path / "kept" / side).mkdir(parents=True)
        for rank in range(RANKS):
            catalog = ascend_dump.open(tmp_path / side / f"worldsize{RANKS}_global_rank{rank}").catalog()
            catalog.collect().write_parquet(tmp_path / "kept" / side / f"rank-{rank}.parquet")
    with ThreadPoolExecutor(2) as executor:
        kept = compare_indexes(
            tmp_path / "kept" / "actual", tmp_path / "kept" / "reference", executor=executor, work=tmp_path / "other"
        )
    assert kept.origins == plain.origins
    assert kept.ranks.equals(plain.ranks)


def test_equal_statistics_are_no_proof(tmp_path: Path) -> None:
    found = compared(tmp_path, statistics=True)
    assert (found.verdict, found.origins) == ("undecided", ())
    assert found.ranks["undecided"].to_list() == [2 * OPERATORS] * RANKS


def test_memory_that_is_only_written_to_may_hold_anything(tmp_path: Path) -> None:
    for name in ("actual", "reference"):
        index = next(write(tmp_path / name).rglob("worldsize*rank2/**/index.jsonl"))
        found = [msgspec.json.decode(line, type=Line) for line in index.read_bytes().splitlines()]
        found[6].op_type, found[6].hash = "aten::copy_", name
        index.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in found))
    result = compare_indexes(tmp_path / "actual", tmp_path / "reference", work=tmp_path / "work")
    assert (result.verdict, result.origins) == ("equal", ())


def test_records_without_values_are_equal(tmp_path: Path) -> None:
    for side in ("actual", "reference"):
        step = tmp_path / side / "worldsize1_global_rank0" / "20260101010101" / "0" / "Model" / "0" / "0"
        step.mkdir(parents=True)
        empty = Line(0, "aten::op", "op_0", "output", 0, 0, "float32", (0,), 0)
        unwritten = Line(1, "aten::empty", "empty_0", "output", 0, 0, "float32", (2,), 8, skipped=UNINITIALISED)
        (step / INDEX).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in (empty, unwritten)))
    found = compare_indexes(tmp_path / "actual", tmp_path / "reference", work=tmp_path / "work")
    assert (found.verdict, found.ranks["rows"].to_list()) == ("equal", [2])


@pytest.mark.parametrize("both", [False, True])
def test_a_line_that_cannot_be_read_is_never_equal(both: bool, tmp_path: Path) -> None:
    for side in ("actual", "reference"):
        write(tmp_path / side)
        index = next((tmp_path / side / f"worldsize{RANKS}_global_rank1").rglob(INDEX))
        if both or side == "actual":
            texts = index.read_bytes().splitlines(keepends=True)
            index.write_bytes(b"".join([*texts[:3], b'{"seq": "x"}\n', *texts[4:]]))
    found = compare_indexes(tmp_path / "actual", tmp_path / "reference", work=tmp_path / "work")
    assert found.verdict == "unreadable"
    assert found.ranks["unreadable"].to_list() == [0, 1 + both, 0, 0]
    assert found.ranks["unequal"].sum() == 0


def verb(capsys: pytest.CaptureFixture[str], *argv: Any) -> tuple[int, str, str]:
    code = main(["compare", "--index-only", *map(str, argv)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_verb_names_where_it_began(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actual, reference = write(tmp_path / "actual", (2, 3)), write(tmp_path / "reference")
    code, out, _ = verb(capsys, actual, reference)
    assert code == 1
    assert out.startswith(f"different: {2 * OPERATORS * RANKS} records of {RANKS} ranks, ")
    assert "origin      fc/op_3 (aten::op), step 0, rank 2\n" in out
    assert "evidence    the first record that differs: output 0\n" in out
    assert "train.py:3" in out
    assert "explains    3 ranks" in out
    code, out, _ = verb(capsys, actual, reference, "--json", "--workers", 2)
    found = json.loads(out)
    assert (code, found["schema"], found["verdict"]) == (1, "ascend-dump/compare-indexes/1", "different")
    assert [origin["ranks"] for origin in found["origins"]] == [[2]]
    assert [row["rank"] for row in found["ranks"]] == list(range(RANKS))


def test_the_exit_code_of_the_verb_tells_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actual, reference = write(tmp_path / "actual"), write(tmp_path / "reference")
    code, out, _ = verb(capsys, actual, reference)
    assert (code, out) == (0, f"equal: {2 * OPERATORS * RANKS} records of {RANKS} ranks\n")
    with open(next(actual.rglob(INDEX)), "ab") as file:
        file.write(b"{}\n")
    code, out, _ = verb(capsys, actual, reference)
    assert code == 3
    assert "1 unreadable" in out
    shutil.rmtree(actual / f"worldsize{RANKS}_global_rank3")
    code, _, err = verb(capsys, actual, tmp_path / "missing")
    assert code == 3
    assert "cannot be listed" in err


def tell_how_many(root: Path) -> None:
    """Give each rank the manifest of a complete run."""
    for index in root.rglob(INDEX):
        count = index.read_bytes().count(b"\n")
        manifest = {"schema": "ascend-dump/host/1", "state": "complete", "tally": {"records": count}}
        (index.parents[4] / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("executor", [[], ["--workers", 2]], ids=["here", "workers"])
def test_the_verb_tells_of_lost_records(
    executor: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual, reference = write(tmp_path / "actual"), write(tmp_path / "reference")
    for side in (actual, reference):
        tell_how_many(side)
    assert verb(capsys, actual, reference, *executor)[0] == 0
    for side in (actual, reference):  # cut off at the same line
        [index] = side.glob(f"worldsize{RANKS}_global_rank2/**/{INDEX}")
        index.write_bytes(b"".join(index.read_bytes().splitlines(keepends=True)[:-2]))
    left = 2 * OPERATORS - 2
    reason = f"only {left} of the {left + 2} written records are left: files are missing or cut off"
    code, out, err = verb(capsys, actual, reference, *executor)
    assert (code, out) == (3, f"equal: {2 * OPERATORS * RANKS - 2} records of {RANKS} ranks\n")
    runs = [str(next(side.glob("*_global_rank2/*"))) for side in (actual, reference)]
    assert err.splitlines() == [f"incomplete: {run}: {reason}" for run in runs]
    code, out, err = verb(capsys, actual, reference, "--json", *executor)
    assert (code, err.count(reason)) == (3, 2)
    assert json.loads(out)["notes"] == [{"path": run, "note": reason} for run in runs]


@pytest.mark.parametrize("executor", [[], ["--workers", 2]], ids=["here", "workers"])
def test_the_verb_tells_of_lost_tensors(
    executor: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = tmp_path / "worldsize1_global_rank0" / "20260101010100" / "0" / "Model" / "0" / "0"
    step.mkdir(parents=True)
    some = [WHOLE, slice_of("b", 0, blob=(2000, 32), offset=2000)]
    (step / INDEX).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in some))
    tell_how_many(tmp_path)
    shard = step / "tensors-00000.safetensors"
    shard.write_bytes(bytes(2032))
    equal = "equal: 2 records of 1 rank\n"
    assert verb(capsys, tmp_path, tmp_path, *executor) == (0, equal, "")
    place = f"incomplete: {step.parents[3]}: 0/Model/0/0/{shard.name}"
    shard.write_bytes(bytes(2031))
    told = f"{place} is cut off: it has 2031 of at least 2032 bytes; the tensors of 1 record are lost\n"
    assert verb(capsys, tmp_path, tmp_path, *executor) == (0, equal, told)
    shard.unlink()
    told = f"{place} is missing; the tensors of 2 records are lost\n"
    assert verb(capsys, tmp_path, tmp_path, *executor) == (0, equal, told)


def test_all_records_of_a_rank_are_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actual, reference = write(tmp_path / "actual"), write(tmp_path / "reference")
    tell_how_many(actual)
    next(actual.glob(f"worldsize{RANKS}_global_rank1/**/{INDEX}")).unlink()
    code, out, err = verb(capsys, actual, reference)
    assert (code, out.partition(":")[0]) == (1, "structure")
    assert f"only 0 of the {2 * OPERATORS} written records are left" in err
    [lost] = compare_indexes(actual, reference).lost
    assert (lost.found, lost.written) == (0, 2 * OPERATORS)


@pytest.mark.parametrize(
    "options", [["--op", "x"], ["--rank", "0"], ["--save", "x.json"], ["--replay"], ["--noise", "x"]]
)
def test_the_verb_refuses_what_it_does_not_do(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = verb(capsys, tmp_path, tmp_path, *options)
    assert (code, out) == (2, "")
    assert f"takes no {options[0]}" in err


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec = pytest.importorskip("fsspec")
    found = fsspec.filesystem("memory")
    found.store.clear()
    yield found
    found.store.clear()


def test_indexes_are_compared_where_they_are_stored(
    store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [write(tmp_path / "actual", (2, 6)), write(tmp_path / "reference")]
    here = compare_indexes(*sides)
    for side in sides:
        for path in side.rglob("*"):
            if path.is_file():
                store.pipe_file(f"/{path.relative_to(tmp_path)}", path.read_bytes())
    # Of one rank there is the catalog only.
    [place] = (tmp_path / "reference").glob("*_global_rank3")
    ascend_dump.open(place).catalog().collect().write_parquet(tmp_path / "rank-3.parquet")
    store.rm(f"/reference/{place.name}", recursive=True)
    store.pipe_file("/reference/rank-3.parquet", (tmp_path / "rank-3.parquet").read_bytes())
    urls = ("memory://actual", "memory://reference")
    assert compare_indexes(*urls).to_dict() == here.to_dict()
    assert compare_indexes(urls[0], sides[1]).to_dict() == here.to_dict()
    with ThreadPoolExecutor(2) as executor:
        assert compare_indexes(*urls, executor=executor).to_dict() == here.to_dict()
    assert here.verdict == "different"
    code, out, _ = verb(capsys, *urls)
    # 11 records of rank 2 from the output of operator 6 on, and of three ranks 5 from the all_reduce on, operator 9.
    assert (code, out.splitlines()[0]) == (1, "different: 96 records of 4 ranks, 26 differ")
    store.pipe_file("/reference/rank-3.parquet", b"PAR1 and no more")
    with pytest.raises(ascend_dump.CorruptDump, match=r"memory://reference/rank-3.parquet.*not the catalog"):
        compare_indexes(*urls)
    with pytest.raises(ascend_dump.DumpNotFound, match="memory://nowhere"):
        compare_indexes(urls[0], "memory://nowhere")


def test_a_store_that_does_not_answer_is_said(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pipe_file("/actual/worldsize1_global_rank0/x", b"")

    def refuse(*arguments: Any, **named: Any) -> None:
        raise PermissionError(13, "Access Denied")

    monkeypatch.setattr(type(store), "find", refuse)
    with pytest.raises(ascend_dump.StorageError, match="memory://actual"):
        compare_indexes("memory://actual", "memory://actual")


def test_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ascend_dump.DumpNotFound, match="no rank"):
        compare_indexes(tmp_path / "a", write(tmp_path / "reference"))
    with pytest.raises(ascend_dump.DumpNotFound, match="cannot be listed"):
        compare_indexes(tmp_path / "b", tmp_path / "reference")

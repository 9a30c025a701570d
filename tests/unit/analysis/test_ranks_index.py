"""Two runs of many ranks are compared by their indexes: the first difference of each rank, and where it began."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

import msgspec
import pytest

import ascend_dump
from ascend_dump.host import INDEX, CollectiveCall, Line

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
    assert (origin.ranks, origin.kind) == ((1,), "structure")
    other = compare_indexes(tmp_path / "reference", tmp_path / "actual", work=tmp_path / "work")
    [origin] = other.origins
    assert (origin.ranks, origin.kind, origin.op_name) == ((1,), "structure", "fc/op_6")


def test_a_rank_that_one_run_lacks(tmp_path: Path) -> None:
    import shutil

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


def test_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ascend_dump.DumpNotFound, match="no rank"):
        compare_indexes(tmp_path / "a", write(tmp_path / "reference"))
    with pytest.raises(ascend_dump.DumpNotFound, match="cannot be listed"):
        compare_indexes(tmp_path / "b", tmp_path / "reference")

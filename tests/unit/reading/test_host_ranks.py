"""What lines of a host dump tell of other ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.dump_format import CollectiveCall, Placement, ranks_of, ranks_text


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=60))
def test_ranks_are_read_as_they_were_written(ranks: list[int]) -> None:
    assert ranks_of(ranks_text(ranks)) == tuple(ranks)


@given(st.integers(0, 900), st.integers(1, 64), st.integers(2, 200))
def test_regular_groups_are_short(first: int, step: int, count: int) -> None:
    ranks = list(range(first, first + step * count, step))
    assert len(ranks_text(ranks)) <= 12
    assert ranks_of(ranks_text(ranks)) == tuple(ranks)


@pytest.mark.parametrize("text", ["", "a", "1-", "-3", "0-3:", "1||2", "0-999999999", "1 ", "0-99999|0-99999"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ranks"):
        ranks_of(text)


def _dump(root: Path, **more: Any) -> ascend_dump.Dump:
    record = {"op_type": "c10d::allreduce_", "op_name": "allreduce__0", "io": "input", "index": 0}
    line = {**record, "seq": 0, "time": 0, "nbytes": 0, "dtype": "float32", "shape": [0], **more}
    step = root / "worldsize4_global_rank1" / "20260101000000" / "0" / "m" / "0" / "0"
    step.mkdir(parents=True)
    (step / "index.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")
    return ascend_dump.open(root)


def test_a_record_tells_its_group_and_its_place(tmp_path: Path) -> None:
    call = {"kind": "all_reduce", "group": "0", "ranks": "0-3", "nth": 2, "reduce": "sum"}
    place = {"ranks": "0-3", "mesh": [2, 2], "axes": ["replicate", "shard 0"], "shape": [64, 32]}
    dump = _dump(tmp_path, collective=call, placement=place)
    [record] = dump
    told = msgspec.convert(record.attrs["collective"], CollectiveCall)
    assert told == CollectiveCall("all_reduce", "0", "0-3", 2, "sum")
    assert told.members == (0, 1, 2, 3)
    assert msgspec.convert(record.attrs["placement"], Placement) == Placement(
        "0-3", (2, 2), ("replicate", "shard 0"), shape=(64, 32)
    )
    pytest.importorskip("polars")
    attrs = msgspec.json.decode(dump.catalog().collect()["attrs"][0])
    assert attrs["collective"] == call
    assert attrs["placement"]["axes"] == place["axes"]


@pytest.mark.parametrize(
    "more",
    [
        {"collective": {"kind": "all_reduce"}},
        {"collective": {"kind": "all_reduce", "group": 1, "ranks": "0"}},
        {"collective": {"kind": "send", "group": "0", "ranks": "0", "peer": -1}},
        {"collective": {"kind": "send", "group": "0", "ranks": "0", "nth": 2**70}},
        {"placement": {"ranks": "0", "mesh": [-1], "axes": []}},
        {"placement": {"ranks": "0", "mesh": [1] * 17, "axes": []}},
    ],
)
def test_what_no_group_can_be_is_a_broken_record(more: dict[str, Any], tmp_path: Path) -> None:
    [record] = _dump(tmp_path, **more)
    assert isinstance(record.error, ascend_dump.CorruptDump)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.data(),
)
def test_regions_of_all_ranks_make_the_whole(mesh: list[int], shape: list[int], data: st.DataObject) -> None:
    """As `torch.chunk` cuts it, one dimension of the mesh after the other; ranks along others have copies."""
    axes = [data.draw(st.sampled_from(["replicate", *(f"shard {axis}" for axis in range(len(shape)))])) for _ in mesh]
    ranks = list(range(3, 3 + math.prod(mesh)))
    placement = Placement(ranks_text(ranks), tuple(mesh), tuple(axes), shape=tuple(shape))
    covered = np.zeros(shape, dtype=int)
    for rank in ranks:
        region = placement.region(rank)
        assert region is not None
        covered[region] += 1
    copies = math.prod(size for size, axis in zip(mesh, axes) if axis == "replicate")
    assert (covered == copies).all()


def test_ranks_that_are_not_on_the_mesh_have_no_part() -> None:
    assert Placement("0-3", (4,), ("shard 0",), shape=(8,)).region(4) is None
    assert Placement("0-3", (4,), ("partial sum",), shape=(8,)).region(1) is None
    assert Placement("0-3", (3,), ("shard 0",), shape=(8,)).region(1) is None
    assert Placement("0-3", (4,), ("shard 1",), shape=(8,)).region(1) is None
    assert Placement("x", (4,), ("shard 0",), shape=(8,)).coordinates(1) is None

"""Dumps as data frames of pandas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ascend_dump

pytest.importorskip("pandas")
pytest.importorskip("polars")


@pytest.fixture
def dump(tmp_path: Path) -> ascend_dump.Dump:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    with ascend_dump.capture(model, path=tmp_path, quiet=True) as cap:
        for _ in range(2):
            (model(torch.ones(2, 4)) * 0).log().sum().backward()
    return cap.dump()


def test_a_row_is_a_record(dump: ascend_dump.Dump) -> None:
    frame = dump.to_pandas()
    assert len(frame) == len(dump)
    for name in ("op_name", "op_type", "io", "index", "step", "rank", "dtype", "module", "nbytes"):
        assert frame[name].tolist() == [getattr(record, name) for record in dump], name
    assert [tuple(shape) for shape in frame["shape"]] == [record.shape for record in dump]


def test_statistics_are_columns(dump: ascend_dump.Dump) -> None:
    frame = dump.to_pandas(stats=True)
    wanted = [record.statistics() for record in dump]
    for name in ("count", "nan", "posinf", "neginf", "zero"):
        assert frame[name].tolist() == [getattr(one, name) for one in wanted], name
    assert frame["neginf"].sum() > 0
    # What is not known is NaN, as everywhere in pandas.
    assert frame["min"].isna().tolist() == [one.min is None for one in wanted]
    assert frame["min"].dropna().tolist() == [one.min for one in wanted if one.min is not None]


def test_pandas_can_work_with_it(dump: ascend_dump.Dump) -> None:
    frame = dump.to_pandas()
    per_step = frame.groupby("step")["nbytes"].sum()
    for step in (0, 1):
        assert per_step[step] == sum(record.nbytes or 0 for record in dump.select(step=step))

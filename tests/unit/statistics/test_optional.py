"""Statistics on request: one entry of the table each, with the moments that they need."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ascend_dump
from ascend_dump import ConfigError, NotSupported
from ascend_dump.native.cann.config.build import acl_config
from ascend_dump.native.mindspore.config.build import mindspore_config
from ascend_dump.statistics import ALL_STATISTICS, STATISTIC_NAMES, TABLE, Statistics, merged, statistics

pytest.importorskip("hypothesis")
pytest.importorskip("polars")

from hypothesis import given, settings
from hypothesis import strategies as st

MOMENTS = ("variance", "skewness", "kurtosis")
DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "complex64", "complex128"),
    *("int64", "int32", "uint16", "int8", "bool", "float8_e4m3fn"),
)
ENGINES = ["numpy", *(["numba"] if find_spec("numba") else [])]


def formula(array: np.ndarray) -> tuple[float, float, float]:
    """Return the moments by their definition, in float64."""
    values = np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else array.astype(np.float64)
    deviations = values - values.mean()
    variance = float((deviations**2).mean())
    if values.max() == values.min():
        return 0.0, math.nan, math.nan
    return variance, float((deviations**3).mean() / variance**1.5), float((deviations**4).mean() / variance**2)


def near(moments: Any, expected: Any) -> None:
    # The sums of a skewness cancel.
    np.testing.assert_allclose(moments, expected, rtol=1e-9, atol=1e-9)


def arrays() -> st.SearchStrategy[np.ndarray]:
    def made(name: str, seed: int, shape: list[int], centre: float) -> np.ndarray:
        rng = np.random.default_rng(seed)
        values = rng.gamma(2, 3, shape) + centre
        return (values > centre + 3 if name == "bool" else values).astype(np.dtype(getattr(ml_dtypes, name, name)))

    sizes = st.lists(st.integers(1, 40), min_size=1, max_size=3)
    return st.builds(made, st.sampled_from(DTYPES), st.integers(0, 9999), sizes, st.sampled_from([0.0, 5.0, 40.0]))


def test_the_fields_are_the_entries_of_the_table() -> None:
    assert Statistics._fields == ("count", *(entry.name for entry in TABLE))
    assert tuple(name for name in ALL_STATISTICS if name not in MOMENTS) == STATISTIC_NAMES
    kinds = Statistics.__annotations__
    assert {entry.name for entry in TABLE if entry.is_count} == {
        name for name in ALL_STATISTICS if "int" in str(kinds[name])
    }


@pytest.mark.parametrize("engine", ENGINES)
@given(array=arrays())
@settings(deadline=None, max_examples=60)
def test_moments_are_those_of_the_formula(engine: str, array: np.ndarray) -> None:
    computed = statistics(array, engine=engine, optional=["kurtosis"])
    near([getattr(computed, name) for name in MOMENTS], formula(array))
    assert computed._replace(**dict.fromkeys(MOMENTS)) == statistics(array, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_chunks_and_threads_do_not_show(engine: str) -> None:
    array = np.random.default_rng(0).gamma(2, size=(300, 11_000)).astype("f4")
    for view in (array, array[::2, ::3], array.T, np.broadcast_to(array[:9], (3, 9, 11_000))):
        computed = statistics(view, engine=engine, threads=2, optional=["kurtosis"])
        near([getattr(computed, name) for name in MOMENTS], formula(np.ascontiguousarray(view)))


def test_parts_without_elements_are_merged_to_a_whole_without_elements() -> None:
    empty = statistics(np.empty(0, "f4"), engine="numpy", optional=["kurtosis"])
    assert merged([empty, empty]) == empty
    assert empty.l2norm == 0.0


@given(array=arrays(), cuts=st.lists(st.integers(0, 1 << 16), max_size=3))
@settings(deadline=None, max_examples=60)
def test_parts_are_merged_to_the_whole(array: np.ndarray, cuts: list[int]) -> None:
    flat = array.reshape(-1)
    parts = np.split(flat, sorted(cut % (flat.size + 1) for cut in cuts))
    whole = merged([statistics(part, engine="numpy", optional=["kurtosis"]) for part in parts])
    near([getattr(whole, name) for name in MOMENTS], formula(array))


def test_a_part_without_moments_leaves_the_whole_without() -> None:
    array = np.arange(6.0)
    known, unknown = statistics(array, optional=["kurtosis"]), statistics(array)
    assert [getattr(merged([known, unknown]), name) for name in MOMENTS] == [None] * 3


@pytest.mark.parametrize("engine", ENGINES)
def test_limits(engine: str) -> None:
    def moments(*values: float) -> tuple[Any, ...]:
        return statistics(np.array(values), engine=engine, optional=["kurtosis"])[-3:]

    assert moments() == (None, None, None)
    assert moments(0.1, 0.1, 0.1)[0] == 0
    assert all(map(math.isnan, moments(0.1, 0.1, 0.1)[1:]))
    assert all(map(math.isnan, moments(1.0, math.inf)))
    huge, tiny = moments(1e300, 2e300, -1e308), moments(1e-300, 2e-300, -1e-308)
    near(huge[1:], formula(np.array([1e-8, 2e-8, -1.0]))[1:])
    near(tiny[1:], formula(np.array([1.0, 2.0, -1e-8]))[1:])
    assert huge[0] == math.inf
    assert statistics(np.ones(2), engine=engine, optional=["variance"])[-2:] == (None, None)


def lines_of(path: Path) -> list[dict[str, Any]]:
    (index,) = path.rglob("index.jsonl")
    return [json.loads(line) for line in index.read_text().splitlines()]


def captured(path: Path, **settings: Any) -> ascend_dump.Dump:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(64, 128, generator=generator) ** 3
    with ascend_dump.capture(path=path, steps="0", quiet=True, **settings):
        values.mul(2)
        values.to(torch.bfloat16).t().add(1)
    return ascend_dump.open(path)


@pytest.mark.parametrize("data", ["stats", "full"])
def test_a_capture_records_what_was_requested_with_what_it_needs(tmp_path: Path, data: Any) -> None:
    dump = captured(tmp_path, data=data, stats=("kurtosis",))
    records = [record for record in dump if record.io == "output"]
    assert records
    for record in records:
        recorded = record.recorded_statistics()
        assert recorded is not None
        assert [name for name in ALL_STATISTICS if getattr(recorded, name) is not None] == ["mean", *MOMENTS]
        if data == "full":
            near([getattr(recorded, name) for name in MOMENTS], formula(record.numpy()))
    assert dump.to_frame(stats=True)["kurtosis"].null_count() == 0
    (table,) = tmp_path.rglob("statistic.csv")
    head, *rows = table.read_text().splitlines()
    assert head.endswith(",Variance,Skewness,Kurtosis")
    (number,) = {row.rpartition(",")[2] for row in rows if ",mul" in row and ",output" in row}
    (record,) = dump.select(op="mul*", io="output")
    assert float(number) == record.statistics().kurtosis


def test_by_default_the_bytes_are_as_before(tmp_path: Path) -> None:
    captured(tmp_path, data="stats")
    assert {len(line["stats"]) for line in lines_of(tmp_path)} == {11}
    (table,) = tmp_path.rglob("statistic.csv")
    before = Path(__file__).parents[2] / "data" / "ten_statistics" / "0" / "statistic.csv"
    assert table.read_text().splitlines()[0] == before.read_text().splitlines()[0]


def test_dumps_of_ten_statistics_stay_readable() -> None:
    directory = Path(__file__).parents[2] / "data" / "ten_statistics"
    dump = ascend_dump.open(directory)
    lines = lines_of(directory)
    assert len(dump) == len(lines) == 20
    for record, line in zip(dump, lines):
        if not line["nbytes"]:
            continue
        stored = [float(value) if isinstance(value, str) else value for value in line["stats"]]
        assert repr(record.statistics()) == repr(Statistics(*stored))
        assert record.statistics().kurtosis is None
    assert dump.to_frame(stats=True)["l2norm"].null_count() == 0


def test_stats_shows_them_where_they_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ascend_dump.cli import main

    captured(tmp_path, data="stats", stats=("max", "kurtosis"))
    capsys.readouterr()
    assert main(["stats", str(tmp_path), "--sort", "kurtosis"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-3:] == list(MOMENTS)
    values = [float(row.split()[-1]) for row in rows]
    assert values == sorted(values, reverse=True)
    assert main(["stats", str(Path(__file__).parents[2] / "data" / "ten_statistics")]) == 0
    assert "kurtosis" not in capsys.readouterr().out


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'kurtosis'"):
        ascend_dump.DumpRequest(stats="kurtossis")


@pytest.mark.parametrize("framework", ["cann", "mindspore"])
def test_a_framework_that_computes_statistics_itself_refuses(framework: str, tmp_path: Path) -> None:
    request = ascend_dump.DumpRequest(path=tmp_path, data="stats", stats="kurtosis")
    build = {"cann": acl_config, "mindspore": mindspore_config}[framework]
    with pytest.raises(NotSupported, match="kurtosis") as refused:
        build(request)
    assert "data='tensor'" in str(refused.value)

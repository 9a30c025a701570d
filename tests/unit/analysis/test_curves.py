"""Curves of dumps with known numbers: their values, spikes, partings and exports."""

from __future__ import annotations

import csv
import math
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dumps import item, model_directory, write_step
from hypothesis import given
from hypothesis import strategies as st
from places import DATA

import ascend_dump
from ascend_dump import ConfigError, DumpNotFound, NotSupported, Trends, WriteError
from ascend_dump.analysis.judging.spikes import FEWEST, find_spikes
from ascend_dump.analysis.trends import QUANTITIES
from ascend_dump.report.plots import sparkline
from ascend_dump.writing import HostWriter

Series = Sequence[float]


def output(module: str, values: Any, dtype: str = "float32", **more: Any) -> Any:
    name = f"{module}/forward_0".lstrip("/")
    fields = {"op_type": "Linear", "module": module, "phase": "forward", **more}
    return item(name, np.asarray(values, dtype), **fields)


def gradient(module: str, values: Any) -> Any:
    fields = {"op_type": "Linear", "module": module, "phase": "backward", "io": "input"}
    return item(f"{module}/backward_0", np.asarray(values, "float32"), **fields)


def update(name: str, weight: Any, gradient: Any, change: Any) -> list[Any]:
    """The records of a parameter at an optimizer step; its norms are those of the values."""
    module = name.rpartition(".")[0]
    fields = {"op_type": "SGD", "module": module, "phase": "other"}
    parts = ((name, "input", weight), (f"{name}.grad", "input", gradient), (f"change of {name}", "output", change))
    return [
        item(f"{module}/update_0", np.asarray(values, "float32"), io=io, index=number % 2, parameter=label, **fields)
        for number, (label, io, values) in enumerate(parts)
    ]


def write(path: Path, steps: Mapping[int, Sequence[Any]]) -> Path:
    writer = HostWriter(model_directory(path), metadata={}, stats=("max", "min", "mean", "l2norm", "nan", "zero"))
    for step, items in steps.items():
        write_step(writer, step, *items)
    writer.close()
    return path


def write_series(path: Path, **series: Series) -> Path:
    """A dump of modules whose output has one element in each step."""
    length = max(map(len, series.values()))
    return write(
        path, {step: [output(name, [values[step]]) for name, values in series.items()] for step in range(length)}
    )


def maxima(path: Path, name: str = "fc", **settings: Any) -> list[float]:
    return [*ascend_dump.trends(path, **settings).curve(name, "activation_max").values]


def test_values_of_a_step(tmp_path: Path) -> None:
    first = output("fc", [[3.0, 0.0], [-4.0, 0.0]])
    second = output("fc", [0.0, 12.0], index=1)
    counted = output("fc", [100, 200], "int64", index=2)
    write(tmp_path, {7: [first, second, counted, gradient("fc", [6.0, 8.0]), *update("fc.w", [3, 4], [1, 0], [0, 1])]})
    found = ascend_dump.trends(tmp_path)
    values = {(curve.kind, curve.name, curve.quantity): [*curve.values] for curve in found.curves}
    assert values == {
        ("module", "fc", "activation_max"): [12.0],
        ("module", "fc", "activation_rms"): [pytest.approx(math.sqrt((9 + 16 + 144) / 6))],
        ("module", "fc", "zeros"): [0.5],
        ("module", "fc", "output_gradient"): [10.0],
        ("parameter", "fc.w", "weight_norm"): [5.0],
        ("parameter", "fc.w", "gradient_norm"): [1.0],
        ("parameter", "fc.w", "update_ratio"): [pytest.approx(0.2)],
    }
    assert {quantity for _, _, quantity in values} < QUANTITIES.keys()
    assert found.steps == [7]
    assert any("one step only" in note for note in found.notes)


def test_rows_that_are_probabilities_have_a_concentration(tmp_path: Path) -> None:
    uniform, certain = np.full((5, 4), 0.25), np.eye(4)
    write(
        tmp_path, {0: [output("softmax", uniform)], 1: [output("softmax", certain)], 2: [output("softmax", [[3, -2]])]}
    )
    curve = ascend_dump.trends(tmp_path).curve("softmax", "concentration")
    assert list(curve.steps) == [0, 1]
    assert list(curve.values) == pytest.approx([0.25, 1.0])


def test_a_parameter_that_is_0_has_no_ratio(tmp_path: Path) -> None:
    steps = {step: update("fc.b", [float(step)], [1.0], [1.0]) for step in range(3)}
    curve = ascend_dump.trends(write(tmp_path, steps)).curve("fc.b", "update_ratio")
    assert (list(curve.steps), list(curve.values)) == ([1, 2], [1.0, 0.5])


def test_nan_is_told_with_its_first_step(tmp_path: Path) -> None:
    write_series(tmp_path, fc=[1.0, 1.0, math.nan, 1.0], other=[1.0, 1.0, 1.0, math.inf])
    found = ascend_dump.trends(tmp_path)
    assert found.first_nonfinite is not None
    curve, step = found.first_nonfinite
    assert (curve.name, step) == ("fc", 2)
    assert [*found.curve("fc", "nonfinite").values] == [0, 0, 1, 0]


# Dumps of operators


def test_operators_and_modules_give_the_same_curves_of_parameters(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    found = []
    for level in ("module", "all"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softmax(-1), torch.nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        settings = {"data": "stats"} if level == "module" else {}
        with ascend_dump.capture(model, path=tmp_path / level, level=level, quiet=True, **settings) as cap:
            for _ in range(3):
                model(torch.randn(16, 4)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        found.append(ascend_dump.trends(cap.path))
    modules, operators = found
    names = [curve for curve in modules.curves if curve.kind == "parameter"]
    assert len(names) == 4 * 3
    for curve in [*names, modules.curve("1", "concentration"), modules.curve("0", "activation_max")]:
        other = operators.curve(curve.name, curve.quantity)
        assert list(other.steps) == list(curve.steps) == [0, 1, 2]
        assert list(other.values) == pytest.approx(list(curve.values), rel=1e-4)


def test_a_dump_without_modules_has_curves_of_operators() -> None:
    found = ascend_dump.trends(DATA / "mindspore" / "constants")
    assert {curve.kind for curve in found.curves} == {"operator"}
    assert [*found.curve("Default/Add-op0", "activation_max").values] == [2.5]
    assert any("no parameter is recorded" in note for note in found.notes)


# Selection


def test_patterns_select_modules_and_parameters(tmp_path: Path) -> None:
    write(tmp_path, {0: [output("up", [1.0]), output("down", [1.0]), *update("up.w", [1], [1], [1])]})
    names = {
        (module, parameter): {
            curve.name for curve in ascend_dump.trends(tmp_path, module=module, parameter=parameter).curves
        }
        for module, parameter in (("up", None), (None, "*.w"), ("re:^d", None), ("down", "up.*"))
    }
    assert not any("parameter is" in note for note in ascend_dump.trends(tmp_path, module="down").notes)
    assert list(names.values()) == [{"up", "up.w"}, {"up.w"}, {"down"}, {"down", "up.w"}]
    with pytest.raises(DumpNotFound, match="no curve matches module='dwn'") as caught:
        ascend_dump.trends(tmp_path, module="dwn")
    assert "nearest: down" in caught.value.hint
    with pytest.raises(ConfigError, match="is not a regular expression"):
        ascend_dump.trends(tmp_path, module="re:(")
    with pytest.raises(ConfigError, match="no curve 'zeroes' of 'up'") as wrong:
        ascend_dump.trends(tmp_path).curve("up", "zeroes")
    assert "activation_max" in wrong.value.hint


def test_a_dump_without_numbers_says_how_to_record_them(tmp_path: Path) -> None:
    write(tmp_path, {0: [output("fc", [1], "int64")]})
    with pytest.raises(DumpNotFound, match="no record of a step has a floating-point output") as caught:
        ascend_dump.trends(tmp_path)
    assert 'level="module"' in caught.value.hint


# Spikes

HEALTHY = [1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.1, 1.0, 0.9, 1.0]


def test_a_spike_is_named_with_its_step(tmp_path: Path) -> None:
    write_series(tmp_path, fc=[*HEALTHY, 40.0, *HEALTHY], other=[*HEALTHY, *HEALTHY, 1.0])
    found = ascend_dump.trends(tmp_path)
    [(curve, spike), *more] = found.spikes
    assert (curve.name, spike.step, spike.stays) == ("fc", 10, False)
    assert spike.times == pytest.approx(40.0)
    assert {curve.name for curve, _ in more} == {"fc"}


@given(st.lists(st.floats(0.5, 1.5), max_size=60), st.floats(1e-30, 1e30))
def test_numbers_of_one_size_have_no_spike(values: list[float], unit: float) -> None:
    assert list(find_spikes([value * unit for value in values])) == []


@given(st.lists(st.floats(0.5, 1.5), min_size=FEWEST, max_size=40), st.integers(1, 20), st.floats(1e-9, 1e9))
def test_a_number_far_above_those_before_is_a_spike(values: list[float], after: int, unit: float) -> None:
    numbers = [value * unit for value in [*values, 50.0, *[50.0] * after]]
    first = next(find_spikes(numbers))
    assert (first.position, first.stays) == (len(values), after >= 3)
    assert first.median == statistics.median(numbers[max(0, len(values) - 32) : len(values)])


# Two runs


def test_partings_of_equal_and_of_different_runs(tmp_path: Path) -> None:
    ramp = [1.0 + step / 10 for step in range(12)]
    late = [*ramp[:6], *(value * 1.5 for value in ramp[6:])]
    reference = write_series(tmp_path / "reference", first=ramp, second=ramp)
    same = ascend_dump.trends(write_series(tmp_path / "same", first=ramp, second=ramp), reference)
    assert (same.verdict, same.partings, same.unmatched) == ("equal", (), 0)
    apart = ascend_dump.trends(write_series(tmp_path / "apart", first=ramp, second=late), reference)
    assert apart.verdict == "different"
    assert {(parting.curve.name, parting.step, parting.noise) for parting in apart.partings} == {("second", 6, None)}
    assert apart.partings[0].distance == pytest.approx(math.log(1.5), rel=1e-2)
    rounded = [value * (1 + 1e-7) for value in ramp]
    near = ascend_dump.trends(write_series(tmp_path / "near", first=ramp, second=rounded), reference)
    assert (near.verdict, near.partings) == ("noise", ())


def noisy(seed: int, factor: float = 1.0, begin: int = 0) -> list[float]:
    numbers = np.exp(np.random.default_rng(seed).normal(0, 0.1, 20))
    return [value * (factor if step >= begin else 1.0) for step, value in enumerate(numbers.tolist())]


def test_noise_is_measured_between_two_runs_of_the_reference(tmp_path: Path) -> None:
    runs = {
        name: write_series(tmp_path / name, fc=noisy(seed, *more), other=noisy(seed + 50))
        for name, (seed, *more) in {"a": (1,), "b": (2,), "c": (3,), "wrong": (4, 30.0, 12)}.items()
    }
    healthy = ascend_dump.trends(runs["a"], runs["b"], noise=runs["c"])
    assert (healthy.verdict, healthy.partings) == ("noise", ())
    wrong = ascend_dump.trends(runs["wrong"], runs["b"], noise=runs["c"])
    first = wrong.partings[0]
    assert (first.curve.name, first.step) == ("fc", 12)
    assert first.noise is not None
    assert 0.1 < first.noise < 1.0
    assert ascend_dump.trends(runs["a"], runs["b"]).verdict == "different"


def test_a_single_outlier_is_no_parting_with_noise(tmp_path: Path) -> None:
    outlier = noisy(1)
    outlier[8] *= 100
    runs = [write_series(tmp_path / str(seed), fc=values) for seed, values in enumerate((outlier, noisy(2), noisy(3)))]
    found = ascend_dump.trends(runs[0], runs[1], noise=runs[2])
    assert found.partings == ()
    assert [spike.step for _, spike in found.spikes] == [8] * len(found.spikes)


def test_nan_on_one_side_parts(tmp_path: Path) -> None:
    wrong = [*noisy(1)[:15], *[math.nan] * 5]
    runs = [write_series(tmp_path / str(seed), fc=values) for seed, values in enumerate((wrong, noisy(2), noisy(3)))]
    found = ascend_dump.trends(runs[0], runs[1], noise=runs[2])
    assert (found.partings[0].step, found.partings[0].distance) == (15, math.inf)


def test_runs_with_nothing_in_common_are_unmatched(tmp_path: Path) -> None:
    one = write_series(tmp_path / "one", fc=[1.0, 2.0])
    other = write_series(tmp_path / "other", fd=[1.0, 2.0])
    found = ascend_dump.trends(one, other, noise=None)
    assert (found.verdict, found.unmatched) == ("unmatched", 2 * 3)


def test_a_noise_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    one, other = write_series(tmp_path / "one", fc=[1.0, 2.0]), write_series(tmp_path / "other", fc=[1.0, 2.0])
    third = write_series(tmp_path / "third", fd=[1.0, 2.0])
    with pytest.raises(ConfigError, match="without a reference"):
        ascend_dump.trends(one, noise=other)
    for same in (one, other):
        with pytest.raises(ConfigError, match="the same dump as"):
            ascend_dump.trends(one, other, noise=same)
    found = ascend_dump.trends(write_series(tmp_path / "apart", fc=[3.0, 3.0]), other, noise=third)
    assert any("the noise is not known" in note for note in found.notes)
    assert any("no noise was measured" in note for note in found.notes)


# Files


def test_a_damaged_index_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    path = write_series(tmp_path, fc=[1.0, 2.0, 3.0])
    [index] = [file for file in path.rglob("index.jsonl") if file.parent.name == "1"]
    index.write_bytes(b"{broken\n")
    found = ascend_dump.trends(path)
    assert list(found.curve("fc", "activation_max").steps) == [0, 2]
    assert found.unreadable == 1
    assert any("1 record of actual cannot be read" in note for note in found.notes)


def test_steps_are_in_order_and_a_missing_rank_is_unmatched(tmp_path: Path) -> None:
    reference = write_series(tmp_path / "reference", fc=[float(step) for step in range(1, 13)])
    [rank] = reference.glob("*rank0")
    shutil.copytree(rank, rank.with_name("worldsize2_global_rank1"))
    rank.rename(rank.with_name("worldsize2_global_rank0"))
    found = ascend_dump.trends(reference)
    assert {curve.rank for curve in found.curves} == {0, 1}
    assert list(found.curves[0].values) == sorted(found.curves[0].values)
    alone = tmp_path / "alone"
    shutil.copytree(reference / "worldsize2_global_rank0", alone / "worldsize2_global_rank0")
    against = ascend_dump.trends(alone, reference)
    assert (against.verdict, against.unmatched) == ("equal", 3)


def rows_of(found: Trends) -> list[tuple[Any, ...]]:
    return [
        (curve.run, curve.rank, curve.model, curve.kind, curve.name, curve.quantity, step, value)
        for curve in found.curves
        for step, value in zip(curve.steps, curve.values)
    ]


def test_csv_and_parquet_have_every_value(tmp_path: Path) -> None:
    names = 'comma,"quote"\nline'
    path = write(tmp_path / "dump", {step: [output(names, [float(step), math.nan])] for step in range(3)})
    found = ascend_dump.trends(path)
    with open(found.export("csv", tmp_path / "x.csv"), newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["run", "rank", "model", "kind", "name", "quantity", "step", "value"]
    expected = [[str(field) for field in row] for row in rows_of(found)]
    assert rows == expected
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(found.export("parquet", tmp_path / "x.parquet"))
    assert [[str(field) for field in row] for row in frame.rows()] == expected
    assert (tmp_path / "x.csv").stat().st_mode & 0o077 == 0
    both = ascend_dump.trends(path, write_series(tmp_path / "other", fc=[1.0]))
    assert set(both.to_frame()["side"]) == {"actual", "reference"}


def test_exports_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ascend_dump.trends(write_series(tmp_path / "dump", fc=[1.0, 2.0]))
    with pytest.raises(ConfigError, match="'tensorbord'") as caught:
        found.export("tensorbord", tmp_path / "x")
    assert "tensorboard" in caught.value.hint
    with pytest.raises(WriteError, match="cannot be written"):
        found.export("csv", tmp_path / "none" / "x.csv")
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for name, make in (("link.csv", os.symlink), ("name.csv", os.link)):
        make(precious, tmp_path / name)
        with pytest.raises(WriteError, match="it is a link"):
            found.export("csv", tmp_path / name)
    assert precious.read_text() == "kept"
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(NotSupported, match="package tensorboard") as missing:
        found.export("tensorboard", tmp_path / "events")
    assert "ascend-dump[tensorboard]" in missing.value.hint
    assert not (tmp_path / "events").exists()


# Sparklines


@given(st.lists(st.floats(allow_nan=True), max_size=100), st.sampled_from(["utf-8", "ascii", "latin-1", "no such"]))
def test_a_sparkline_fits_and_can_be_printed(values: list[float], encoding: str) -> None:
    line = sparkline(values, width=24, encoding=encoding)
    assert len(line) <= 24
    assert bool(line) == bool(values)
    line.encode("utf-8" if encoding in ("utf-8", "no such") else encoding)
    assert ("!" in line) == any(not math.isfinite(value) for value in values)


@pytest.mark.parametrize(("values", "line"), [([], ""), ([2.0], "▁"), ([0, 1, 7], "▁▂█"), ([-1e308, 1e308], "▁█")])
def test_sparklines(values: Series, line: str) -> None:
    assert sparkline(values) == line

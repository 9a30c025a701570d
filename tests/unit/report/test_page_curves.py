"""The strip of curves on a page: which curves it has, its marks, its size, and hostile names and values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from host_dumps import item, model_directory, write_step
from hypothesis import given
from hypothesis import strategies as st
from report_pages import HOSTILE

import ascend_dump
from ascend_dump.analysis.trends import page_curves
from ascend_dump.report.page import PageContent, PageCurve, build_page
from ascend_dump.writing import HostWriter


def write(path: Path, sizes: Sequence[float], *, names: Sequence[str] = ("up", "down"), stats: bool = True) -> Path:
    """A dump with a step for each size: all outputs of the first module are that large, those of others 1."""
    writer = HostWriter(model_directory(path), metadata={}, stats=("max", "min", "l2norm", "nan") if stats else None)
    for step, size in enumerate(sizes):
        values = [np.full(4, size if number == 0 else 1.0, "float32") for number in range(len(names))]
        fields = {"op_type": "Linear", "phase": "forward"}
        items = [item(f"{name}/forward_0", value, module=name, **fields) for name, value in zip(names, values)]
        write_step(writer, step, *items)
    writer.close()
    return path


def figures(html: str) -> list[Any]:
    """The pictures of a page, as XML."""
    return [
        ElementTree.fromstring(f"{text}</figure>") for text in re.findall(r"<figure><svg.*?</svg>", html, re.DOTALL)
    ]


def page_of(curves: Sequence[PageCurve]) -> str:
    return build_page(PageContent("a dump", rows=(), verdict="equal", sentence="", curves=curves)).html


def paths(figure: Any, kind: str = "") -> list[str]:
    found = (path for path in figure.iter("path") if path.get("class", "") == kind)
    return [path.get("d") or "" for path in found]


class TestOfDumps:
    def test_a_spike_comes_first_and_is_marked(self, tmp_path: Path) -> None:
        sizes = [1 + 0.01 * (step % 3) for step in range(30)]
        sizes[20] = 500.0
        dump = write(tmp_path / "dump", sizes, names=("last", "first"))
        page = build_page(ascend_dump.triage(dump).to_page()).html
        first, second, *_ = figures(page)
        assert "spike in step 20" in first.find("svg").get("aria-label")
        assert len(paths(first, "spike")) == 1
        assert not paths(second, "spike")
        # The mark is below the top of the curve.
        [mark] = paths(first, "spike")
        [line] = paths(first)
        heights = dict(re.findall(r"[ML]([\d.]+) ([\d.]+)", line))
        highest = min(heights, key=lambda x: float(heights[x]))
        assert mark.startswith(f"M{highest} ")

    def test_a_reference_is_dashed_and_the_parting_is_marked(self, tmp_path: Path) -> None:
        actual = write(tmp_path / "actual", [1.0] * 6 + [1.5] * 6)
        reference = write(tmp_path / "reference", [1.0] * 12)
        page = build_page(ascend_dump.compare(actual, reference).to_page()).html
        first, second, *_ = figures(page)
        assert "parts in step 6" in first.find("svg").get("aria-label")
        assert paths(first, "reference")
        assert paths(first, "parts")
        assert not paths(second, "parts")

    def test_no_tensor_is_read_for_curves(self, tmp_path: Path) -> None:
        dump = write(tmp_path / "dump", [1.0, 2.0, 3.0, 4.0], stats=False)
        assert not list(page_curves(ascend_dump.open(dump)))

    def test_two_steps_are_no_curve(self, tmp_path: Path) -> None:
        assert not list(page_curves(ascend_dump.open(write(tmp_path / "dump", [1.0, 2.0]))))
        page = build_page(ascend_dump.triage(tmp_path / "dump").to_page()).html
        assert "id='curves'" not in page

    def test_values_are_those_of_trends(self, tmp_path: Path) -> None:
        dump = write(tmp_path / "dump", [1.0, 7.0, math.nan, 2.0])
        expected = {
            (curve.quantity, curve.name): list(map(repr, curve.values))
            for curve in ascend_dump.trends(dump).curves
            if curve.quantity == "activation_max" or curve.name == "up"
        }
        shown = {
            (curve.quantity, curve.name): list(map(repr, curve.values)) for curve in page_curves(ascend_dump.open(dump))
        }
        assert shown == expected

    def test_the_strip_of_many_modules_is_bounded(self, tmp_path: Path) -> None:
        names = [f"model.layers.{number}.{'long_name' * 30}" for number in range(40)]
        page = build_page(ascend_dump.triage(write(tmp_path / "dump", [1.0] * 250, names=names)).to_page()).html
        [strip] = re.findall(r"<section id='curves'>.*?</section>", page, re.DOTALL)
        assert "8 of 40" in strip
        assert len(strip) < 40_000


class TestPictures:
    def test_names_are_text(self) -> None:
        page = page_of([PageCurve("activation_max", name, "", [0, 1, 2], [1.0, 2.0, 3.0]) for name in HOSTILE])
        assert len(figures(page)) == 8, "of each quantity the first eight"
        assert "<img src=x" not in page
        assert "window.hacked = 1</script>" not in page

    @given(
        st.lists(st.floats(), min_size=1, max_size=300),
        st.dictionaries(st.integers(0, 300), st.floats()),
        st.lists(st.integers(0, 300), max_size=3),
    )
    def test_any_numbers_are_drawn_inside_the_picture(
        self, values: list[float], reference: dict[int, float], spikes: list[int]
    ) -> None:
        steps = list(range(len(values)))
        spikes = [step for step in spikes if step < len(values)]
        curve = PageCurve("weight_norm", "w", "", steps, values, spikes, None, reference)
        [figure] = figures(page_of([curve]))
        for path in figure.iter("path"):
            for x, y in re.findall(r"[ML](\S+) ([^A-Za-z]+)", path.get("d")):
                assert 0 <= float(x) <= 200
                assert 0 <= float(y) <= 48

    @given(st.integers(101, 5000), st.data())
    def test_few_points_keep_the_spike(self, count: int, data: st.DataObject) -> None:
        spike = data.draw(st.integers(0, count - 1))
        values = [1.0 + step % 7 / 100 for step in range(count)]
        values[spike] = 9.0
        [figure] = figures(page_of([PageCurve("weight_norm", "w", "", range(count), values, [spike])]))
        [line] = paths(figure)
        points = re.findall(r"[ML](\S+) ([^A-Za-z]+)", line)
        assert len(points) <= 102
        assert min(float(y) for _, y in points) == 4.0, "the spike reaches the top"

"""Every part of the page, found and used by clicks and keys in a browser that has nothing but the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import eager_dumps
import numpy as np
import pytest
from conftest import OpenPage
from playwright.sync_api import Page, expect

import ascend_dump

#: The parts of the page in the order in which they are read.
PARTS = ("verdict", "findings", "order", "modules", "rows", "operator", "ranks", "steps", "unmatched", "made")


def address(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")
    return found


def rows_kept(page: Page) -> int:
    return int(page.evaluate("ascendDump.grid.view.length"))


def label(page: Page) -> str:
    """Return the text of the operator view."""
    return page.locator("#operator-view > h4").inner_text()


def is_painted(page: Page, canvas: str) -> bool:
    """Return True if a canvas shows more than one colour."""
    script = """(name) => {
      const canvas = document.querySelector(name);
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(new Uint32Array(data.buffer)).size > 1;
    }"""
    return bool(page.evaluate(script, canvas))


class TestParts:
    def test_all_are_there_in_order(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        found = page.evaluate(
            "[...document.querySelectorAll('main section')].filter(one => !one.hidden).map(one => one.id)"
        )
        assert found == list(PARTS)

    def test_of_one_dump_too(self, open_page: OpenPage, alone: Path) -> None:
        page = open_page(alone)
        assert set(PARTS) - {"ranks", "steps"} <= {
            one.get_attribute("id") for one in page.locator("main section:visible").all()
        }

    def test_the_verdict_names_kind_source_and_command(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        verdict = page.locator("#verdict")
        expect(verdict.locator(".badge")).to_contain_text("different")
        expect(verdict.locator(".sentence")).to_contain_text("layers.1.up/mm_0")
        expect(verdict.locator(".sentence")).to_contain_text("Step 1")
        expect(verdict).to_contain_text("compute:")
        expect(verdict).to_contain_text("model.py:3")
        expect(verdict.locator(".command")).to_contain_text("ascend-dump show")

    def test_an_origin_has_evidence_and_shows_its_row(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        finding = page.locator(".finding").first
        expect(finding).to_contain_text("evidence")
        page.keyboard.press("p")  # away from it
        finding.get_by_role("button", name="Show").click()
        assert label(page).startswith("layers.1.up/mm_0.output.0")

    def test_the_strip_selects_by_click_and_keys(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        assert is_painted(page, "#strip")
        strip = page.locator("#strip")
        strip.click(position={"x": 60, "y": 60})
        first = address(page)["row"]
        strip.press("ArrowRight")
        assert int(address(page)["row"]) > int(first)
        strip.press("ArrowLeft")
        assert address(page)["row"] == first
        strip.hover(position={"x": 900, "y": 60})
        expect(page.locator("#strip-readout")).to_contain_text("relative error")

    def test_the_tree_opens_and_filters_by_keys(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        tree = page.get_by_role("tree")
        expect(tree.get_by_role("treeitem").first).to_contain_text("all modules")
        tree.get_by_role("treeitem").first.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        before = tree.get_by_role("treeitem").count()
        page.keyboard.press("ArrowRight")
        assert tree.get_by_role("treeitem").count() > before
        page.keyboard.press("Enter")
        expect(page.locator("#filter")).to_have_value(re.compile("scope="))
        assert 0 < rows_kept(page) < page.evaluate("ascendDump.data.rows")

    def test_a_module_has_the_colour_of_its_worst(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        names = page.evaluate("ascendDump.data.head.states.map((state) => state.name)")
        worst = page.evaluate("ascendDump.tree.root.worst")
        assert names[worst] == "different"
        first = page.evaluate("[...ascendDump.tree.root.children.values()][0].children.get('layers.0').worst")
        rows = "[...Array(ascendDump.data.rows).keys()]"
        own = page.evaluate(
            f"Math.max(...{rows}.filter(row => ascendDump.data.text('module', row).startsWith('layers.0'))"
            ".map(row => ascendDump.data.severity(row)))"
        )
        assert first == own

    def test_the_operator_has_its_surroundings(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        view = page.locator("#operator-view")
        expect(view).to_contain_text("aten::mm")
        expect(view).to_contain_text("y = x @ weight")  # the source
        expect(view.get_by_label("call stack")).to_contain_text("model.py:1 in main")
        expect(view).to_contain_text("relative error (L2)")
        for canvas in view.locator("canvas").all():
            assert canvas.bounding_box() is not None
        assert view.locator("figure").count() == 3
        assert is_painted(page, "#operator-view .heat")
        assert is_painted(page, "#operator-view .plot")
        # To the operator that made an input, and back through its readers.
        view.locator(".beside .link", has_text="layers.0.act/tanh_0.output.0").click()
        assert label(page).startswith("layers.0.act/tanh_0.output.0")
        view.locator(".beside .link", has_text="layers.1.up/mm_0").first.click()
        assert label(page).startswith("layers.1.up/mm_0.input.0")

    def test_ranks(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        assert is_painted(page, "#rank-strip")
        page.locator("#rank-strip").press("ArrowUp")
        assert page.evaluate("ascendDump.data.rank.at(ascendDump.selected)") == 0
        page.locator("#rank-strip").click(position={"x": 300, "y": 28})
        assert page.evaluate("ascendDump.data.rank.at(ascendDump.selected)") == 1

    def test_steps(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        assert is_painted(page, "#steps canvas")
        steps = page.locator("#steps")
        expect(steps.locator(".note")).to_contain_text("begins to grow at step 1: 0.01")
        steps.locator("[name=metric]").select_option("rms")
        expect(steps.locator(".note")).to_contain_text("No module reaches 10 times")
        steps.locator("[name=level]").select_option("2")
        expect(steps.locator(".legend")).to_contain_text("layers.2")

    def test_what_is_missing_and_how_it_was_made(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        expect(page.locator("#unmatched")).to_contain_text("Every record has a partner")
        made = page.locator("#made")
        expect(made).to_contain_text(f"ascend-dump {ascend_dump.__version__}")
        expect(made).to_contain_text("thresholds")


class TestRows:
    def test_next_and_previous_finding(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared, fragment="#row=0")
        page.keyboard.press("n")
        seen = [address(page)["row"]]
        page.get_by_role("button", name="Next finding").click()
        seen.append(address(page)["row"])
        page.keyboard.press("p")
        assert address(page)["row"] == seen[0] != seen[1]

    def test_sorting_by_a_heading(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        page.get_by_role("button", name="rel. error").click()
        largest = "ascendDump.data.rel_l2.at(ascendDump.grid.view[0])"
        most = page.evaluate("Math.max(...[...ascendDump.data.rel_l2.values].filter(Number.isFinite))")
        assert page.evaluate(largest) == most
        expect(page.locator("[aria-sort=descending]")).to_have_text("rel. error")
        page.get_by_role("button", name="rel. error").click()
        assert page.evaluate(largest) < most
        page.get_by_role("button", name="rel. error").click()
        assert page.evaluate("ascendDump.grid.view[0]") == 0

    def test_arrows_walk_through_the_table(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        page.keyboard.press("t")
        page.keyboard.press("Home")
        assert address(page)["row"] == "0"
        page.keyboard.press("ArrowDown")
        assert address(page)["row"] == "1"
        page.keyboard.press("End")
        assert int(address(page)["row"]) == page.evaluate("ascendDump.data.rows") - 1
        expect(page.locator(".body .line[aria-selected=true]")).to_be_visible()
        page.keyboard.press("PageUp")
        assert int(address(page)["row"]) < page.evaluate("ascendDump.data.rows") - 5

    def test_a_click_selects_a_row_and_the_address_leads_back(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        page.locator(".body .line", has_text="layers.0.up/mm_0.input.1").first.click()
        fragment = page.evaluate("location.hash")
        again = open_page(compared, fragment=fragment)
        assert label(again).startswith("layers.0.up/mm_0.input.1")

    def test_the_address_keeps_the_filter(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        page.locator("#filter").fill("step=1 io=output")
        expect(page.locator("#filter-message")).to_contain_text(" of ")
        again = open_page(compared, fragment=page.evaluate("location.hash"))
        assert again.locator("#filter").input_value() == "step=1 io=output"
        assert rows_kept(again) == rows_kept(page)

    @pytest.mark.parametrize("fragment", ["#row=999999", "#row=-4", "#row=abc", "#filter=step%3Dx", "#%zz", "#row=1e3"])
    def test_a_broken_address_is_no_error(self, open_page: OpenPage, compared: Path, fragment: str) -> None:
        assert rows_kept(open_page(compared, fragment=fragment)) > 0


class TestFilter:
    #: Text in the box, and the same asked of the dump.
    CASES: tuple[tuple[str, dict[str, Any]], ...] = (
        ("op=*mm*", {"op": "*mm*"}),
        ("op=layers.[01].up*", {"op": "layers.[01].up*"}),
        ("op=layers.[!0].?p/mm_0", {"op": "layers.[!0].?p/mm_0"}),
        ("op=re:tanh(_backward)?_0$", {"op": "re:tanh(_backward)?_0$"}),
        ("op=[", {"op": "["}),
        ("op_type=aten::tanh io=input", {"op_type": "aten::tanh", "io": "input"}),
        ("step=0|2 rank=1", {"step": "0|2", "rank": "1"}),
        ("step=1-2 index=1", {"step": "1-2", "index": "1"}),
        ("module=layers.2* phase=backward", {"module": "layers.2*", "phase": "backward"}),
        ('module="layers.1.up"', {"module": "layers.1.up"}),
        ("model=Model device=0", {"model": "Model", "device": "0"}),
        ("run=2026*", {"run": "2026*"}),
        ("step=all", {"step": "all"}),
        ("op=nothing", {"op": "nothing"}),
    )

    def test_it_keeps_what_select_keeps(self, open_page: OpenPage, alone: Path, dumps: tuple[Path, Path]) -> None:
        page = open_page(alone)
        dump = ascend_dump.open(dumps[0])
        for text, selectors in self.CASES:
            page.evaluate("(text) => ascendDump.filter(text)", text)
            assert rows_kept(page) == len(dump.select(**selectors)), text

    def test_it_leaves_out_the_kernels_of_api_calls(self, open_page: OpenPage, tmp_path: Path) -> None:
        values = np.arange(8, dtype="f4")
        device = eager_dumps.device(tmp_path / "npu")
        for api, kernel in (("aclnnAdd", "AddAiCore"), ("aclnnRelu", "Relu")):
            device.call(api, [values], [values], [(kernel, [values], [values])])
        ascend_dump.triage(tmp_path / "npu").save(tmp_path / "page.html")
        page = open_page(tmp_path / "page.html")
        for text, count in (("", 8), ("kernel=", 4), ("kernel=Add*", 2), ("kernel=* op=aclnnRelu*", 4)):
            page.evaluate("(text) => ascendDump.filter(text)", text)
            assert rows_kept(page) == count, text

    def test_words_without_a_field_are_parts_of_names(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        page.keyboard.press("/")
        page.keyboard.type("TANH")
        expect(page.locator("#filter-message")).to_contain_text(" of ")
        names = page.evaluate("[...ascendDump.grid.view].map(row => ascendDump.data.text('name', row))")
        assert names
        assert all("tanh" in name for name in names)

    @pytest.mark.parametrize(
        ("text", "said"),
        [("step=x", "0|3-5|10"), ("step=5-3", "backwards"), ("colour=red", "no field colour"), ("op=re:(", "regular")],
    )
    def test_what_is_wrong_is_said(self, open_page: OpenPage, compared: Path, text: str, said: str) -> None:
        page = open_page(compared)
        before = rows_kept(page)
        page.locator("#filter").fill(text)
        expect(page.locator("#filter-message")).to_contain_text(said)
        assert rows_kept(page) == before
        page.get_by_role("button", name="Clear").click()
        expect(page.locator("#filter-message")).not_to_contain_text(said)

    def test_a_state_button_keeps_its_rows(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared)
        page.locator("#states").get_by_role("button", name="different").click()
        state = "ascendDump.data.head.states[ascendDump.data.severity(row)].name"
        names = page.evaluate(f"[...ascendDump.grid.view].map(row => {state})")
        assert set(names) == {"different"}

"""The page in the dark, on a narrow window, on paper, without JavaScript, with hostile names, and very large."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import OpenPage
from playwright.sync_api import Browser, Page, expect
from report_pages import HOSTILE, content_of_hostile, content_of_many

from ascend_dump.report.page import write_page


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("hostile") / "</script>'\".html".replace("/", "_")
    write_page(content_of_hostile(), page)
    return page


class TestHostileNames:
    def test_nothing_runs_and_all_is_shown(self, open_page: OpenPage, hostile: Path) -> None:
        page = open_page(hostile)
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.scripts.length") == 2
        for row, name in enumerate((*HOSTILE, "long" * 2500)):
            page.evaluate("(row) => ascendDump.select(row)", row)
            text = page.locator("#operator-view h3").inner_text()
            assert text == spelled(name)
            cell = page.locator(".body .line[aria-selected=true] .name")
            assert cell.get_attribute("title") == f"{spelled(name)}.output.0"
            text = cell.inner_text()
            assert text.startswith(spelled(name)[:6])
            assert text.endswith(".output.0")
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.images.length") == 0

    def test_without_a_script_too(self, open_page: OpenPage, hostile: Path) -> None:
        page = open_page(hostile, java_script_enabled=False)
        text = page.locator("body").inner_text()
        assert all(spelled(name) in text for name in HOSTILE if "  " not in name)
        assert page.locator("img").count() == 0

    def test_a_module_of_any_name_can_be_chosen(self, open_page: OpenPage, hostile: Path) -> None:
        page = open_page(hostile)
        name = "[weird]*?/mm_0"
        page.evaluate("ascendDump.tree.choose(ascendDump.tree.root.children.get('[weird]*?'))")
        assert page.evaluate("[...ascendDump.grid.view].map(row => ascendDump.data.text('name', row))") == [name]
        page.evaluate("[...ascendDump.tree.root.children.values()].forEach(node => ascendDump.tree.choose(node))")
        expect(page.locator("#filter-message")).to_contain_text("rows")


def spelled(name: str) -> str:
    for character, text in {"\u202e": "\\u202e", "\0": "\\x00", "\x1b": "\\x1b", "\udce9": "\\udce9"}.items():
        name = name.replace(character, text)
    return name


class TestSurroundings:
    def test_dark(self, open_page: OpenPage, compared: Path) -> None:
        paper = "getComputedStyle(document.documentElement).backgroundColor"
        light, dark = (open_page(compared, color_scheme=scheme) for scheme in ("light", "dark"))
        assert light.evaluate(paper) == "rgb(255, 255, 255)"
        assert dark.evaluate(paper) == "rgb(18, 22, 28)"
        dark.emulate_media(color_scheme="light")
        assert dark.evaluate(paper) == "rgb(255, 255, 255)"

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_can_be_read(self, open_page: OpenPage, compared: Path, scheme: str) -> None:
        """The contrast that WCAG 2.2 asks for at level AA: 4.5, and 3 for what is not text."""
        page = open_page(compared, color_scheme=scheme)
        script = """(names) => {
          const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
          const probe = document.body.appendChild(document.createElement("i"));
          const light = (name) => {
            probe.style.color = `var(--${name})`;
            const [r, g, b] = getComputedStyle(probe).color.match(/[0-9.]+/g).map(Number).map(channel);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
          return names.map(([one, other]) => ratio(light(one), light(other)));
        }"""
        pairs = [("ink", "paper"), ("soft", "paper"), ("soft", "panel"), ("accent", "paper"), ("ink", "choose")]
        assert min(page.evaluate(script, pairs)) >= 4.5
        marks = [(f"state-{number}", "paper") for number in (7, 8, 9, 10)] + [
            (f"line-{n}", "paper") for n in (0, 1, 2, 3)
        ]
        assert min(page.evaluate(script, marks)) >= 3

    def test_a_narrow_window(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared, viewport={"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.keyboard.press("n")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360

    def test_on_paper(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared, color_scheme="dark")
        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
        expect(page.locator(".first-rows table")).to_be_visible()
        expect(page.locator("#grid")).to_be_hidden()
        assert page.pdf().startswith(b"%PDF")

    def test_without_javascript(self, open_page: OpenPage, compared: Path) -> None:
        page = open_page(compared, java_script_enabled=False)
        for part in ("verdict", "findings", "rows", "unmatched", "made"):
            expect(page.locator(f"#{part}")).to_be_visible()
        for part in ("order", "modules", "operator", "ranks", "steps", "grid", "broken"):
            expect(page.locator(f"#{part}")).to_be_hidden()
        first = page.locator(".first-rows tbody tr").first
        expect(first).to_contain_text("layers.1.up/mm_0.output.0")
        expect(page.locator("[data-row]").first).to_be_hidden()

    def test_data_that_were_cut_off_are_told(self, browser: Browser, compared: Path, tmp_path: Path) -> None:
        text = compared.read_text(encoding="utf-8")
        start = text.index('<script type="application/octet-stream" id="data">')
        broken = tmp_path / "broken.html"
        broken.write_text(text[: start + 200] + text[text.index("</script>", start) :], encoding="utf-8")
        page = browser.new_page()
        page.goto(broken.as_uri())
        expect(page.locator("#broken")).to_contain_text("cannot be shown")
        expect(page.locator("#verdict")).to_be_visible()
        expect(page.locator(".first-rows table")).to_be_visible()
        page.close()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("many") / "many.html"
    write_page(content_of_many(100_000), page)
    return page


def wait_until(page: Page, expression: str) -> None:
    """Playwright's own function for this needs eval, which the policy of the page forbids."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"not within 30 s: {expression}")


class TestManyPairs:
    def test_a_hundred_thousand(self, open_page: OpenPage, many: Path) -> None:
        page = open_page(many)
        assert page.evaluate("ascendDump.data.rows") == 100_000
        # Few elements, wherever one looks.
        page.evaluate("ascendDump.grid.scroller.scrollTop = 1e6")
        wait_until(page, "ascendDump.grid.lines[0].getAttribute('aria-rowindex') > 40000")
        assert page.locator(".line").count() < 120
        page.locator("#filter").fill("op=*layers.17.*mlp* io=output")
        expect(page.locator("#filter-message")).to_contain_text(" of ")
        assert 0 < page.evaluate("ascendDump.grid.view.length") < 2000

    def test_a_module_is_chosen_without_those_whose_names_begin_alike(self, open_page: OpenPage, many: Path) -> None:
        page = open_page(many)
        page.evaluate(
            "ascendDump.tree.choose(ascendDump.tree.root.children.get('model').children.get('model.layers')"
            ".children.get('model.layers.1'))"
        )
        scopes = set(page.evaluate("[...ascendDump.grid.view].map(row => ascendDump.data.text('scope', row))"))
        assert {scope.split(".")[2] for scope in scopes} == {"1"}

    def test_the_last_row_of_more_than_a_browser_can_lay_out(self, open_page: OpenPage, many: Path) -> None:
        page = open_page(many)
        most = page.evaluate("ascendDump.grid.view.length * 24")
        page.evaluate("ascendDump.grid.view = new Uint32Array(1e6).map((_, at) => at % 1e5)")
        assert most < 8_000_000 < page.evaluate("ascendDump.grid.view.length * 24")
        page.evaluate("ascendDump.grid.draw()")
        page.evaluate("ascendDump.grid.scroller.scrollTop = 1e9")
        wait_until(page, "ascendDump.grid.lines[0].getAttribute('aria-rowindex') > 500000")
        seen = "ascendDump.grid.lines.filter(one => !one.hidden).map(one => one.getAttribute('aria-rowindex'))"
        assert max(map(int, page.evaluate(seen))) == 1_000_001


class TestCurves:
    @pytest.mark.parametrize("scripts", [True, False])
    @pytest.mark.parametrize("width", [390, 1400])
    def test_they_are_drawn_in_their_colours_with_any_width_and_without_scripts(
        self, open_page: OpenPage, monitored: Path, width: int, scripts: bool
    ) -> None:
        page = open_page(monitored, viewport={"width": width, "height": 900}, java_script_enabled=scripts)
        figures = page.locator("#curves figure")
        assert figures.count() == 2
        picture = figures.first.locator("svg").bounding_box()
        assert picture is not None
        assert 150 < picture["width"] < width
        assert picture["height"] == pytest.approx(48, abs=2)
        assert "spike in step 20" in figures.first.inner_text()
        if scripts:
            script = "(one) => getComputedStyle(one).stroke"
            line, mark = (figures.first.locator(path).evaluate(script) for path in ("path:not([class])", "path.spike"))
            assert len({line, mark, "none"}) == 3
            assert page.evaluate("document.documentElement.scrollWidth") <= width

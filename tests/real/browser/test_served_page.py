"""The served page in a browser: tensors of any row, in slices, and nothing for anybody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import OpenPage
from playwright.sync_api import Browser, expect

import ascend_dump
from ascend_dump.report.serving import PageServer


@pytest.fixture(scope="module")
def server(dumps: tuple[Path, Path]) -> Iterator[PageServer]:
    with PageServer(ascend_dump.compare(*dumps).to_page(), sources=dumps[0].parent) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_any_tensor_can_be_looked_at(open_page: OpenPage, server: PageServer) -> None:
    page = open_page(server.address, allowed=server.address, fragment="#row=0")
    live = page.locator(".live")
    expect(live).to_be_visible()
    expect(page.get_by_label("source", exact=True)).to_contain_text("y = x @ weight")
    live.get_by_role("button", name="Look").click()
    expect(live.locator("figure")).to_have_count(2)
    expect(live.locator(".values")).to_contain_text("[")
    expect(live.get_by_role("status")).to_have_text("float32[8, 24], 192 elements")
    live.locator("[name=slice]").fill("0, 3:9")
    live.locator("[name=side]").select_option("reference")
    live.locator("[name=slice]").press("Enter")
    expect(live.get_by_role("status")).to_have_text("float32[6], 6 elements")


def test_the_same_parts_as_the_file(open_page: OpenPage, server: PageServer, compared: Path) -> None:
    served = open_page(server.address, allowed=server.address)
    filed = open_page(compared)
    ids = "[...document.querySelectorAll('main section')].filter(one => !one.hidden).map(one => one.id)"
    assert served.evaluate(ids) == filed.evaluate(ids)


def test_what_is_no_slice_is_told(browser: Browser, server: PageServer) -> None:
    page = browser.new_page()  # whose console names the answer that refuses
    page.goto(server.address)
    live = page.locator(".live")
    live.locator("[name=slice]").fill("<b>x</b>")
    live.get_by_role("button", name="Look").click()
    expect(live.get_by_role("status")).to_contain_text("<b>x</b>' is no slice")
    page.close()


def test_a_page_from_elsewhere_gets_nothing(browser: Browser, server: PageServer, tmp_path: Path) -> None:
    """Even one that knows the address."""
    (tmp_path / "evil.html").write_text("<!DOCTYPE html><title>evil</title>")
    page = browser.new_page()
    page.goto((tmp_path / "evil.html").as_uri())
    script = "(address) => fetch(address).then(() => 'got it', () => 'refused')"
    assert page.evaluate(script, server.address) == "refused"
    script = """(address) => fetch(address, {mode: 'no-cors'}).then(answer => answer.text(), () => '')"""
    assert page.evaluate(script, server.address) == ""
    page.close()

"""Chromium, and pages that fail a test when they complain or ask a network for anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dumps import item, model_directory, write_step
from playwright.sync_api import Browser, Page, expect, sync_playwright
from report_pages import write_training

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.writing import HostWriter

# Suites run side by side.
expect.set_options(timeout=30_000)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """The browser of this machine; on Debian root installs it where it is missing."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        patient = ["-o", "DPkg::Lock::Timeout=300"]  # another one may be installing
        install = [
            "apt-get",
            *patient,
            "install",
            "-y",
            "-qq",
            "--no-install-recommends",
            "chromium",
            "fonts-dejavu-core",
        ]
        for command in (["apt-get", "update", "-qq"], install):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        found = shutil.which("chromium")
    if found is None:
        pytest.exit("this suite needs Chromium: install it, on Debian by `apt-get install chromium`", returncode=1)
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Root may not have its sandbox, and containers have a small /dev/shm.
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        launched = playwright.chromium.launch(executable_path=chromium(), args=options)
        yield launched
        launched.close()


#: Opens a file or an address, and gives the page once it is ready. Options are those of `Browser.new_context`.
OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Pages that are opened by this must print nothing to the console, raise nothing and ask for nothing else."""
    complaints: list[str] = []
    contexts = []

    def opened(place: Any, *, allowed: str = "file:", fragment: str = "", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "requestfailed",
            lambda request: (
                # So end requests whose page is closed before the last of their answer is read.
                None
                if request.failure == "net::ERR_ABORTED"
                else complaints.append(f"failed: {request.url[:200]}: {request.failure}")
            ),
        )
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith((allowed, "data:,")) else complaints.append(request.url[:200])
            ),
        )
        page.goto((place.as_uri() if isinstance(place, Path) else place) + fragment)
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready=yes]", timeout=120_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two dumps of three steps on two ranks: the first one is wrong from step 1 on, on rank 1."""
    root = tmp_path_factory.mktemp("dumps")
    (root / "model.py").write_text("import numpy\n\n\ny = x @ weight\nx = numpy.tanh(y)\n")
    source = str(root / "model.py")
    actual = write_training(root / "actual", fault=(1, 1), source=source)
    return actual, write_training(root / "reference", source=source)


@pytest.fixture(scope="session")
def compared(dumps: tuple[Path, Path]) -> Path:
    """The page of their comparison."""
    page = dumps[0].parent / "compared.html"
    arguments = [*map(str, dumps), "-o", str(page), "--sources", str(dumps[0].parent)]
    assert main(["report", *arguments]) == 0
    return page


@pytest.fixture(scope="session")
def alone(dumps: tuple[Path, Path]) -> Path:
    """The page of the triage of one of them."""
    page = dumps[0].parent / "alone.html"
    ascend_dump.triage(dumps[0]).save(page)
    return page


@pytest.fixture(scope="session")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a dump with statistics of 30 steps, with a spike in step 20."""
    root = tmp_path_factory.mktemp("monitored")
    writer = HostWriter(model_directory(root / "dump"), metadata={}, stats=("max", "min", "l2norm", "nan"))
    for step in range(30):
        values = np.full(4, 500.0 if step == 20 else 1.0 + step % 3 / 10, "float32")
        name = "model.layers.0.self_attention.output_projection_with_a_long_name"
        write_step(writer, step, item(f"{name}/forward_0", values, op_type="Linear", module=name, phase="forward"))
    writer.close()
    ascend_dump.triage(root / "dump").save(root / "page.html")
    return root / "page.html"

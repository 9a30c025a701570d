"""The report: a page of very many pairs in a real browser, a page of a dump from its files on, and a served tensor.

Usage: bench_report.py [PAIRS [RECORDS]]     (default 100000 and 10000; the aims are printed beside what was measured)

The browser's part needs playwright and Chromium, and is left out where they are missing.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from host_dumps import TIME, model_directory, put
from report_pages import content_of_many

import ascend_dump
from ascend_dump.report.page import PageContent, PageRow, write_page
from ascend_dump.report.serving import PageServer
from ascend_dump.writing import HostWriter, Item, Line, Payload

ROUNDS = 5


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def tell(what: str, value: str, aim: str) -> None:
    print(f"{what:<58}{value:>26}   aim {aim}")


def page_of_pairs(pairs: int, root: Path) -> Path:
    content = content_of_many(pairs)
    page = root / "pairs.html"
    started, used = time.perf_counter(), time.process_time()
    write_page(content, page)
    wall, used = time.perf_counter() - started, time.process_time() - used
    tell(f"page of {pairs} pairs, size", f"{page.stat().st_size / 1e6:.1f} MB", "10 MB for 100000")
    tell(f"page of {pairs} pairs, written", f"{wall:.1f} s ({used:.1f} s of processor)", "-")
    return page


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, or None where it or playwright is missing."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None
    if found is None:
        yield None
        return
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


#: The time of frames while the table is scrolled from its begin to its end.
_SCROLL = """async () => {
  const { scroller } = ascendDump.grid, times = [];
  const most = scroller.scrollHeight - scroller.clientHeight;
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  for (let at = 0; at < 60; at += 1) {
    const before = performance.now();
    scroller.scrollTop = (most * (at + 1)) / 60;
    await frame();
    await frame();
    times.push((performance.now() - before) / 2);
  }
  return times.sort((one, other) => one - other);
}"""
_FILTER = """(text) => {
  const before = performance.now();
  ascendDump.filter(text);
  return performance.now() - before;
}"""

_SORT = """() => {
  const before = performance.now();
  ascendDump.grid.sortBy(7);
  return performance.now() - before;
}"""


def in_browser(launched: Any, page_file: Path) -> None:
    texts = ("layers.17", "op=*mlp*op_4* io=output", "op=re:op_(1|7)_ step=1", "state=different|noise index=1|2", "")
    ready, parse = [], []
    for _ in range(ROUNDS):
        page = launched.new_page(viewport={"width": 1400, "height": 900})
        started = time.perf_counter()
        page.goto(page_file.as_uri(), wait_until="commit")
        page.wait_for_selector("html[data-ready=yes]")
        ready.append(time.perf_counter() - started)
        parse.append(float(page.evaluate("Number(document.documentElement.dataset.milliseconds)")))
        filters = {text: median([page.evaluate(_FILTER, text) for _ in range(ROUNDS)]) for text in texts}
        frames = page.evaluate(_SCROLL)
        sort = page.evaluate(_SORT)
        page.close()
    tell("ready, from the address to the first row", f"{median(ready):.2f} s ({median(parse):.0f} ms of script)", "2 s")
    slowest = max(filters, key=filters.__getitem__)
    tell("filter, the slowest of five", f"{filters[slowest]:.0f} ms ({slowest})", "50 ms")
    tell("a frame of scrolling, median and slowest", f"{median(frames):.0f} and {frames[-1]:.0f} ms", "50 ms")
    tell("sort by a column", f"{sort:.0f} ms", "-")


def dump_of(records: int, root: Path) -> Path:
    """A host dump with tensors and no statistics, three records an operator."""
    writer = HostWriter(model_directory(root), metadata={})
    random_numbers = np.random.default_rng(0)
    steps = 4
    for step in range(steps):
        writer.begin_step(step)
        before = random_numbers.standard_normal((32, 32)).astype(np.float32)
        weight = random_numbers.standard_normal((32, 32)).astype(np.float32)
        for seq in range(records // steps // 3):
            made = np.tanh(before @ weight)
            name, module = f"layers.{seq % 48}.mlp/mm_{seq // 48}", f"layers.{seq % 48}.mlp"
            items = []
            for io, index, array, storage in (
                ("input", 0, before, seq),
                ("input", 1, weight, 10**6),
                ("output", 0, made, seq + 1),
            ):
                line = Line(seq, "aten::mm", name, io, index, TIME + seq, "float32", array.shape, array.nbytes)
                line.module, line.phase, line.source = module, "forward", "model.py:7"
                line.stride, line.storage, line.version = (32, 1), storage, 0
                items.append(Item(line, Payload(array.tobytes(), 0, array.nbytes, "float32", array.shape)))
            put(writer, *items)
            before = made
        writer.end_step()
    writer.close()
    return root


def from_dump_to_page(records: int, root: Path) -> None:
    dump = dump_of(records, root / "dump")
    page = root / "dump.html"
    command = [sys.executable, "-m", "ascend_dump", "report", str(dump), "-o", str(page), "--overwrite"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # compiles what it imports
    times, used = [], []
    for _ in range(3):
        started, before = time.perf_counter(), children()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
        used.append(children() - before)
    value = f"{median(times):.2f} s ({median(used):.2f} s of processor)"
    tell(f"{records} records, from dump to page, the whole process", value, "3 s for 10000")


def children() -> float:
    """Processor time of processes that were started and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def served_tensor(root: Path) -> None:
    array = np.random.default_rng(0).standard_normal(1 << 26, dtype=np.float32).reshape(8192, 8192)
    writer = HostWriter(model_directory(root), metadata={})
    writer.begin_step(0)
    line = Line(0, "aten::mm", "mm_0", "output", 0, TIME, "float32", array.shape, array.nbytes, stride=(8192, 1))
    put(writer, Item(line, Payload(array.tobytes(), 0, array.nbytes, "float32", array.shape)))
    writer.end_step()
    writer.close()
    rows = [PageRow(record, None) for record in ascend_dump.open(root)]
    with PageServer(PageContent("t", rows, "nothing found", "s")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        first, whole = [], []
        for _ in range(3):
            started = time.perf_counter()
            with urllib.request.urlopen(f"{server.address}tensor/0") as answer:
                answer.readline()
                first.append(time.perf_counter() - started)
                answer.readline()
                whole.append(time.perf_counter() - started)
        server.shutdown()
    tell("served tensor of 256 MB, first byte of its histogram", f"{median(first):.2f} s", "1 s")
    tell("served tensor of 256 MB, histogram of all its elements", f"{median(whole):.2f} s", "-")


def main() -> None:
    arguments = [int(text.replace("_", "")) for text in sys.argv[1:]]
    pairs, records = (arguments + [100_000, 10_000][len(arguments) :])[:2]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        page = page_of_pairs(pairs, root)
        with browser() as launched:
            if launched is None:
                print("playwright or Chromium is missing: nothing is measured in a browser")
            else:
                in_browser(launched, page)
        from_dump_to_page(records, root)
        served_tensor(root / "served")


if __name__ == "__main__":
    main()

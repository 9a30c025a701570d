"""The fake MindSpore against the real one: the same program leaves the same files with the same values.

On the real one each program runs in a process of its own, since MindSpore reads its configuration once. What differs by
nature is left out of the comparison: timestamps, the numbers of files with long names, and for backward operators the
number behind the name and the order (see the fake's known differences).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("mindspore")

import mindspore_programs
from mindspore_programs import environment, names, settings, write_settings

from ascend_dump import fakes

PLAIN = ["infer()", "run_pynative()", "run_long_names()"]
OTHERS = [
    "run_several_graphs()",
    "train_deep()",
    *(f"train('{optimizer}')" for optimizer in ("momentum", "sgd", "adam")),
    *(f"train_by_hand('{mode}')" for mode in ("jit", "graph", "pynative")),
]
#: What the kernel on a CPU does not compute: such a file holds what the memory held.
UNSET = re.compile(r"BatchNorm\..*\.output\.[124]\.|BatchNormGrad\..*\.input\.5\.")


class Trees(NamedTuple):
    real: Path
    fake: Path


def begin(call: str, where: Path) -> subprocess.Popen[str]:
    """The program on the real MindSpore, in a process of its own."""
    where.mkdir()
    config = write_settings(where / "dump.json", settings(where / "out", iteration="0|2"))
    variables = {
        **os.environ,
        "PYTHONPATH": str(Path(mindspore_programs.__file__).parent),
        "MINDSPORE_DUMP_CONFIG": config,
        "GLOG_v": "3",
    }
    code = f"from mindspore_programs import *\n{call}"
    return subprocess.Popen([sys.executable, "-c", code], env=variables, stderr=subprocess.PIPE, text=True)


def run_on_the_fake(call: str, where: Path) -> None:
    """The same program here: the fake is a new process of MindSpore each time that it is installed."""
    where.mkdir()
    config = write_settings(where / "dump.json", settings(where / "out", iteration="0|2"))
    with environment(MINDSPORE_DUMP_CONFIG=config), fakes.install("mindspore", force=True):
        exec(f"from mindspore_programs import *\n{call}", {})


@pytest.fixture(scope="module", params=[*PLAIN, *OTHERS])
def trees(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Trees]:
    place = tmp_path_factory.mktemp("both")
    process = begin(request.param, place / "real")
    run_on_the_fake(request.param, place / "fake")
    _, errors = process.communicate(timeout=170)
    assert process.returncode == 0, errors
    return request.param, Trees(place / "real" / "out", place / "fake" / "out")


def loosened(name: str) -> str:
    """A name without its number."""
    return re.sub(r"-op\d+", "", name)


def test_the_files_have_the_same_names(trees: tuple[str, Trees]) -> None:
    _, both = trees
    real, fake = names(both.real), names(both.fake)
    assert real
    assert sorted((real - fake).elements()) == sorted((fake - real).elements()) == []


def test_the_orders_list_the_same_operators(trees: tuple[str, Trees]) -> None:
    call, both = trees
    for file in sorted((both.real / "rank_0/execution_order").iterdir()):
        there = both.fake / file.relative_to(both.real)
        real, fake = file.read_text().splitlines(), there.read_text().splitlines()
        if call in PLAIN:
            assert fake == real
        else:
            assert sorted(map(loosened, fake)) == sorted(map(loosened, real))


def test_the_graph_texts_name_the_same_operators(trees: tuple[str, Trees]) -> None:
    _, both = trees
    pattern = re.compile(r"# Fullname with scope: \((.*)\)")
    for file in sorted((both.real / "rank_0/graphs").glob("*.ir")):
        fake = pattern.findall((both.fake / file.relative_to(both.real)).read_text())
        real = pattern.findall(file.read_text())
        assert {loosened(name) for name in fake} <= {loosened(name) for name in real}
        assert fake


def test_the_files_hold_the_same_values(trees: tuple[str, Trees]) -> None:
    _, both = trees
    real, fake = arrays(both.real), arrays(both.fake)
    kinds = Counter(loosened(name) for name in real)
    compared = 0
    for name, one in real.items():
        # Which number an operator of several has is not the same everywhere.
        if kinds[loosened(name)] == 1 and not UNSET.search(name):
            # Behind Flatten and Reshape, MindSpore may write the shape before them.
            same(name, one.reshape(-1), fake[name].reshape(-1))
            compared += 1
    assert compared


def same(name: str, real: np.ndarray, fake: np.ndarray) -> None:
    assert (fake.dtype, fake.shape) == (real.dtype, real.shape), name
    if real.dtype.kind == "f":
        assert np.allclose(fake, real, rtol=2e-3, atol=2e-4), f"{name}: {fake} instead of {real}"
    else:
        assert np.array_equal(fake, real), name


def arrays(root: Path) -> dict[str, np.ndarray]:
    """By name without the timestamp; bfloat16, which numpy cannot load, and long names left out."""
    found = {}
    for path in root.rglob("*.npy"):
        if "BFloat16" not in path.name and not path.stem.isdigit():
            found[re.sub(r"\.\d{16}\.", ".T.", str(path.relative_to(root)))] = np.load(path, allow_pickle=False)
    return found

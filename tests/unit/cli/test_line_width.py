"""Answers fit 100 columns in a pipe too, with the names of a deep network; paths, names and commands stay whole."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.cli import main

torch: Any = pytest.importorskip("torch")

WIDTH = 100


def dumped(path: Path, *, scale: float = 1.0, nan: bool = False) -> Path:
    """A dump of two training steps of a transformer inside of modules with long names."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = torch.nn.ModuleDict({"inner_language_model": torch.nn.TransformerEncoder(layer, 2)})
    outer = torch.nn.ModuleDict({"model_that_is_wrapped_by_an_engine": model})
    encoder = outer["model_that_is_wrapped_by_an_engine"]["inner_language_model"]
    outer.forward = lambda x: encoder(x)
    with torch.no_grad():
        encoder.layers[0].self_attn.in_proj_weight.mul_(scale)
        encoder.layers[1].linear1.weight.mul_(scale)
        if nan:
            encoder.layers[1].linear2.weight[0, 0] = float("nan")
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    with ascend_dump.capture(outer, path=path, steps="0-1", quiet=True) as cap:
        for _ in range(2):
            outer(torch.linspace(-1, 1, 64).reshape(2, 4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return Path(cap.path)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("dumps")
    return {
        "right": dumped(root / "right"),
        "wrong": dumped(root / "wrong", scale=1.05),
        "nan": dumped(root / "nan", nan=True),
    }


@pytest.mark.parametrize(
    "words",
    [
        "compare wrong right",
        "compare wrong right --all",
        "compare nan right",
        "compare-weights wrong right",
        "triage nan",
        "triage wrong right",
        "overflow nan",
        "trends right",
        "trends wrong right",
        "replay right",
        "report wrong right --overwrite -o page.html",
    ],
)
def test_lines_fit(dumps: dict[str, Path], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        main([str(dumps.get(word, word)) for word in words.split()])
    lines = out.getvalue().splitlines()
    assert lines
    # A command is copied, so that it stays in one line; a path or a name is never broken.
    texts = [line for line in lines if "ascend-dump " not in line]
    assert [line for line in texts if len(line) > WIDTH and len(line.split()) > 2] == []

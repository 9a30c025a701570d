"""Two steps of one dump are compared, and triage compares steps that got the same inputs."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump import DumpNotFound
from ascend_dump.cli import Exit, main

torch: Any = pytest.importorskip("torch")
nn = torch.nn


class Attention(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """Attention of one head. faulty: the calls, counted from 0, that scale by another number."""

    def __init__(self, size: int, faulty: Sequence[int]) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)
        self.calls, self.faulty = 0, faulty

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.calls in self.faulty:
            k = k.roll(1, 0)
        self.calls += 1
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def network(faulty: Sequence[int] = (), dropout: float = 0.0) -> Any:
    """Return a transformer of two blocks; the second attention is faulty."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, attention: Any) -> None:
            super().__init__()
            self.attn, self.norm, self.drop = attention, nn.LayerNorm(8), nn.Dropout(dropout)

        def forward(self, x: Any) -> Any:
            return self.norm(x + self.drop(self.attn(x)))

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(Attention(8, ())), Block(Attention(8, faulty))])

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    return Network()


def requests_dumped(tmp_path: Path, model: Any, requests: Sequence[Any]) -> Path:
    with ascend_dump.capture(model, path=tmp_path / "dumps", steps="0-9"), torch.no_grad():
        for request in requests:
            model(request)
    return tmp_path / "dumps"


def shell(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def inputs() -> list[Any]:
    torch.manual_seed(1)
    first, second = torch.randn(5, 8), torch.randn(5, 8)
    return [first, second, first.clone()]


def test_two_steps_of_one_dump(tmp_path: Path, inputs: list[Any]) -> None:
    dump = requests_dumped(tmp_path, network(faulty=[2]), inputs)
    comparison = ascend_dump.compare(f"{dump}@2", f"{dump}@0")
    assert comparison.verdict in ("different", "structure")
    assert comparison.origins[0].module == "blocks.1.attn"
    code, text, _ = shell("compare", f"{dump}@2", f"{dump}@0")
    assert (code, "blocks.1.attn" in text) == (Exit.DIFFERENT, True)
    same = requests_dumped(tmp_path / "same", network(), inputs)
    assert ascend_dump.compare(f"{same}@2", f"{same}@0").verdict == "equal"
    # Steps of two dumps.
    assert ascend_dump.compare(f"{same}@2", f"{dump}@0").verdict == "equal"


def test_a_missing_step_names_those_that_are_there(tmp_path: Path, inputs: list[Any]) -> None:
    dump = requests_dumped(tmp_path, network(), inputs)
    with pytest.raises(DumpNotFound, match="has no step 7") as caught:
        ascend_dump.compare(f"{dump}@7", f"{dump}@0")
    assert caught.value.hint == "its steps are 0-2"
    code, _, errors = shell("compare", f"{dump}@0", f"{dump}@7")
    assert (code, "its steps are 0-2" in errors) == (Exit.UNREADABLE, True)


def test_a_file_with_the_name_wins(tmp_path: Path, inputs: list[Any]) -> None:
    dump = requests_dumped(tmp_path, network(), inputs)
    dump.rename(tmp_path / "dumps@1")
    assert ascend_dump.open(tmp_path / "dumps@1").steps == [0, 1, 2]
    assert ascend_dump.open(f"{tmp_path}/dumps@1@2").steps == [2]


def test_steps_of_several_ranks_are_compared_rank_by_rank(tmp_path: Path, inputs: list[Any]) -> None:
    dump = requests_dumped(tmp_path, network(), inputs)
    [rank] = dump.iterdir()
    rank.rename(dump / "worldsize2_global_rank0")
    other = requests_dumped(tmp_path / "second", network(faulty=[2]), inputs)
    [rank] = other.iterdir()
    rank.rename(dump / "worldsize2_global_rank1")
    comparison = ascend_dump.compare(f"{dump}@2", f"{dump}@0")
    assert "unmatched" not in {pair.verdict for pair in comparison.pairs if pair.record.rank == 0}
    assert {pair.record.rank for pair in comparison.pairs if pair.verdict == "different"} == {1}


def test_triage_names_where_a_repeated_request_differs(tmp_path: Path, inputs: list[Any]) -> None:
    dump = requests_dumped(tmp_path, network(faulty=[2]), inputs)
    triage = ascend_dump.triage(dump)
    assert triage.why == (
        "the same inputs and parameters as in step 0 gave another output in step 2: first at blocks.1.attn"
    )
    assert triage.cause is not None
    assert (triage.cause.step, triage.cause.module) == (2, "blocks.1.attn")
    code, text, _ = shell("triage", dump)
    assert (code, triage.why in text) == (Exit.DIFFERENT, True)
    assert json.loads(shell("triage", dump, "--json")[1])["why"] == triage.why


def test_steps_that_may_differ_are_no_finding(tmp_path: Path, inputs: list[Any]) -> None:
    models = {"equal": network(), "dropout": network(dropout=0.5)}
    for name, model in models.items():
        dump = requests_dumped(tmp_path / name, model, inputs)
        triage = ascend_dump.triage(dump)
        assert (triage.cause, triage.comparison) == (None, None), name


def test_changed_parameters_and_a_cache_are_no_finding(tmp_path: Path, inputs: list[Any]) -> None:
    model = network()
    with ascend_dump.capture(model, path=tmp_path / "trained", steps="0-9"), torch.no_grad():
        model(inputs[0])
        model.blocks[0].attn.qkv.weight += 0.5
        model(inputs[0])
    assert ascend_dump.triage(tmp_path / "trained").cause is None

    class Decoder(nn.Module):  # type: ignore[misc]
        """Adds each request to what it has seen, in memory of a fixed size."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.cache = network(), torch.zeros(5, 8)

        def forward(self, x: Any) -> Any:
            self.cache.add_(x)
            return self.inner(self.cache)

    dump = requests_dumped(tmp_path / "decoded", Decoder(), [inputs[0]] * 3)
    assert ascend_dump.triage(dump).cause is None

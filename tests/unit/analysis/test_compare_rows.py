"""A request alone is compared with the same request in a batch of others."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump
from ascend_dump import Comparison, ConfigError, NotSupported
from ascend_dump.cli import Exit, main

torch: Any = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """Attention of two heads, with heads and batch joined in one axis, and an MLP on joined tokens.

    fault: "batch" mixes rows with the mean over the batch, "row" adds to one row of a batch
    """

    def __init__(self, fault: str = "", *, token_major: bool = False) -> None:
        super().__init__()
        self.norm, self.qkv, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 16), nn.Linear(16, 8)
        self.fault, self.token_major = fault, token_major

    def forward(self, x: Any) -> Any:
        batch, length, size = x.shape
        q, k, v = (
            part.reshape(batch, length, 2, 4).transpose(1, 2).reshape(2 * batch, length, 4)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mask = torch.full((length, length), float("-inf")).triu(1)
        y = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) + mask, -1), v)
        x = x + y.reshape(batch, 2, length, 4).transpose(1, 2).reshape(batch, length, size)
        if self.fault == "batch":
            x = x - x.mean(0, keepdim=True)
        tokens = (x.transpose(0, 1) if self.token_major else x).reshape(-1, size)
        tokens = self.down(F.gelu(self.up(tokens)))
        if self.fault == "row" and batch > 1:
            tokens = tokens + torch.arange(batch).repeat_interleave(length)[:, None] * 0.01
        if self.token_major:
            return x + tokens.reshape(length, batch, size).transpose(0, 1)
        return x + tokens.reshape(batch, length, size)


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, *, fault: str = "", token_major: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.blocks = nn.ModuleList(Block(fault if i == 1 else "", token_major=token_major) for i in range(2))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids) + torch.arange(ids.shape[1])[:, None] / 7
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def dumped(path: Path, model: Any, *requests: Any, trains: bool = False) -> Path:
    with ascend_dump.capture(model, path=path, steps="0-9"):
        for ids in requests:
            with torch.set_grad_enabled(trains):
                logits = model(ids)
                loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
                if trains:
                    loss.backward()
    return path


def network(**settings: Any) -> Any:
    torch.manual_seed(0)
    return Network(**settings).eval()


@pytest.fixture
def ids() -> Any:
    torch.manual_seed(1)
    return torch.randint(0, 32, (6, 5))


def compared(tmp_path: Path, model: Any, ids: Any, rows: Optional[dict[int, int]], **settings: Any) -> Comparison:
    one = dumped(tmp_path / "one", model, ids[4:5], **settings)
    return ascend_dump.compare(one, dumped(tmp_path / "many", model, ids, **settings), rows=rows)


@pytest.mark.parametrize("rows", [{0: 4}, None], ids=["given", "found by ids"])
@pytest.mark.parametrize("token_major", [False, True])
def test_a_request_alone_is_the_same_in_a_batch(
    tmp_path: Path, ids: Any, rows: Optional[dict[int, int]], token_major: bool
) -> None:
    comparison = compared(tmp_path, network(token_major=token_major), ids, rows)
    assert comparison.verdict in ("equal", "noise")
    assert comparison.origins == ()
    [note] = comparison.aligned
    assert note.startswith("rows of the batch, of actual with the reference: 0 with 4; ")
    cut = [pair for pair in comparison.pairs if pair.actual is not None and "bmm" in pair.record.op_name]
    assert len(cut) == 2 * 2 * 3
    assert all(pair.actual is not None and pair.actual.shape == pair.record.shape for pair in cut)
    # The loss is the mean over the batch.
    assert not any("nll_loss" in pair.record.op_name and pair.record.shape == () for pair in comparison.pairs)
    assert "computed from several rows of the batch" in note


def test_another_row_is_different(tmp_path: Path, ids: Any) -> None:
    comparison = compared(tmp_path, network(), ids, {0: 3})
    assert comparison.verdict == "different"
    assert comparison.origins[0].op_name.startswith("embed")


def test_several_rows_and_the_larger_batch_as_actual(tmp_path: Path, ids: Any) -> None:
    model = network()
    two = dumped(tmp_path / "two", model, ids[[1, 5]])
    many = dumped(tmp_path / "many", model, ids)
    for comparison in (
        ascend_dump.compare(two, many, rows={0: 1, 1: 5}),
        ascend_dump.compare(two, many),
        ascend_dump.compare(many, two),
    ):
        assert comparison.verdict in ("equal", "noise")
        assert len(comparison.aligned) == 1


def test_an_operator_that_mixes_rows_is_the_origin(tmp_path: Path, ids: Any) -> None:
    comparison = compared(tmp_path, network(fault="batch"), ids, None)
    assert comparison.verdict == "different"
    assert comparison.origins[0].module == "blocks.1"
    assert all(
        pair.verdict in ("equal", "noise") for pair in comparison.pairs if "blocks.0" in (pair.record.module or "")
    )


def test_a_row_that_the_batch_computes_otherwise_is_the_origin(tmp_path: Path, ids: Any) -> None:
    one = dumped(tmp_path / "one", network(), ids[4:5])
    many = dumped(tmp_path / "many", network(fault="row"), ids)
    comparison = ascend_dump.compare(one, many)
    assert comparison.verdict not in ("equal", "noise")
    assert comparison.origins[0].module == "blocks.1"


def test_training_compares_the_forward_pass_alone(tmp_path: Path, ids: Any) -> None:
    comparison = compared(tmp_path, network().train(), ids, None, trains=True)
    assert comparison.verdict in ("equal", "noise")
    assert "from the backward pass on" in comparison.aligned[0]
    assert not [pair for pair in comparison.pairs if pair.record.phase == "backward"]


def test_later_steps_have_the_rows_of_the_first(tmp_path: Path, ids: Any) -> None:
    model = network()
    one = dumped(tmp_path / "one", model, ids[4:5], ids[4:5, :1])
    many = dumped(tmp_path / "many", model, ids, ids[:, :1])
    comparison = ascend_dump.compare(one, many)
    assert comparison.verdict in ("equal", "noise")
    assert {pair.record.step for pair in comparison.pairs} == {0, 1}


def test_a_token_that_one_side_takes_and_the_other_chooses(tmp_path: Path, ids: Any) -> None:
    """The constant has no partner. It is an operator of one side, but whatever reads it agrees."""

    def chosen(path: Path, requests: Any, token: Any) -> Path:
        model = network()
        with torch.no_grad(), ascend_dump.capture(model, path=path, steps="0-9"):
            logits = model(requests)[:, -1]
            best = logits.argmax(-1)
            best = best if token is None else torch.tensor([token])
            logits.log_softmax(-1).gather(-1, best[:, None])
        return path

    with torch.no_grad():
        token = int(network()(ids)[4, -1].argmax())
    many = chosen(tmp_path / "many", ids, None)
    comparison = ascend_dump.compare(chosen(tmp_path / "one", ids[4:5], token), many)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "of operators of one side that compute nothing" in comparison.aligned[0]
    comparison = ascend_dump.compare(chosen(tmp_path / "other", ids[4:5], (token + 1) % 32), many)
    assert comparison.verdict not in ("equal", "noise")


def test_requests_of_other_lengths_and_rows_that_are_not_there(tmp_path: Path, ids: Any) -> None:
    model = network()
    many = dumped(tmp_path / "many", model, ids)
    short = dumped(tmp_path / "short", model, ids[4:5, :3])
    with pytest.raises(NotSupported, match="the same length"):
        ascend_dump.compare(short, many, rows={0: 4})
    one = dumped(tmp_path / "one", model, ids[4:5])
    with pytest.raises(ConfigError, match="rows= has row 6, and the batch has 6 rows"):
        ascend_dump.compare(one, many, rows={0: 6})
    with pytest.raises(NotSupported, match="batches of different sizes"):
        ascend_dump.compare(many, many, rows={0: 4})
    with pytest.raises(ConfigError, match="were both given"):
        ascend_dump.compare(one, many, rows={0: 4}, replay=True)
    for rows in ({}, {0: -1}, {"0": 4}, [0]):
        with pytest.raises(ConfigError, match="expected rows"):
            ascend_dump.compare(one, many, rows=rows)  # type: ignore[arg-type]


def test_the_option_of_the_verb(tmp_path: Path, ids: Any) -> None:
    model = network()
    one, many = dumped(tmp_path / "one", model, ids[4:5]), dumped(tmp_path / "many", model, ids)

    def shell(*words: object) -> tuple[int, str]:
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            code = main([str(word) for word in words])
        return code, out.getvalue()

    code, text = shell("compare", one, many, "--rows", "0=4")
    assert (code, "0 with 4" in text) == (Exit.OK, True)
    code, text = shell("compare", one, many, "--rows", "0=3")
    assert code == Exit.DIFFERENT
    code, text = shell("compare", one, many, "--rows", "0:4")
    assert (code, "--rows 0=4" in text) == (Exit.USAGE, True)

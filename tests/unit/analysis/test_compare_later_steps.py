"""Differences that only a later step explains: data made before the first step, and weights that were put back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump
from ascend_dump.analysis.compare import Comparison

CLASSES = 5
Labels = Callable[[Tensor], Tensor]


def trained(
    path: Path,
    labels: Labels = lambda ids: ids,
    *,
    keeps: Sequence[int] = (),
    stale_step: int = -1,
    copies: bool = False,
    corrupts: bool = False,
) -> Path:
    """Train in a plain loop, in which a step begins when the model is called.

    labels      makes the labels before the call
    keeps       the steps in which a copy of the first weight is kept
    stale_step  the step after whose update the copy is put back
    copies      another model is updated, and the parameters are copied from it
    corrupts    one element of the first weight changes after the second step
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    other = copy.deepcopy(model) if copies else model
    optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
    with ascend_dump.capture(model, path=path, steps="0-3", quiet=True):
        for step in range(4):
            x, ids = torch.randn(7, 6), torch.randint(CLASSES, (7,))
            target = labels(ids)
            functional.cross_entropy(model(x), target).backward()
            before = model[0].weight.detach().clone() if step in keeps else None
            if copies:
                for own, its in zip(model.parameters(), other.parameters()):
                    its.grad = own.grad
            optimizer.step()
            if copies:
                for own, its in zip(model.parameters(), other.parameters()):
                    own.data.copy_(its.data)
            if before is not None and step == stale_step:
                model[0].weight.data.copy_(before)
            if corrupts and step == 1:
                model[0].weight.data.view(-1)[3] += 0.5
            model.zero_grad()
    return path


def compared(folder: Path, actual: Path, *, copies: bool = False) -> Comparison:
    return ascend_dump.compare(actual, trained(folder / "reference", copies=copies))


def test_data_that_the_program_changes_before_its_first_step_are_named_where_a_later_step_shows_it(
    tmp_path: Path,
) -> None:
    found = compared(tmp_path, trained(tmp_path / "actual", lambda ids: ids.roll(1)))
    [origin] = found.origins
    assert (origin.op_name, origin.kind) == ("roll_0", "structure")
    assert "aten::roll runs in actual only" in origin.evidence
    assert any("differs in step 0 too" in line for line in origin.evidence)


def test_other_data_stay_the_origin(tmp_path: Path) -> None:
    """An operator of one side that changes nothing is not named for them."""
    found = compared(tmp_path, trained(tmp_path / "actual", lambda ids: (CLASSES - 1 - ids).roll(0)))
    assert found.origins[0].op_name != "roll_0"
    torch.manual_seed(0)
    same = compared(tmp_path / "same", trained(tmp_path / "same" / "actual", lambda ids: ids.roll(0)))
    assert same.origins == ()


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(("keeps", "stale_step"), [([0, 1, 2, 3], -1), ([0, 1, 2, 3], 1), ([0, 1, 2, 3], 2), ([1], 1)])
def test_weights_that_are_put_back_after_their_update_are_named(
    tmp_path: Path, keeps: list[int], stale_step: int, copies: bool
) -> None:
    """The copy may be made in each step, and is read first one step after it was put back."""
    actual = trained(tmp_path / "actual", keeps=keeps, stale_step=stale_step, copies=copies)
    found = compared(tmp_path, actual, copies=copies)
    if stale_step < 0:
        assert found.origins == ()
        return
    [origin] = found.origins
    assert origin.kind == "structure"
    assert origin.source is not None
    assert origin.source.startswith(__file__)


def test_an_element_that_one_side_writes_to_a_weight_is_named(tmp_path: Path) -> None:
    """The next step reads the whole weight, of which no operator made the content."""
    found = compared(tmp_path, trained(tmp_path / "actual", corrupts=True))
    [origin] = found.origins
    assert (origin.op_type, origin.kind) == ("aten::add_", "structure")

"""A parameter differs between two ranks: the operators that wrote it tell which one is wrong, or nothing does."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from host_dumps import item

import ascend_dump
from ascend_dump.analysis.triage import Triage
from ascend_dump.writing import HostWriter

WEIGHT = np.arange(1, 13, dtype="f4").reshape(3, 4)
GRADIENT = np.full((3, 4), 0.5, "f4")
UPDATED = WEIGHT - GRADIENT


class Read(NamedTuple):
    """A forward pass reads the parameter."""

    value: np.ndarray


class Update(NamedTuple):
    """An operator outside of modules writes the parameter, at a line of the program."""

    before: np.ndarray
    after: np.ndarray
    line: int = 10
    gradient: np.ndarray = GRADIENT


class Log(NamedTuple):
    """An operator of a log, which one rank alone runs."""

    line: int = 20


def triaged(root: Path, *ranks: list[list[object]]) -> Triage:
    """Write a dump, and triage it. ranks: of each rank the events of each step"""
    for rank, steps in enumerate(ranks):
        folder = root / f"worldsize{len(ranks)}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        writer = HostWriter(folder, metadata={})
        for number, events in enumerate(steps):
            writer.begin_step(number)
            adds = 0
            for seq, event in enumerate(events):
                if isinstance(event, Read):
                    items = [item("fc/t_0", event.value, io="input", op_type="aten::t", seq=seq, module="fc")]
                    items[0].line.requires_grad, items[0].line.parameter = True, "w"
                else:
                    tensors = [(np.ones(2, "f4"), ""), (np.ones(2, "f4"), ""), (np.full(2, 2, "f4"), "")]
                    if isinstance(event, Update):
                        tensors = [(event.before, "w"), (event.gradient, "w.grad"), (event.after, "w")]
                    assert isinstance(event, (Update, Log))
                    name, adds = f"add__{adds}", adds + 1
                    items = []
                    for index, (array, parameter) in enumerate(tensors):
                        io = "output" if index == 2 else "input"
                        one = item(name, array, io=io, index=index % 2, op_type="aten::add_", seq=seq)
                        one.line.source = f"train.py:{event.line}"
                        one.line.parameter = parameter
                        items.append(one)
                writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
            writer.end_step()
        writer.close()
    return ascend_dump.triage(root)


def steps(*, update: Update, read: np.ndarray, log: bool = False) -> list[list[object]]:
    return [[Read(WEIGHT), *([Log()] if log else []), update], [Read(read), Update(read, read - GRADIENT)]]


def changed(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[1, 2] += 1
    return array


def test_the_rank_whose_parameter_changed_after_its_update_is_wrong(tmp_path: Path) -> None:
    right = steps(update=Update(WEIGHT, UPDATED), read=UPDATED)
    wrong = steps(update=Update(WEIGHT, UPDATED), read=changed(UPDATED))
    for number, ranks in enumerate(([wrong, right], [right, wrong])):
        suspect = triaged(tmp_path / str(number), *ranks).suspects[0]
        assert (suspect.rule, suspect.rank, suspect.step) == ("replicas", number, 1)
        assert f"on rank {number} it is not what the last update wrote" in suspect.reason
        assert f"rank {number} is wrong" in suspect.reason


def test_an_update_of_one_rank_alone_is_named(tmp_path: Path) -> None:
    other = changed(UPDATED)
    twice = [[Read(WEIGHT), Update(WEIGHT, UPDATED), Update(UPDATED, other, 33)], [Read(other)]]
    suspect = triaged(tmp_path, steps(update=Update(WEIGHT, UPDATED), read=UPDATED), twice).suspects[0]
    assert (suspect.rule, suspect.rank, suspect.source) == ("replicas", 1, "train.py:33")
    assert "rank 1 runs aten::add_ on it at train.py:33, rank 0 does not" in suspect.reason


def test_two_ranks_cannot_tell_without_updates(tmp_path: Path) -> None:
    suspect = triaged(tmp_path, [[Read(WEIGHT)], [Read(UPDATED)]], [[Read(WEIGHT)], [Read(changed(UPDATED))]]).suspects[
        0
    ]
    assert suspect.reason.startswith("two ranks cannot tell which one is wrong: ")


def test_an_operator_of_one_rank_renames_no_other(tmp_path: Path) -> None:
    ranks = [steps(update=Update(WEIGHT, UPDATED), read=UPDATED, log=rank == 0) for rank in range(2)]
    assert triaged(tmp_path, *ranks).suspects == ()


def test_a_gradient_that_ranks_have_in_common_after_their_own_updates_proves_nothing(tmp_path: Path) -> None:
    """Each rank updates by its own gradient, and undoes that; then all update by the mean of what the ranks changed."""
    ranks = []
    for rank in range(2):
        value, events = WEIGHT, []
        for _ in range(3):
            own = GRADIENT * np.float32(rank + 1) + value
            outer = [Update(value, value - own, 10, own), Update(value, value - GRADIENT, 11)]
            events.append([Read(value), *outer])
            value = value - GRADIENT
        ranks.append(events)
    assert triaged(tmp_path, *ranks).suspects == ()


@pytest.mark.parametrize("is_checked", [True, False])
def test_an_update_that_a_rank_computes_wrongly_is_run_again(
    is_checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not by an operator whose kernel may not check its arguments: the files of a dump are data."""
    torch = pytest.importorskip("torch")
    for rank in range(2):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
        library = torch.library.Library("aten", "IMPL")
        if rank == 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it says that a kernel is replaced
                library.impl("add_.Tensor", lambda x, y, alpha=1: x.copy_(x - y), "CPU")
        try:
            with ascend_dump.capture(model, path=tmp_path / f"rank{rank}", steps="0-1", quiet=True):
                for _ in range(2):
                    model(torch.ones(2, 4)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        finally:
            library._destroy()
        [directory] = (tmp_path / f"rank{rank}").glob("worldsize1_*")
        shutil.copytree(directory, tmp_path / "dump" / f"worldsize2_global_rank{rank}")
    if not is_checked:
        monkeypatch.setattr("ascend_dump.analysis.replay.checked_operators._CHECKED", frozenset())
    suspect = next(suspect for suspect in ascend_dump.triage(tmp_path / "dump").suspects if suspect.rule == "replicas")
    assert ("run again, it does not give the output of rank 1" in suspect.reason) == is_checked
    assert ("two ranks cannot tell" in suspect.reason) != is_checked

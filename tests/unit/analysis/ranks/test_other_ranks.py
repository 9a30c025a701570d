"""Four ranks run one small training program, and one of them, or all, make a mistake that a dump alone shows."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import msgspec
import numpy as np
import pytest
from host_dumps import item

from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks import ExtraOperators
from ascend_dump.analysis.suspects import Suspect, find_suspects
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.reading import open_dump
from ascend_dump.writing import HostWriter

RANKS, STEPS, SIZE = 4, 2, 6


class Tensor(NamedTuple):
    """A tensor of a program. storage: its memory; operators that write in place replace the array of this memory"""

    array: np.ndarray
    storage: int
    parameter: str = ""

    def named(self, parameter: str) -> Tensor:
        return self._replace(parameter=parameter)


class Rank:
    """The operators of one rank, recorded as they are called."""

    def __init__(self, root: Path, rank: int) -> None:
        folder = root / f"worldsize{RANKS}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        self.rank, self.step, self._seq, self._storages = rank, 0, 0, 0
        self._numbers: dict[str, int] = {}
        self._writer = HostWriter(folder, metadata={})

    def begin(self, step: int) -> None:
        self.step, self._seq, self._numbers = step, 0, {}
        self._writer.begin_step(step)

    def end(self, *, last: bool) -> None:
        self._writer.end_step()
        if last:
            self._writer.close()

    def noise(self, seed: int, *, common: bool = True) -> np.ndarray:
        """Return random numbers, the same on all ranks if they are common."""
        seeds = (seed, self.step) if common else (seed, self.step, self.rank)
        return np.random.default_rng(seeds).standard_normal(SIZE).astype("f4")

    def tensor(self, array: np.ndarray, parameter: str = "") -> Tensor:
        self._storages += 1
        return Tensor(array, self._storages, parameter)

    def run(
        self,
        op_type: str,
        line: int,
        inputs: list[Tensor],
        result: Optional[np.ndarray],
        *,
        into: Optional[Tensor] = None,
        phase: str = "other",
        module: str = "",
        arguments: Optional[dict[str, float]] = None,
        group: str = "0-3",
    ) -> Tensor:
        """Record an operator. result: its output, if it has one; into: the input that it writes to, if it does"""
        number = self._numbers[op_type] = self._numbers.get(op_type, -1) + 1
        kind = op_type.rpartition("::")[2]
        name = f"{module and module + '/'}{kind}_{number}"
        output = None if result is None else self.tensor(result)
        if into is not None and result is not None:
            output = into._replace(array=result)
        records = [("input", index, one) for index, one in enumerate(inputs)]
        records += [] if output is None else [("output", 0, output)]
        items = []
        for io, index, one in records:
            record = item(name, one.array, io=io, index=index, op_type=op_type, seq=self._seq, phase=phase)
            record.line.source, record.line.module = f"train.py:{line}", module
            record.line.storage, record.line.parameter = one.storage, one.parameter
            record.line.requires_grad = bool(one.parameter) and " of " not in one.parameter and phase == "forward"
            record.line.hash = hashlib.md5(one.array.tobytes() + str(one.array.shape).encode()).hexdigest()
            if arguments is not None:
                call = {"op": op_type, "args": {"self": {"input": 0}, **arguments}}
                record.line.call = msgspec.Raw(msgspec.json.encode(call))
            if op_type.startswith("c10d"):
                record.line.collective = CollectiveCall(kind.rstrip("_"), group, group, number)
            items.append(record)
        self._writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
        self._seq += 1
        return output or inputs[0]


#: A program of one rank: it yields after each step. The flag says if this rank makes the mistake.
Program = Callable[[Rank, bool], Iterator[None]]


def suspects_of(root: Path, program: Program, *wrong: int) -> list[Suspect]:
    """Run a program on all ranks, and triage the dump. wrong: the ranks that make the mistake"""
    for number in range(RANKS):
        rank = Rank(root, number)
        running = program(rank, number in wrong)
        for step in range(STEPS):
            rank.begin(step)
            next(running)
            rank.end(last=step == STEPS - 1)
    # The results of calls are random numbers, and not the sums of what ranks send.
    return [suspect for suspect in find_suspects(open_dump(root)).suspects if suspect.rule != "disagreement"]


def forward(rank: Rank, *parameters: Tensor) -> None:
    for number, parameter in enumerate(parameters):
        data = rank.tensor(rank.noise(90 + number, common=False))
        rank.run("aten::mul", 1, [data, parameter], data.array * parameter.array, phase="forward", module="fc")


def gradient(rank: Rank, parameter: Tensor, *, seed: int, common: bool = False) -> Tensor:
    """Return the gradient of a parameter, which backward wrote."""
    written = rank.tensor(rank.noise(seed, common=common))
    made = rank.run("aten::mul", 2, [written], written.array * 2, phase="backward", module="fc")
    return made.named(f"{parameter.parameter}.grad")


def updated(rank: Rank, parameter: Tensor, by: Tensor) -> Tensor:
    return rank.run("aten::add_", 9, [parameter, by], parameter.array - by.array, into=parameter)


def copied(rank: Rank, wrong: bool, *, groups: tuple[str, ...] = ("0-3",), zeros: bool = False) -> Iterator[None]:
    """Reduce copies of gradients, and copy the results back. The mistake: not for the second one."""
    start = np.zeros(SIZE, "f4") if zeros else np.random.default_rng(5).standard_normal(SIZE).astype("f4")
    parameters = [rank.tensor(start, "a"), rank.tensor(start + 1 - zeros, "b")]
    while True:
        forward(rank, *parameters)
        for number, parameter in enumerate(parameters):
            own = gradient(rank, parameter, seed=number)
            term = rank.run("aten::div", 3, [own], own.array / 4)
            group = next(group for group in groups if rank.rank in range(int(group[0]), int(group[-1]) + 1))
            total = rank.noise(10 + number + 100 * groups.index(group))
            mean = rank.run("c10d::all_reduce_", 4, [term], total, into=term, group=group)
            if not (wrong and number):
                own = rank.run("aten::copy_", 5, [own, mean], total, into=own)
            parameters[number] = updated(rank, parameter, own)
        yield


def test_a_rank_that_is_left_out_of_a_reduction_differs_from_the_others(tmp_path: Path) -> None:
    [suspect, *_] = suspects_of(tmp_path / "one", copied, 1)
    assert (suspect.rule, suspect.rank) == ("replicas", 1)
    assert "although the gradient of b is reduced over ranks 0|2-3" in suspect.reason
    assert suspects_of(tmp_path / "none", copied) == []


def test_parts_that_begin_equal_may_be_reduced_over_two_groups(tmp_path: Path) -> None:
    def program(rank: Rank, wrong: bool) -> Iterator[None]:
        return copied(rank, wrong, groups=("0-1", "2-3"), zeros=True)

    assert suspects_of(tmp_path, program) == []


@pytest.mark.parametrize("reduced", [False, True])
def test_equal_gradients_of_two_ranks_are_no_reduction(reduced: bool, tmp_path: Path) -> None:
    """Two of four ranks load the same part of a layer, so that another parameter has equal gradients there."""

    def program(rank: Rank, wrong: bool) -> Iterator[None]:
        parameter = rank.tensor(rank.noise(0, common=False), "w")
        while True:
            forward(rank, parameter)
            own = gradient(rank, parameter, seed=1, common=wrong and not reduced)
            if reduced and wrong:
                own = rank.run("aten::copy_", 5, [own, rank.tensor(rank.noise(7))], rank.noise(7), into=own)
            parameter = updated(rank, parameter, own)
            yield

    found = suspects_of(tmp_path, program, 1, 2)
    assert [one.rule for one in found] == (["replicas"] if reduced else [])


def averaging(rank: Rank, wrong: bool) -> Iterator[None]:
    """Update a parameter, and average it over the steps. The mistake: the average comes first."""
    parameter, average = rank.tensor(rank.noise(0), "w"), rank.tensor(rank.noise(1))
    while True:
        forward(rank, parameter)
        own = gradient(rank, parameter, seed=2, common=True)
        if wrong:
            average = rank.run("aten::lerp_", 8, [average, parameter], average.array + 1, into=average)
        parameter = updated(rank, parameter, own)
        if not wrong:
            average = rank.run("aten::lerp_", 8, [average, parameter], average.array + 2, into=average)
        yield


def test_an_operator_that_reads_a_tensor_before_its_update_on_one_rank_is_named(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "one", averaging, 2)
    assert (suspect.rule, suspect.rank, suspect.op_type) == ("extra-operator", 2, "aten::lerp_")
    assert "is the value of w on rank 2, and the result of aten::add_ at train.py:9" in suspect.reason
    assert suspects_of(tmp_path / "all", averaging, 0, 1, 2, 3) == []
    assert suspects_of(tmp_path / "two", averaging, 0, 3) == []

    def staged(rank: Rank, wrong: bool) -> Iterator[None]:
        for _ in averaging(rank, wrong):
            sent = rank.tensor(rank.noise(4))
            rank.run("c10d::send", 20, [sent], None)
            yield

    assert suspects_of(tmp_path / "stages", staged, 2) == []


def evaluating(rank: Rank, wrong: bool, *, restores: bool = True) -> Iterator[None]:
    """One rank puts its average into the parameter, and then the parameter back; else that of the step before."""
    parameter = rank.tensor(rank.noise(0), "w")
    earlier: Optional[np.ndarray] = None
    while True:
        forward(rank, parameter)
        own = gradient(rank, parameter, seed=1, common=True)
        parameter = updated(rank, parameter, own)
        if wrong:
            average = parameter.array * 0.5
            rank.run("aten::mul_", 6, [parameter], average, into=parameter)
            kept = parameter.array if restores or earlier is None else earlier
            earlier, parameter = parameter.array, rank.run("aten::add_", 7, [parameter], kept, into=parameter)
        yield


def test_an_evaluation_on_one_rank_may_change_parameters_for_a_time(tmp_path: Path) -> None:
    assert suspects_of(tmp_path / "restored", evaluating, 0) == []
    suspects = suspects_of(tmp_path / "changed", functools.partial(evaluating, restores=False), 0)
    assert [suspect.rule for suspect in suspects[:1]] == ["extra-operator"]


def accumulating(rank: Rank, wrong: bool, *, shorter: bool = True) -> Iterator[None]:
    """Add up gradients of two batches. One rank reads the first one twice, or its second one has other sizes."""
    while True:
        made = []
        for number in range(2):
            size = SIZE // 2 if wrong and shorter and number else SIZE
            written = rank.tensor(rank.noise(number, common=False)[:size])
            made.append(rank.run("aten::mul", 2 if shorter else number, [written], np.ones(SIZE, "f4") * number))
        first, second = made[0], made[0 if wrong and not shorter else 1]
        rank.run("aten::add_", 5, [first, second], first.array + second.array, into=first)
        yield


def test_a_batch_of_another_size_is_no_other_tensor(tmp_path: Path) -> None:
    assert suspects_of(tmp_path / "shorter", accumulating, 3) == []
    [suspect] = suspects_of(tmp_path / "twice", functools.partial(accumulating, shorter=False), 3)
    assert "input 1 of aten::add_ at train.py:5 is the result of aten::mul at train.py:0 on rank 3" in suspect.reason


def test_a_gather_in_the_dump_behind_later_steps_reads_what_was_written_before_it(tmp_path: Path) -> None:
    def program(rank: Rank, wrong: bool) -> Iterator[None]:
        parameter = rank.tensor(rank.noise(0), "w")
        while True:
            forward(rank, parameter)
            # The first step does not know yet that this is the parameter.
            read = parameter if rank.step else parameter.named("")
            named = rank.run("aten::mul", 2, [read], rank.noise(1), phase="backward", module="fc").named("w.grad")
            if wrong:
                named = rank.run("aten::add_", 5, [named], named.array + 1, into=named)
            rank.run("c10d::gather_", 6, [named], None)
            yield

    suspects_of(tmp_path, program, 1)
    operators = ExtraOperators(0.5)
    calls = [[*members] for _, members in groupby(open_dump(tmp_path).select(), lambda one: (one.rank, one.execution))]
    for members in sorted(calls, key=lambda call: "gather" in call[0].op_type):
        operators.look_at(OperatorRun(members))
    assert [finding.record.op_type for finding in operators.findings()] == ["aten::add_"]


def weighted(
    rank: Rank, wrong: bool, *, rows: int = SIZE, sums: bool = False, changing: bool = False
) -> Iterator[None]:
    """Multiply a loss. The mistake: by another number. rows: those of the ranks that make the mistake"""
    while True:
        data = rank.tensor(rank.noise(0, common=False)[: rows if wrong else SIZE])
        rank.run("aten::exp", 1, [data], np.exp(data.array), phase="forward", module="fc")
        if sums:
            rank.run("c10d::all_reduce_", 1, [data], rank.noise(3), into=data, phase="forward", module="fc")
        loss = rank.tensor(np.float32(rank.rank + 1.5) * np.ones((), "f4"))
        factor = 0.5 + wrong + (changing and rank.step)
        rank.run("aten::mul", 3, [loss], loss.array * factor, phase="backward", arguments={"other": factor})
        yield


def test_another_factor_of_a_loss_is_named_if_ranks_have_equally_much_data(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "one", weighted, 1)
    assert (suspect.rule, suspect.rank) == ("other-argument", 1)
    assert "aten::mul at train.py:3 has other 1.5 on rank 1, 0.5 on ranks 0|2-3" in suspect.reason
    for number, changed in enumerate(({"rows": SIZE - 1}, {"sums": True}, {"changing": True})):
        assert suspects_of(tmp_path / str(number), functools.partial(weighted, **changed), 1) == []


def divided(rank: Rank, wrong: bool, *, shape: tuple[int, ...] = (SIZE,), joined: bool = True) -> Iterator[None]:
    """Update a part of all parameters. The mistake: at another rate"""
    part = rank.tensor(rank.noise(0, common=False).reshape(shape))
    while True:
        rate = 0.8 if wrong else 0.2
        step = rank.tensor(rank.noise(1, common=False).reshape(shape))
        new = part.array - rate * step.array
        part = rank.run("aten::sub_", 6, [part, step], new, into=part, arguments={"alpha": rate})
        if joined:
            rank.run("c10d::all_gather_", 7, [part], rank.noise(2))
        yield


def test_parts_that_ranks_gather_are_updated_by_one_number(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "one", divided, 1)
    assert (suspect.rule, suspect.rank) == ("shard-update", 1)
    assert "alpha is 0.8, not 0.2" in suspect.reason
    for number, changed in enumerate(({"shape": (2, SIZE // 2)}, {"joined": False})):
        assert suspects_of(tmp_path / str(number), functools.partial(divided, **changed), 1) == []


def clipped(rank: Rank, wrong: bool) -> Iterator[None]:
    """Add up gradients, each rank one part, and scale them. The mistake: by the norm of the part"""
    while True:
        whole = rank.tensor(rank.noise(0, common=False))
        part = rank.run("c10d::reduce_scatter_", 4, [whole], rank.noise(1, common=False)[:3])
        factor = rank.tensor(np.full((), 0.5 + wrong * rank.rank, "f4"))
        rank.run("aten::mul_", 5, [part, factor], part.array * factor.array, into=part)
        yield


def test_parts_of_sums_are_scaled_by_one_number(tmp_path: Path) -> None:
    suspects = suspects_of(tmp_path / "all", clipped, *range(RANKS))
    assert {suspect.rule for suspect in suspects} == {"shard-update"}
    assert "an input with one element differs" in suspects[0].reason
    assert suspects_of(tmp_path / "none", clipped) == []


def experts(rank: Rank, wrong: bool, *, factor: Optional[float] = 0.25) -> Iterator[None]:
    """Divide gradients, also those of the expert of each rank. The mistake: not those"""
    names = ["gate.weight", f"experts.{rank.rank}.up.weight", f"experts.{rank.rank}.down.weight"]
    parameters = [rank.tensor(rank.noise(number, common=not number), name) for number, name in enumerate(names)]
    while True:
        for number, parameter in enumerate(parameters):
            own = gradient(rank, parameter, seed=10 + number, common=not number)
            scale = factor or 1 / (2 + number * (1 + rank.rank))
            if not (wrong and number):
                arguments = {"other": scale}
                own = rank.run("aten::mul_", 5, [own], own.array * scale, into=own, arguments=arguments)
            parameters[number] = updated(rank, parameter, own)
        yield


def test_a_rank_may_not_leave_out_gradients_that_all_ranks_multiply_by_one_number(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "one", experts, 1)
    assert (suspect.rule, suspect.rank) == ("extra-operator", 1)
    assert (
        "rank 1 runs no aten::mul_ for experts.1.down.weight.grad at train.py:5; ranks 0|2-3 run it" in suspect.reason
    )
    assert suspects_of(tmp_path / "none", experts) == []
    # By numbers that depend on data, a program may scale large gradients only.
    assert suspects_of(tmp_path / "clipped", functools.partial(experts, factor=None), 1) == []


def owners(rank: Rank, wrong: bool, *, common: bool = True, users: bool = True) -> Iterator[None]:
    """Update a parameter of each rank by gradients that all ranks have. The mistake: they are changed before"""
    names = [f"layer{number}" for number in range(RANKS)]
    states = [rank.tensor(rank.noise(number)) for number in range(RANKS)]
    while True:
        for number, name in enumerate(names):
            own = rank.tensor(rank.noise(20 + number, common=common), f"{name}.grad")
            if wrong:
                own = rank.run("aten::mul_", 5, [own], own.array / 2, into=own)
            if number == rank.rank and (users or wrong):
                rank.run("aten::lerp_", 6, [states[number], own], own.array + 1, into=states[number])
        yield


def test_a_rank_may_not_change_gradients_that_others_update_by(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "one", owners, 1)
    assert (suspect.rule, suspect.rank, suspect.op_type) == ("extra-operator", 1, "aten::mul_")
    assert (
        "only rank 1 runs aten::mul_ at train.py:5 on layer0.grad, which it has in common with rank 0" in suspect.reason
    )
    assert suspects_of(tmp_path / "own", functools.partial(owners, common=False), 1) == []
    # One rank owns the optimizer, and the others send it their gradients.
    assert suspects_of(tmp_path / "server", functools.partial(owners, users=False), 1) == []


def means(rank: Rank, wrong: bool, *, count: int = 4) -> Iterator[None]:
    """Average copies of parameters. The mistake: one sum is not divided"""
    parameters = [rank.tensor(rank.noise(number), f"layer{number}") for number in range(count)]
    while True:
        for number, parameter in enumerate(parameters):
            value = rank.run("aten::clone", 3, [parameter], parameter.array)
            value = rank.run("c10d::all_reduce_", 4, [value], value.array * RANKS, into=value)
            if not (wrong and number == 2):
                value = rank.run("aten::div_", 5, [value], value.array / RANKS, into=value)
            parameters[number] = rank.run("aten::copy_", 6, [parameter, value], value.array, into=parameter)
        yield


def test_a_mean_of_parameters_that_is_not_divided_is_named(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "one", means, *range(RANKS))
    assert (suspect.rule, suspect.op_type) == ("gradient-factor", "aten::copy_")
    assert "the sum of layer2 lacks the division by 4" in suspect.reason
    assert suspects_of(tmp_path / "none", means) == []
    assert suspects_of(tmp_path / "few", functools.partial(means, count=3), *range(RANKS)) == []


def rows(rank: Rank, wrong: bool, *, scatters: bool = True, apart: bool = False) -> Iterator[None]:
    """Add a bias to the rows of each rank. The mistake: its gradient is not reduced"""
    bias = rank.tensor(np.random.default_rng(5).standard_normal(3).astype("f4"), "bias")
    while True:
        whole = rank.tensor(rank.noise(0, common=False))
        kind = "reduce_scatter_" if scatters else "all_to_all_"
        part = rank.run(f"c10d::{kind}", 4, [whole], rank.noise(1, common=False).reshape(2, 3), phase="forward")
        read = rank.tensor(part.array) if apart else part
        rank.run("aten::add", 5, [read, bias], part.array + bias.array, phase="forward")
        own = rank.tensor(rank.noise(2, common=False)[:3])
        own = rank.run("aten::sum", 6, [own], own.array, phase="backward").named("bias.grad")
        if not wrong:
            total = rank.noise(3)[:3]
            own = rank.run("c10d::all_reduce_", 7, [own], total, into=own)
        bias = updated(rank, bias, own)
        yield


def test_the_bias_of_scattered_rows_belongs_to_all_rows(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "unreduced", rows, *range(RANKS))
    assert suspect.rule == "replicas"
    assert "it is applied to rows of one tensor, and bias.grad is not reduced" in suspect.reason
    assert suspects_of(tmp_path / "reduced", rows) == []
    for number, changed in enumerate(({"scatters": False}, {"apart": True})):
        assert suspects_of(tmp_path / str(number), functools.partial(rows, **changed), *range(RANKS)) == []


def tied(rank: Rank, wrong: bool, *, one_seed: bool = False) -> Iterator[None]:
    """Train the first and the last stage of a pipeline with one table. The mistake: its gradients are not added up"""
    if rank.rank in (1, 2):
        while True:
            rank.run("c10d::send", 20, [rank.tensor(rank.noise(9))], None)
            yield
    table = rank.tensor(np.random.default_rng(5).standard_normal(SIZE).astype("f4"), "table")
    name = "0.weight" if one_seed else f"{rank.rank}.weight"
    layer = rank.tensor(np.random.default_rng(6 if one_seed else rank.rank).standard_normal(SIZE).astype("f4"), name)
    while True:
        forward(rank, table, layer)
        rank.run("c10d::send", 20, [layer], None)
        gradients = [gradient(rank, parameter, seed=number) for number, parameter in enumerate((table, layer))]
        if not wrong:
            gradients[0] = rank.run(
                "c10d::all_reduce_", 4, gradients[:1], rank.noise(3), into=gradients[0], group="0|3"
            )
        table, layer = updated(rank, table, gradients[0]), updated(rank, layer, gradients[1])
        yield


def test_a_tied_table_has_one_gradient(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "unreduced", tied, 0, 3)
    assert suspect.rule == "replicas"
    assert "their other parameters differ, so table is tied, but its gradient is not reduced" in suspect.reason
    assert suspects_of(tmp_path / "reduced", tied) == []
    assert suspects_of(tmp_path / "one seed", functools.partial(tied, one_seed=True), 0, 3) == []

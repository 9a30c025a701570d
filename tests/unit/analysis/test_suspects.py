"""Find suspects in a dump without a reference: each rule on its own two programs, then in real ones."""

from __future__ import annotations

import gc
import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Union

import pytest
from suspect_dumps import write_rows

import ascend_dump
from ascend_dump.analysis import suspects
from ascend_dump.analysis.suspects import RULES, Row, find_suspects
from ascend_dump.cli.shared.help_texts import topics
from ascend_dump.common.collector import rare_collections
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.statistics import Statistics


@pytest.mark.parametrize("name", RULES)
class TestEveryRule:
    def test_names_the_program_that_trips_it(self, tmp_path: Path, name: str) -> None:
        report = find_suspects(write_rows(tmp_path, RULES[name].trips))
        assert [one.rule for one in report.suspects] == [name]
        assert report.suspects[0].reason

    def test_passes_the_program_beside_it(self, tmp_path: Path, name: str) -> None:
        report = find_suspects(write_rows(tmp_path, RULES[name].passes))
        assert report.suspects == ()
        assert report.operators == len({(row.step, row.rank, row.op_name) for row in RULES[name].passes})


def test_suspects_do_not_depend_on_the_number_of_runs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last_step = max(row.step for rule in RULES.values() for row in rule.trips) + 1
    rows = [
        row._replace(step=row.step + number * last_step)
        for number, rule in enumerate(RULES.values())
        for row in rule.trips
    ]
    dump = write_rows(tmp_path, sorted(rows, key=lambda row: (row.rank, row.step)))
    expected = find_suspects(dump)
    assert len(expected.suspects) > 3
    for count in (1, 3, 10_000):
        monkeypatch.setattr(suspects, "_RUNS_AT_ONCE", count)
        assert find_suspects(dump) == expected


def test_an_analysis_restores_the_thresholds_of_the_garbage_collector() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_of_two_ranks_that_differ_from_the_start_only_their_comparison_tells(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    found = [Statistics(1000, size, -size, 0.0, 10 * size, 0, 0, 0, 0, 0, 0) for size in (3.0, 6.0)]
    rows = [
        Row("aten::t", "fc/t_0", "input", found[rank], rank=rank, hash=str(rank), requires_grad=True, storage=0)
        for rank in range(2)
    ]
    assert find_suspects(write_rows(tmp_path, rows)).suspects == ()
    ranks = [tmp_path / f"worldsize4_global_rank{rank}" for rank in range(2)]
    assert [one.op_name for one in ascend_dump.compare(*ranks).origins] == ["fc/t_0"]
    (told,) = (page.text for page in topics() if page.code == "ranks")
    assert "the weights of two ranks differ from the start, `triage` reports nothing wrong" in told


def trained(step: int, weights: Sequence[str], gradients: Sequence[str], name: str = "fc.weight") -> list[Row]:
    """A step of each rank: backward writes a gradient of its own, the optimizer reads this one and the weight."""
    rows = []
    for rank, (weight, gradient) in enumerate(zip(weights, gradients)):
        storage = 100 * (name != "fc.weight")
        module, local = name.partition(".")[0], f"{name}{step}{rank}"
        row = Row("aten::add_", "", "input", sized(1), step, storage=storage, rank=rank)
        read = row._replace(index=1, storage=storage + 1)
        rows += [
            row._replace(op_type="aten::mm", op_name=f"{module}/mm_0", hash=weight, requires_grad=True),
            row._replace(op_name=f"{module}/mm_1", io="output", phase="backward", storage=storage + 1, hash=local),
            row._replace(op_name=f"{name}/add__0", phase="other", hash=weight, parameter=name),
            read._replace(op_name=f"{name}/add__0", phase="other", hash=gradient, parameter=f"{name}.grad"),
        ]
    return rows


def replicas(root: Path, *rows: Row) -> list[tuple[str, Optional[int], str]]:
    suspects = find_suspects(write_rows(root, rows)).suspects
    assert {suspect.rule for suspect in suspects} <= {"replicas"}
    return [(suspect.op_name, suspect.rank, suspect.reason) for suspect in suspects]


class TestReplicas:
    def test_a_parameter_with_a_reduced_gradient_is_equal_from_the_first_step(self, tmp_path: Path) -> None:
        assert replicas(tmp_path / "a", *trained(0, "wwww", "gggg")) == []
        [(name, rank, reason)] = replicas(tmp_path / "b", *trained(0, "abcd", "gggg"))
        assert (name, rank) == ("fc/mm_0", 1)
        assert "is another on each of ranks 0-3, although the gradient of fc.weight is reduced" in reason
        [(name, rank, reason)] = replicas(tmp_path / "c", *trained(0, "aabb", "gggg"))
        assert (name, rank) == ("fc/mm_0", 2)
        assert "has 2 values, ranks 0-1 against ranks 2-3" in reason

    def test_shards_that_begin_equal_are_none(self, tmp_path: Path) -> None:
        reduced = [*trained(0, "nnnn", "gggg", "norm.weight"), *trained(1, "mmmm", "hhhh", "norm.weight")]
        message = [Row("c10d::send", "send_0", "input", sized(1), rank=rank) for rank in range(4)]
        write_rows(tmp_path, [*trained(0, "aaaa", "wxyz"), *trained(1, "abcd", "stuv"), *reduced, *message])
        assert len(find_suspects(ascend_dump.open(tmp_path)).suspects) == 1
        for index in tmp_path.rglob("index.jsonl"):
            lines = [json.loads(line) for line in index.read_text().splitlines()]
            for line in lines:
                if line["op_type"] == "c10d::send":
                    line["collective"] = {"kind": "send", "group": "0", "ranks": "0-3"}
            index.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        assert find_suspects(ascend_dump.open(tmp_path)).suspects == ()

    def test_a_missing_reduction_is_named_on_any_number_of_ranks(self, tmp_path: Path) -> None:
        for ranks in (2, 4):
            rows = [*trained(0, "aaaa"[:ranks], "wxyz"), *trained(1, "abcd"[:ranks], "stuv")]
            [(name, rank, reason)] = replicas(tmp_path / str(ranks), *rows)
            assert (name, rank) == ("fc/mm_0", 1)
            assert "a parameter that they had in common before" in reason
        reduced = [*trained(0, "nnnn", "gggg", "norm.weight"), *trained(1, "mmmm", "hhhh", "norm.weight")]
        rows = [*trained(0, "aaaa", "wxyz"), *trained(1, "abcd", "stuv"), *reduced]
        [(_, _, reason)] = replicas(tmp_path / "one", *rows)
        assert "its gradient is not reduced as those of others are" in reason

    def test_a_parameter_with_one_gradient_stays_equal_although_ranks_have_parts_of_a_model(
        self, tmp_path: Path
    ) -> None:
        call = CollectiveCall("all_to_all", "0", "0-1", 0)
        exchange = [Row("c10d::alltoall_", "x_0", "input", sized(1), rank=rank, collective=call) for rank in range(2)]
        rows = [*trained(0, "aa", "gg"), *trained(1, "ab", "hi"), *exchange]
        [(name, rank, reason)] = replicas(tmp_path / "one gradient", *rows)
        assert (name, rank) == ("fc/mm_0", 1)
        assert "although the gradient of fc.weight was the same on these ranks in step 0" in reason
        rows = [*trained(0, "aa", "gh"), *trained(1, "ab", "ij"), *exchange]
        assert replicas(tmp_path / "own gradients", *rows) == []


def test_a_parameter_is_left_out_only_in_steps_that_read_it(tmp_path: Path) -> None:
    first = [row for row in RULES["no-gradient"].trips if row.step == 0]
    rows = [row._replace(rank=rank) for rank in range(2) for row in first]
    assert find_suspects(write_rows(tmp_path, rows)).suspects == ()


def test_lists_of_tensors_are_copied_into_memory_that_is_not_read(tmp_path: Path) -> None:
    call = '{"op":"aten::_foreach_copy_","args":{"self":{"inputs":[0,1]},"src":{"inputs":[1,1]}}}'
    copy = Row("aten::_foreach_copy_", "_foreach_copy__0", "input", sized(1), storage=1, call=call)
    rows = [
        Row("aten::empty", "empty_0", "output", None, storage=1, skipped="uninitialised memory"),
        copy,
        copy._replace(index=1, storage=2),
        copy._replace(io="output"),
    ]
    assert find_suspects(write_rows(tmp_path / "written", rows)).suspects == ()
    rows[1:] = [row._replace(index=1 - row.index) if row.io == "input" else row for row in rows[1:]]
    assert [one.rule for one in find_suspects(write_rows(tmp_path / "read", rows)).suspects] == ["uninitialised"]


def test_a_rank_that_computes_in_another_type_has_another_setting(tmp_path: Path) -> None:
    def computed(types: Sequence[str]) -> list[Row]:
        row = Row("aten::mm", "fc/mm_0", "output", sized(1), module="fc", source="model.py:3")
        return [row._replace(rank=rank, dtype=dtype, hash=str(rank)) for rank, dtype in enumerate(types)]

    [suspect] = find_suspects(write_rows(tmp_path / "one", computed(["bfloat16", "float32", "bfloat16"]))).suspects
    assert (suspect.rule, suspect.rank) == ("other-argument", 1)
    assert "results of type float32 on rank 1, bfloat16 on ranks 0|2" in suspect.reason
    assert find_suspects(write_rows(tmp_path / "all", computed(["bfloat16"] * 3))).suspects == ()
    assert find_suspects(write_rows(tmp_path / "ints", computed(["int32", "int64", "int64"]))).suspects == ()


def test_a_rank_that_takes_the_sum_of_its_losses_has_another_setting(tmp_path: Path) -> None:
    def loss(reductions: Sequence[int], shapes: Sequence[int]) -> list[Row]:
        call = '{{"op":"aten::mse_loss","args":{{"self":{{"input":0}},"reduction":{}}}}}'
        row = Row("aten::mse_loss", "mse_loss_0", "input", sized(1), source="train.py:3", phase="forward")
        return [
            row._replace(rank=rank, hash=str(rank), call=call.format(reduction), found=sized(1)._replace(count=shape))
            for rank, (reduction, shape) in enumerate(zip(reductions, shapes))
        ]

    [suspect] = find_suspects(write_rows(tmp_path / "one", loss([1, 2, 1], [4, 4, 5]))).suspects
    assert (suspect.rule, suspect.rank) == ("other-argument", 1)
    assert "has reduction 2 on rank 1, 1 on ranks 0|2" in suspect.reason
    assert find_suspects(write_rows(tmp_path / "all", loss([2, 2, 2], [4, 4, 5]))).suspects == ()


class TestOtherOperators:
    """Operators of the forward pass that one rank runs in place of others."""

    @staticmethod
    def suspects(
        root: Path, op_types: Sequence[str], *more: Row, **changed: Any
    ) -> list[tuple[str, Optional[int], str]]:
        rows = [
            Row(op_type, "f_0", "output", sized(1), module="act", source="model.py:3", phase="forward")._replace(
                rank=rank, hash=str(rank), **{name: values[rank] for name, values in changed.items()}
            )
            for rank, op_type in enumerate(op_types)
        ]
        found = find_suspects(write_rows(root, [*rows, *more])).suspects
        return [(one.rule, one.rank, one.reason) for one in found]

    def test_another_activation_on_one_rank_is_named(self, tmp_path: Path) -> None:
        [(rule, rank, reason)] = self.suspects(tmp_path / "one", ["aten::gelu", "aten::relu", "aten::gelu"])
        assert (rule, rank) == ("other-argument", 1)
        assert "aten::relu runs at model.py:3 on rank 1, aten::gelu on ranks 0|2" in reason
        assert self.suspects(tmp_path / "all", ["aten::relu"] * 3) == []

    def test_of_two_ranks_none_is_known_to_be_wrong(self, tmp_path: Path) -> None:
        [(_, _, reason)] = self.suspects(tmp_path, ["aten::gelu", "aten::relu"])
        assert reason.startswith("two ranks cannot tell which one is wrong: ")

    def test_operators_for_other_data_are_left_out(self, tmp_path: Path) -> None:
        op_types = ["aten::gelu", "aten::relu", "aten::gelu"]
        assert (
            self.suspects(tmp_path / "shapes", op_types, found=[sized(1), sized(1)._replace(count=9), sized(1)]) == []
        )
        assert self.suspects(tmp_path / "types", op_types, dtype=["float32", "int64", "float32"]) == []

    def test_only_operators_of_the_forward_pass_that_compute_are_compared(self, tmp_path: Path) -> None:
        op_types = ["aten::gelu", "aten::relu", "aten::gelu"]
        assert self.suspects(tmp_path / "backward", op_types, phase=["backward"] * 3) == []
        assert self.suspects(tmp_path / "lines", op_types, source=["model.py:3", "model.py:4", "model.py:3"]) == []
        assert self.suspects(tmp_path / "modules", op_types, module=["act", "gate", "act"]) == []
        assert self.suspects(tmp_path / "views", ["aten::view", "aten::t", "aten::view"]) == []
        assert self.suspects(tmp_path / "sources", ["aten::zeros", "aten::ones", "aten::zeros"]) == []

    def test_stages_of_a_pipeline_run_operators_of_their_own(self, tmp_path: Path) -> None:
        sent = [Row("c10d::send", "send_0", "input", sized(1), rank=rank, hash=str(rank)) for rank in range(3)]
        assert self.suspects(tmp_path, ["aten::gelu", "aten::relu", "aten::gelu"], *sent) == []

    def test_a_rank_without_the_operator_or_with_several_others_is_left_out(self, tmp_path: Path) -> None:
        row = Row("", "g_0", "output", sized(1), module="act", source="model.py:3", phase="forward", hash="g")
        several = [row._replace(op_type=op_type, rank=1) for op_type in ("aten::exp", "aten::log")]
        usual = [row._replace(op_type="aten::exp", rank=rank) for rank in (0, 2)]
        op_types = ["aten::gelu", "aten::relu", "aten::gelu"]
        assert self.suspects(tmp_path / "several", op_types, *several) == []
        assert self.suspects(tmp_path / "fewer", op_types, *usual) == []
        assert self.suspects(tmp_path / "none", op_types, source=["model.py:3", "model.py:3", "model.py:4"]) == []


def test_a_term_that_differs_by_another_setting_lacks_no_sum(tmp_path: Path) -> None:
    rows = [row._replace(hash="part") if row.hash.startswith("part") else row for row in RULES["unreduced-term"].trips]
    assert find_suspects(write_rows(tmp_path, rows)).suspects == ()


def test_numbers_that_change_from_call_to_call_are_no_settings(tmp_path: Path) -> None:
    def scaled(*numbers: tuple[float, float]) -> list[Row]:
        rows = []
        for step, of_ranks in enumerate(numbers):
            for rank, number in enumerate(of_ranks):
                call = f'{{"op":"aten::mul","args":{{"self":{{"input":0}},"other":{number}}}}}'
                row = Row("aten::mul", "fc/mul_0", "input", sized(1), step, module="fc", source="model.py:3", call=call)
                rows += [row._replace(rank=rank, hash=f"{step}{rank}"), row._replace(rank=rank, io="output")]
        return rows

    assert find_suspects(write_rows(tmp_path / "data", scaled((0.5, 0.7), (0.5, 0.6)))).suspects == ()
    assert find_suspects(write_rows(tmp_path / "once", scaled((0.5, 0.7)))).suspects == ()
    [suspect] = find_suspects(write_rows(tmp_path / "fixed", scaled((0.5, 0.7), (0.5, 0.7)))).suspects
    assert (suspect.rule, suspect.op_name) == ("other-argument", "fc/mul_0")


def test_a_rank_may_leave_out_the_update_of_a_parameter_that_it_receives(tmp_path: Path) -> None:
    def updated(rank: int, names: str, received: str) -> list[Row]:
        place: dict[str, Any] = {"rank": rank, "source": "train.py:3"}
        rows = [
            Row("aten::exp", f"exp_{name}", "input", sized(1), parameter=name, storage=storage, hash=name, **place)
            for storage, name in enumerate("abc")
        ]
        for storage, name in enumerate("abc"):
            record = Row(
                "aten::add_", f"add_{name}", "input", sized(1), parameter=name, storage=storage, hash=name,
                phase="other", **place,
            )  # fmt: skip
            if name in names:
                rows += [record, record._replace(io="output", hash=f"new {name}")]
            if name in received:
                sent = record._replace(op_type="c10d::broadcast_", op_name=f"broadcast_{name}", source="train.py:4")
                rows += [sent, sent._replace(io="output", hash=f"new {name}")]
        return rows

    def found(root: Path, received: str) -> list[str]:
        rows = [*updated(0, "abc", received), *updated(1, "bc", received)]
        suspects = find_suspects(write_rows(root, rows)).suspects
        return [one.reason for one in suspects if one.rule == "extra-operator"]

    assert found(tmp_path / "left out", "") == ["rank 1 runs no aten::add_ for a at train.py:3; rank 0 runs it"]
    assert found(tmp_path / "received", "a") == []


def test_a_temperature_outside_of_modules_is_a_setting_and_a_factor_of_a_loss_is_none(tmp_path: Path) -> None:
    def divided(*numbers: float, count: int = 4, phase: str = "backward") -> list[Row]:
        rows = []
        for rank, number in enumerate(numbers):
            call = f'{{"op":"aten::div","args":{{"self":{{"input":0}},"other":{number}}}}}'
            row = Row("aten::div", "div_0", "input", sized(1)._replace(count=count), source="train.py:3", phase=phase)
            for step in range(2):
                rows.append(row._replace(rank=rank, step=step, call=call, hash=f"{step}{rank}"))
        return rows

    [suspect] = find_suspects(write_rows(tmp_path / "one", divided(0.5, 0.7, 0.5))).suspects
    assert (suspect.rule, suspect.rank) == ("other-argument", 1)
    assert "aten::div at train.py:3 has other 0.7 on rank 1, 0.5 on ranks 0|2" in suspect.reason
    for number, rows in enumerate(
        (divided(0.7, 0.7, 0.7), divided(0.5, 0.7, 0.5, count=1), divided(0.5, 0.7, 0.5, phase="other"))
    ):
        assert find_suspects(write_rows(tmp_path / str(number), rows)).suspects == ()


def test_an_activation_that_arrives_between_the_steps_is_no_parameter(tmp_path: Path) -> None:
    rows = [
        row._replace(hash=f"{row.hash}{row.step}") if row.hash and row.module == "first" else row
        for row in RULES["no-gradient"].trips
    ]
    assert find_suspects(write_rows(tmp_path, rows)).suspects == ()


def test_what_a_rank_was_brought_comes_behind_what_another_one_made(tmp_path: Path) -> None:
    right = Statistics(9, 2.0, -2.0, 0.0, 3.0, 0, 0, 0, 0)
    wrong = right._replace(nan=3)
    rows = [
        Row("c10d::allreduce_", "0/allreduce__0", "input", right, rank=0),
        Row("c10d::allreduce_", "0/allreduce__0", "output", wrong, rank=0),
        Row("aten::log", "log_0", "input", right, rank=1),
        Row("aten::log", "log_0", "output", wrong, rank=1),
    ]
    suspects = find_suspects(write_rows(tmp_path, rows)).suspects
    assert [(one.op_name, one.rank) for one in suspects] == [("log_0", 1), ("0/allreduce__0", 0)]


@pytest.mark.parametrize(("seconds", "pid", "words"), [(30, "own", None), (90, "own", ""), (30, 2**30, "half second")])
def test_a_running_program_has_waited_for_a_minute(
    tmp_path: Path, seconds: int, pid: Union[int, str], words: Optional[str]
) -> None:
    write_rows(tmp_path, RULES["collective-order"].trips)
    begun = int((time.time() - seconds) * 1e6)
    manifest = {"schema": "ascend-dump/host/1", "state": "running", "host": socket.gethostname()}
    for index in tmp_path.rglob("index.jsonl"):
        lines = [{**json.loads(line), "time": begun} for line in index.read_text().splitlines()]
        index.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        run = index.parents[3]
        (run / "manifest.json").write_text(json.dumps({**manifest, "pid": os.getpid() if pid == "own" else pid}))
    suspects = find_suspects(ascend_dump.open(tmp_path)).suspects
    assert [one.rule for one in suspects] == ([] if words is None else ["collective-order"])
    assert all(str(words) in one.reason for one in suspects)


def test_an_interrupted_program_may_have_been_healthy(tmp_path: Path) -> None:
    write_rows(tmp_path, RULES["collective-order"].trips)
    failure = "the program was interrupted (KeyboardInterrupt) inside the capture"
    manifest = {"schema": "ascend-dump/host/1", "state": "incomplete", "failure": failure}
    for run in tmp_path.glob("*/*"):
        (run / "manifest.json").write_text(json.dumps(manifest))
    [suspect] = find_suspects(ascend_dump.open(tmp_path)).suspects
    assert suspect.reason.endswith("; the program was interrupted, maybe before that rank came to the call")


def unequal(*names: str, completed: int = 9, ranks: int = 2) -> list[Row]:
    """Return reductions of these tensors on all ranks but the last one, and of the last name alone on that one."""
    rows = []
    for rank in range(ranks):
        of_rank = names if rank < ranks - 1 else names[-1:]
        for number, name in enumerate(of_rank):
            call = CollectiveCall("all_reduce", "0", f"0-{ranks - 1}", number)
            row = Row("c10d::allreduce_", f"r_{number}", "input", sized(1), rank=rank, parameter=name, collective=call)
            rows += [row] if number >= completed else [row, row._replace(io="output")]
    return rows


class TestCollectiveOrder:
    def test_a_rank_that_skips_a_call_runs_the_next_one_in_its_place(self, tmp_path: Path) -> None:
        rows = unequal("a.grad", "b.grad", completed=1, ranks=3)
        [suspect] = find_suspects(write_rows(tmp_path, rows)).suspects
        assert (suspect.rule, suspect.rank) == ("collective-order", 2)
        assert "rank 2 never began all_reduce of a.grad" in suspect.reason
        assert "and ran all_reduce of b.grad" in suspect.reason
        assert "ranks 0-1 waited at the end in all_reduce of b.grad" in suspect.reason

    def test_completed_calls_are_no_hang(self, tmp_path: Path) -> None:
        assert find_suspects(write_rows(tmp_path, unequal("a.grad", "b.grad"))).suspects == ()

    def test_a_recording_that_ended_early_is_no_hang(self, tmp_path: Path) -> None:
        """Rank 0 lacks the results of its last call, and all later calls, which rank 1 completed."""
        rows = [row for row in RULES["collective-order"].passes if row.rank == 0]
        ended = [row._replace(rank=1) for row in rows if row.op_name == "r_0"][:-1]
        other = [Row("aten::mm", "mm_0", "output", sized(1), rank=1)]
        assert find_suspects(write_rows(tmp_path, [*rows, *other, *ended])).suspects == ()

    def test_only_steps_that_all_ranks_kept_are_compared(self, tmp_path: Path) -> None:
        rows = [row._replace(step=1) for row in RULES["collective-order"].trips]
        earlier = [row._replace(step=0) for row in RULES["collective-order"].trips if row.rank == 1]
        [suspect] = find_suspects(write_rows(tmp_path, [*earlier, *rows])).suspects
        assert "rank 0 waits in all_reduce at t.py:1 (number 2 of its kind in group 0, step 1)" in suspect.reason

    def test_without_outputs_nothing_is_known_to_wait(self, tmp_path: Path) -> None:
        rows = [row for row in RULES["collective-order"].trips if row.io == "input"]
        assert find_suspects(write_rows(tmp_path, rows)).suspects == ()

    @pytest.mark.parametrize(("hashes", "rules"), [("aa", ["collective-order"]), ("ab", [])])
    def test_gradients_of_one_parameter_are_added_up_in_one_order(
        self, tmp_path: Path, hashes: str, rules: list[str]
    ) -> None:
        """Experts that each rank numbers in its own way are other parameters: their values differ from the start."""
        rows = []
        for rank, content in enumerate(hashes):
            for name in "xy":
                row = Row("aten::t", f"{name}/t_0", "input", sized(1), rank=rank, parameter=name, hash=content + name)
                rows.append(row)
            for number, name in enumerate("xy" if rank == 0 else "yx"):
                call = CollectiveCall("all_reduce", "0", "0-1", number)
                row = Row("c10d::allreduce_", f"r_{number}", "input", sized(1), rank=rank, parameter=f"{name}.grad")
                rows += [row._replace(collective=call), row._replace(collective=call, io="output")]
        suspects = find_suspects(write_rows(tmp_path, rows)).suspects
        assert [one.rule for one in suspects] == rules
        assert all("rank 1 runs all_reduce of y.grad" in one.reason for one in suspects)
        assert all(one.reason.endswith("in another order") for one in suspects)

    def test_ranks_that_wait_for_a_waiting_rank_are_no_cause(self, tmp_path: Path) -> None:
        """Ranks 0 and 1 wait for rank 2, which waits for rank 3 in another group."""
        calls = {
            0: [CollectiveCall("all_reduce", "a", "0-2")],
            1: [CollectiveCall("all_reduce", "a", "0-2")],
            2: [CollectiveCall("all_reduce", "b", "2-3")],
        }
        rows = [Row("aten::mm", "mm_0", "output", sized(1), rank=rank) for rank in range(4)]
        for rank, of_rank in calls.items():
            rows += [Row("c10d::allreduce_", "r_0", "input", sized(1), rank=rank, collective=call) for call in of_rank]
        [suspect] = find_suspects(write_rows(tmp_path, rows)).suspects
        assert "rank 2 waits in all_reduce at r_0 (number 0 of its kind in group b, step 0)" in suspect.reason
        assert "which rank 3 never began: the last operator of rank 3 is aten::mm at mm_0" in suspect.reason


def test_two_ranks_prepare_a_collective_with_parts_of_their_own(tmp_path: Path) -> None:
    gather = "fsdp::all_gather_copy_in"
    rows = [Row(gather, "0/all_gather_copy_in_0", "output", sized(1), rank=rank, hash=f"{rank}") for rank in (0, 1)]
    assert find_suspects(write_rows(tmp_path, rows)).suspects == ()


def test_memory_that_an_operator_replaces_is_not_read(tmp_path: Path) -> None:
    rows = [
        Row("aten::empty", "empty_0", "output", None, storage=1, skipped="uninitialised memory"),
        Row("aten::set_", "set__0", "input", sized(1), storage=1),
        Row("aten::set_", "set__0", "input", sized(1), index=1, storage=2),
        Row("aten::set_", "set__0", "output", sized(1), storage=2),
    ]
    assert find_suspects(write_rows(tmp_path, rows)).suspects == ()


def sized(rms: float) -> Statistics:
    return Statistics(1000, 2 * rms, -2 * rms, 0.0, rms * 1000**0.5, 0, 0, 0, 0)


def test_layers_of_which_one_cannot_be_read_to_its_end_are_not_held_against_each_other(tmp_path: Path) -> None:
    rows = []
    for number, (inside, end) in enumerate(((1.0, 0.01), (1.0, None))):
        module = f"layers.{number}.mlp"
        rows.append(Row("aten::mm", f"{module}/mm_0", "output", sized(inside), module=module))
        found = None if end is None else sized(end)
        rows.append(Row("aten::gelu", f"{module}/gelu_0", "output", found, module=module))
    assert not [one for one in find_suspects(write_rows(tmp_path, rows)).suspects if one.rule == "layer-growth"]


def test_a_constant_that_is_inf_is_the_programs_choice(tmp_path: Path) -> None:
    far = Statistics(1, float("inf"), float("inf"), float("inf"), float("inf"), 0, 1, 0, 0)
    rows = [Row("aten::lift_fresh", "lift_fresh_0", io, far) for io in ("input", "output")]
    assert find_suspects(write_rows(tmp_path / "a", rows)).suspects == ()
    wrong = far._replace(nan=1, posinf=0)
    rows = [Row("aten::lift_fresh", "lift_fresh_0", io, wrong) for io in ("input", "output")]
    assert [one.rule for one in find_suspects(write_rows(tmp_path / "b", rows)).suspects] == ["non-finite"]


@pytest.mark.parametrize(
    ("parameter", "rules"), [("fc.weight", ["replicas"]), ("fc.weight.grad", []), ("exp_avg of fc.weight", [])]
)
def test_only_parameters_are_the_same_on_all_ranks(parameter: str, rules: list[str], tmp_path: Path) -> None:
    """Optimizers whose state is divided among ranks keep other tensors on each."""
    rows = []
    for rank in range(4):
        for step in (0, 1):
            other = rank == 2 and step == 1
            value = 5.0 if other else 1.0
            found = Statistics(1000, value, value, value, value * 1000**0.5, 0, 0, 0, 0, 0, 0)
            content = ("b" if other else "a") * 32
            rows.append(Row("aten::mul_", "mul__0", "output", found, step=step, phase="other", hash=content, rank=rank))
    write_rows(tmp_path, rows)
    for index in tmp_path.rglob("index.jsonl"):
        lines = [{**json.loads(line), "parameter": parameter} for line in index.read_text().splitlines()]
        index.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert [one.rule for one in find_suspects(ascend_dump.open(tmp_path)).suspects] == rules

"""Facts that a triage learns of a run: its output, the values that it looked at, and steps as trainers count them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from suspect_dumps import write_rows

from ascend_dump.analysis.suspects import Row
from ascend_dump.dump_format import Outline, OutlineLine, Over
from ascend_dump.statistics import Statistics
from ascend_dump.triage_runs.input_patterns import input_patterns
from ascend_dump.triage_runs.looked_at import looked_at, not_looked_at
from ascend_dump.triage_runs.output import CommandOutput
from ascend_dump.triage_runs.trainer_steps import trainer_step


@pytest.mark.parametrize(
    "line", ["loss nan", "{'loss': nan, 'epoch': 1}", "tensor(nan, grad_fn=<MulBackward0>)", "step 3 loss=NaN,", "-nan"]
)
def test_a_line_with_nan_is_found(tmp_path: Path, line: str) -> None:
    with CommandOutput(tmp_path, None) as output:
        output.files[0].write(f"step 1 loss 0.5\n{line}\nstep 3\n".encode())
        output.follow()
    assert output.nan_line == line


@pytest.mark.parametrize("line", ["nanmean 0.5", "banana", "torch.nan_to_num", "logging_nan_inf_filter", "runs/nan/1"])
def test_words_with_nan_are_no_numbers(tmp_path: Path, line: str) -> None:
    with CommandOutput(tmp_path, None) as output:
        output.files[1].write(f"{line}\n".encode())
    assert (output.nan_line, output.last_error) == ("", line)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_last_error_is_the_last_version_of_its_line(tmp_path: Path, end: str) -> None:
    with CommandOutput(tmp_path, None) as output:
        output.files[1].write(f"10 %\rRuntimeError: broken{end}".encode())
    assert output.last_error == "RuntimeError: broken"


def test_output_is_passed_on_once_and_as_it_is(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with CommandOutput(tmp_path, (writing, writing)) as output:
        output.files[0].write(b"\x00\xffa\rb")
        output.follow()
        output.follow()
    os.close(writing)
    assert os.read(reading, 100) == b"\x00\xffa\rb"
    os.close(reading)


def outline(*lines: OutlineLine) -> Outline:
    read = Outline("0-1")
    for line in lines:
        read.add(line)
    return read


def test_accumulated_steps_are_named_by_optimizer_steps_and_micro_batches() -> None:
    lines = [OutlineLine(step=step, update=step // 4, passes=step, updated_at=100 + step) for step in range(3)]
    lines += [OutlineLine(step=step, update=step // 4, passes=step) for step in range(4, 12)]
    assert trainer_step(10, 0, 0, [outline(*lines)]) == "optimizer step 2, micro-batch 2 (backward pass 10 of all)"


def test_what_follows_the_optimizer_belongs_to_its_next_step() -> None:
    lines = [OutlineLine(step=step, update=step, passes=step, updated_at=10 * step + 5) for step in range(4)]
    assert trainer_step(2, 0, 24, [outline(*lines)]) == ""
    assert trainer_step(2, 0, 26, [outline(*lines)]) == "optimizer step 3"


def test_without_an_optimizer_there_is_nothing_to_name() -> None:
    assert trainer_step(1, None, 5, [outline(OutlineLine(step=0, update=0), OutlineLine(step=1, update=0))]) == ""


def test_what_was_looked_at_is_counted_and_what_was_not_is_named() -> None:
    ended = outline(OutlineLine(step=0), OutlineLine(over=Over.ENDED, looked={"loss": 1, "read": 2}))
    assert looked_at([ended]) == "1 step: 1 loss, 2 numbers that the program reads"
    assert list(not_looked_at([ended])) == []
    assert list(not_looked_at([outline(OutlineLine(step=3))])) == ["not checked: process 0-1 after step 3"]


RIGHT = Statistics(9, 2.0, -2.0, 0.0, 3.0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("operator", "values", "words"),
    [
        ("div", RIGHT._replace(zero=2), "input 0 has 2 zeros"),
        ("div", RIGHT._replace(min=0.0, max=0.0, zero=9), "input 0 is zero everywhere"),
        ("mul", RIGHT._replace(zero=2, max=300.0), "input 0 has values from -2 to 300"),
        ("nll_loss_forward", RIGHT._replace(min=-100, max=-100), "input 0 has the value -100 everywhere"),
        ("sqrt", RIGHT, "input 0 has values from -2 to 2, which begin below 0"),
        ("acos", RIGHT._replace(max=1.0000001), "input 0 has values from -2 to 1.0000001"),
        ("exp", RIGHT._replace(posinf=1), "input 0 has Inf"),
    ],
)
def test_patterns_in_inputs(tmp_path: Path, operator: str, values: Statistics, words: str) -> None:
    dump = write_rows(tmp_path, [Row(f"aten::{operator}", f"{operator}_0", "input", values)])
    assert input_patterns(list(dump)) == words

"""Whole programs captured without a change to their code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from processes import ASCEND_DUMP_RUN, HERE, run_command, run_python
from workloads import make_bert, make_llama, run

import ascend_dump
from ascend_dump import Dump

STEPS = "1|5|7"


def run_workload(result: Path, name: str = "llama", **values: Any) -> dict[str, Any]:
    run_python(HERE / "workloads.py", name, result, **values)
    return json.loads(result.read_text())


def hashes(dump: Dump) -> dict[tuple[Any, ...], str]:
    return {
        (record.step, record.op_name, record.io, record.index): record.attrs["hash"]
        for record in dump
        if record.attrs.get("skipped") != "uninitialised memory"
    }


def test_variable(tmp_path: Path) -> None:
    plain = run(make_llama())._asdict()
    outcome = run_workload(tmp_path / "llama.json", ASCEND_DUMP=f"steps={STEPS},path={tmp_path / 'dump'}")
    assert outcome == plain
    dump = ascend_dump.open(tmp_path / "dump")
    assert {record.model for record in dump} == {"LlamaForCausalLM"}

    model = make_llama()
    with ascend_dump.capture(model, steps=STEPS, path=tmp_path / "block", strict=True) as cap:
        assert run(model)._asdict() == plain
    assert hashes(dump) == hashes(cap.dump())


def test_run(tmp_path: Path) -> None:
    plain = run(make_bert())._asdict()
    done = run_command(
        *(*ASCEND_DUMP_RUN, "--steps", STEPS, "--path", tmp_path / "dump", "--layers", "bert.pooler*", "--"),
        *(sys.executable, HERE / "workloads.py", "bert", tmp_path / "bert.json"),
    )
    assert json.loads((tmp_path / "bert.json").read_text()) == plain
    dump = ascend_dump.open(tmp_path / "dump")
    assert {record.step for record in dump} == {1, 5}
    assert {record.module for record in dump} == {"bert.pooler", "bert.pooler.dense", "bert.pooler.activation"}
    assert "wrote nothing" not in done.stderr


def test_program_that_reaches_no_selected_step_says_so(tmp_path: Path) -> None:
    done = run_python(
        HERE / "workloads.py", "bert", tmp_path / "bert.json", ASCEND_DUMP=f"steps=99,path={tmp_path / 'dump'}"
    )
    assert "steps=99 was not reached: 6 steps ran" in done.stderr

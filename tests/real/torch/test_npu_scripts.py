"""Programs for NPUs with the real `transformers` and torchrun, on the fake torch_npu."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from processes import PROGRAMS, run_command, run_python


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    program = PROGRAMS / "npu_trainer.py"
    fake = ("-m", "ascend_dump.fakes", "torch_npu", "--")
    on_npu = run_python(*fake, program, tmp_path / "npu", "npu", OMP_NUM_THREADS=1)
    on_host = run_python(program, tmp_path / "cpu", "cpu", OMP_NUM_THREADS=1)
    npu, host = (json.loads(run.stdout.splitlines()[-1]) for run in (on_npu, on_host))
    assert (npu["device"], host["device"]) == ("npu:0", "cpu")
    assert len(npu["losses"]) == 3
    assert npu["losses"] == pytest.approx(host["losses"], abs=1e-3)
    assert list((tmp_path / "npu" / "checkpoint-3").glob("model*"))


def test_ranks_of_hccl() -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2)
    program = ("-m", "ascend_dump.fakes", "torch_npu", "--", PROGRAMS / "npu_ranks.py")
    run = run_command(*torchrun, *program, OMP_NUM_THREADS=1)
    ranks = sorted((json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")), key=str)
    assert [rank["device"] for rank in ranks] == ["npu:0", "npu:1"]
    assert {rank["backend"] for rank in ranks} == {"hccl"}
    for rank in ranks:
        # Shards of parameters are gathered, and gradients averaged: both compute the same.
        assert rank["fsdp"] == pytest.approx(rank["ddp"], abs=1e-3)

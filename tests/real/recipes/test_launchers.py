"""Commands of the recipes that start several processes: the Trainer under torchrun, and the tasks of Slurm's srun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ascend_dump
from ascend_dump.cli.shared.help_texts import topic_text

RANKS = 2
#: A stand-in for srun: it starts the tasks on this host, with the variables that srun sets.
SRUN = """\
#!/bin/sh
tasks=$2
shift 2
export SLURM_NTASKS=$tasks SLURM_STEP_NUM_TASKS=$tasks SLURM_NNODES=1
code=0
started=""
for task in $(seq 0 $((tasks - 1))); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    started="$started $!"
done
for process in $started; do
    wait $process || code=1
done
exit $code
"""


def blocks(page: str) -> list[str]:
    """Return the indented blocks of a page."""
    found = re.findall(r"(?:^ {4}.*\n|^\n(?=\n* {4}))+", topic_text(page).text, re.MULTILINE)
    return [textwrap.dedent(block).strip("\n") for block in found]


def run_page(page: str, beginning: str, count: str, directory: Path) -> ascend_dump.Dump:
    """Run the program of a page by its command with this beginning, on two ranks, and return the dump.

    count: the text in which the command names eight ranks
    """
    (program,) = [block for block in blocks(page) if block.startswith("# train.py\n")]
    (directory / "train.py").write_text(program)
    command = next(line for block in blocks(page) for line in block.splitlines() if line.startswith(beginning))
    assert f"{count} 8 " in command
    (directory / "srun").write_text(SRUN)
    (directory / "srun").chmod(0o755)
    path = f"{directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command.replace(f"{count} 8 ", f"{count} {RANKS} ")],
        cwd=directory,
        env={**os.environ, "PATH": path, "MASTER_ADDR": "localhost", "MASTER_PORT": "29537"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return ascend_dump.open(directory / "dumps")


def check(dump: ascend_dump.Dump, op: str, calls: int) -> None:
    """Check the records of both ranks in step 1: this operator so often, the optimizer, and reduced gradients."""
    assert sorted(run.path.parent.name for run in dump.runs()) == ["worldsize2_global_rank0", "worldsize2_global_rank1"]
    assert [run.state.value for run in dump.runs()] == ["complete"] * RANKS
    assert dump.steps == [1]
    for rank in range(RANKS):
        called = dump.select(rank=rank, op=op, io="output", phase="forward")
        assert len({record.op_name for record in called}) == calls
    reduced = dump.select(op="*allreduce*", io="output")
    assert {record.attrs["collective"]["ranks"] for record in reduced} == {"0-1"}
    found = ascend_dump.triage(dump)
    assert (found.suspects, found.reasons) == ((), ())


def test_the_trainer_under_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    dump = run_page("recipe-trainer", "ascend-dump run ", "--nproc-per-node", tmp_path)
    check(dump, "*embed_tokens/embedding*", 2)


def test_the_tasks_of_srun(tmp_path: Path) -> None:
    dump = run_page("recipe-slurm", "srun --ntasks-per-node 8 ascend-dump", "--ntasks-per-node", tmp_path)
    check(dump, "*addmm*", 2)

"""The rank of a process, from the variables of its launcher."""

from __future__ import annotations

import pytest

from ascend_dump.adapter import Rank
from ascend_dump.common.rank import current_rank

NAMES = ("RANK", "WORLD_SIZE", "RANK_ID", "RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Rank(0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Rank(3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Rank(1, 2)),
        # A task of srun.
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS": "16"}, Rank(5, 16)),
        # torchrun in a task of srun: its ranks are those that count.
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "9", "WORLD_SIZE": "16"}, Rank(9, 16)),
        # A program in the batch script itself, which has the number of all tasks, and one process.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, Rank(0, 1)),
        ({"SLURM_PROCID": "x", "SLURM_STEP_NUM_TASKS": "2"}, Rank(0, 1)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "many"}, Rank(3, 4)),
    ],
)
def test_the_rank_is_that_of_the_launcher(
    variables: dict[str, str], expected: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*NAMES, *SLURM):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert current_rank() == expected

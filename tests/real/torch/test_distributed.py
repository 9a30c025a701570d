"""Two ranks on gloo: their trees, their values, and the wrappers that move parameters around."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from processes import ASCEND_DUMP_RUN, PROGRAMS, run_command

import ascend_dump

TORCHRUN = (Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", "2")
RANKS = ("worldsize2_global_rank0", "worldsize2_global_rank1")


def losses_in(directory: Path) -> list[list[str]]:
    return [json.loads((directory / f"losses{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    directory = tmp_path_factory.mktemp("plain")
    run_command(*TORCHRUN, PROGRAMS / "ranks.py", "train", directory)
    return losses_in(directory)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fully_shard"])
def test_capture_in_the_script(kind: str, tmp_path: Path) -> None:
    """The program holds each rank's dump against a naive recording, see programs/ranks.py."""
    run_command(*TORCHRUN, PROGRAMS / "ranks.py", "capture", tmp_path, kind)
    assert tuple(sorted(path.name for path in (tmp_path / "wrapper").iterdir())) == RANKS


def test_nothing_is_recorded_while_a_collective_writes_it(tmp_path: Path) -> None:
    run_command(*TORCHRUN, PROGRAMS / "ranks.py", "collectives", tmp_path)


def test_launcher_writes_a_tree_for_each_rank(plain: list[list[str]], tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    run_command(
        *(*ASCEND_DUMP_RUN, "--steps", "1|3", "--path", dumps, "--"),
        *(*TORCHRUN, PROGRAMS / "ranks.py", "train", tmp_path),
    )
    assert losses_in(tmp_path) == plain
    assert tuple(sorted(path.name for path in dumps.iterdir())) == RANKS
    dump = ascend_dump.open(dumps)
    assert dump.known_values("rank") == {0, 1}
    for step in (1, 3):
        weights, inputs = (
            [record.attrs["hash"] for record in dump.select("blocks.0.up/addmm_0", step=step, io="input", index=index)]
            for index in (2, 1)
        )
        assert len(weights) == len(inputs) == 2
        assert weights[0] == weights[1], "the ranks hold the same weights"
        assert inputs[0] != inputs[1], "and see different data"


def test_variable_with_one_rank_selected(plain: list[list[str]], tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    variable = f"steps=1|3,ranks=1,path={dumps}"
    run_command(*TORCHRUN, PROGRAMS / "ranks.py", "train", tmp_path, ASCEND_DUMP=variable)
    assert losses_in(tmp_path) == plain
    assert [path.name for path in dumps.iterdir()] == [RANKS[1]]
    losses = ascend_dump.open(dumps).select("nll_loss_forward_0", io="output", index=0)
    assert [float(record.numpy()).hex() for record in losses] == [plain[1][1], plain[1][3]]

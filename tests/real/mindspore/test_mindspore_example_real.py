"""The example on the real MindSpore: the same commands, the same scripts, and as many records as on the fake."""

from __future__ import annotations

import re

import pytest
from readmes import Walked, walk_through

import ascend_dump

pytest.importorskip("mindspore")


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    def change(readme: str) -> str:
        """Without the simulated MindSpore, and without the part that needs a device."""
        return readme.partition("## 4.")[0].replace('run="python simulated.py"', "run=python")

    return walk_through("05_mindspore", tmp_path_factory.mktemp("mindspore"), change)


def test_losses_are_the_same_with_and_without_a_dump(walked: Walked) -> None:
    losses = re.findall(r"^epoch: 1 step: \d, loss is (\S+)$", walked.printed, re.MULTILINE)
    assert losses[:6] == losses[6:12] == losses[12:18]
    assert len(losses) == 18


def test_the_records_are_as_many_as_on_the_fake(walked: Walked) -> None:
    for name in ("dumps", "captured"):
        dump = ascend_dump.open(walked.place / name)
        assert dump.errors() == []
        assert len(dump) == 250
    [record] = ascend_dump.open(walked.place / "launched")
    assert (record.op_type, record.step, record.io, record.shape) == ("MaxPool", 1, "output", (8, 4, 3, 3))

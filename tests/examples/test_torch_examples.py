"""The examples that need PyTorch: every command of their READMEs, and what it leaves."""

from __future__ import annotations

import re

import pytest
from places import REPOSITORY
from preloaded import COMPILER
from readmes import Walked, walk_once

import ascend_dump

pytest.importorskip("torch")

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("01_pytorch_training", tmp_path_factory, imported=COMPILER)


@pytest.fixture(scope="module")
def overflow(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("02_first_overflow", tmp_path_factory, imported=COMPILER)


class TestTraining:
    def test_losses_are_the_same_with_and_without_a_capture(self, training: Walked) -> None:
        losses = re.findall(r"^step \d: loss .*$", training.printed, re.MULTILINE)
        plain, captured, launched = losses[:4], losses[4:8], losses[8:]
        assert plain == captured == launched

    def test_the_dump_holds_the_selected_steps(self, training: Walked) -> None:
        dump = ascend_dump.open(training.place / "dumps")
        assert dump.known_values("step") == {0, 2}
        assert f"{len(dump)} records of steps [0, 2]" in training.printed
        (record,) = dump.select(op="conv1/convolution_0", step=2, io="output")
        assert record.source.startswith(str(training.place / "train.py"))

    def test_the_launcher_wrote_statistics_only(self, training: Walked) -> None:
        assert list((training.place / "launched").rglob("statistic.csv"))
        assert not list((training.place / "launched").rglob("*.safetensors"))


class TestOverflow:
    def test_the_first_operator_is_named_with_its_line(self, overflow: Walked) -> None:
        script = (REPOSITORY / "examples" / "02_first_overflow" / "train.py").read_text().splitlines()
        line = next(number for number, text in enumerate(script, 1) if "wide.pow(2)" in text)
        assert "1. aten::pow blocks.0.norm/pow_0  (first)" in overflow.printed
        assert "blocks.0.norm/pow_0 (aten::pow), step 3, forward pass" in overflow.printed
        assert f"train.py:{line}\n" in overflow.printed
        assert "all of them in sample [5] of the batch" in overflow.printed

    def test_the_repaired_network_overflows_nowhere(self, overflow: Walked) -> None:
        assert {record.step for record in ascend_dump.open(overflow.place / "dumps")} == {3}
        assert not list((overflow.place / "repaired").rglob("index.jsonl"))

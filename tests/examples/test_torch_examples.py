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


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("09_nan_at_step_4000", tmp_path_factory, imported=COMPILER)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("08_wrong_numbers", tmp_path_factory, imported=COMPILER)


@pytest.fixture(scope="module")
def rollout(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("16_rollout_and_trainer", tmp_path_factory, imported=COMPILER)


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


class TestRecorder:
    def test_the_loss_shows_it_a_step_too_late(self, recorder: Walked) -> None:
        losses = dict(re.findall(r"^step (\d+): loss (.*)$", recorder.printed, re.MULTILINE)[:7])
        assert losses["401"] == "nan"
        assert float(losses["400"]) < 1

    def test_the_steps_around_the_fault_are_there(self, recorder: Walked) -> None:
        dump = ascend_dump.open(recorder.place / "dumps")
        assert {record.step for record in dump} == {397, 398, 399, 400}
        assert "397 older steps were removed (keep=3)" in recorder.printed
        assert "the recording ended at step 400: -Inf in length/div_0.output.0" in recorder.printed

    def test_the_program_is_run_until_the_operator_is_known(self, recorder: Walked) -> None:
        assert "cause       length/div_0 (aten::div), step 400" in recorder.printed
        assert "why         " in recorder.printed

    def test_the_operator_is_named(self, recorder: Walked) -> None:
        assert "1. aten::div length/div_0  (first)" in recorder.printed
        assert "values · step 400" in recorder.printed

    def test_the_repaired_network_ends_nothing(self, recorder: Walked) -> None:
        (run,) = ascend_dump.open(recorder.place / "repaired").runs()
        assert run.notes[-1] == "no step produced NaN or Inf, as far as it was recorded"
        assert {record.step for record in ascend_dump.open(recorder.place / "repaired")} == {497, 498, 499}


class TestNumbers:
    def test_the_losses_do_not_tell(self, numbers: Walked) -> None:
        losses = [float(text) for text in re.findall(r"^step \d+: loss (.*)$", numbers.printed, re.MULTILINE)[:8]]
        assert all(abs(right - ported) < 0.1 for right, ported in zip(losses[:4], losses[4:]))

    def test_the_comparison_names_the_scale(self, numbers: Walked) -> None:
        script = (REPOSITORY / "examples" / "08_wrong_numbers" / "train.py").read_text().splitlines()
        line = next(number for number, text in enumerate(script, 1) if "* self.scale" in text)
        assert "origin      blocks.0.attention/mul_0 (aten::mul), step 0" in numbers.printed
        assert "other: 0.125 here, 0.25 in the reference" in numbers.printed
        assert f"train.py:{line}\n" in numbers.printed
        assert (numbers.place / "page.html").read_text().startswith("<!")

    def test_the_triage_confirms_it(self, numbers: Walked) -> None:
        assert "cause       blocks.0.attention/mul_0 (aten::mul), step 0" in numbers.printed
        words = " ".join(numbers.printed.split())
        assert "confirm confirmed: with the reference's output of blocks.0.attention/mul_0" in words
        assert "blocks.1.attention/mul_0, a cause of its own" in words


class TestRollout:
    def test_the_norm_is_named_with_its_epsilon(self, rollout: Walked) -> None:
        script = (REPOSITORY / "examples" / "16_rollout_and_trainer" / "program.py").read_text().splitlines()
        line = next(number for number, text in enumerate(script, 1) if "self.feed(self.n2(x))" in text)
        _, origin = rollout.printed.split("\norigin ")
        assert origin.split()[0] == "blocks.1.n2/native_layer_norm_0"
        assert f"program.py:{line}\n" in origin
        assert "evidence    eps: 0.1 here, 1e-05 in the reference" in origin

    def test_weights_rows_and_the_mended_engine_are_equal(self, rollout: Walked) -> None:
        answers = re.findall(r"^(equal|different|ok|noise|wrong): ", rollout.printed, re.MULTILINE)
        assert answers[:3] == ["equal", "different", "noise"]
        assert answers[3] in ("equal", "noise")
        assert answers[4:] == ["ok"]

    def test_the_log_probabilities_are_those_that_the_page_shows(self, rollout: Walked) -> None:
        scores = [
            [float(word) for word in line.split()]
            for line in rollout.printed.splitlines()
            if re.match(r"-\d\.\d{4} ", line)
        ]
        engine, trainer, mended = scores[:3]
        assert mended == pytest.approx(trainer, abs=1e-4)
        assert max(abs(a - b) for a, b in zip(engine, trainer)) > 1e-3

"""The example of torchair on the simulated device: every command of its README, and what it leaves."""

from __future__ import annotations

import re

import pytest
from preloaded import COMPILER
from readmes import Walked, walk_once

import ascend_dump

pytest.importorskip("torch")

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("04_torchair", tmp_path_factory, imported=COMPILER)


def test_losses_are_the_same_with_and_without_a_capture(walked: Walked) -> None:
    losses = re.findall(r"^rank 0 step \d: loss .*$", walked.printed, re.MULTILINE)
    plain, captured, launched = losses[:4], losses[4:8], losses[-4:]
    assert plain == captured == launched


def test_the_dump_holds_the_selected_steps_of_both_graphs(walked: Walked) -> None:
    dump = ascend_dump.open(walked.place / "dumps")
    assert dump.known_values("step") == {0, 2}
    assert len(dump.known_values("model")) == 2
    assert len(dump.select(op_type="ReluGrad", step=2, io="output")) == 1


def test_the_launcher_dumps_the_same_operators(walked: Walked) -> None:
    one, other = (ascend_dump.open(walked.place / name).select(step=0) for name in ("dumps", "launched"))
    assert [(r.model, r.op_name, r.io) for r in one] == [(r.model, r.op_name, r.io) for r in other]
    assert len(one) > 0


def test_each_rank_has_its_own_dump(walked: Walked) -> None:
    dump = ascend_dump.open(walked.place / "ranks")
    assert dump.known_values("rank") == {0, 1}
    (one,), (other,) = (dump.select(op="Relu", step=0, rank=rank, io="output") for rank in (0, 1))
    assert (one.numpy() != other.numpy()).any()
    # torchair itself knew the ranks.
    assert {path.name for path in (walked.place / "ranks").glob("*/*/worldsize*")} == {
        "worldsize2_global_rank0",
        "worldsize2_global_rank1",
    }


def test_the_module_is_compiled_for_the_block_only(walked: Walked) -> None:
    assert "behind the block the module is eager again: True" in walked.printed
    assert re.search(r"^Relu +Relu +\(16, 32\)$", walked.printed, re.MULTILINE)
    assert re.search(r"^Add_1 +Add +addmm_1 +aten.addmm.default +.*network.py:\d+", walked.printed, re.MULTILINE)


def test_what_is_wrong_with_options_is_told(walked: Walked) -> None:
    assert "'5-2' is not an ascending range" in walked.printed
    assert "'Add_1Mul_1' looks like two names" in walked.printed
    assert list(walked.place.glob("ge_dump_data_json")) == []

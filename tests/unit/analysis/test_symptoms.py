"""From what the user sees back to the operator that made it NaN or Inf."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest
from suspect_dumps import write_rows

from ascend_dump.analysis.suspects import Row
from ascend_dump.analysis.suspects.symptoms import Traced, failed_operator, trace_symptoms
from ascend_dump.dump_format import SYMPTOM
from ascend_dump.statistics import Statistics

RIGHT = Statistics(9, 2.0, -2.0, 0.0, 3.0, 0, 0, 0, 0)
LOW = RIGHT._replace(min=float("-inf"), neginf=3)
MASK = LOW._replace(max=0.0, zero=6)
NAN = RIGHT._replace(nan=3)


def operator(
    name: str, given: Statistics, made: Statistics, *storages: int, step: int = 0, module: str = ""
) -> list[Row]:
    """One that reads the first storage and writes the second."""
    kind, (read, written) = f"aten::{name[:-2]}", storages
    return [
        Row(kind, name, "input", given, step=step, storage=read, module=module),
        Row(kind, name, "output", made, step=step, storage=written, module=module),
    ]


def symptom(kind: str, given: Statistics, storage: int, step: int = 0) -> list[Row]:
    return [Row(f"{SYMPTOM}{kind}", f"{kind}_0", "input", given, step=step, storage=storage, phase="other")]


def traced(root: Path, *rows: list[Row], trains: bool = True) -> Optional[Traced]:
    return trace_symptoms(write_rows(root, [row for group in rows for row in group]), trains=trains)


def source(root: Path, *rows: list[Row]) -> tuple[str, str]:
    found = traced(root, *rows)
    assert found is not None
    return found.source.kind, found.source.record.op_name


def test_only_the_operator_from_which_the_loss_comes_is_the_source(tmp_path: Path) -> None:
    metric = operator("div_0", RIGHT, NAN, 1, 2), operator("nanmean_0", NAN, RIGHT, 2, 3)
    loss = operator("log_0", RIGHT, NAN, 4, 5), operator("mean_0", NAN, NAN, 5, 6), symptom("loss", NAN, 6)
    found = traced(tmp_path, *metric, *loss)
    assert found is not None
    assert (found.source.kind, found.source.record.op_name) == ("made", "log_0")
    assert [record.op_name for record in found.harmless] == ["div_0"]
    assert "the loss in step 0" in found.reaches
    assert "mean_0" in found.reaches


def test_without_a_symptom_nothing_is_known(tmp_path: Path) -> None:
    assert traced(tmp_path, operator("log_0", RIGHT, NAN, 1, 2)) is None


def test_memory_that_was_written_again_does_not_count(tmp_path: Path) -> None:
    rows = operator("div_0", RIGHT, NAN, 1, 2), operator("log_0", RIGHT, NAN, 3, 2), symptom("loss", NAN, 2)
    assert source(tmp_path, *rows) == ("made", "log_0")


def test_a_mask_is_not_the_source_of_what_softmax_makes_of_it(tmp_path: Path) -> None:
    rows = operator("masked_fill_0", RIGHT, LOW, 1, 2), operator("_softmax_0", LOW, NAN, 2, 3), symptom("loss", NAN, 3)
    assert source(tmp_path, *rows) == ("nan-made", "_softmax_0")


def test_inf_of_an_operator_is_the_source_of_the_nan_that_follows(tmp_path: Path) -> None:
    rows = operator("log_0", RIGHT, LOW, 1, 2), operator("mul_0", LOW, NAN, 2, 3), symptom("loss", NAN, 3)
    assert source(tmp_path, *rows) == ("made", "log_0")


def test_a_mask_from_before_the_recording_is_one(tmp_path: Path) -> None:
    rows = operator("_softmax_0", MASK, NAN, 1, 2), symptom("loss", NAN, 2)
    assert source(tmp_path / "mask", *rows) == ("nan-made", "_softmax_0")
    rows = operator("_softmax_0", LOW, NAN, 1, 2), symptom("loss", NAN, 2)
    assert source(tmp_path / "data", *rows) == ("outside", "_softmax_0")


def test_zeros_and_inf_that_an_operator_computes_are_the_source_of_nothing_better(tmp_path: Path) -> None:
    log, loss = operator("log_0", RIGHT, MASK, 1, 2), symptom("loss", NAN, 3)
    assert source(tmp_path / "softmax", log, operator("_softmax_0", MASK, NAN, 2, 3), loss) == (
        "nan-made",
        "_softmax_0",
    )
    low = symptom("loss", LOW, 3)
    assert source(tmp_path / "mean", log, operator("mean_0", MASK, LOW, 2, 3), low) == ("computed", "log_0")


@pytest.mark.parametrize(("parameter", "expected"), [("fc.weight", ("parameter filled", "fill_0")), ("", None)])
def test_inf_that_is_written_into_a_parameter_is_no_mask(tmp_path: Path, parameter: str, expected: object) -> None:
    fill = operator("fill_0", RIGHT, LOW, 1, 2)
    read = [row._replace(parameter=parameter if row.io == "input" else "") for row in operator("mm_0", LOW, LOW, 2, 3)]
    rows = fill, read, operator("sub_0", LOW, NAN, 3, 4), symptom("loss", NAN, 4)
    assert source(tmp_path, *rows) == (expected or ("nan-made", "sub_0"))


@pytest.mark.parametrize(("kind", "name"), [("outside", "mul_0"), ("taken in", "set_0"), ("constant", "lift_fresh_0")])
def test_what_no_operator_made(tmp_path: Path, kind: str, name: str) -> None:
    begin = {
        "outside": [],
        "taken in": operator("set_0", RIGHT, NAN, 9, 1),
        "constant": operator("lift_fresh_0", NAN, NAN, 9, 1),
    }[kind]
    rows = operator("mul_0", NAN, NAN, 1, 2), symptom("loss", NAN, 2)
    assert source(tmp_path, begin, *rows) == (kind, name)


def test_it_comes_from_the_step_before(tmp_path: Path) -> None:
    rows = operator("addcdiv_0", RIGHT, NAN, 1, 2), operator("mul_0", NAN, NAN, 2, 3, step=1)
    found = traced(tmp_path, *rows, symptom("loss", NAN, 3, step=1))
    assert found is not None
    assert (found.source.record.op_name, found.source.record.step) == ("addcdiv_0", 0)


@pytest.mark.parametrize(("module", "trains", "counts"), [("", True, False), ("", False, True), ("net", True, True)])
def test_a_number_beside_finite_losses_is_a_metric(tmp_path: Path, module: str, trains: bool, counts: bool) -> None:
    rows = operator("div_0", RIGHT, NAN, 1, 2, module=module), symptom("read", NAN, 2)
    found = traced(tmp_path, *rows, trains=trains)
    assert found is not None
    assert found.counts is counts


def test_a_number_that_is_inf_by_the_program_itself_never_counts(tmp_path: Path) -> None:
    rows = operator("full_0", RIGHT, LOW, 1, 2), operator("sub_0", LOW, NAN, 2, 3), symptom("read", NAN, 3)
    found = traced(tmp_path, *rows, trains=False)
    assert found is not None
    assert not found.counts


def test_the_operator_that_raised_at_the_end(tmp_path: Path) -> None:
    failing = [Row("aten::embedding", "embedding_0", "input", RIGHT, storage=1)]
    raised = [Row(f"{SYMPTOM}raised", "raised_0", "input", RIGHT, storage=1)]
    dump = write_rows(tmp_path / "unnamed", [*failing, *raised])
    assert not failed_operator(dump), "the symptom does not name it"


def test_what_reaches_a_symptom_unseen_is_not_called_harmless(tmp_path: Path) -> None:
    """The reducer of DDP copies buckets to gradients below PyTorch's dispatcher."""
    made = operator("_to_copy_0", RIGHT, NAN, 1, 2)
    clip = operator("mul_0", NAN, NAN, 7, 8)
    found = traced(tmp_path, made, clip, symptom("gradient", NAN, 8))
    assert found is not None
    assert (found.source.kind, found.source.record.op_name) == ("outside", "mul_0")
    assert ([one.op_name for one in found.possible], found.harmless) == (["_to_copy_0"], ())
    assert "; it may come from _to_copy_0 by a write that was not recorded" in found.reaches

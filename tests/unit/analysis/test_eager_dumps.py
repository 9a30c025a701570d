"""The analyses of eager NPU dumps, in which API calls have kernels, and the files of both sides are apart."""

from __future__ import annotations

import json

import eager_dumps
import numpy as np
import pytest

import ascend_dump
from ascend_dump.analysis.overflow import find_overflows
from ascend_dump.cli import main

X = np.arange(6, dtype="f4").reshape(2, 3)
BIG = np.full((2, 3), 60000, "f2")
INF = np.full((2, 3), np.inf, "f2")


@pytest.fixture
def reference(tmp_path):
    eager_dumps.write_program(tmp_path / "reference")
    return tmp_path / "reference"


@pytest.fixture
def ls(capsys):
    def run(*arguments):
        assert main(["ls", *map(str, arguments)]) == 0
        return capsys.readouterr().out

    return run


def test_ls_counts_api_calls_and_shows_kernels_on_request(reference, ls):
    text = ls(reference)
    assert "16 operators · 24 kernels · 108 records" in text
    assert "24 kernels are left out: --kernels" in text
    assert "MatMulCommon" not in text
    assert "aclnnMatmul_0/MatMulCommon_0" in ls(reference, "--kernels")
    document = json.loads(ls(reference, "--json"))
    assert (document["totals"]["operators"], document["totals"]["kernels"]) == (16, 24)
    assert {record["kernel"] for record in document["records"] if record["op_type"] == "aclnnAdd"} == {
        None,
        "AddAiCore",
    }


def test_runs_with_other_numbers_of_earlier_calls_are_equal(reference, tmp_path):
    eager_dumps.write_program(tmp_path / "actual", start=31)
    comparison = ascend_dump.compare(tmp_path / "actual", reference)
    assert comparison.verdict == "equal"
    assert len(comparison.pairs) == 108
    assert not comparison.unmatched
    names = {(pair.actual.op_name, pair.actual.rank, pair.actual.step) for pair in comparison.pairs}
    assert names == {(pair.reference.op_name, pair.reference.rank, pair.reference.step) for pair in comparison.pairs}


def test_steps_and_ranks_are_equal_to_each_other(tmp_path):
    for step in (0, 1):
        npu = eager_dumps.device(tmp_path, step=step, rank=0, number=50 * step)
        eager_dumps.write_step(npu, np.random.default_rng(1))
    dump = ascend_dump.open(tmp_path)
    comparison = ascend_dump.compare(dump.select(step=1), dump.select(step=0))
    assert (comparison.verdict, len(comparison.unmatched)) == ("equal", 0)


@pytest.mark.parametrize("kernel", ["AddAiCore", "InplaceAdd", "MatMulCommon", "FlashAttentionScore"])
def test_a_wrong_kernel_is_the_only_origin(reference, tmp_path, kernel):
    eager_dumps.write_program(tmp_path / "actual", start=31, wrong=kernel)
    comparison = ascend_dump.compare(tmp_path / "actual", reference)
    [origin] = comparison.origins
    record = origin.pair.record
    assert (record.kernel or record.op_type, record.step, record.rank) == (kernel, 0, 0)
    assert origin.op_name.endswith(f"{kernel}_0")
    result = ascend_dump.triage(tmp_path / "actual", reference)
    assert result.cause.op_name == origin.op_name


def test_whole_storages_of_a_call_are_no_difference_if_its_kernels_agree(tmp_path):
    for side, rest in (("actual", 5.0), ("reference", 7.0)):
        npu = eager_dumps.device(tmp_path / side)
        storage = np.concatenate([X.reshape(-1), np.full(4, rest, "f4")])
        npu.call("aclnnAbs", [storage], [X], [("AbsAicore", [X], [X])])
    comparison = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert (comparison.verdict, comparison.origins) == ("noise", ())


def test_calls_without_kernels_are_compared_by_their_own_tensors(tmp_path):
    for side, factor in (("actual", 3), ("reference", 2)):
        npu = eager_dumps.device(tmp_path / side)
        npu.call("aclnnAbs", [X], [X], [])
        npu.call("aclnnMul", [X], [X * factor], [])
    [origin] = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference").origins
    assert origin.op_name == "aclnnMul_0"


def test_an_additional_call_moves_no_pair(tmp_path):
    pytest.importorskip("rapidfuzz")
    for side, more in (("actual", 1), ("reference", 0)):
        npu = eager_dumps.device(tmp_path / side)
        for factor in range(4):
            if factor == 1 and more:
                npu.call("aclnnExp", [X], [np.exp(X)], [("ExpAiCore", [X], [np.exp(X)])])
            npu.call("aclnnMul", [X], [X * factor], [("Mul", [X], [X * factor])])
    comparison = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert {pair.verdict for pair in comparison.pairs if pair.actual and pair.reference} == {"equal"}
    assert {pair.record.op_type for pair in comparison.unmatched} == {"aclnnExp"}


def test_kernels_of_other_names_leave_the_calls_paired(tmp_path):
    pytest.importorskip("rapidfuzz")
    for side, kernel in (("actual", "AbsAiCore"), ("reference", "AbsAicore")):
        npu = eager_dumps.device(tmp_path / side)
        npu.call("aclnnAbs", [X], [X], [(kernel, [X], [X])])
    comparison = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert {pair.verdict for pair in comparison.pairs} == {"equal"}


def overflowing(root, **fields):
    npu = eager_dumps.device(root, **fields)
    npu.call("aclnnAdd", [BIG, BIG], [INF], [("AddAiCore", [BIG, BIG], [INF])])
    npu.call("aclnnMul", [INF], [INF], [("Cast", [INF], [INF]), ("Mul", [INF], [INF])])


def test_overflow_names_the_call_and_the_kernel(tmp_path):
    overflowing(tmp_path)
    report = find_overflows(ascend_dump.open(tmp_path))
    [overflow] = report.overflows
    assert (report.answer, report.operators, report.checked) == ("origin", 2, 2)
    assert (overflow.record.op_type, overflow.record.op_name) == ("aclnnAdd", "aclnnAdd_0/AddAiCore_0")
    assert overflow.record.kernel == "AddAiCore"
    result = ascend_dump.triage(tmp_path)
    assert (result.cause.op_type, result.cause.op_name) == ("aclnnAdd", "aclnnAdd_0/AddAiCore_0")


def test_overflow_of_calls_without_kernels(tmp_path):
    npu = eager_dumps.device(tmp_path)
    npu.call("aclnnAdd", [BIG], [INF], [])
    [overflow] = find_overflows(ascend_dump.open(tmp_path)).overflows
    assert (overflow.kind, overflow.record.op_name) == ("origin", "aclnnAdd_0")


def test_nonfinite_memory_beside_a_view_is_no_overflow(tmp_path):
    npu = eager_dumps.device(tmp_path)
    storage = np.concatenate([X.reshape(-1), np.full(4, np.nan, "f4")])
    npu.call("aclnnAbs", [X], [storage], [("AbsAicore", [X], [X])])
    assert find_overflows(ascend_dump.open(tmp_path)).answer == "none"


def test_a_file_with_both_sides_is_the_overflow_also_with_finite_values(tmp_path, ls):
    npu = eager_dumps.device(tmp_path)
    npu.overflow("aclnnAdd", "AddAiCore", [BIG, BIG], [np.full((2, 3), 65504, "f2")])
    report = find_overflows(ascend_dump.open(tmp_path))
    [overflow] = report.overflows
    assert (report.answer, overflow.record.op_name) == ("origin", "aclnnAdd_0/AddAiCore_0")
    assert any("saturates" in words for words in overflow.words)
    assert ascend_dump.triage(tmp_path).cause.op_name == "aclnnAdd_0/AddAiCore_0"
    assert "aclnnAdd_0/AddAiCore_0" in ls(tmp_path)


def test_statistics_are_compared(tmp_path):
    for side, start in (("actual", 9), ("reference", 0)):
        npu = eager_dumps.device(tmp_path / side, number=start, data="stats")
        npu.call("aclnnAbs", [X], [X], [("AbsAicore", [X], [X])])
    comparison = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert not comparison.unmatched
    assert not comparison.origins


def test_the_page_shows_calls_and_kernels(reference, tmp_path):
    eager_dumps.write_program(tmp_path / "actual", start=31, wrong="MatMulCommon")
    page = tmp_path / "page.html"
    ascend_dump.compare(tmp_path / "actual", reference).save(page)
    assert "aclnnMatmul_0/MatMulCommon_0" in page.read_text()


def test_the_catalog_has_kernels_and_the_same_operators(reference):
    polars = pytest.importorskip("polars")
    from ascend_dump.cli.shared.ls_columns import operator_rows
    from ascend_dump.cli.shared.ls_groups import groups_of
    from ascend_dump.cli.shared.reading import Unreadable

    dump = ascend_dump.open(reference)
    assert {record.op_name for record in dump.where(polars.col("kernel") == "MatMulCommon")} == {
        "aclnnMatmul_0/MatMulCommon_0"
    }
    [by_columns] = operator_rows(dump, Unreadable(dump))
    assert by_columns.frame.select("op_name", "kernel", "records").rows() == [
        (group.first.op_name, group.first.kernel, group.records) for group in groups_of(dump)
    ]

"""Outputs that carry no value of the program: two runs differ there, and nothing is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from host_dumps import item, line, model_directory, write_step

import ascend_dump
from ascend_dump import ConfigError
from ascend_dump.cli import main
from ascend_dump.dump_format import UNINITIALISED
from ascend_dump.writing import HostWriter, Item

#: A recurrent network in inference, and a loss with targets that are shorter than the longest.
PROGRAM = """
import sys, torch, ascend_dump
torch.manual_seed(0)
torch.set_num_threads(1)
rnn, head = torch.nn.LSTM(6, 8).eval(), torch.nn.Linear(8, 5)
x, lengths = torch.randn(12, 2, 6), torch.tensor([12, 9])
targets, sizes = torch.randint(1, 5, (2, 4)), torch.tensor([4, 2])
with ascend_dump.capture(path=sys.argv[1], framework="torch", steps="0"):
    with torch.no_grad():
        y, _ = rnn(x)
    torch.nn.functional.ctc_loss(head(y).log_softmax(-1), targets, lengths, sizes).backward()
"""


def run(path: Path, pattern: int) -> Path:
    """The program, where fresh memory is full of one byte."""
    environment = {**os.environ, "MALLOC_PERTURB_": str(pattern), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fills fresh memory as glibc does")
def test_what_kernels_leave_unwritten_is_no_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    reference, actual = run(tmp_path / "reference", 85), run(tmp_path / "actual", 170)
    found = ascend_dump.compare(actual, reference)
    assert found.verdict == "noise", found.counts
    assert not found.origins
    undefined = {(pair.record.op_type, pair.record.io, pair.record.index) for pair in found.pairs if pair.undefined}
    assert ("aten::_ctc_loss", "output", 1) in undefined
    assert {op_type for op_type, _, _ in undefined} <= {"aten::_ctc_loss", "aten::mkldnn_rnn_layer"}
    reason = "follows from a tensor without a defined value"
    followers = [pair.record.label for pair in found.pairs if pair.reason == reason]
    assert [label for label in followers if "_ctc_loss_backward" in label], "the backward pass is given it"
    assert main(["compare", str(actual), str(reference)]) == 0
    assert "not judged: output 1 of aten::_ctc_loss" in capsys.readouterr().out
    assert found.to_dict()["undefined"] == found.undefined != {}


def tensor(seed: int, size: int = 8) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(size).astype("f4")


def operator(name: str, op_type: str, inputs: list[np.ndarray], outputs: list[np.ndarray], seq: int) -> list[Item]:
    found = []
    for io, arrays in (("input", inputs), ("output", outputs)):
        found += [item(name, array, io=io, index=index, op_type=op_type, seq=seq) for index, array in enumerate(arrays)]
    return found


def dump(path: Path, *operators: list[Item]) -> Path:
    writer = HostWriter(model_directory(path), metadata={})
    write_step(writer, 0, *(one for records in operators for one in records))
    writer.close()
    return path


X, Y, MEAN, NONE = tensor(0), tensor(1), tensor(2, 4), tensor(3, 4)


def norm(seed: int, mean: np.ndarray, *, wrong: float = 0.0) -> list[Item]:
    """A batch norm of TensorFlow, in inference where `mean` is the moving one; `seed` is of what it leaves so."""
    inputs = [X, NONE, NONE, MEAN, MEAN]
    return operator(
        "norm", "FusedBatchNormV3", inputs, [Y + np.float32(wrong), mean, mean, tensor(seed, 4), tensor(seed, 4)], 0
    )


class TestAMode:
    """TensorFlow's batch norm has no space for a backward pass in inference only."""

    def test_in_inference_there_is_nothing_to_judge(self, tmp_path: Path) -> None:
        found = ascend_dump.compare(dump(tmp_path / "a", norm(10, MEAN)), dump(tmp_path / "b", norm(11, MEAN)))
        assert found.counts == {"equal": 8, "noise": 2}
        assert not found.origins

    def test_in_training_it_is_a_value_as_any_other(self, tmp_path: Path) -> None:
        found = ascend_dump.compare(dump(tmp_path / "a", norm(10, NONE)), dump(tmp_path / "b", norm(11, NONE)))
        assert [(one.kind, one.op_name) for one in found.origins] == [("compute", "norm")]
        assert found.counts["different"] == 2

    def test_a_wrong_result_is_wrong_in_inference_too(self, tmp_path: Path) -> None:
        found = ascend_dump.compare(
            dump(tmp_path / "a", norm(10, MEAN, wrong=0.1)), dump(tmp_path / "b", norm(11, MEAN))
        )
        assert found.verdict == "different"
        assert [(one.kind, one.pair.record.label) for one in found.origins] == [("compute", "norm.output.0")]


def workspace(seed: int, reader: str, *, read: bool) -> tuple[list[Item], list[Item]]:
    """An operator that leaves its workspace unwritten, and one that is given it."""
    left = tensor(seed)
    rnn = operator("rnn", "aten::mkldnn_rnn_layer", [X], [Y, Y, Y, left], 0)
    return rnn, operator("reader", reader, [left], [left * 2 if read else Y], 1)


def test_it_is_the_origin_of_what_was_computed_of_it(tmp_path: Path) -> None:
    sides = [dump(tmp_path / str(seed), *workspace(seed, "aten::mul", read=True)) for seed in (10, 11)]
    found = ascend_dump.compare(*sides)
    assert found.verdict == "different"
    assert [(one.kind, one.op_name, one.explains) for one in found.origins] == [("uninitialised", "rnn", 1)]


def test_one_output_that_follows_is_told_in_the_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [dump(tmp_path / str(seed), *workspace(seed, "aten::mul", read=True)) for seed in (10, 11)]
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, sides), "--save", str(page)]) == 1
    assert "explains    1 later output that differs\n" in capsys.readouterr().out
    assert "1 later output that differs" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("reader", ["aten::slice", "aten::copy_", "Identity"])
def test_what_only_moves_it_computes_nothing_of_it(tmp_path: Path, reader: str) -> None:
    sides = []
    for seed in (10, 11):
        rnn, _ = workspace(seed, "aten::mul", read=True)
        part = tensor(seed)[2:5].copy()
        into = [Y[:3]] if reader == "aten::copy_" else []
        sides.append(dump(tmp_path / str(seed), rnn, operator("part", reader, [*into, tensor(seed)], [part], 1)))
    found = ascend_dump.compare(*sides)
    assert found.verdict == "noise"
    assert not found.origins


@pytest.mark.parametrize("op_type", ["aten::copy_", "aten::zero_", "c10d::_allgather_base_"])
def test_memory_that_is_only_written_to_may_hold_anything(tmp_path: Path, op_type: str) -> None:
    sides = [dump(tmp_path / str(seed), operator("write", op_type, [tensor(seed), X], [X], 0)) for seed in (10, 11)]
    found = ascend_dump.compare(*sides)
    assert found.counts == {"equal": 2, "noise": 1}
    assert found.undefined == {f"input 0 of {op_type}: memory that the operator overwrites without reading it": 1}
    assert not found.origins


def test_memory_that_is_only_written_to_excuses_nothing(tmp_path: Path) -> None:
    """All its elements are far apart."""
    sides = []
    for seed, near in ((10, np.float32(1)), (11, np.float32(1 + 2**-22))):
        left = tensor(0) + np.float32(seed)
        made = X * near + np.float32(seed)
        sides.append(dump(tmp_path / str(seed), operator("gather", "aten::copy_", [left, X * near], [made], 0)))
    found = ascend_dump.compare(*sides)
    assert [one.op_name for one in found.origins] == ["gather"]


def test_memory_that_is_read_too_is_an_input(tmp_path: Path) -> None:
    sides = [dump(tmp_path / str(seed), operator("add", "aten::add_", [tensor(seed), X], [X], 0)) for seed in (10, 11)]
    assert ascend_dump.compare(*sides).verdict == "different"


class TestRulesOfTheUser:
    def sides(self, root: Path) -> list[Path]:
        return [
            dump(root / name, operator("mine", "MyAttention", [X], [Y, tensor(seed)], 0))
            for name, seed in (("a", 10), ("b", 11))
        ]

    def test_they_name_more_outputs_and_are_printed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        actual, reference = self.sides(tmp_path)
        assert ascend_dump.compare(actual, reference).verdict == "different"
        found = ascend_dump.compare(actual, reference, rules={"My*": {"undefined": [1]}})
        assert found.verdict == "noise"
        assert not found.origins
        rules = tmp_path / "rules.toml"
        rules.write_text('["My*"]\nundefined = [1]\n')
        assert main(["compare", str(actual), str(reference), "--rules", str(rules)]) == 0
        out = capsys.readouterr().out
        assert 'rules: {"My*": {"undefined": [1]}}' in out
        assert "not judged: output 1 of MyAttention: the rules given say so (1 record)" in out

    @pytest.mark.parametrize("rules", [{"undefined": [1]}, {"My*": {"undefined": [0.5]}}, {"My*": {"undefined": "1"}}])
    def test_what_is_no_list_of_outputs_below_a_glob_is_refused(self, tmp_path: Path, rules: dict[str, object]) -> None:
        actual, reference = self.sides(tmp_path)
        with pytest.raises(ConfigError, match="undefined"):
            ascend_dump.compare(actual, reference, rules=rules)


def filled(before: np.ndarray, after: np.ndarray) -> list[list[Item]]:
    """An operator that allocates memory, and one that writes indices to all of it."""
    memory = {"storage": 3, "address": 4096, "storage_nbytes": before.nbytes}
    empty = line("empty_0", before, op_type="aten::empty_like", seq=0, version=0, skipped=UNINITIALISED, **memory)
    name, op_type = "index_put__0", "aten::index_put_"
    write = [
        item(name, before, io="input", op_type=op_type, seq=1, version=0, **memory),
        item(name, after, op_type=op_type, seq=1, version=1, **memory),
    ]
    return [[Item(empty, None)], write]


def test_allocated_memory_that_an_operator_overwrites_is_no_data_from_outside(tmp_path: Path) -> None:
    garbage, result = [np.arange(8) * factor for factor in (3, 5)], np.arange(8)
    found = ascend_dump.compare(
        dump(tmp_path / "actual", *filled(garbage[0], result)),
        dump(tmp_path / "reference", *filled(garbage[1], result)),
    )
    assert (found.verdict, found.origins) == ("noise", ())


def test_a_wrong_result_in_allocated_memory_is_no_noise(tmp_path: Path) -> None:
    garbage, result = [np.arange(8) * factor for factor in (3, 5)], np.arange(8)
    found = ascend_dump.compare(
        dump(tmp_path / "actual", *filled(garbage[0], result + 1)),
        dump(tmp_path / "reference", *filled(garbage[1], result)),
    )
    assert found.verdict == "different"
    assert found.origins

"""`adapter.Recorder`: what an author passes to `record` is what a reader gets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional

import ml_dtypes
import numpy as np
import pytest

import ascend_dump
from ascend_dump.adapter import DumpRequest, Recorder, RunDirectory, current_rank

X = np.arange(6, dtype="f4").reshape(2, 3)


def recorder(path: Path, **settings: Any) -> Recorder:
    run = RunDirectory.planned(path, current_rank()).make()
    return Recorder(DumpRequest(path=path, **settings), run, model="net", restore=list, versions={"toy": "1"})


def recorded(
    path: Path, *args: Any, settings: Optional[dict[str, Any]] = None, **fields: Any
) -> list[ascend_dump.Record]:
    """Record one operator in one step and return its records."""
    writer = recorder(path, **(settings or {}))
    assert writer.begin_step()
    writer.record(*args, **fields)
    writer.stop()
    assert writer.failure is None
    return list(ascend_dump.open(path))


@pytest.mark.parametrize(
    "array",
    [
        X,
        X.T,
        X[:, ::2],
        X.astype(">f4"),
        X.astype(ml_dtypes.bfloat16),
        np.float64(2.5),
        np.zeros((0, 3), "i8"),
        np.array(True),
        np.ones((2, 2), "c8"),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_values_are_read_back(tmp_path: Path, array: Any) -> None:
    [record] = recorded(tmp_path, "Add", outputs=[array])
    assert (record.op_type, record.op_name, record.io, record.step) == ("Add", "Add", "output", 0)
    assert (record.dtype, record.shape) == (array.dtype.name, array.shape)
    np.testing.assert_array_equal(record.numpy(), np.asarray(array))


def test_values_are_those_of_the_call(tmp_path: Path) -> None:
    array = X.copy()
    writer = recorder(tmp_path)
    writer.begin_step()
    writer.record("Add", outputs=[array])
    array[:] = 7
    writer.stop()
    np.testing.assert_array_equal(ascend_dump.open(tmp_path)[0].numpy(), X)


@pytest.mark.skipif(not hasattr(np, "from_dlpack"), reason="this numpy imports no tensors by dlpack")
def test_a_tensor_of_another_library_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class OnlyDlpack:
        def __init__(self, tensor: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    records = recorded(tmp_path, "Add", inputs=[torch.from_numpy(X), OnlyDlpack(torch.from_numpy(X))], outputs=[3.5])
    assert [record.dtype for record in records] == ["float32", "float32", "float64"]
    for record in records[:2]:
        np.testing.assert_array_equal(record.numpy(), X)


def test_a_tensor_without_readable_values_is_recorded_without_them(tmp_path: Path) -> None:
    class Key:
        dtype, shape = "key<fry>", (2,)

        def __array__(self, *_: Any) -> np.ndarray:
            raise TypeError("a key has no values")

    records = recorded(tmp_path, "Draw", inputs=[Key(), "text", object], outputs=[X])
    assert [record.op_type for record in records] == ["Draw"] * 4
    assert (records[0].dtype, records[0].shape) == ("key<fry>", (2,))
    with pytest.raises(ascend_dump.AscendDumpError, match="a key has no values"):
        records[0].numpy()
    np.testing.assert_array_equal(records[3].numpy(), X)


def test_names_and_arguments_are_those_of_the_call(tmp_path: Path) -> None:
    records = recorded(
        tmp_path,
        "Concat",
        inputs={"tensors": [X, X + 1], "weight": X},
        outputs={"values": X},
        arguments={"axis": 1, "dtype": np.dtype("f4"), "sizes": (np.int64(2), 3), "other": object()},
        name="block.concat",
        module="block",
        source="train.py:7",
        phase="forward",
    )
    arguments = records[0].arguments
    assert arguments is not None
    assert arguments.operator == "Concat"
    assert arguments.name_of("input", 1) == "tensors[1]"
    assert arguments.name_of("input", 2) == "weight"
    assert {name: str(value) for name, value in arguments.values.items() if name in ("axis", "dtype", "sizes")} == {
        "axis": "1",
        "dtype": "float32",
        "sizes": "[2, 3]",
    }
    assert records[-1].argument == "values"
    assert (records[0].op_name, records[0].module, records[0].source) == ("block.concat", "block", "train.py:7")


def test_inputs_without_names_are_known_to_the_call(tmp_path: Path) -> None:
    record = recorded(tmp_path, "Log", inputs=[X], outputs=[X], arguments={"base": 2})[0]
    assert record.arguments is not None
    assert record.arguments.name_of("input", 0) == "inputs[0]"


@pytest.mark.parametrize("mode", ["input", "output", "all"])
def test_mode_and_data_are_followed(tmp_path: Path, mode: str) -> None:
    records = recorded(tmp_path, "Add", inputs=[X], outputs=[X + 1], settings={"mode": mode, "data": "full"})
    assert {record.io for record in records} == ({"input", "output"} if mode == "all" else {mode})
    statistics = records[-1].statistics()
    assert statistics is not None
    assert statistics.max == (5 if mode == "input" else 6)


def test_steps_layers_and_the_end_are_followed(tmp_path: Path) -> None:
    writer = recorder(tmp_path, steps="1-9", layers="*.add")
    begun = []
    for number in range(5):
        begun.append(writer.begin_step())
        writer.record("Add", name="a.add", outputs=[X + number])
        writer.record("Mul", name="a.mul", outputs=[X])
        if number == 2:
            writer.trigger("enough")
        writer.end_step()
    writer.record("Add", name="a.add", outputs=[X])
    writer.stop()
    writer.stop()
    assert begun == [False, True, True, False, False]
    dump = ascend_dump.open(tmp_path)
    assert [(record.step, record.op_name) for record in dump] == [(1, "a.add"), (2, "a.add")]
    assert writer.tally().steps == 2


def test_a_step_is_selected_until_the_recording_is_over(tmp_path: Path) -> None:
    session = recorder(tmp_path, steps="1|3")
    assert [number for number in (None, 0, 1, 2, 3, 4) if session.selects_step(number)] == [1, 3]
    assert [session.is_past(number) for number in (None, 0, 3, 4)] == [False, False, False, True]
    session.trigger("enough")
    assert not session.selects_step(3)
    assert session.is_past(None)
    session.stop()


def test_an_empty_dump_has_a_reason(tmp_path: Path) -> None:
    settings_and_reasons = (
        ({}, "ran no step"),
        ({"steps": "5"}, "steps=5 was not reached: 1 steps"),
        ({"layers": "conv*"}, "such as Add"),
        ({"steps": "0", "mode": "input"}, "no operator was recorded"),
    )
    for number, (settings, reason) in enumerate(settings_and_reasons):
        writer = recorder(tmp_path / str(number), **settings)
        if settings:
            writer.begin_step()
            writer.record("Add", outputs=[X])
        writer.stop()
        [text] = writer.reasons() or []
        assert reason in text


def test_settings_that_it_does_not_implement_are_problems(tmp_path: Path) -> None:
    assert Recorder.check(DumpRequest(steps="3", data="full", stats=("max",), keep=2, until="nonfinite")) == []
    request = DumpRequest(scene="watch", level="op", quant=True, models=["a"], stats=("max",), options={"b": 1})
    problems = Recorder.check(request)
    assert {problem.where for problem in problems} == {"scene", "level", "quant", "models", "stats", "options"}
    assert [problem.severity for problem in problems] == ["error", *["silent"] * 5]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_files_of_its_parent_alone(tmp_path: Path) -> None:
    writer = recorder(tmp_path)
    writer.begin_step()
    writer.record("Add", outputs=[X])
    child = os.fork()
    if not child:
        try:
            writer.record("Mul", outputs=[X])
            writer.stop()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    writer.stop()
    assert [record.op_type for record in ascend_dump.open(tmp_path)] == ["Add"]

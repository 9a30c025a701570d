"""Dumps of the real MindSpore through every road, held against the same networks in numpy."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import PROGRAMS, run_command, run_program

import ascend_dump

sys.path.insert(0, str(PROGRAMS))


def complete(path: Any) -> ascend_dump.Dump:
    """The dump, in which every file that holds a tensor is a record that can be read."""
    dump = ascend_dump.open(path)
    files = [Path(at) / name for at, _, names in os.walk(path) for name in names if name.endswith(".npy")]
    assert files
    assert sorted(record.path for record in dump) == sorted(files)
    assert dump.errors() == []
    return dump


def value(dump: ascend_dump.Dump, op: str, io: str = "output", index: int = 0, **which: Any) -> np.ndarray:
    [record] = dump.select(op=op, io=io, index=index, **which)
    return np.asarray(record.numpy())


def images(step: int) -> np.ndarray:
    return np.random.RandomState(step).randn(2, 1, 8, 8).astype("f4")


def rows(step: int, width: int = 4) -> np.ndarray:
    return np.random.RandomState(100 + step).randn(2, width).astype("f4")


def weights() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.RandomState(3)
    shapes = ((2, 1, 3, 3), (3, 18), (3,))
    conv, dense, bias = (random.randn(*shape).astype("f4") for shape in shapes)
    return conv, dense, bias


def conv_net(x: np.ndarray) -> dict[str, np.ndarray]:
    """Each operator's output."""
    kernel, dense, bias = weights()
    windows = np.lib.stride_tricks.sliding_window_view(x[:, 0], (3, 3), axis=(1, 2))
    conv = np.einsum("nhwij,oij->nohw", windows, kernel[:, 0])
    relu = np.maximum(conv, 0)
    pool = relu.reshape(2, 2, 3, 2, 3, 2).max(axis=(3, 5))
    matmul = pool.reshape(2, 18) @ dense.T
    return {
        "Default/conv-Conv2d/Conv2D-op0": conv,
        "Default/relu-ReLU/ReLU-op0": relu,
        "Default/pool-MaxPool2d/MaxPool-op0": pool,
        "Default/fc-Dense/MatMul-op0": matmul,
        "Default/fc-Dense/BiasAdd-op0": matmul + bias,
    }


def dense_net(x: np.ndarray) -> np.ndarray:
    """Without its bias, which is random; it is in the dump."""
    return x @ np.ones((x.shape[1], 3), "f4")


def test_a_block_around_a_network_in_graph_mode(tmp_path):
    # The user's path has a dot, which MindSpore would refuse.
    result, log = run_program("conv_net", tmp_path / "run.1" / "my dumps", cwd=tmp_path)
    dump = complete(result["path"])
    assert result["inside"] == len(dump)
    assert result["same_after"]
    assert result["environment"] is None
    assert result["problems"] == []
    assert "Dump Alert" not in log
    assert "ascend_config" not in log
    assert {record.step for record in dump} == {0, 2}
    for step in (0, 2):
        for name, expected in conv_net(images(step)).items():
            np.testing.assert_allclose(value(dump, name, step=step), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(value(dump, "x", step=step), images(step))
        np.testing.assert_array_equal(value(dump, "Default/conv-Conv2d/Conv2D-op0", "input", step=step), images(step))
        for name, expected in zip(("conv.weight", "fc.weight", "fc.bias"), weights()):
            np.testing.assert_array_equal(value(dump, name, step=step), expected)
    for record in dump:
        if record.op_type != "Parameter":
            assert record.attrs["execution_index"] >= 0
            assert record.op_name.startswith("Default/")
            assert record.source.partition(":")[0].endswith("networks.py")
            assert record.phase == "forward"


def test_a_second_capture_resumes_with_the_same_settings_and_no_others(tmp_path):
    result, _ = run_program("twice", tmp_path / "dumps", cwd=tmp_path)
    first, second = map(complete, result["paths"])
    assert result["same_after"]
    assert len(first) == len(second)
    assert {record.step for record in first} == {record.step for record in second} == {1, 2}
    for start, dump in ((0, first), (10, second)):
        for step in (1, 2):
            x = value(dump, "x", step=step)
            np.testing.assert_array_equal(x, rows(start + step))
            np.testing.assert_allclose(
                value(dump, "Default/fc-Dense/MatMul-op0", step=step), dense_net(x), rtol=1e-5, atol=1e-6
            )
    assert "AD277" in result["refused"]
    assert "iteration='1-2'" in result["refused"]
    assert "AD302" in result["nested"]


def test_each_call_of_a_decorated_function_is_a_step(tmp_path):
    result, _ = run_program("decorated", tmp_path / "dumps", cwd=tmp_path)
    assert len(set(result["paths"])) == 1
    for call, start in enumerate((0, 10)):
        dump = complete(result["paths"][0]).select(step=call)
        assert {record.op_type for record in dump} == {"Conv2D", "Parameter"}
        assert {record.op_name for record in dump if record.op_type == "Parameter"} == {
            "conv.weight",
            "fc.weight",
            "fc.bias",
        }
        for step in (0, 1):
            expected = conv_net(images(start + step))["Default/conv-Conv2d/Conv2D-op0"]
            found = [each.numpy() for each in dump.select("*Conv2D-op0", io="output")]
            np.testing.assert_allclose(found[step], expected, rtol=1e-4, atol=1e-5)


def test_training_without_a_change_to_the_program(tmp_path):
    dumps = tmp_path / "dumps"
    run_program("train", dumps, cwd=tmp_path, ASCEND_DUMP=f"path={dumps},steps=0|2", ASCEND_DUMP_STRICT="1")
    dump = complete(dumps)
    assert {record.step for record in dump} == {0, 2}
    assert {record.run for record in dump} != {None}
    weight = np.ones((3, 4), "f4")
    bias = None
    for step in range(3):
        x, y = rows(step), rows(50 + step, 3)
        # GeneratorDataset gives one sample after another, here a whole batch.
        if step in (0, 2):
            np.testing.assert_array_equal(value(dump, "inputs0", step=step), x)
            matmul = value(dump, "*_backbone-Dense/MatMul-op0", step=step)
            np.testing.assert_allclose(matmul, x @ weight.T, rtol=1e-5, atol=1e-6)
            output = value(dump, "*_backbone-Dense/BiasAdd-op0", step=step)
            if bias is None:
                bias = (output - matmul)[0]
        error = x @ weight.T + bias - y
        weight = weight - 0.1 * (2 / error.size) * error.T @ x
        bias = bias - 0.1 * (2 / error.size) * error.sum(0)
        if step in (0, 2):
            # Parameters are written when the step ends: after the optimizer.
            np.testing.assert_allclose(value(dump, "weight", step=step), weight, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(value(dump, "bias", step=step), bias, rtol=1e-4, atol=1e-5)
    assert {record.phase for record in dump} >= {"forward", "backward"}


def test_compiled_functions_of_a_pynative_program(tmp_path):
    result, log = run_program("pynative", tmp_path / "dumps", cwd=tmp_path)
    dump = complete(result["path"])
    assert {record.op_type for record in dump} == {"Mul", "Tanh", "Parameter"}
    # Told when the capture ends: the program might have chosen graph mode inside the block.
    assert result["problems"] == []
    assert log.count("AD279") == 1
    for step in (0, 1):
        x = rows(step)
        np.testing.assert_allclose(value(dump, "Default/Mul-op0", step=step), x * x, rtol=1e-6)
        np.testing.assert_allclose(value(dump, "Default/Tanh-op0", step=step), np.tanh(x * x), rtol=1e-4, atol=1e-6)


def test_two_ranks_of_msrun(tmp_path):
    dumps = tmp_path / "dumps"
    msrun = Path(sys.executable).with_name("msrun")
    port = 8200 + os.getpid() % 700
    run_command(
        msrun,
        "--worker_num=2",
        "--local_worker_num=2",
        f"--master_port={port}",
        "--join=True",
        f"--log_dir={tmp_path}/log",
        PROGRAMS / "scenarios.py",
        "distributed",
        dumps,
        cwd=tmp_path,
        ASCEND_DUMP=f"path={dumps},steps=1",
    )
    dump = complete(dumps)
    # Neither msrun nor its scheduler leaves a directory behind.
    assert sorted(path.name for path in dumps.iterdir()) == ["worldsize2_global_rank0", "worldsize2_global_rank1"]
    assert {record.rank for record in dump} == {0, 1}
    for rank in (0, 1):
        assert {record.path.parts[-5] for record in dump.select(rank=rank)} == {f"rank_{rank}"}
        np.testing.assert_array_equal(value(dump, "x", rank=rank, step=1), rows(10 * rank + 1))
        np.testing.assert_allclose(
            value(dump, "Default/fc-Dense/MatMul-op0", rank=rank, step=1),
            dense_net(rows(10 * rank + 1)),
            rtol=1e-5,
            atol=1e-6,
        )


# --- what goes wrong -----------------------------------------------------------------------


def test_a_capture_that_comes_too_late_is_refused(tmp_path):
    result, _ = run_program("late", tmp_path / "dumps", cwd=tmp_path)
    assert "AD271" in result["refused"]
    assert "communication.init" in result["refused"]
    assert result["files"] == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "steps=1000"),
        ("wrong_number", "MatMul-op9"),
        ("only_operators", "PyNative"),
        ("never_ran", "no graph was compiled"),
    ],
)
def test_a_dump_that_stays_empty_is_told(name, reason, tmp_path):
    result, _ = run_program(name, tmp_path / "dumps", cwd=tmp_path)
    assert "wrote nothing" in result["said"]
    assert reason in result["said"]
    assert "AD303" in result["said"]
    if name == "never_ran":
        assert {record.step for record in complete(result["path"])} == {0}
    if name == "nothing":
        assert result["records"] == 0


def test_a_graph_that_runs_after_another_has_its_number(tmp_path):
    result, _ = run_program("two_graphs", tmp_path / "dumps", cwd=tmp_path)
    # The second network ran for the first time, and steps="0" does not show it.
    assert {(record.model_id, record.step) for record in complete(result["path"])} == {(0, 0)}


@pytest.mark.parametrize("name", ["complex_numbers", "complex_numbers_under_jit"])
def test_a_program_with_complex_inputs_runs_without_a_dump_and_is_told(name, tmp_path):
    result, log = run_program(name, tmp_path / "dumps", cwd=tmp_path)
    assert result["result"] == ["(-4+0j)"] * 3
    assert "AD279" in result["said"]
    assert "runs without a dump" in result["said"]
    assert log.count("AD279") == 1
    assert result["files"] == []


def test_complex_inputs_of_a_later_graph_are_refused_by_mindspore_and_explained(tmp_path):
    result, log = run_program("complex_numbers_later", tmp_path / "dumps", cwd=tmp_path)
    assert result["message"].startswith("Unexpected type Complex")
    assert log.count("AD279") == 1
    assert {record.step for record in complete(result["path"])} == {0, 1}


def test_the_mode_may_be_chosen_inside_the_block(tmp_path):
    result, log = run_program("mode_inside_the_block", tmp_path / "dumps", cwd=tmp_path)
    assert result["problems"] == []
    assert "AD279" not in log
    assert len(complete(result["path"])) > 0


def test_inputs_that_change_and_tensors_without_elements(tmp_path):
    result, _ = run_program("in_place_and_empty", tmp_path / "dumps", cwd=tmp_path)
    dump = complete(result["path"])
    [add] = {record.op_name for record in dump if record.op_type == "AssignAdd"}
    np.testing.assert_array_equal(value(dump, add, "input"), [1, 1, 1])
    assert all(record.nbytes for record in dump)


def test_what_a_cpu_has_not_is_told_before_anything_runs(tmp_path):
    result, _ = run_program("refused_on_a_cpu", tmp_path / "dumps", cwd=tmp_path)
    assert result == {
        "stats": "AD270",
        "full": "AD270",
        "set_dump": "AD203",
        "overflow": "AD274",
        "watch": "AD203",
        "sample": "AD274",
        "backslash": "AD203",
        "overflow_number": "AD270",
    }


def test_a_configuration_of_the_user_is_not_replaced(tmp_path):
    result, _ = run_program("own_configuration", tmp_path / "dumps", cwd=tmp_path)
    assert "AD276" in result["refused"]


def test_under_strict_the_launcher_ends_a_program_it_cannot_dump(tmp_path):
    done = run_command(
        sys.executable,
        PROGRAMS / "scenarios.py",
        "train",
        "x",
        cwd=tmp_path,
        fails=True,
        ASCEND_DUMP=f"path={tmp_path}/dumps,data=stats",
        ASCEND_DUMP_STRICT="1",
    )
    assert done.returncode == 2
    assert "AD270" in done.stderr

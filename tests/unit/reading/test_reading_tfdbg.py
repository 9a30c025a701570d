"""Dumps of TensorFlow 2.15.1's debugger (tests/data/tfdbg.tar.gz), with what its own reader says of them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import extract

import ascend_dump
from ascend_dump import NotSupported

RUN = "wrapper/run_1795363542886742_0"
DEVICE = "_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps, not to be changed; expected.json is what `DebugDumpDir` of TensorFlow read."""
    root = tmp_path_factory.mktemp("tfdbg")
    extract("tfdbg.tar.gz", root)
    return root / "tfdbg"


@pytest.fixture
def copied(real: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(real / name, tmp_path / Path(name).name))


def test_values_are_those_that_tensorflow_reads(real: Path) -> None:
    checked = 0
    for run, expected in json.loads((real / "expected.json").read_text()).items():
        dump = ascend_dump.open(real / run)
        assert dump.errors() == []
        outputs = {(record.op_name, record.index): record for record in dump if record.io == "output"}
        assert len(outputs) == len({(one["node"], one["slot"]) for one in expected["tensors"]})
        for one in expected["tensors"]:
            record = outputs[one["node"], one["slot"]]
            if "value" in one or one["dtype"] == "object":
                with pytest.raises(NotSupported):
                    record.numpy()
            elif one["debug_op"] == "DebugIdentity":
                array = record.numpy()
                assert (array.dtype.name, list(array.shape)) == (one["dtype"], one["shape"])
                assert (record.dtype, record.shape, record.nbytes) == (array.dtype.name, array.shape, array.nbytes)
                assert record.timestamp == one["timestamp"]
                found, wanted = array.reshape(-1)[:16].tolist(), [float(value) for value in one["values"]]
                assert np.array_equal(np.array(found, float), np.array(wanted), equal_nan=True)
                checked += 1
    assert checked == 67


def test_inputs_are_the_outputs_of_the_producers(real: Path) -> None:
    dump = ascend_dump.open(real / RUN)
    x, w, y = dump.select("layer1/MatMul")
    assert [(one.label, one.op_type) for one in (x, w, y)] == [
        ("layer1/MatMul.input.0", "MatMul"),
        ("layer1/MatMul.input.1", "MatMul"),
        ("layer1/MatMul.output.0", "MatMul"),
    ]
    assert np.allclose(x.numpy() @ w.numpy(), y.numpy(), atol=1e-6)
    assert {one.execution for one in (x, w, y)} == {y.execution}
    [fed] = dump.select("_arg_x_0_0")
    assert fed.op_type == "_Arg"
    assert np.array_equal(fed.numpy(), x.numpy())


def test_nodes_of_the_debugger_are_no_operators(real: Path) -> None:
    dump = ascend_dump.open(real)
    assert not [record.op_name for record in dump if "__copy_" in record.op_name or "__dbg_" in record.op_name]
    assert all(record.op_type for record in dump)
    assert dump.known_values("step") == {0, 1}


def test_of_nan_the_operator_that_made_it_is_named(real: Path) -> None:
    pytest.importorskip("polars")
    from ascend_dump.analysis.operators.nonfinite import first_nonfinite

    found = first_nonfinite(ascend_dump.open(real / RUN))
    assert found is not None
    assert (found.kind, found.record.op_name) == ("origin", "layer2/log_of_negative")


def test_a_summary_is_recorded_statistics(copied: Callable[[str], Path]) -> None:
    root = copied("hook")
    whole = {
        (record.step, record.op_name): record.statistics() for record in ascend_dump.open(root) if record.io == "output"
    }
    for path in root.rglob("*_DebugIdentity_*"):
        path.unlink()
    records = list(ascend_dump.open(root))
    assert records
    for record in records:
        found, expected = record.recorded_statistics(), whole[record.step, record.op_name]
        assert found is not None
        assert (found.count, found.max, found.min, found.nan, found.posinf, found.neginf, found.zero) == (
            expected.count,
            expected.max,
            expected.min,
            expected.nan,
            expected.posinf,
            expected.neginf,
            expected.zero,
        )
        assert found.mean == pytest.approx(expected.mean, nan_ok=True)
        assert record.shape is not None
        assert math.prod(record.shape) == found.count
        with pytest.raises(NotSupported, match="statistics only"):
            record.numpy()


def test_another_debug_operator_is_listed(copied: Callable[[str], Path]) -> None:
    root = copied("hook")
    for path in list(root.rglob("relu_0_DebugIdentity_*")):
        path.rename(path.with_name(path.name.replace("DebugIdentity", "DebugNanCount")))
    first = next(record for record in ascend_dump.open(root) if record.attrs.get("debug_op") == "DebugNanCount")
    with pytest.raises(NotSupported, match="result of the debug operator DebugNanCount"):
        first.numpy()


def test_one_scope_or_file_is_opened_by_itself(real: Path) -> None:
    scope = real / RUN / DEVICE / "layer1"
    names = {record.op_name for record in ascend_dump.open(scope)}
    assert names == {f"layer1/{name}" for name in ("w", "b", "MatMul", "add", "relu")} | {
        "layer1/MatMul/ReadVariableOp",
        "layer1/add/ReadVariableOp",
    }
    [file] = scope.glob("relu_0_DebugIdentity_*")
    [record] = ascend_dump.open(file)
    assert (record.op_name, record.step) == ("layer1/relu", 0)
    assert record.numpy().min() == 0


def test_without_its_graph_values_are_read(copied: Callable[[str], Path]) -> None:
    root = copied(RUN)
    [graph] = root.rglob("_tfdbg_graph_*")
    graph.write_bytes(graph.read_bytes()[:1000])
    dump = ascend_dump.open(root)
    [record] = dump.select("layer1/relu", io="output")
    assert (record.op_type, record.numpy().shape) == ("", (4, 6))


@pytest.mark.parametrize("number", ["-1", ""], ids=["later", "at the same time"])
def test_a_node_that_ran_twice_has_two_runs(copied: Callable[[str], Path], number: str) -> None:
    root = copied(RUN)
    layer = root / DEVICE / "layer1"
    [relu], [add] = (list(layer.glob(f"{name}_0_DebugIdentity_*")) for name in ("relu", "add"))
    stamp = int(relu.name.rpartition("_")[2])
    second = layer / f"add_0_DebugIdentity_{stamp + 1}"
    shutil.copy(add, second)
    shutil.copy(relu, layer / f"relu_0_DebugIdentity_{stamp + 1}{number}")
    records = list(ascend_dump.open(root).select("layer1/relu"))
    assert [record.io for record in records] == ["input", "output"] * 2
    assert len({record.execution for record in records}) == 2
    # Each read what was written last before it.
    assert [record.path for record in records][::2] == [add, second]


@pytest.mark.parametrize("keep", [0, 1, 9, 40, -1])
def test_a_file_that_is_cut_off_is_one_error(copied: Callable[[str], Path], keep: int) -> None:
    root = copied(RUN)
    [file] = root.rglob("relu_0_DebugIdentity_*")
    file.write_bytes(file.read_bytes()[:keep])
    broken = [record for record in ascend_dump.open(root) if record.error is not None]
    assert {record.path for record in broken} == {file}
    assert {record.label for record in broken} >= {"layer1/relu.output.0"}


def test_a_shape_that_does_not_fit_is_an_error(copied: Callable[[str], Path]) -> None:
    root = copied(RUN)
    [file] = root.rglob("relu_0_DebugIdentity_*")
    data = file.read_bytes()
    assert data.count(b"\x12\x02\x08\x04\x12\x02\x08\x06") == 1
    file.write_bytes(data.replace(b"\x12\x02\x08\x04\x12\x02\x08\x06", b"\x12\x02\x08\x04\x12\x02\x08\x07"))
    [record] = ascend_dump.open(file)
    assert "takes 112 bytes, but it has 96" in str(record.error)


@given(data=st.binary(max_size=300), at=st.integers(0, 300))
def test_damaged_files_raise_nothing_else(data: bytes, at: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.getbasetemp() / "damaged_tfdbg" / "run_1795363542886742_0" / DEVICE
    place.mkdir(parents=True, exist_ok=True)
    for name in ("x_0_DebugIdentity_1795363542972128", "y_0_DebugNumericSummary_1795363542972129"):
        (place / name).write_bytes(data)
    (place / "_tfdbg_graph_hash1_1795363542972128").write_bytes(data[at:])
    for record in ascend_dump.open(place):
        record.to_dict()
        if record.error is None:
            record.recorded_statistics()


def test_the_same_program_twice_compares_equal(real: Path, copied: Callable[[str], Path]) -> None:
    pytest.importorskip("polars")
    root = copied(RUN)
    assert ascend_dump.compare(root, real / RUN).verdict == "equal"
    [file] = root.rglob("logits_0_DebugIdentity_*")
    data = bytearray(file.read_bytes())
    [record] = list(ascend_dump.open(file))
    at = bytes(data).index(record.numpy().tobytes())
    data[at + 3] ^= 0x40
    file.write_bytes(data)
    [origin] = ascend_dump.compare(root, real / RUN).origins
    assert origin.op_name == "layer2/logits"

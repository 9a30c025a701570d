"""How the fake MindSpore writes files, and what becomes of those that it cannot write."""

from __future__ import annotations

import io
import json
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from mindspore_programs import (
    OUT,
    VARIABLE,
    dense_net,
    doubled,
    environment,
    in_graph_mode,
    load,
    names,
    rows,
    settings,
    tensors,
    write_settings,
)

import ascend_dump
from ascend_dump import fakes

# Private: the bytes are held against numpy's.
from ascend_dump.fakes.mindspore._disk import npy_bytes


def test_files_are_private_and_hold_the_values(npu, config, tmp_path):
    in_graph_mode()
    config()
    net = dense_net()
    result = net(rows())
    root = tmp_path / OUT / "rank_0"
    for path in root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o400), path
    [output] = root.glob("Net/0/0/ReLU.*.output.0.DefaultFormat.Float32.npy")
    assert np.array_equal(load(output), result.asnumpy())
    assert output.read_bytes()[:10] == b"\x93NUMPY\x01\x00\x76\x00"
    assert b"'shape': (2,3,), }" in output.read_bytes()[:128]
    [flag] = root.glob("Net/0/0/MatMul.*.input.3.DefaultFormat.Bool.npy")
    assert load(flag).item() is True
    assert json.loads((root / ".dump_metadata/config.json").read_text()) == {
        "device_target": "CPU",
        "ms_version": "2.10.0",
    }


def test_a_second_run_into_the_same_directory_adds_files(config, tmp_path):
    for _ in range(2):
        config(iteration="0")
        with fakes.install("mindspore") as npu:
            in_graph_mode()
            dense_net()(rows())
    assert sum(names(tmp_path / OUT).values()) == 28 + 4 + 2
    assert any("is already exist, skip copy it." in line for line in npu.log)
    history = tmp_path / OUT / "rank_0/execution_order/ms_global_execution_order_graph_0.csv"
    assert history.read_text() == "0\n0\n"


@given(
    arrays(
        st.sampled_from(["?", "i1", "u2", "<i4", "<i8", "<f2", "<f4", "<f8"]),
        array_shapes(min_dims=0, max_dims=4, max_side=5),
    )
)
def test_the_npy_header_is_one_that_numpy_reads(array):
    data = npy_bytes(array)
    assert len(data) == 128 + array.nbytes
    read = np.load(io.BytesIO(data), allow_pickle=False)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()


def test_a_full_disk_ends_the_run_and_leaves_what_fitted(npu, config, tmp_path):
    in_graph_mode()
    config()
    net, x = doubled(256)
    net.compile(x)
    npu.fill_disk(1152 + 500)
    with pytest.raises(RuntimeError, match=r"insufficient disk space\. Please check"):
        net(x)
    found = sorted((tmp_path / OUT / "rank_0/Net").rglob("*.npy"))
    assert [(path.stat().st_size, stat.S_IMODE(path.stat().st_mode)) for path in found] == [(1152, 0o400), (500, 0o644)]
    # A run that failed does not count.
    npu.fill_disk(1 << 20)
    dense_net()(rows())
    assert {name.split("/")[3] for name in tensors(tmp_path)} == {"0"}


def test_a_full_disk_swallows_small_tensors_and_texts(npu, config, tmp_path):
    """As measured: below 1024 bytes nobody learns of it, and the files are empty."""
    in_graph_mode()
    config()
    npu.fill_disk(0)
    net, x = doubled(255)
    net(x)
    assert sum(names(tmp_path / OUT).values()) == 4 + 4 + 2
    assert all(path.stat().st_size == 0 for path in (tmp_path / OUT).rglob("*") if path.is_file())


def test_a_file_that_was_cut_off_is_told_by_the_reader(npu, config, tmp_path):
    in_graph_mode()
    config(dump_mode=1, kernels=["relu"])
    npu.truncate_files(130)
    dense_net()(rows())
    records = list(ascend_dump.open(tmp_path / OUT))
    assert len(records) == 2
    for record in records:
        with pytest.raises(ascend_dump.CorruptDump):
            record.numpy()


@pytest.mark.parametrize("kind", ["file", "dangling", "loop", "long", "too long"])
def test_a_path_that_cannot_be_made_is_logged_and_the_run_goes_on(npu, tmp_path, kind):
    in_graph_mode()
    place = tmp_path / OUT
    if kind == "file":
        place.write_text("a file")
    elif "long" in kind:
        place = place.joinpath("d" * 300) if kind == "long" else place.joinpath(*["d" * 200] * 25)
    else:
        place.symlink_to(place if kind == "loop" else tmp_path / "nowhere")
    with environment(**{VARIABLE: write_settings(tmp_path / "dump.json", settings(place))}):
        assert dense_net()(rows()).shape == (2, 3)
    assert any("Create the dir(" in line for line in npu.log)


def test_a_net_name_that_no_directory_can_have_loses_the_tensors_only(npu, config, tmp_path):
    in_graph_mode()
    config(net_name="n" * 256)
    dense_net()(rows())
    assert tensors(tmp_path) == []
    assert len(names(tmp_path / OUT)) == 4 + 2


def test_a_net_name_that_no_directory_can_have_loses_the_statistics_of_a_gpu(npu, config, tmp_path):
    in_graph_mode("GPU")
    config(net_name="n" * 256, saved_data="full")
    dense_net()(rows())
    assert len(names(tmp_path / OUT)) == 4


def test_a_text_that_cannot_be_opened_is_logged_and_the_run_goes_on(npu, config, tmp_path):
    in_graph_mode()
    (tmp_path / OUT / "rank_0/graphs/ms_output_trace_code_graph_0.ir").mkdir(parents=True)
    config()
    dense_net()(rows())
    assert len(tensors(tmp_path)) == 14
    assert any("Open file" in line and "Is a directory" in line for line in npu.log)


def test_blanks_and_backslashes_of_names_are_written_like_slashes(npu, config, tmp_path):
    ms = in_graph_mode()
    config()

    class Net(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = ms.Parameter(ms.Tensor(np.ones(4, np.float32)), name="a b.c/d\\e:f")

        def construct(self, x):
            return x + self.w

    Net()(rows())
    [path] = (tmp_path / OUT).rglob("Parameter.a*")
    assert path.name.startswith("Parameter.a_b_c_d_e:f.0.0.")
    [record] = ascend_dump.open(tmp_path / OUT).select(op="a b.c/d\\e:f")
    assert record.path == path

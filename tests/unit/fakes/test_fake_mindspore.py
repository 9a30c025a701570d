"""The fake MindSpore: when it reads the configuration, with which words it refuses it, and which trees it writes.

The moments and counts are those measured with MindSpore 2.10.0 on a CPU.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import mindspore_programs
import places
import pytest
from mindspore_programs import (
    OUT,
    VARIABLE,
    dense_net,
    in_graph_mode,
    names,
    rows,
    tensors,
)

from ascend_dump import fakes

DATA = places.DATA / "mindspore"
VECTORS = [json.loads(line) for line in (DATA / "config_vectors.jsonl").read_text().splitlines()]
#: What a JSON parser says of bad syntax is its own.
PARSER = "Parse dump json failed, error:[json.exception.parse_error.101]"


def test_without_the_variable_nothing_is_written(npu, tmp_path):
    in_graph_mode()
    dense_net()(rows())
    assert not (tmp_path / OUT).exists()


@pytest.mark.parametrize("moment", ["import", "context", "cell", "tensor"])
def test_before_the_first_operator_it_is_read(npu, config, tmp_path, moment):
    ms = None
    for step in ("import", "context", "cell", "tensor"):
        if step == "import":
            import mindspore as ms
        elif step == "context":
            in_graph_mode()
        elif step == "cell":
            net = dense_net()
        else:
            x = rows()
        if step == moment:
            config()
    assert not ms.hal.device.is_initialized("CPU")
    net(x)
    assert ms.hal.device.is_initialized("CPU")
    assert len(tensors(tmp_path)) == 14
    assert len(names(tmp_path / OUT)) == 14 + 4 + 2


def test_after_an_operator_only_the_metadata_is_missing(npu, config, tmp_path):
    ms = in_graph_mode()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    _ = rows() + 1
    assert ms.hal.device.is_initialized("CPU")
    config()
    ms.set_context(mode=ms.GRAPH_MODE)
    dense_net()(rows())
    assert len(tensors(tmp_path)) == 14
    assert not (tmp_path / OUT / "rank_0" / ".dump_metadata").exists()


def test_after_compiling_it_is_silent(npu, config, tmp_path):
    in_graph_mode()
    net = dense_net()
    net.compile(rows())
    config()
    net(rows())
    assert not (tmp_path / OUT).exists()


def test_after_a_run_another_cell_leaves_its_graph_only(npu, config, tmp_path):
    in_graph_mode()
    net = dense_net()
    net(rows())
    config()
    net(rows())
    assert not (tmp_path / OUT).exists()
    # The compilation that reads it does so too late for its own graph.
    dense_net()(rows())
    assert not (tmp_path / OUT).exists()
    dense_net()(rows())
    graph = "ms_output_trace_code_graph_2"
    assert sorted(names(tmp_path / OUT)) == [
        "rank_0/execution_order/ms_execution_order_graph_2.csv",
        f"rank_0/graphs/{graph}.ir",
        f"rank_0/graphs/{graph}.pb",
    ]


def test_the_first_file_is_final(npu, config, tmp_path):
    in_graph_mode()
    config(iteration="0|1")
    net = dense_net()
    net.compile(rows())
    os.environ[VARIABLE] = ""
    net(rows())
    os.environ[VARIABLE] = str(tmp_path / "no such file.json")
    net(rows())
    net(rows())
    assert len(tensors(tmp_path)) == 28


def test_a_refused_file_is_read_again(npu, config, tmp_path):
    ms = in_graph_mode()
    config(dump_mode=3)
    net = dense_net()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="dump_mode should be 0, 1 or 2, but got 3"):
            net(rows())
        assert not ms.hal.device.is_initialized("CPU")
    config()
    net(rows())
    assert len(tensors(tmp_path)) == 14


@pytest.mark.parametrize("entry", ["communication.init", "mint.distributed.init_process_group"])
def test_communication_reads_it(npu, config, tmp_path, entry, monkeypatch):
    ms = in_graph_mode()
    place, _, function = entry.rpartition(".")
    module = ms
    for name in place.split("."):
        module = getattr(module, name)
    with pytest.raises(RuntimeError, match="without using 'mpirun'"):
        getattr(module, function)()
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "2")
    config(net_name="a/b")
    with pytest.raises(RuntimeError, match="net_name only supports"):
        getattr(module, function)()
    assert not ms.hal.device.is_initialized("CPU")
    config()
    getattr(module, function)()
    assert ms.hal.device.is_initialized("CPU")
    assert [ms.communication.get_rank(), ms.communication.get_group_size()] == [1, 2]
    dense_net()(rows())
    # Only the first rank has metadata and a history.
    assert {name.partition("/")[0] for name in names(tmp_path / OUT)} == {"rank_1"}
    assert len(names(tmp_path / OUT)) == 14 + 3


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_every_configuration_has_the_recorded_verdict(vector, tmp_path, monkeypatch):
    """The message, and how many tensors three steps of the network write into which iterations."""
    (tmp_path / "file").touch()

    def put(text: str) -> str:
        return text.replace("@OUT@", str(tmp_path / OUT)).replace("@FILE@", str(tmp_path / "file"))

    file = tmp_path / "dump.json"
    file.write_bytes(put(vector["config"]).encode("latin-1" if "\0" in vector["config"] else "utf-8"))
    for name, value in {VARIABLE: str(file), **vector["env"]}.items():
        monkeypatch.setenv(name, put(value))
    said = ""
    with fakes.install("mindspore"):
        in_graph_mode()
        net = dense_net()
        try:
            for _ in range(3):
                net(rows())
        except RuntimeError as error:
            said = str(error)
    expected = put(vector["message"] or "")
    if expected.startswith(PARSER):
        said, expected = said[: len(PARSER)], PARSER
    assert said.strip() == expected.strip()
    written = [Path(name) for name in names(tmp_path / OUT) if name.endswith(".npy")]
    if vector["files"] is not None:
        assert len(written) == vector["files"]
    if vector["iterations"] or vector["files"] == 0:
        assert sorted({int(path.parent.name) for path in written}) == vector["iterations"]


def test_the_iteration_is_the_count_of_the_graph_that_ran_before(npu, config, tmp_path):
    in_graph_mode()
    config(input_output=2, dump_mode=1, kernels=["relu"])
    first, second, third = dense_net(), dense_net(), dense_net()
    for net in (first, first, first, second, third):
        net(rows())
    found = {tuple(name.split("/")[2:4]) for name in tensors(tmp_path)}
    assert found == {("0", "0"), ("0", "1"), ("0", "2"), ("1", "3"), ("2", "1")}


def test_names_go_on_over_the_graphs_and_the_graph_texts_do_not(npu, config, tmp_path):
    in_graph_mode()
    config(dump_mode=1, kernels=["Default/relu-ReLU/ReLU-op1"])
    dense_net()(rows())
    dense_net()(rows())
    assert {name.split(".")[1] for name in tensors(tmp_path)} == {"Default_relu-ReLU_ReLU-op1"}
    text = (tmp_path / OUT / "rank_0/graphs/ms_output_trace_code_graph_1.ir").read_text()
    assert "# Fullname with scope: (Default/relu-ReLU/ReLU-op0)" in text
    assert f"# In file {mindspore_programs.__file__}:" in text
    assert "return self.relu(self.fc(x))" in text


def test_a_new_shape_is_a_new_graph(npu, config, tmp_path):
    in_graph_mode()
    config()
    net = dense_net()
    for count in (2, 2, 3):
        net(rows(count))
    graphs = {name.split("/")[2] for name in tensors(tmp_path)}
    assert graphs == {"0", "1"}


def test_the_program_can_count_steps_itself(npu, config, tmp_path):
    ms = in_graph_mode()
    config(iteration="0-9", dump_mode=1, kernels=["relu"], input_output=2)
    net = dense_net()
    native = ms._c_expression
    native._dump_step(1)
    assert "Costomized step function" in npu.log[-1]
    native._set_init_iter(5)
    for _ in range(2):
        net(rows())
    native._dump_step(2)
    net(rows())
    native._set_init_iter(10**6)
    net(rows())
    native._set_init_iter(0)
    net(rows())
    assert {name.split("/")[3] for name in tensors(tmp_path)} == {"0", "5", "7"}


def test_the_initial_iteration_shifts_the_numbers(npu, config, tmp_path):
    in_graph_mode()
    config(initial_iteration=5, iteration="5|6")
    net = dense_net()
    for _ in range(3):
        net(rows())
    assert {name.split("/")[3] for name in tensors(tmp_path)} == {"5", "6"}


def test_a_history_names_an_iteration_once(npu, config, tmp_path):
    """As measured: what runs in the iteration of the one before leaves no line."""
    in_graph_mode()
    config()
    for net in (dense_net(), dense_net(), dense_net()):
        net(rows())
    orders = tmp_path / OUT / "rank_0/execution_order"
    assert {path.name: path.read_text() for path in orders.glob("ms_global_*")} == {
        "ms_global_execution_order_graph_0.csv": "0\n",
        "ms_global_execution_order_graph_1.csv": "1\n",
    }

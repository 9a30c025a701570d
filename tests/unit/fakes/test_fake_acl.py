"""The fake `acl`: codes and their order as documented for the real library, memory, models, dumps."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump
from ascend_dump import ConfigError, fakes
from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save

H2D, D2H = 1, 2
SIZE = 16


@pytest.fixture
def npu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fakes.install("acl", environ={}) as device:
        yield device


@pytest.fixture
def acl(npu):
    import acl

    return acl


@pytest.fixture
def ready(acl):
    """An initialised acl with a device set."""
    assert (acl.init(), acl.rt.set_device(0)) == (0, 0)
    return acl


@pytest.fixture
def om(tmp_path):
    """y = relu(x + 1) * 2 as a stand-in for an offline model."""
    one, two = (np.full((1, 4), value, np.float32) for value in (1, 2))
    nodes = (
        OfflineNode("one", "Const", const=one),
        OfflineNode("two", "Const", const=two),
        OfflineNode("A", "Add", ("x:0", "one:0"), original_names=("first/Add",)),
        OfflineNode("C", "Relu", ("A:0",)),
        OfflineNode("B", "Mul", ("C:0", "two:0")),
        OfflineNode("D", "Relu", ("B:0",)),
    )
    path = tmp_path / "ResNet-50.om"
    save(OfflineModel("resnet", (TensorSpec("x", (1, 4), "float32"),), nodes, ("D:0",), True), path)
    return str(path)


def configure(tmp_path: Path, **dump: Any) -> str:
    (tmp_path / "output").mkdir(exist_ok=True)
    file = tmp_path / "acl.json"
    file.write_text(json.dumps({"dump": dump}))
    return str(file)


def infer(acl, model: int, x: np.ndarray, stream: int = -1) -> np.ndarray:
    """Run one execution, as an application does."""
    desc = acl.mdl.create_desc()
    assert acl.mdl.get_desc(desc, model) == 0
    sets, addresses = [], []
    for size in (acl.mdl.get_input_size_by_index(desc, 0), acl.mdl.get_output_size_by_index(desc, 0)):
        address, ret = acl.rt.malloc(size, 0)
        assert ret == 0
        dataset = acl.mdl.create_dataset()
        assert acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(address, size)) == (dataset, 0)
        sets.append(dataset)
        addresses.append((address, size))
    (source, size), (result, length) = addresses
    assert acl.rt.memcpy(source, size, acl.util.bytes_to_ptr(x.tobytes()), size, H2D) == 0
    if stream < 0:
        assert acl.mdl.execute(model, *sets) == 0
    else:
        assert acl.mdl.execute_async(model, *sets, stream) == 0
        assert acl.rt.synchronize_stream(stream) == 0
    host, ret = acl.rt.malloc_host(length)
    assert ret == 0
    assert acl.rt.memcpy(host, length, result, length, D2H) == 0
    return np.frombuffer(acl.util.ptr_to_bytes(host, length), np.float32)


# Order of calls and codes.


def test_initialisation_and_its_codes(acl):
    assert [acl.finalize(), acl.init(), acl.init(), acl.finalize(), acl.finalize()] == [0, 0, 100002, 0, 100037]
    assert [acl.init(), acl.finalize()] == [0, 0]


def test_codes_are_plain_ints(acl):
    assert type(acl.init()) is type(acl.init()) is int
    assert type(acl.rt.malloc(1, 0)[1]) is int


def test_the_dump_interface_keeps_its_order(acl, tmp_path):
    good = configure(tmp_path, dump_path="output", dump_list=[{}])
    calls = (acl.mdl.init_dump, lambda: acl.mdl.set_dump(good), acl.mdl.finalize_dump)
    assert [call() for call in calls] == [100001] * 3
    acl.init()
    assert [acl.mdl.set_dump(good), acl.mdl.finalize_dump()] == [100045, 100045]
    assert [acl.mdl.init_dump(), acl.mdl.init_dump()] == [0, 100002]
    assert acl.mdl.set_dump(None) == 100000
    assert acl.mdl.set_dump(str(tmp_path / "none.json")) == 100003
    assert [acl.mdl.set_dump(good), acl.mdl.set_dump(good), acl.mdl.finalize_dump()] == [0, 0, 0]
    assert acl.mdl.finalize_dump() == 100045


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"dump": {"dump_path": "nowhere", "dump_list": [{}]}}', 100009),
        ("{", 100009),
        ("[" * 11 + "]" * 11, 100006),
        ("", 0),
        ("{}", 0),
    ],
)
def test_a_configuration_is_judged_alike_by_init_and_set_dump(acl, tmp_path, text, code):
    file = tmp_path / "some.json"
    file.write_text(text)
    assert acl.init(str(file)) == code
    if code:
        assert acl.get_recent_err_msg()
        assert acl.init() == 0
    assert [acl.mdl.init_dump(), acl.mdl.set_dump(str(file))] == [0, code]


def test_a_second_life_takes_no_other_configuration(acl, tmp_path):
    config = configure(tmp_path, dump_path="output", dump_list=[{}])
    assert [acl.init(config), acl.finalize(), acl.init(config), acl.finalize()] == [0] * 4
    assert acl.init(configure(tmp_path, dump_path="output", dump_debug="on")) == 100000


def test_messages_are_told_once(acl):
    acl.mdl.init_dump()
    assert "acl.init must be executed before" in acl.get_recent_err_msg()
    assert acl.get_recent_err_msg() == ""


def test_paths_are_text_as_in_an_extension_module(acl, tmp_path):
    with pytest.raises(TypeError):
        acl.init(tmp_path / "acl.json")
    with pytest.raises(TypeError):
        acl.mdl.load_from_file(tmp_path / "net.om")


def test_it_does_not_hide_a_real_acl(tmp_path, monkeypatch):
    (tmp_path / "acl.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="the real acl is installed here"), fakes.install("acl"):
        pass
    with fakes.install("acl", force=True):
        import acl

        assert not hasattr(acl, "real")


# Devices, contexts, memory.


def test_memory_needs_a_device_in_this_thread(acl):
    acl.init()
    assert acl.rt.malloc(SIZE, 0) == (0, 107002)
    assert acl.rt.set_device(1) == 107001
    assert acl.rt.set_device(0) == 0
    assert acl.rt.malloc(SIZE, 0)[1] == 0
    seen = []
    thread = threading.Thread(target=lambda: seen.append(acl.rt.malloc(SIZE, 0)))
    thread.start()
    thread.join()
    assert seen == [(0, 107002)]


def test_a_context_is_handed_to_another_thread(ready):
    context, ret = ready.rt.get_context()
    seen = []

    def work() -> None:
        seen.append(ready.rt.set_context(context))
        seen.append(ready.rt.malloc(SIZE, 0)[1])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (ret, seen) == (0, [0, 0])


def test_what_the_device_is(ready):
    assert ready.get_soc_name().startswith("Ascend")
    assert (ready.rt.get_device_count(), ready.rt.get_device(), ready.rt.get_run_mode()) == ((1, 0), (0, 0), (1, 0))


def test_bytes_go_to_the_device_and_back(ready):
    data = bytes(range(SIZE))
    device, _ = ready.rt.malloc(SIZE, 0)
    host, _ = ready.rt.malloc_host(SIZE)
    assert ready.rt.memcpy(device, SIZE, ready.util.bytes_to_ptr(data), SIZE, H2D) == 0
    assert ready.rt.memcpy(host, SIZE, device, SIZE, D2H) == 0
    assert ready.util.ptr_to_bytes(host, SIZE) == data
    assert ready.util.ptr_to_numpy(host, (2, 2), 5).tolist() == np.frombuffer(data, np.int32).reshape(2, 2).tolist()
    assert [ready.rt.free(device), ready.rt.free_host(host)] == [0, 0]
    assert [ready.rt.free(device), ready.rt.free_host(host)] == [100000, 100000]


def test_an_array_is_copied_from_where_it_is(ready):
    array = np.arange(4, dtype=np.float32)
    device, _ = ready.rt.malloc(SIZE, 0)
    back = np.zeros(4, np.float32)
    assert ready.rt.memcpy(device, SIZE, ready.util.numpy_to_ptr(array), SIZE, H2D) == 0
    assert ready.rt.memcpy(ready.util.numpy_to_ptr(back), SIZE, device, SIZE, D2H) == 0
    assert back.tolist() == array.tolist()


def test_the_sides_of_memory_are_kept_apart(ready):
    device, _ = ready.rt.malloc(SIZE, 0)
    host, _ = ready.rt.malloc_host(SIZE)
    assert ready.rt.memcpy(device, SIZE, host, SIZE, D2H) == 107000
    assert ready.rt.memcpy(device, SIZE, host, SIZE + 1, H2D) == 100000
    assert ready.rt.memcpy(device, 2 * SIZE, host, 2 * SIZE, H2D) == 107000
    assert ready.rt.memcpy(device, SIZE, host, SIZE, 9) == 100000
    with pytest.raises(ValueError, match="is not host memory"):
        ready.util.ptr_to_bytes(device, SIZE)
    with pytest.raises(ValueError, match="not contiguous"):
        ready.util.numpy_to_ptr(np.zeros((4, 4))[:, 1])


def test_memory_ends(ready):
    assert ready.rt.malloc(1 << 40, 0) == (0, 207001)
    assert ready.rt.malloc(0, 0) == (0, 100000)


def test_work_in_a_stream_is_done_at_its_synchronisation(ready):
    stream, ret = ready.rt.create_stream()
    host, _ = ready.rt.malloc_host(SIZE)
    device, _ = ready.rt.malloc(SIZE, 0)
    assert ready.rt.memset(device, SIZE, 7, SIZE) == 0
    assert (ret, ready.rt.memcpy_async(host, SIZE, device, SIZE, D2H, stream)) == (0, 0)
    assert ready.util.ptr_to_bytes(host, SIZE) == bytes(SIZE)
    assert ready.rt.synchronize_stream(stream) == 0
    assert ready.util.ptr_to_bytes(host, SIZE) == b"\7" * SIZE
    assert [ready.rt.destroy_stream(stream), ready.rt.synchronize_stream(stream)] == [0, 107003]


# Models.


def test_a_model_is_described(ready, om):
    model, ret = ready.mdl.load_from_file(om)
    desc = ready.mdl.create_desc()
    assert (ret, ready.mdl.get_desc(desc, model)) == (0, 0)
    assert (ready.mdl.get_num_inputs(desc), ready.mdl.get_num_outputs(desc)) == (1, 1)
    assert ready.mdl.get_input_dims(desc, 0) == ({"name": "x", "dimCount": 2, "dims": [1, 4]}, 0)
    assert ready.mdl.get_output_dims(desc, 0)[0]["dims"] == [1, 4]
    assert (ready.mdl.get_input_data_type(desc, 0), ready.mdl.get_input_format(desc, 0)) == (0, 2)
    assert ready.mdl.get_input_index_by_name(desc, "x") == (0, 0)
    assert ready.mdl.get_input_index_by_name(desc, "z") == (0, 100000)
    assert ready.mdl.get_output_name_by_index(desc, 0) == "D:0"
    assert (ready.mdl.get_input_size_by_index(desc, 0), ready.mdl.get_input_size_by_index(desc, 1)) == (16, 0)
    assert [ready.mdl.destroy_desc(desc), ready.mdl.destroy_desc(desc)] == [0, 100000]


def test_a_model_runs_from_a_file_and_from_memory(ready, om):
    x = np.array([-3, 0, 1, 2], np.float32)
    data = Path(om).read_bytes()
    from_file, _ = ready.mdl.load_from_file(om)
    from_memory, ret = ready.mdl.load_from_mem(ready.util.bytes_to_ptr(data), len(data))
    assert (ret, from_file != from_memory) == (0, True)
    stream, _ = ready.rt.create_stream()
    for result in (infer(ready, from_file, x), infer(ready, from_memory, x), infer(ready, from_file, x, stream)):
        assert result.tolist() == [0, 2, 4, 6]
    assert [ready.mdl.unload(from_file), ready.mdl.unload(from_file)] == [0, 145003]


def test_loading_tells_what_is_wrong(acl, om, tmp_path):
    assert acl.mdl.load_from_file(om) == (0, 100001)
    acl.init()
    assert acl.mdl.load_from_file(om) == (0, 107002)
    acl.rt.set_device(0)
    assert acl.mdl.load_from_file(str(tmp_path / "none.om")) == (0, 145002)
    (tmp_path / "real.om").write_bytes(b"IMOD\0\1\2")
    assert acl.mdl.load_from_file(str(tmp_path / "real.om")) == (0, 100013)
    assert "not an offline model of the simulated device" in acl.get_recent_err_msg()


def test_execution_tells_what_is_wrong(ready, om):
    model, _ = ready.mdl.load_from_file(om)
    good, empty, host = (ready.mdl.create_dataset() for _ in range(3))
    for dataset, (address, _) in ((good, ready.rt.malloc(16, 0)), (host, ready.rt.malloc_host(16))):
        ready.mdl.add_dataset_buffer(dataset, ready.create_data_buffer(address, 16))
    assert ready.mdl.execute(99, good, good) == 145003
    assert ready.mdl.execute(model, empty, good) == 145000
    assert ready.mdl.execute(model, host, good) == 145000
    assert ready.mdl.execute(model, good, good) == 0


def test_an_operator_that_fails_is_told_by_its_code(ready, npu, om):
    npu.fail("C")
    model, _ = ready.mdl.load_from_file(om)
    inputs = ready.mdl.create_dataset()
    ready.mdl.add_dataset_buffer(inputs, ready.create_data_buffer(ready.rt.malloc(16, 0)[0], 16))
    assert ready.mdl.execute(model, inputs, inputs) == 507015
    assert "'C' failed" in ready.get_recent_err_msg()


def test_models_end_with_acl(ready, npu, om):
    model, _ = ready.mdl.load_from_file(om)
    assert npu.models == (model,)
    assert [ready.finalize(), npu.models, ready.mdl.unload(model)] == [0, (), 145003]


# The four configurations of the user documents, end to end.


def run_with(acl, config: str, om: str, times: int = 1, by_init: bool = True) -> ascend_dump.Dump:
    """An application's life with this configuration, and what it dumped."""
    if by_init:
        assert acl.init(config) == 0
    else:
        assert [acl.init(), acl.mdl.init_dump(), acl.mdl.set_dump(config)] == [0, 0, 0]
    assert acl.rt.set_device(0) == 0
    model, ret = acl.mdl.load_from_file(om)
    assert ret == 0
    for _ in range(times):
        infer(acl, model, np.array([1, 2, 3, 4], np.float32))
    if not by_init:
        assert acl.mdl.finalize_dump() == 0
    assert [acl.mdl.unload(model), acl.finalize()] == [0, 0]
    return ascend_dump.open(Path(config).parent / "output")


@pytest.mark.parametrize("by_init", [True, False])
def test_the_document_s_model_dump(acl, tmp_path, om, by_init):
    layers = {"model_name": "ResNet-50", "layer": ["first/Add", "D"]}
    config = configure(
        tmp_path,
        dump_list=[{"model_name": "ResNet-101"}, layers],
        dump_path=str(tmp_path / "output"),
        dump_mode="output",
        dump_op_switch="off",
        dump_data="tensor",
    )
    dump = run_with(acl, config, om, times=2, by_init=by_init)
    found = [(record.op_name, record.io, record.step, record.model) for record in dump if record.op_type != "Data"]
    assert found == [(name, "output", step, "ResNet-50") for step in (0, 1) for name in ("A", "D")]
    # A selected operator behind an input brings the input's data along.
    assert [record.numpy().tolist() for record in dump.select(op_type="Data", step=0)] == [[[1, 2, 3, 4]]]
    [last] = dump.select(op="D", step=1)
    assert last.numpy().tolist() == [[4, 6, 8, 10]]


def test_the_document_s_dump_of_single_operators(acl, npu, tmp_path, om):
    config = configure(tmp_path, dump_path="output", dump_list=[], dump_op_switch="on", dump_data="tensor")
    assert acl.init(config) == 0
    value = np.arange(3, dtype=np.float32)
    npu.run_op("Relu", "relu_1", [value], [value])
    dump = ascend_dump.open(tmp_path / "output")
    [record] = dump
    assert (record.op_name, record.model, record.step, record.numpy().tolist()) == ("relu_1", None, None, [0, 1, 2])


def test_the_document_s_overflow_dump(acl, npu, tmp_path, om):
    npu.overflow("B", status=0x110)
    dump = run_with(acl, configure(tmp_path, dump_path="output", dump_debug="on"), om)
    [record] = dump.select(op_type="Opdebug")
    [unit] = record.attrs["units"]
    assert (unit["status"], unit["operator"]["op_name"]) == ([0x110], "B")
    assert {one.io for one in dump.select(op="B")} == {"input", "output"}
    assert {one.op_name for one in dump if one.op_type != "Opdebug"} == {"B"}


def test_the_document_s_watcher(acl, npu, tmp_path, om, capsys):
    from ascend_dump.cli import main

    npu.trample("B", "C", offset=4, data=np.float32(-9).tobytes())
    config = configure(
        tmp_path,
        dump_list=[{"layer": ["B", "D"], "watcher_nodes": ["C"]}],
        dump_path="output",
        dump_mode="output",
        dump_scene="watcher",
    )
    dump = run_with(acl, config, om)
    assert sorted(record.path.name.split(".")[1] for record in dump) == ["B_To_C", "C", "D_To_C"]
    assert main(["watch", str(tmp_path / "output"), "--json"]) == 1
    [found] = json.loads(capsys.readouterr().out)["tramples"]
    expected = ("B", "C", [0, 1], 3.0, -9.0, 1)
    assert tuple(found[name] for name in ("layer", "watched", "first", "before", "after", "elements")) == expected


def test_a_model_loaded_before_the_dump_is_set_is_not_dumped(ready, npu, tmp_path, om):
    config = configure(tmp_path, dump_path="output", dump_list=[{}])
    early, _ = ready.mdl.load_from_file(om)
    assert [ready.mdl.init_dump(), ready.mdl.set_dump(config)] == [0, 0]
    infer(ready, early, np.zeros(4, np.float32))
    assert npu.files == []
    late, _ = ready.mdl.load_from_file(om)
    infer(ready, late, np.zeros(4, np.float32))
    assert npu.files

"""The fake torch_npu: where tensors are, which operators are kernels, and both dump interfaces with their codes."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ascend_dump  # noqa: E402
from ascend_dump import fakes  # noqa: E402

# Private: which API an operator calls, without running it.
from ascend_dump.fakes.torch_npu._apis import api_of, generated_type, kernel_of  # noqa: E402
from ascend_dump.native.cann.names import eager_name, parse_name  # noqa: E402


@pytest.fixture
def npu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ASCEND_DUMP_PATH", "ASCEND_WORK_PATH", "NPU_COLLECT_PATH", "ASCEND_DUMP_SCENE", "ACL_DUMP_DATA"):
        monkeypatch.delenv(name, raising=False)
    with fakes.install("torch_npu") as device:
        yield device


@pytest.fixture
def torch_npu(npu):
    import torch_npu

    return torch_npu


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "dump.json"
    dump = {"dump_path": str(tmp_path), "dump_list": [], "dump_op_switch": "on", "dump_mode": "all"}
    file.write_text(json.dumps({"dump": dump}))
    return str(file)


def types(npu):
    return [one.op_type for one in npu.executed]


# Where tensors are.


@pytest.mark.parametrize(
    "move", [lambda x: x.npu(), lambda x: x.npu(0), lambda x: x.to("npu"), lambda x: x.to(device="npu:0")]
)
def test_a_move_is_a_copy_and_no_kernel(npu, move):
    x = torch.ones(2)
    there = move(x)
    assert (x.is_npu, there.is_npu) == (False, True)
    there += 1
    assert x.tolist() == [1, 1]
    assert types(npu) == ["aclnnAdds"]
    assert there.npu().data_ptr() == there.data_ptr()


@pytest.mark.parametrize("back", [lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.to(torch.device("cpu"))])
def test_and_so_is_the_move_back(npu, back):
    there = torch.ones(2).npu()
    here = back(there)
    here += 1
    assert (here.is_npu, there.cpu().tolist(), types(npu)) == (False, [1, 1], [])


def test_what_is_made_there_is_there(npu):
    for made in (
        torch.zeros(2, device="npu"),
        torch.tensor([1.0], device="npu:0"),
        torch.ones(1).to("npu", torch.half),
    ):
        assert made.is_npu
    assert torch.ones(1).npu().to(torch.bfloat16).is_npu
    assert torch.zeros_like(torch.zeros(1, device="npu")).is_npu
    assert not torch.zeros(2).is_npu


def test_tensors_of_the_device_are_no_arrays(npu):
    for read in (lambda x: x.numpy(), np.asarray):
        with pytest.raises(TypeError, match="can't convert npu:0 device type tensor to numpy"):
            read(torch.ones(2).npu())
    assert torch.ones(2).npu().sum().item() == 2


@pytest.mark.parametrize("move", [lambda m: m.npu(), lambda m: m.to("npu:0"), lambda m: m.to(device="npu")])
def test_modules_are_moved_in_place(npu, move):
    module = torch.nn.BatchNorm1d(3)
    assert move(module) is module
    tensors = [*module.parameters(), *module.buffers()]
    assert all(tensor.is_npu for tensor in tensors)
    assert isinstance(module.weight, torch.nn.Parameter)
    assert not any(tensor.is_npu for tensor in module.cpu().parameters())
    assert move(module).to("cpu").weight.is_npu is False
    assert module.to("npu", torch.float16).weight.dtype is torch.float16
    assert module.weight.is_npu


def test_results_gradients_and_updates_stay_there(npu):
    model = torch.nn.Linear(3, 2).npu()
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.ones(4, 3).npu()).square().mean()
    loss.backward()
    optimizer.step()
    assert loss.is_npu
    assert all(parameter.grad.is_npu and parameter.is_npu for parameter in model.parameters())


def test_marks_do_not_outlive_their_tensors(npu):
    for _ in range(10_000):
        torch.ones(1).npu()
    assert not any(torch.ones(1).is_npu for _ in range(100))


def test_everything_is_taken_back_but_the_name_of_the_device(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    owners = (torch, torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.TypedStorage)
    before = [dict(vars(owner)) for owner in owners]
    with fakes.install("torch_npu"):
        assert torch.npu.is_available()
        there = torch.ones(1, device="npu")
    assert not torch.npu.is_available()
    for owner, known in zip(owners, before):
        assert {**vars(owner), "npu": None} == {**known, "npu": None}, owner
    assert "torch.npu" not in sys.modules
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).tolist() == [2]
    assert torch.device("npu").type == "npu"
    with pytest.raises(ascend_dump.NotSupported, match="no fake torch_npu is installed"):
        there + 1
    with fakes.install("torch_npu"):
        assert (there + 1).cpu().tolist() == [2]


# Kernels.


def test_only_operators_on_the_device_are_kernels(npu):
    host, there = torch.ones(2, 2), torch.ones(2, 2).npu()
    host @ host
    (there @ there).t().relu_()
    assert [(one.op_type, one.name) for one in npu.executed] == [
        ("aclnnMatmul", "MatMulCommon"),
        ("aclnnInplaceRelu", "TransposeAiCore"),
        ("aclnnInplaceRelu", "Relu"),
        ("aclnnInplaceRelu", "TransposeAiCore"),
    ]
    assert {(one.model_id, one.step) for one in npu.executed} == {(None, None)}


@pytest.mark.parametrize(
    ("operator", "tensors", "api", "kernel", "generated"),
    [
        ("aten::add.Tensor", 2, "aclnnAdd", "AddAiCore", ""),
        ("aten::add.Tensor", 1, "aclnnAdds", "AddAiCore", ""),
        ("aten::add_.Tensor", 2, "aclnnInplaceAdd", "AddAiCore", ""),
        ("aten::lerp_.Scalar", 2, "aclnnInplaceLerps", "Lerp", ""),
        ("aten::eq.Scalar", 1, "aclnnEqScalar", "EqualAiCore", ""),
        ("aten::eq.Tensor", 2, "aclnnEqTensor", "EqualAiCore", ""),
        ("aten::pow.Tensor_Scalar", 1, "aclnnPowTensorScalar", "PowsAiCore", ""),
        ("aten::max", 1, "aclnnMax", "ReduceMaxAiCore", ""),
        ("aten::max.dim", 1, "aclnnMaxDim", "Max2AiCore", ""),
        ("aten::mm", 2, "aclnnMm", "MatMulCommon", ""),
        ("aten::copy_", 2, "aclnnInplaceCopy", "ViewCopyAiCore", ""),
        ("aten::_to_copy", 1, "aclnnCast", "CastAiCore", ""),
        ("aten::clamp_", 1, "aclnnClamp", "ClipByValueV2AiCore", ""),
        ("aten::sum.dim_IntList", 1, "aclnnReduceSum", "ReduceSumOpAiCore", ""),
        ("aten::_foreach_abs", 2, "aclnnForeachAbs", "ForeachAbsAiCore", "ForeachAbs"),
        ("npu::npu_rms_norm", 2, "aclnnRmsNorm", "RmsNormAiCore", "RmsNorm"),
        ("npu::npu_fusion_attention", 3, "aclnnFlashAttentionScore", "FlashAttentionScore", ""),
        ("mine::frobnicate_", 1, "aclnnInplaceFrobnicate", "FrobnicateAiCore", ""),
    ],
)
def test_operators_call_the_apis_of_op_plugin(operator, tensors, api, kernel, generated):
    found = api_of(operator, tensors)
    assert (found, kernel_of(found), generated_type(found)) == (api, kernel, generated)


def dumped(npu, torch_npu, config, run):
    torch_npu.npu.init_dump()
    torch_npu.npu.set_dump(config)
    run()
    torch_npu.npu.finalize_dump()
    return [(record.op_name, record.io, record.shape) for record in ascend_dump.open(os.path.dirname(config))]


def test_a_call_has_whole_storages_and_its_kernel_the_view(npu, torch_npu, config):
    x = torch.arange(12.0).reshape(3, 4).npu()[1:, :2]
    seen = dumped(npu, torch_npu, config, lambda: x.abs())
    assert seen == [
        ("aclnnAbs_0/SliceAiCore_0", "input", (3, 4)),
        ("aclnnAbs_0/SliceAiCore_0", "output", (2, 2)),
        ("aclnnAbs_0/AbsAiCore_0", "input", (2, 2)),
        ("aclnnAbs_0/AbsAiCore_0", "output", (2, 2)),
        ("aclnnAbs_0", "input", (12,)),
        ("aclnnAbs_0", "output", (4,)),
    ]


def test_a_product_reads_a_transposed_operand_as_it_is_in_memory(npu, torch_npu, config):
    x, weight = torch.ones(2, 4).npu(), torch.ones(3, 4).npu()
    seen = dumped(npu, torch_npu, config, lambda: x @ weight.t())
    shapes = [shape for name, _, shape in seen if name == "aclnnMatmul_0/MatMulCommon_0"]
    assert shapes == [(2, 4), (3, 4), (2, 3)]


def test_an_operator_that_returns_nothing_has_what_it_wrote_as_outputs(npu, torch_npu, config):
    x = [torch.ones(2).npu(), torch.ones(3).npu()]
    seen = dumped(npu, torch_npu, config, lambda: torch._foreach_neg_(x))
    assert {(io, shape) for _, io, shape in seen} == {(io, (size,)) for io in ("input", "output") for size in (2, 3)}


def test_in_saturation_mode_results_are_the_largest_number(npu, torch_npu, monkeypatch):
    assert torch_npu.npu.utils.is_support_inf_nan()
    monkeypatch.setenv("INF_NAN_MODE_ENABLE", "0")
    with pytest.raises(RuntimeError, match="INF_NAN_MODE_FORCE_DISABLE"):
        torch_npu.npu.utils.is_support_inf_nan()
    monkeypatch.setenv("INF_NAN_MODE_FORCE_DISABLE", "1")
    assert not torch_npu.npu.utils.is_support_inf_nan()
    npu.saturates = True
    x = torch.tensor([6e4, -6e4, 1], dtype=torch.float16).npu()
    assert (x * 2).cpu().tolist() == [65504, -65504, 2]
    x.mul_(2)
    assert x.cpu().tolist() == [65504, -65504, 2]


@pytest.mark.parametrize(("soc", "inf_nan"), [("Ascend910A", False), ("Ascend910_9391", True), ("Ascend950", True)])
def test_the_mode_depends_on_the_device(tmp_path, monkeypatch, soc, inf_nan):
    monkeypatch.chdir(tmp_path)
    with fakes.install("torch_npu", soc=soc) as device:
        import torch_npu

        torch_npu.npu.init()
        assert (torch_npu.npu.utils.is_support_inf_nan(), device.saturates) == (inf_nan, not inf_nan)


def test_backward_passes_are_kernels_too(npu):
    weight = torch.ones(2, 2, requires_grad=True)
    there = weight.npu()
    (there * 3).sum().backward()
    assert "aclnnMuls" in types(npu)[types(npu).index("aclnnReduceSum") :]
    assert weight.grad.tolist() == [[3, 3], [3, 3]]


def test_compiled_models_run_compiled(npu):
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    model = torch.compile(torch.nn.Linear(2, 2).npu(), backend=backend)
    assert model(torch.ones(1, 2).npu()).is_npu
    assert len(compiled) == 1
    torch._dynamo.reset()


def test_operators_of_a_model_are_no_kernels(npu):
    model = npu.load_model("graph_1")
    npu.begin_step(model, 0)
    assert torch.ones(2).npu().relu().is_npu
    npu.end_step(model)
    assert types(npu) == []
    torch.ones(2).npu().relu()
    assert types(npu) == ["aclnnRelu"]


def test_a_failing_kernel_fails_and_is_dumped_as_torch_npu_has_set_it(npu, torch_npu, tmp_path):
    npu.fail("aclnnRelu")
    with pytest.raises(RuntimeError, match="Relu"):
        torch.ones(2).npu().relu()
    [record, *_] = ascend_dump.open(tmp_path)
    assert record.attrs["scene"] == "exception"
    assert record.path.parent == tmp_path / "extra-info" / "data-dump" / "0"
    assert record.path.name.startswith("exception_info.")


def test_a_graph_computes_in_its_memory_when_it_is_replayed(npu, torch_npu, config, tmp_path):
    x, count = torch.ones(4).npu(), torch.zeros(1).npu()
    graph = torch_npu.npu.NPUGraph()
    torch_npu.npu.init_dump()
    torch_npu.npu.set_dump(config)
    with torch.npu.graph(graph):
        assert torch_npu.npu.is_current_stream_capturing()
        y = x.reshape(2, 2) * 3
        count += 1
    assert not torch_npu.npu.is_current_stream_capturing()
    assert (types(npu), npu.files, count.cpu().item()) == ([], [], 0)
    for number in (2, 5):
        x.copy_(torch.full((4,), float(number)))
        graph.replay()
        assert y.cpu().tolist() == [[3.0 * number] * 2] * 2
    assert count.cpu().item() == 2
    assert types(npu) == ["aclnnMuls", "aclnnAdds"] * 2
    assert {eager_name(parse_name(path.name)).api for path in npu.files} == {"aclnnMuls", "aclnnAdds"}
    written = [record.numpy().max() for record in ascend_dump.open(tmp_path).select(op_type="aclnnMuls", io="output")]
    assert set(written) >= {6.0}
    graph.reset()
    graph.replay()
    assert count.cpu().item() == 2


def test_waiting_for_the_device_breaks_a_capture(npu, torch_npu):
    torch_npu.npu.init()
    graph = torch_npu.npu.NPUGraph()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="error code is 107030"):
        torch_npu.npu.synchronize()
    with pytest.raises(RuntimeError, match="error code is 507903"):
        graph.capture_end()
    torch_npu.npu.synchronize()


def test_an_index_out_of_range_fails_on_the_device_where_a_kernel_reads_by_it(npu, torch_npu, tmp_path):
    weight = torch.ones(8, 16).npu()
    with pytest.raises(RuntimeError, match=r"aclnnEmbedding.*index out of range"):
        torch.nn.functional.embedding(torch.tensor([8]).npu(), weight)
    assert {record.io for record in ascend_dump.open(tmp_path)} == {"input"}
    with pytest.raises(IndexError):
        weight[8]
    assert types(npu) == ["aclnnEmbedding"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_values_are_dumped_as_they_are(npu, torch_npu, config, tmp_path, dtype):
    x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    torch_npu.npu.init_dump()
    torch_npu.npu.set_dump(config)
    x.t().npu().logical_not()
    torch_npu.npu.finalize_dump()
    dump = ascend_dump.open(tmp_path)
    [given, made] = [record for record in dump if record.kernel == "LogicalNotAiCore"]
    assert (given.op_type, given.shape, given.rank, given.step) == ("aclnnLogicalNot", (3, 2), None, None)
    assert given.numpy().astype("c8").tolist() == x.t().to(torch.complex64).tolist()
    assert made.numpy().tolist() == x.t().logical_not().tolist()


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x[0, 0].clone(),
        lambda x: x.sum().detach().clone(),
        lambda x: torch.zeros((), device="npu").copy_(x.sum()),
        lambda x: x.__setitem__((0, 0), 7.0) or x[0, 0],
    ],
)
def test_copies_of_single_numbers(npu, torch_npu, config, copy):
    x = torch.ones(2, 3)
    expected = copy(x.clone()) if "npu" not in copy.__code__.co_consts else x.sum()
    assert copy(x.npu()).cpu().item() == expected.item()


def test_the_memory_of_a_result_is_reported_as_it_was_before(npu, torch_npu, config):
    """The file of the inputs is written before the call runs: it has the memory of the result, and not the result."""
    x = torch.full((4,), 3.0).npu()
    dumped(npu, torch_npu, config, lambda: x.log())
    [memory] = [r for r in ascend_dump.open(os.path.dirname(config)) if r.op_name == "aclnnLog_0" and r.index == 1]
    assert memory.numpy().tolist() == [0] * 4


def test_a_kernel_on_aicpu_has_no_files(npu, torch_npu, config):
    """Only the API call is dumped, with its whole storages."""
    x = torch.arange(4.0, dtype=torch.float64).npu()[1:]
    seen = dumped(npu, torch_npu, config, lambda: x.abs())
    assert seen == [("aclnnAbs_0", "input", (4,)), ("aclnnAbs_0", "output", (3,))]
    assert [one.name for one in npu.executed] == ["AbsAiCore"]


VIEWS = {
    "transposed": (lambda x: x.transpose(0, 2), ["TransposeAiCore"]),
    "a box": (lambda x: x[1:, 2:4, 1:], ["SliceAiCore"]),
    "a box, transposed": (lambda x: x[1:, 2:4, 1:].transpose(0, 1), ["SliceAiCore", "TransposeAiCore"]),
    "every second": (lambda x: x[..., ::2], ["StridedSliceAiCore"]),
    "a column": (lambda x: x[0, :, 1], ["SliceAiCore"]),
    "a diagonal": (lambda x: x[0].diagonal(), ["SliceAiCore"]),
    "repeated": (lambda x: x[:1].expand(5, -1, -1), ["BroadcastToAiCore"]),
    "repeated flags": (lambda x: (x > 3)[:1].expand(5, -1, -1), ["CastAiCore", "BroadcastToAiCore", "CastAiCore"]),
    "overlapping": (lambda x: x.reshape(-1).unfold(0, 4, 2), ["AsStridedAiCore"]),
    "in order": (lambda x: x[1:], []),
}


@pytest.mark.parametrize("view", VIEWS)
def test_kernels_bring_views_in_order(npu, torch_npu, view):
    make, kernels = VIEWS[view]
    x = make(torch.arange(120.0).reshape(4, 5, 6).npu())
    npu.executed.clear()
    x.logical_not()
    assert [one.name for one in npu.executed] == [*kernels, "LogicalNotAiCore"]


@pytest.mark.parametrize(
    ("copy", "kernels"),
    [
        (lambda x, y: x.copy_(y), ["TensorMoveAiCore"]),
        (lambda x, y: y.clone(), ["TensorMoveAiCore"]),
        (lambda x, y: x.copy_(y.t()), ["TransposeAiCore"]),
        (lambda x, y: x.t().copy_(y), ["TransposeAiCore"]),
        (lambda x, y: x[:, :2].copy_(y[:, :2]), ["SliceAiCore", "ViewCopyAiCore"]),
        (lambda x, y: x.copy_(y.half()), ["CastAiCore"]),
        (lambda x, y: x.copy_(y[0]), ["BroadcastToAiCore"]),
        (lambda x, y: x[:, :2].fill_(1), ["FillAiCore", "ViewCopyAiCore"]),
        (lambda x, y: x[:, :2].abs_(), ["SliceAiCore", "AbsAiCore", "ViewCopyAiCore"]),
    ],
)
def test_kernels_write_to_views(npu, torch_npu, copy, kernels):
    x, y = torch.zeros(4, 4).npu(), torch.ones(4, 4).npu()
    copy(x, y)
    names = [one.name for one in npu.executed if one.op_type != "aclnnCast"]
    assert names == kernels


@pytest.mark.parametrize(
    ("run", "api", "inputs"),
    [
        (lambda x: x.log(), "aclnnLog", 2),
        (lambda x: x.copy_(x[:1]), "aclnnInplaceCopy", 2),
        (lambda x: x.clone(), "aclnnInplaceCopy", 2),
        (lambda x: x.fill_(2), "aclnnInplaceFillScalar", 1),
    ],
)
def test_calls_that_declare_no_outputs(npu, torch_npu, config, run, api, inputs):
    """Their outputs are among their inputs (DFX_OUT of the API is empty)."""
    x = torch.ones(2, 3).npu()
    seen = dumped(npu, torch_npu, config, lambda: run(x))
    assert [(io, shape[0]) for name, io, shape in seen if name == f"{api}_0"] == [("input", 6)] * inputs


def test_what_an_operator_overwrites_is_dumped_as_it_was(npu, torch_npu, config, tmp_path):
    x = torch.ones(2).npu()
    torch_npu.npu.init_dump()
    torch_npu.npu.set_dump(config)
    x.mul_(3)
    torch_npu.npu.finalize_dump()
    assert [record.numpy().tolist() for record in ascend_dump.open(tmp_path)] == [[1, 1], [3, 3]] * 2


# The dump interfaces.


def test_the_module_shows_the_interface_that_drops_return_codes(npu, torch_npu, config):
    torch_npu.npu.init()
    torch_npu.npu.set_dump(config)  # too early, and nothing is said
    assert npu.dump_root is None
    with pytest.raises(RuntimeError, match="error code is 100045"):
        torch_npu.npu.utils.set_dump(config)
    torch_npu.npu.init_dump()
    torch_npu.npu.init_dump()
    with pytest.raises(RuntimeError, match=r"aclmdlInitDump.*100002"):
        torch_npu.npu.utils.init_dump()
    torch_npu.npu.finalize_dump()
    torch_npu.npu.finalize_dump()
    with pytest.raises(RuntimeError, match=r"aclmdlFinalizeDump.*100045"):
        torch_npu.npu.utils.finalize_dump()
    with pytest.raises(AssertionError, match="does not exists"):
        torch_npu.npu.set_dump("nowhere.json")
    torch_npu.npu.utils.init_dump()
    with pytest.raises(RuntimeError, match="100003"):
        torch_npu.npu.utils.set_dump("nowhere.json")


def test_options_wait_until_the_npu_is_initialised(npu, torch_npu, config):
    torch_npu.npu.init_dump()
    torch_npu.npu.set_dump(config)
    assert not torch_npu.npu.is_initialized()
    assert npu.dump_root is None
    torch.ones(1).npu()
    assert torch_npu.npu.is_initialized()
    assert npu.dump_root is not None


def test_the_environment_names_another_configuration(npu, torch_npu, monkeypatch, tmp_path):
    file = tmp_path / "mine.json"
    monkeypatch.setenv("TORCH_ACL_INIT_CONFIG_PATH", str(file))
    for content, reason in ((None, "is invalid"), ("{", "Failed to parse"), ("{}", "lacks 'defaultDevice'")):
        if content is not None:
            file.write_text(content)
        with pytest.raises(RuntimeError, match=reason):
            torch_npu.npu.init()
    work = tmp_path / "work"
    work.mkdir()
    scene = {"dump_scene": "aic_err_norm_dump", "dump_path": str(work)}
    file.write_text(json.dumps({"dump": scene, "defaultDevice": {"default_device": "0"}}))
    npu.fail("aclnnRelu")
    with pytest.raises(RuntimeError, match="Relu"):
        torch.ones(2).npu().relu()
    assert [record.op_type for record in ascend_dump.open(work)][:1] == ["aclnnRelu"]


def test_a_deprecated_variable_switches_the_dump_on(npu, torch_npu, monkeypatch, config, tmp_path):
    monkeypatch.setenv("ACL_DUMP_DATA", "1")
    os.rename(config, tmp_path / "acl.json")
    torch_npu.npu.init()
    assert npu.dump_root is not None
    with pytest.raises(RuntimeError, match="100002"):
        torch_npu.npu.utils.init_dump()


def test_acl_and_torch_npu_are_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fakes.install("acl", "torch_npu"):
        import acl
        import torch_npu

        assert acl.init() == 0
        torch_npu.npu.init()  # acl is initialised already, which torch_npu takes as it is
        assert acl.mdl.init_dump() == 0
        with pytest.raises(RuntimeError, match="100002"):
            torch_npu.npu.utils.init_dump()


# What scripts touch besides.


def test_devices_are_told_and_set(npu, torch_npu):
    assert torch.npu is torch_npu.npu
    assert (torch.npu.is_available(), torch.npu.device_count(), torch.npu.current_device()) == (True, 1, 0)
    torch.npu.set_device("npu:0")
    with pytest.raises(RuntimeError, match="error code is 107001"):
        torch.npu.set_device(1)
    torch.npu.synchronize()
    assert torch.npu.get_device_name(0) == npu.soc
    with torch.npu.device(0), torch.npu.stream(torch.npu.Stream()):
        torch.npu.current_stream().synchronize()
    torch.npu.manual_seed(3)
    assert torch.initial_seed() == 3
    torch.npu.empty_cache()
    assert torch.npu.memory_allocated() == 0


def test_hccl_is_gloo(npu, tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("hccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert distributed.get_backend() == "hccl"
        x = torch.ones(2).npu()
        distributed.all_reduce(x)
        assert x.tolist() == [1, 1]
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            distributed.all_reduce(torch.ones(2))
    finally:
        distributed.destroy_process_group()

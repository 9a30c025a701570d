"""Scripts for an NPU as users write them, on the fake torch_npu: training, and what surrounds it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._C._acc", reason="devices written in Python came with PyTorch 2.13")

from torch import nn  # noqa: E402

from ascend_dump import NotSupported, fakes  # noqa: E402
from ascend_dump.fakes.device.npu import Npu  # noqa: E402

#: Autocast and torch.distributed warn of what they deprecate from release to release.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    monkeypatch.chdir(tmp_path)
    with fakes.install("torch_npu", environ={}) as device:
        yield device


class Classifier(nn.Module):
    """PyTorch's encoder over embeddings, with a convolution and a recurrent layer before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.mix = nn.Conv1d(16, 16, 3, padding=1)
        self.order = nn.GRU(16, 16, batch_first=True)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: Any) -> Any:
        x = self.mix(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        return self.head(self.encoder(self.order(x)[0]).mean(1))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Classifier()


def batches(count: int = 3) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randint(0, 50, (4, 7), generator=generator), torch.randint(0, 5, (4,), generator=generator))
        for _ in range(count)
    ]


def train(device: Any, *, optimizer: Callable[..., Any] = torch.optim.AdamW, **settings: Any) -> list[float]:
    model = make_model().to(device)
    update = optimizer(model.parameters(), lr=1e-2, **settings)
    losses = []
    for tokens, labels in batches():
        loss = nn.functional.cross_entropy(model(tokens.to(device)), labels.to(device))
        update.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        losses.append(loss.item())
    return losses


def close(values: Any, expected: Any) -> bool:
    return bool(torch.allclose(torch.as_tensor(values), torch.as_tensor(expected), atol=1e-5))


@pytest.mark.parametrize("device", ["npu", "npu:0", torch.device("cpu")])
def test_training(npu: Npu, device: Any) -> None:
    device = torch.device(device)
    model = make_model().to(device)
    assert {parameter.device.type for parameter in model.parameters()} == {device.type}
    assert close(train(device), train("cpu"))
    apis = {one.op_type for one in npu.executed}
    if device.type == "npu":
        called = ("aclnnEmbedding", "aclnnConvolution", "aclnnLayerNormWithImplMode", "aclnnFlashAttentionScoreGrad")
        assert set(called) <= apis
    else:
        assert apis == set()


def test_the_module_of_the_device_is_that_of_the_installation() -> None:
    """PyTorch keeps the module of each device that it has found once."""
    outer = torch.get_device_module("npu")
    with fakes.install("torch_npu", environ={}):
        assert torch.get_device_module("npu") is torch.npu
        assert torch.npu is not outer
    assert torch.get_device_module("npu") is outer
    assert torch.npu is outer


def test_a_data_loader_with_pinned_memory() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)
    sums = []
    for (batch,) in loader:
        assert batch.is_pinned()
        there = batch.to("npu:0", non_blocking=True)
        sums.append(there.sum().item())
    assert (there.device, sums) == (torch.device("npu", 0), [6, 22])


def test_autocast_and_scalers(npu: Npu) -> None:
    import torch_npu

    model, plain = make_model().to("npu"), train("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for scaler in (torch.amp.GradScaler("npu"), torch.npu.amp.GradScaler(init_scale=1024.0)):
        for context in (torch.autocast("npu", dtype=torch.bfloat16), torch_npu.npu.amp.autocast(dtype=torch.half)):
            tokens, labels = batches(1)[0]
            with context:
                scores = model(tokens.npu())
                loss = nn.functional.cross_entropy(scores, labels.npu())
            assert (scores.dtype, loss.dtype) == (context.fast_dtype, torch.float32)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert abs(loss.item() - plain[0]) < 0.3
        assert scaler.get_scale() >= 1024
    assert not torch.is_autocast_enabled("npu")
    with pytest.raises(RuntimeError, match="unsafe to autocast"), torch.autocast("npu"):
        nn.functional.binary_cross_entropy(torch.ones(1).npu(), torch.ones(1).npu())


def test_a_script_for_cuda() -> None:
    from torch_npu.contrib import transfer_to_npu  # noqa: F401

    assert torch.cuda.is_available()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model().to(device)
    assert next(model.parameters()).device.type == "npu"
    torch.cuda.set_device(0)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batches(1)[0][0].cuda()).float().square().mean()
    scaler = torch.cuda.amp.GradScaler()
    scaler.scale(loss).backward()
    torch.cuda.synchronize()
    assert torch.zeros(2, device="cuda:0").is_cuda
    assert torch.cuda.memory_allocated() > 0
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    assert torch.load(saved, map_location="cuda:0")["head.weight"].device == torch.device("npu", 0)


def test_cuda_is_itself_again_afterwards() -> None:
    cuda, to = torch.cuda.is_available, torch.nn.Module.to
    with fakes.install("torch_npu", environ={}, force=True):
        from torch_npu.contrib import transfer_to_npu  # noqa: F401

        assert torch.cuda.is_available()
    assert torch.cuda.is_available is cuda
    assert torch.nn.Module.to is to


@pytest.mark.parametrize("saved_on", ["npu", "cpu"])
def test_checkpoints(tmp_path: Path, saved_on: str) -> None:
    model = make_model().to(saved_on)
    optimizer = torch.optim.AdamW(model.parameters())
    nn.functional.cross_entropy(model(batches(1)[0][0].to(saved_on)), batches(1)[0][1].to(saved_on)).backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    for location in ("npu:0", "cpu"):
        state = torch.load(tmp_path / "checkpoint.pt", map_location=location)
        assert {tensor.device for tensor in state["model"].values()} == {torch.device(location)}
        other = make_model().to(location)
        other.load_state_dict(state["model"])
        torch.optim.AdamW(other.parameters()).load_state_dict(state["optimizer"])
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(model.parameters(), other.parameters()))
    own = torch.load(tmp_path / "checkpoint.pt", map_location=None)["model"]
    assert {tensor.device.type for tensor in own.values()} == {saved_on}


@pytest.mark.parametrize(
    ("fused", "plain"),
    [("NpuFusedAdamW", "AdamW"), ("NpuFusedAdam", "Adam"), ("NpuFusedSGD", "SGD"), ("NpuFusedRMSprop", "RMSprop")],
)
def test_fused_optimizers(fused: str, plain: str) -> None:
    import torch_npu

    expected = train("cpu", optimizer=getattr(torch.optim, plain))
    assert close(train("npu", optimizer=getattr(torch_npu.optim, fused)), expected)
    optimizer = getattr(torch_npu.optim, fused)([nn.Parameter(torch.ones(4).npu())], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.full((4,), 3.0).npu()
    assert optimizer.clip_grad_norm_fused_(1.0).item() == pytest.approx(6)
    with pytest.raises(NotSupported, match="NpuFusedLamb"):
        torch_npu.optim.NpuFusedLamb([])


def test_a_profiled_loop(tmp_path: Path) -> None:
    import torch_npu

    settings = torch_npu.profiler._ExperimentalConfig(
        profiler_level=torch_npu.profiler.ProfilerLevel.Level1,
        aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization,
    )
    with torch_npu.profiler.profile(
        activities=[torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU],
        schedule=torch_npu.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(str(tmp_path / "trace")),
        record_shapes=True,
        experimental_config=settings,
    ) as profiler:
        for _ in range(4):
            assert math.isfinite(train("npu")[0])
            profiler.step()
    assert profiler.step_num == 4
    assert not (tmp_path / "trace").exists()
    torch_npu.npu.mstx.range_end(torch_npu.npu.mstx.range_start("step"))


def test_streams_and_events(npu: Npu) -> None:
    stream, other = torch.npu.Stream(), torch.npu.Stream(device="npu:0", priority=-1)
    begin, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    x = torch.ones(3, device="npu")
    begin.record()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        y = x * 2
        y.record_stream(stream)
        end.record(stream)
    other.wait_stream(stream)
    other.wait_event(stream.record_event())
    torch.npu.current_stream().wait_stream(other)
    assert torch.npu.current_stream() == torch.npu.default_stream()
    torch.npu.synchronize()
    assert (y + 1).tolist() == [3, 3, 3]
    assert end.query()
    assert begin.elapsed_time(end) >= 0
    with pytest.raises(RuntimeError, match="enable_timing"):
        torch.npu.Event().elapsed_time(end)
    assert [one.stream for one in npu.executed if one.op_type.startswith(("aclnnMul", "aclnnAdd"))] == [
        stream.stream_id & 0xFFFF,
        0,
    ]


def test_memory_is_that_of_the_tensors_that_exist() -> None:
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    x = torch.zeros(1 << 18, device="npu")
    view = x[10:]
    assert torch.npu.memory_allocated() - before == 1 << 20
    del x
    assert torch.npu.memory_allocated("npu:0") - before == 1 << 20
    del view
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() - before == 1 << 20
    stats = torch.npu.memory_stats()
    assert stats["allocated_bytes.all.current"] == before
    assert stats["allocated_bytes.all.peak"] - before == 1 << 20
    free, total = torch.npu.mem_get_info()
    assert total - free == before
    assert "allocated_bytes" in torch.npu.memory_summary()
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == before


def test_random_numbers_are_seeded() -> None:
    torch.npu.manual_seed_all(3)
    first = torch.randn(4, device="npu")
    state = torch.npu.get_rng_state()
    second = nn.functional.dropout(torch.ones(20, device="npu"))
    torch.npu.set_rng_state(state)
    assert torch.equal(second, nn.functional.dropout(torch.ones(20, device="npu")))
    torch.manual_seed(3)
    assert torch.equal(first, torch.randn(4, device="npu"))
    generator = torch.Generator(device="npu").manual_seed(7)
    assert generator.device == torch.device("npu", 0)
    drawn = torch.rand(3, generator=generator, device="npu")
    assert torch.equal(drawn, torch.rand(3, generator=generator.manual_seed(7), device="npu"))
    assert isinstance(torch.default_generator, torch.Generator)


def test_checkpointed_activations() -> None:
    model = make_model().to("npu")
    tokens, labels = batches(1)[0]
    embedded = model.embedding(tokens.npu())
    hidden = torch.utils.checkpoint.checkpoint(model.encoder, embedded, use_reentrant=False)
    nn.functional.cross_entropy(model.head(hidden.mean(1)), labels.npu()).backward()
    assert model.embedding.weight.grad.device.type == "npu"


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="found at least two devices, npu:0 and cpu"):
        torch.ones(2).npu() + torch.ones(2)
    assert (torch.ones(2).npu() + torch.tensor(1.0)).tolist() == [2, 2]
    assert torch.ones(3).npu()[torch.tensor([0, 2])].shape == (2,)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="107001"):
        torch.ones(1, device="npu:1")
    with fakes.install("torch_npu", environ={"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, force=True):
        assert torch.npu.device_count() == 2
        torch.npu.set_device("npu:1")
        x = torch.ones(1, device="npu")
        assert (x.device, torch.npu.current_device()) == (torch.device("npu", 1), 1)
        with torch.npu.device(0):
            assert torch.npu.current_device() == 0
            y = torch.ones(1).npu()
        assert y.device == torch.device("npu", 0)
        with pytest.raises(RuntimeError, match="two devices"):
            x + y


def test_one_process_of_a_group(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    expected = train("cpu", optimizer=torch.optim.SGD)
    distributed.init_process_group("hccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.npu.set_device(0)
        model = nn.parallel.DistributedDataParallel(make_model().to("npu:0"), device_ids=[0], output_device=0)
        assert close(loop(model, torch.optim.SGD(model.parameters(), lr=1e-2)), expected)
        mesh = torch.distributed.device_mesh.init_device_mesh("npu", (1,))
        sharded = make_model().to("npu")
        for layer in sharded.encoder.layers:
            torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
        torch.distributed.fsdp.fully_shard(sharded, mesh=mesh)
        assert sharded.head.weight.device_mesh.device_type == "npu"
        assert close(loop(sharded, torch.optim.SGD(sharded.parameters(), lr=1e-2)), expected)
    finally:
        distributed.destroy_process_group()


def loop(model: Any, optimizer: Any) -> list[float]:
    losses = []
    for tokens, labels in batches():
        loss = nn.functional.cross_entropy(model(tokens.to("npu")), labels.to("npu"))
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert math.isfinite(norm.full_tensor().item() if hasattr(norm, "full_tensor") else norm.item())
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_every_public_name_of_the_device_module_is_there() -> None:
    """The names are `__all__` of torch_npu 2.13's `npu/__init__.py`."""
    data = Path(__file__).parents[2] / "data" / "torch_npu" / "npu_names.txt"
    names = data.read_text(encoding="ascii").split()
    assert len(names) == 144
    assert [name for name in names if not hasattr(torch.npu, name)] == []
    assert torch.npu.FloatTensor([1, 2]).device.type == "npu"
    assert isinstance(torch.ones(2).half().npu(), torch.npu.HalfTensor)
    assert torch.npu.FloatStorage(3).nbytes() == 12
    for name in ("MemPool", "make_graphed_callables", "stress_detect", "memory_snapshot"):
        with pytest.raises(NotSupported, match=rf"torch_npu\.npu\.{name}"):
            getattr(torch.npu, name)()


def test_results_in_given_tensors() -> None:
    x = torch.arange(6.0).npu()
    small, fitting = torch.empty(0, device="npu"), torch.empty(6, device="npu")
    memory = fitting.data_ptr()
    assert torch.mul(x, 2, out=fitting) is fitting
    assert (fitting.tolist(), fitting.data_ptr()) == ([0, 2, 4, 6, 8, 10], memory)
    assert torch.mul(x, 3, out=small).tolist() == [0, 3, 6, 9, 12, 15]
    parts = [torch.empty(2, device="npu"), torch.empty(4, device="npu")]
    torch.split_with_sizes_copy(x, [2, 4], out=parts)  # the operator returns nothing
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3, 4, 5]]

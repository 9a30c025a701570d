"""Every record holds the bytes that the operator saw, however the memory changes afterwards."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import ascend_dump
from ascend_dump.writing import HostWriter

torch = pytest.importorskip("torch")

from torch_helpers import (  # noqa: E402  (needs torch)
    Residual,
    Shadow,
    assert_same_as_shadow,
    same,
    slow_down,
    train,
    transformer,
)


class Calls(torch.nn.Module):
    """A module that runs a function, so that its operators are one step."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def check(dumps: Path, function: Callable[..., Any], *args: Any, steps: int = 1, **settings: Any) -> Any:
    """Run `function(*args)` as steps under capture and shadow; gives the capture and the number of records."""
    model = Calls(function)
    shadow = Shadow()
    with ascend_dump.capture(model, path=dumps, strict=True, **settings) as cap, shadow.under(model):
        for _ in range(steps):
            model(*args)
    compared = assert_same_as_shadow(cap, shadow)
    assert compared > 0
    return cap


def pictures() -> Any:
    return torch.randn(2, 3, 8, 8)


def words() -> Any:
    return torch.randn(2, 5, 32)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.lstm = torch.nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.gru = torch.nn.GRUCell(10, 4)
        self.rnn = torch.nn.RNN(4, 3)

    def forward(self, x: Any) -> Any:
        out, _ = self.lstm(self.embed(x))
        hidden = torch.zeros(x.shape[0], 4)
        for t in range(out.shape[1]):
            hidden = self.gru(out[:, t], hidden)
        return self.rnn(hidden.unsqueeze(0))[0]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(40, 200)
        self.mix = torch.nn.Linear(200, 200)
        self.out = torch.nn.Linear(200, 40, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        return self.out(self.mix(self.embed(x)).tanh())


MODELS = {
    "transformer": (transformer, words),
    "convnet": (Residual, pictures),
    "convnet channels_last": (
        lambda: Residual().to(memory_format=torch.channels_last),
        lambda: pictures().contiguous(memory_format=torch.channels_last),
    ),
    "recurrent": (Recurrent, lambda: torch.randint(0, 11, (3, 4))),
    "tied": (Tied, lambda: torch.randint(0, 40, (6, 7))),
    "instance norm": (
        lambda: torch.nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        pictures,
    ),
}


@pytest.mark.parametrize("speed", ["fast writer", "slow writer"])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_loop(name: str, speed: str, dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, make_input = MODELS[name]
    torch.manual_seed(3)
    model = make()
    plain = copy.deepcopy(model)
    expected = train(plain, make_input)
    if speed == "slow writer":
        slow_down(monkeypatch, 0.0005)
    shadow = Shadow()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap, shadow.under(model):
        results = train(model, make_input)
    assert same(expected, results), "the capture changed a result"
    assert assert_same_as_shadow(cap, shadow) > 50


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=False),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    "LBFGS": None,
}


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "LBFGS"])
def test_optimizers(name: str, dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters large enough not to be copied at once, written in place while they wait."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(80, 90), torch.nn.ReLU(), torch.nn.Linear(90, 80))
    plain = copy.deepcopy(model)
    expected = train(plain, lambda: torch.randn(4, 80), optimizer=OPTIMIZERS[name])
    slow_down(monkeypatch, 0.001)
    shadow = Shadow()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap, shadow.under(model):
        results = train(model, lambda: torch.randn(4, 80), optimizer=OPTIMIZERS[name])
    assert same(expected, results)
    assert_same_as_shadow(cap, shadow)


def test_in_place_chains(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 0.001)

    def run() -> None:
        x = torch.randn(100, 100)
        for _ in range(3):
            x.relu_().add_(1).mul_(x)
            x[10:20].copy_(x[30:40])
            x.index_put_((torch.tensor([1, 2]),), torch.ones(2, 100), accumulate=True)
            x.masked_fill_(x > 2, 0.5).t_().add_(x.t().clone()).t_()
            x.view(-1)[::3] = 7
            x.diagonal().zero_()
            torch.exp(x, out=torch.empty(0))
            torch.add(x, 1, out=x)
            torch.cat([x[:50], x[50:]], out=torch.empty(100, 100))
            torch.max(x, 1, out=(torch.empty(100), torch.empty(100, dtype=torch.long)))
            x.scatter_(0, torch.zeros(1, 100, dtype=torch.long), 3.0)
            torch._foreach_add_([x, x.t()], 1)
            x.random_(), x.normal_(), x.uniform_(), x.bernoulli_(), x.resize_(50, 50), x.set_(torch.randn(100, 100))

    check(dumps, run)


def test_views(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 0.001)

    def run() -> None:
        x = torch.randn(4, 90, 80)
        views = [
            *(x[1], x[:, 3], x[..., ::2], x[:, 5:9, 7], x.transpose(0, 2), x.permute(2, 0, 1)),
            *(x[0, 0, 0], x.expand(2, 4, 90, 80), x[:1].expand(5, -1, -1), x.unfold(1, 3, 2)),
            *(x.as_strided((6, 5), (3, 7), 11), x.as_strided((2, 3), (5, 0), 1), x.view(-1), x.view(torch.int32)),
            *(x.contiguous(memory_format=torch.contiguous_format).view(4, 9, 10, 80), x.real, x.narrow(1, 2, 3)),
            *(x.to(memory_format=torch.preserve_format), x.movedim(0, 1), x.squeeze(), x.diagonal()),
        ]
        for view in views:
            view + view
            view.clone()
        for a, b in zip(x.chunk(2), x.split([2, 2])):
            torch.cat([a, b, a]) + 1
        picture = x.view(1, 4, 90, 80).to(memory_format=torch.channels_last)
        torch.nn.functional.avg_pool2d(picture, 3).add_(1)
        x.t_ if False else x.transpose_(0, 1).add_(views[0].sum())
        for view in views[:12]:
            view * 2

    check(dumps, run, steps=2)


def test_gradients_add_up_over_micro_batches(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 100))
    plain = copy.deepcopy(model)

    def train_on(model: Any) -> list[Any]:
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in range(6):
            model(torch.randn(5, 100)).square().sum().backward()
            if batch % 3 == 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=batch < 5)
        return [*model.parameters(), *(p.grad for p in model.parameters()), torch.get_rng_state()]

    expected = train_on(plain)
    slow_down(monkeypatch, 0.001)
    shadow = Shadow()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap, shadow.under(model):
        results = train_on(model)
    assert same(expected, results)
    assert_same_as_shadow(cap, shadow)


def test_aliases_with_other_version_counters(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 0.001)

    def run() -> None:
        x = torch.randn(80, 80, requires_grad=True)
        y = x * 2
        for _ in range(4):
            x.data.add_(1)
            y = y + x
            x.detach().mul_(0.5)
            y = y + x.data
            with torch.no_grad():
                x.sub_(y)
            x.data = x.data.clone()
            torch.autograd.graph.increment_version(x.data)
            y = y + x
            torch._C._autograd._unsafe_set_version_counter((x.data,), (0,))
            y = y * x.data

    check(dumps, run)


def test_an_inference_tensor_whose_data_were_replaced(dumps: Path) -> None:
    """PyTorch counts no writes to it, and does not call it an inference tensor any more."""
    with torch.inference_mode():
        tensor = torch.ones(2)
    tensor.data = torch.zeros(2)
    with torch.no_grad(), ascend_dump.capture(framework="torch", path=dumps, strict=True) as cap:
        tensor + 1
        tensor.detach()
        tensor + 2
    assert [one.numpy().tolist() for one in cap.dump().select("add_*", io="output")] == [[1, 1], [2, 2]]


def test_writes_of_inference_tensors(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no version counter."""
    slow_down(monkeypatch, 0.001)

    def run() -> None:
        with torch.inference_mode():
            x = torch.randn(90, 90)
            for _ in range(5):
                x.add_(1)
                y = x @ x
                x.copy_(torch.nn.functional.linear(y, x))

    check(dumps, run)


def test_memory_that_numpy_writes(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 0.002)

    def run() -> None:
        array = np.random.rand(90, 90)
        x = torch.from_numpy(array)
        late = torch.randn(90, 90)
        later = torch.randn(90, 90)
        for i in range(10):
            x * 2
            array[:] = i
            late + x
            seen = late.numpy()
            seen += 1
            late * 2
            given = np.asarray(later)
            given[5] = i
            later + 1
            later.untyped_storage()[3] = i
            buffer = torch.frombuffer(bytearray(80 * 80 * 4), dtype=torch.float32)
            buffer + 1

    check(dumps, run, steps=3)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.2.0", reason="numpy takes no writable DLPack")
def test_memory_given_away_by_dlpack(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 0.002)

    def run() -> None:
        x = torch.randn(90, 90)
        x + 1
        array = np.from_dlpack(x)
        assert array.flags.writeable
        for i in range(5):
            array[:] = i
            x + 1

    check(dumps, run)


def test_memory_freed_right_after_use(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As FSDP frees gathered parameters and fills them again."""
    slow_down(monkeypatch, 0.002)

    def run() -> None:
        x = torch.randn(100, 100)
        storage = x.untyped_storage()
        size = storage.nbytes()
        for i in range(5):
            x @ x
            storage.resize_(0)
            x.view(-1)  # an operator on a tensor whose memory is gone
            storage.resize_(size)
            x.fill_(i)

    cap = check(dumps, run)
    skipped = json.loads((cap.path / "manifest.json").read_text())["skipped"]
    assert "memory that is freed, or packed" in [one["reason"] for one in skipped]


def test_memory_that_moves_to_other_processes(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 0.002)

    def run() -> None:
        x = torch.randn(100, 100)
        y = x + 1
        x.share_memory_()
        assert x.is_shared()
        other = torch.empty(0).set_(x.untyped_storage(), 0, (100, 100))
        for _ in range(3):
            x.add_(1)
            y = y + other
        y.share_memory_()
        y * 2

    check(dumps, run)


@pytest.mark.parametrize("pause", [0.0, 0.0001, 0.001])
def test_a_queued_tensor_is_safe_from_in_place_operators(
    pause: float, dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is at every possible point of its work when the memory changes."""
    slow_down(monkeypatch, pause)

    def run(big: Any, small: Any) -> None:
        for i in range(40):
            big.add_(1)
            big[i : i + 60].mul_(-1)
            small.sub_(big[0, 0])
            (small + 1).neg_().abs_()

    check(dumps, run, torch.randn(120, 100), torch.randn(70, 70), steps=3)


@pytest.mark.parametrize("steps", ["0", "0|2", "1-2"])
def test_what_waits_when_a_step_ends_is_safe_too(steps: str, dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that follow are not watched, the writer is late, the memory changes."""
    slow_down(monkeypatch, 0.005)
    model = torch.nn.Linear(150, 150)
    shadow = Shadow()
    with ascend_dump.capture(model, path=dumps, steps=steps, strict=True) as cap, shadow.under(model):
        for _ in range(4):
            model(torch.randn(3, 150)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad)
                    parameter.grad.zero_()
    selected = [step for step in range(4) if step in ascend_dump.DumpRequest(steps=steps).steps]
    assert {record.step for record in cap.dump()} == set(selected)
    # Without the adapter's mode the shadow sees nothing: the lists of unselected steps stay empty.
    assert [bool(ops) for ops in shadow.steps] == [step in selected for step in range(4)]
    assert_same_as_shadow(cap, shadow)


def test_calls_of_a_decorated_function_are_safe(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 0.005)
    x = torch.zeros(200, 200)

    @ascend_dump.capture(path=dumps, steps="0-9", strict=True)
    def step() -> None:
        x.add_(1)

    for _ in range(10):
        step()
        x.sub_(0.5)  # between the steps
    values = [record.numpy()[0, 0] for record in step.capture.dump().select(io="output")]
    assert values == [1 + 0.5 * i for i in range(10)]


class Branches(torch.nn.Module):
    """Gradients that meet: autograd adds them up in place when it can."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(110, 110)
        self.second = torch.nn.Linear(110, 110)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        y = x + self.second(x) + torch.relu(x) * x.sigmoid()
        for _ in range(4):
            y = y + torch.tanh(y) * 2
        return y + x


@pytest.mark.parametrize("settings", [{}, {"mode": "input"}, {"mode": "output"}, {"layers": "re:tanh|mul"}], ids=str)
def test_the_operators_that_run_do_not_depend_on_the_speed_of_the_writer(
    settings: Any, dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(speed: str) -> list[list[str]]:
        torch.manual_seed(0)
        model = Branches()
        shadow = Shadow()
        with monkeypatch.context() as patch:
            if speed == "slow":
                slow_down(patch, 0.003)
            else:
                patch.setattr(HostWriter, "put", put_and_wait)
            with ascend_dump.capture(model, path=dumps, **settings) as cap, shadow.under(model):
                for _ in range(3):
                    model(torch.randn(40, 110)).sum().backward()
            assert len(cap.dump()) > 20
        return [[ran.op_type for ran in ops] for ops in shadow.steps]

    put = HostWriter.put

    def put_and_wait(self: Any, *args: Any) -> None:
        put(self, *args)
        self.flush()

    at_once = run("at once")
    assert run("slow") == at_once
    assert {name for ops in at_once for name in ops} >= {"aten::add", "aten::tanh_backward"}


def stored_bytes(cap: Any) -> int:
    """Bytes of tensors in the shards, checked against the safetensors library on the way."""
    from safetensors import safe_open
    from safetensors.numpy import load_file as load_numpy
    from safetensors.torch import load_file as load_torch

    total = compared = 0
    for shard in sorted(cap.path.rglob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            names = [name for name in file.keys() if not name.startswith("__padding__")]  # noqa: SIM118
        arrays, tensors = load_numpy(shard), load_torch(shard)
        header = json.loads(shard.read_bytes()[8 : 8 + int.from_bytes(shard.read_bytes()[:8], "little")])
        base = 8 + int.from_bytes(shard.read_bytes()[:8], "little")
        by_offset = {base + header[name]["data_offsets"][0]: name for name in names}
        total += sum(arrays[name].nbytes for name in names)
        for record in cap.dump():
            line = record.key
            if record.path != shard or line.blob[0] != line.offset or line.blob[0] not in by_offset:
                continue
            name = by_offset[line.offset]
            assert tensors[name].numel() == arrays[name].size
            if arrays[name].shape == record.shape and record.numpy().flags.c_contiguous:
                assert arrays[name].tobytes() == record.numpy().tobytes(), record
                compared += 1
    assert compared > 50
    return total


def test_each_distinct_tensor_is_stored_once(dumps: Path) -> None:
    torch.manual_seed(0)
    model = Residual()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        train(model, pictures)
    distinct = {record.attrs["hash"]: record.key.blob[1] for record in cap.dump() if record.key.blob}
    values = {record.numpy().tobytes() for record in cap.dump() if record.nbytes}
    written = json.loads((cap.path / "manifest.json").read_text())["bytes_written"]
    assert stored_bytes(cap) == written == sum(distinct.values())
    assert written <= sum(map(len, values))


def test_an_unchanged_tensor_is_not_read_twice(dumps: Path) -> None:
    """Weights that a later step uses again are known by their storage."""
    weight = torch.randn(200, 200)

    def run() -> None:
        torch.mm(weight, weight).sum()

    model = Calls(run)
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        for _ in range(3):
            model()
    places = {(record.path, record.key.offset) for record in cap.dump().select("mm_0", io="input")}
    assert len(places) == 1
    assert {record.attrs["storage"] for record in cap.dump().select("mm_0", io="input")} == {0}


def test_rehash_finds_writes_that_pytorch_does_not_see(dumps: Path) -> None:
    import ctypes

    def run() -> None:
        x = torch.ones(100, 100)
        x + 1
        ctypes.memset(x.data_ptr(), 0, 400)
        x + 1

    with ascend_dump.capture(Calls(run), path=dumps, strict=True, options={"rehash": True}) as cap:
        cap._target()
    first, second = (record.numpy()[0, 0] for record in cap.dump().select("re:add_", io="input"))
    assert (first, second) == (1, 0)


def test_an_operator_that_fails_leaves_nothing_behind(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 0.002)

    def run() -> None:
        x = torch.randn(100, 100)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                torch.mm(x, torch.randn(3, 3))
            x.add_(1)

    model = Calls(run)
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        model()
    assert cap.dump().errors() == []
    assert [record.op_name for record in cap.dump().select("mm*")] == []
    assert len(cap.dump().select("add*", io="output")) == 3

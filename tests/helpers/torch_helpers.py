"""Helpers of the tests of the host adapter: a second observer of every operator, small models."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import torch
from ascend_dump_torch import _mode, _schema, _stack
from ascend_dump_torch.memory import tensors
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_dump.writing import Payload

if TYPE_CHECKING:
    import pytest  # benchmarks run without it

_OURS = _mode.RecordMode.__torch_dispatch__.__code__


class Ran(NamedTuple):
    """One operator as the shadow saw it: its tensors' values, None where memory cannot be read."""

    op_type: str
    inputs: list[Optional[bytes]]
    outputs: list[Optional[bytes]]


class Shadow(TorchDispatchMode):
    """Lies below the adapter's mode and copies every tensor, at once, before and after each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[Ran]] = []
        #: Operators that wrote to an input which the adapter does not know them to write to.
        self.unannounced: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # a wrapper around the method would stand between the frames we look at

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not asked_by_the_user() or not self.steps:
            return func(*args, **kwargs)
        outs = {argument.name for argument in func._schema.arguments if argument.is_out}
        inputs = [*args, *(value for name, value in kwargs.items() if name not in outs)]
        before = [value_of(tensor) for tensor in tensors_in(inputs)]
        try:
            result = func(*args, **kwargs)
        except Exception:
            if not _schema.schema_of(func).views_first:
                self.steps[-1].append(Ran(func._schema.name, [], []))  # counted, but not recorded
            raise
        returned = tensors_in([result])
        after = [value_of(tensor) for tensor in [*returned, *unreturned(func._schema, args, kwargs, returned)]]
        if not _schema.schema_of(func).writes and before != [value_of(tensor) for tensor in tensors_in(inputs)]:
            self.unannounced.add(func._schema.name)
        self.steps[-1].append(Ran(func._schema.name, before, after))
        return result

    @contextmanager
    def under(self, model: torch.nn.Module) -> Iterator[Shadow]:
        """Watch from the first call of `model` on, one list of operators for each call."""

        def called(module: Any, args: Any) -> None:
            _stack.remove(self)  # it may lie above the adapter's mode, which comes and goes
            _stack.insert(self)
            self.steps.append([])

        handle = model.register_forward_pre_hook(called)
        try:
            yield self
        finally:
            handle.remove()
            _stack.remove(self)


def asked_by_the_user() -> bool:
    """Return True if the adapter's mode passes an operator on, False if it runs one of its own."""
    import sys

    frame: Any = sys._getframe(2)
    while frame is not None and "torch/_ops.py" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and frame.f_code is _OURS


def tensors_in(values: Any) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += tensors_in(value)
    return found


def unreturned(schema: Any, args: Any, kwargs: Any, returned: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that an operator wrote to and does not return, in the order of its arguments."""
    given = [
        (argument, args[i] if i < len(args) else kwargs.get(argument.name))
        for i, argument in enumerate(schema.arguments)
    ]
    trains = all(value for argument, value in given if argument.name == "training")
    written = [
        value
        for argument, value in given
        if trains
        and ((argument.alias_info and argument.alias_info.is_write) or argument.name in ("running_mean", "running_var"))
        and "backward" not in schema.name
    ]
    return [one for one in tensors_in(written) if not any(one is other for other in returned)]


def value_of(tensor: torch.Tensor) -> Optional[bytes]:
    """The logical tensor's bytes in C order."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta or tensor._is_zerotensor():
        return None
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1
    if tensor.numel() and (tensor.storage_offset() + span) * tensor.element_size() > tensor.untyped_storage().nbytes():
        return None  # its memory was given back
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_quantized:
        plain = plain.int_repr()
    if not plain.numel():
        return b""
    # `contiguous` keeps odd strides of dimensions with one element, which `view` does not take.
    copy = torch.empty(plain.shape, dtype=plain.dtype).copy_(plain)
    return copy.reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same_as_shadow(cap: Any, shadow: Shadow, *, steps: Optional[list[int]] = None) -> int:
    """Every record equals what the shadow saw, and nothing is missing. Returns how many were compared."""
    assert shadow.unannounced == set()
    records: dict[tuple[int, int, str, int], Any] = {}
    for record in cap.dump():
        assert record.error is None, record.error
        key = (record.step, record.attrs["seq"], record.io, record.index)
        assert key not in records, f"{key} is recorded twice"
        records[key] = record
    compared = 0
    for step, ops in enumerate(shadow.steps):
        if steps is not None and step not in steps:
            continue
        for seq, ran in enumerate(ops):
            for io, values in (("input", ran.inputs), ("output", ran.outputs)):
                for index, value in enumerate(values):
                    record = records.pop((step, seq, io, index), None)
                    assert record is not None, f"step {step} op {seq} {ran.op_type}: no record of {io} {index}"
                    assert record.op_type == ran.op_type, (record, ran.op_type)
                    if "skipped" in record.attrs:
                        unset = record.attrs["skipped"] == "uninitialised memory"
                        assert value is None or unset, (record, record.attrs["skipped"])
                        continue
                    assert value is not None, f"{record} was read, but its memory cannot be"
                    assert record.numpy().tobytes() == value, f"{record} differs from what the operator saw"
                    compared += 1
    assert not records, f"recorded, but never ran: {list(records.values())[:5]}"
    return compared


def modes() -> list[Any]:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return list(_get_current_dispatch_mode_stack())


def flags() -> tuple[Any, ...]:
    """PyTorch's own record of which dispatch modes are active."""
    from torch.utils import _python_dispatch as module

    names = sorted(name for name in vars(module) if name.startswith("_is_in_"))
    assert names
    return tuple((name, getattr(module, name)) for name in names)


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make the writer thread dawdle over each tensor, so that the next ones wait in the user's memory."""
    view = Payload.view

    def slowly(self: Any) -> Any:
        time.sleep(seconds)
        return view(self)

    monkeypatch.setattr(Payload, "view", slowly)


def pretend_device(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Make tensors say that they lie on a device, whose memory must not be read: what is read has come from `cpu`.

    Gives the addresses where that has put copies.
    """
    addresses: set[int] = set()

    def cpu(self: torch.Tensor) -> torch.Tensor:
        # As the real one: new memory, and the strides of a dense tensor.
        host = self.clone()
        addresses.add(host.data_ptr())
        return host

    class Watched(Payload):
        def __post_init__(self) -> None:
            assert self.address in addresses, "memory of the device would be read"

    monkeypatch.setattr(torch.Tensor, "is_cpu", False, raising=False)
    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(tensors, "Payload", Watched)
    return addresses


def relu_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def dropout_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Linear(6, 2))


#: Inputs of the small nets, made before any capture.
RAMP, ONES = torch.linspace(-1, 1, 12).view(3, 4), torch.ones(3, 4)


def call(model: torch.nn.Module) -> torch.Tensor:
    return model(ONES)


def names_of(dump: Any) -> list[str]:
    """Return the names of the operators in their order, each once."""
    return list(dict.fromkeys(record.op_name for record in dump))


def added(cap: Any) -> list[float]:
    """The values that `number + 1` had in the steps of this capture."""
    return [record.numpy().item() for record in cap.dump().select("add_0", io="output")]


class Residual(torch.nn.Module):
    """A ResNet in small: convolutions, batch norms, a skip connection in channels_last or not."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(channels)
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(channels),
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(channels, channels, 1),
        )
        self.head = torch.nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu_(self.norm(self.stem(x)))
        x = torch.nn.functional.max_pool2d(x + self.body(x), 2)
        return self.head(x.mean((2, 3)))


def transformer() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def train(
    model: torch.nn.Module,
    make_input: Callable[[], torch.Tensor],
    *,
    steps: int = 3,
    optimizer: Optional[Callable[[Any], torch.optim.Optimizer]] = None,
) -> list[Any]:
    """A plain training loop; gives everything that a capture must not change."""
    torch.manual_seed(7)
    made = (optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)))(model.parameters())
    losses = []
    for _ in range(steps):
        made.zero_grad()
        loss = model(make_input()).float().pow(2).mean()
        loss.backward()
        made.step()
        losses.append(loss.detach().clone())
    gradients = [value.grad for value in model.parameters()]
    return [*losses, *model.parameters(), *model.buffers(), *gradients, torch.get_rng_state()]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(value_of(a) == value_of(b) for a, b in zip(one, other))

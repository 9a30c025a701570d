"""A capture beside the modes, transforms and subclasses that stand between a program and its operators."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402  (needs torch)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_helpers import RAMP as INPUT  # noqa: E402
from torch_helpers import Shadow, assert_same_as_shadow, modes, names_of, value_of  # noqa: E402
from torch_helpers import dropout_net as net  # noqa: E402

pytestmark = pytest.mark.usefixtures("modes_as_before")


class Log(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Count(TorchDispatchMode):
    """A user's mode: counts operators, and may change what they give."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.factor = factor
        self.entered = 0

    def __enter__(self) -> Any:
        self.entered += 1
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func._schema.name)
        result = func(*args, **(kwargs or {}))
        if self.factor != 1.0 and func is torch.ops.aten.addmm.default:
            return result * self.factor
        return result


class TestGradModes:
    def test_inference_mode(self, dumps: Path) -> None:
        model = net().eval()
        expected = model(INPUT)
        shadow = Shadow()
        with ascend_dump.capture(model, path=dumps, steps="0-2", strict=True) as cap, shadow.under(model):
            for number in range(4):
                with torch.inference_mode():
                    result = model(INPUT)
                assert torch.equal(result, expected)
                assert result.is_inference()
                assert [type(mode).__name__ for mode in modes()] == ["Shadow", "RecordMode"][: 2 if number < 3 else 1]
        assert assert_same_as_shadow(cap, shadow, steps=[0, 1, 2]) > 20
        assert {record.step for record in cap.dump()} == {0, 1, 2}
        assert "0/addmm_0" in names_of(cap.dump())

    def test_inference_mode_around_the_block(self, dumps: Path) -> None:
        model = net().eval()
        with torch.inference_mode(), ascend_dump.capture(model, path=dumps, strict=True) as cap:
            model(INPUT), model(INPUT)
        with torch.inference_mode():
            cap2 = ascend_dump.capture(model, path=dumps, strict=True).start()
            model(INPUT)
        model(INPUT)
        cap2.stop()
        assert {record.step for record in cap.dump()} == {record.step for record in cap2.dump()} == {0, 1}

    def test_no_grad_and_back(self, dumps: Path) -> None:
        model = net().eval()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            with torch.no_grad():
                model(INPUT)
            model(INPUT).sum().backward()
            with torch.no_grad(), torch.enable_grad():
                model(INPUT).sum().backward()
        phases = [{record.phase for record in cap.dump().select(step=step)} for step in range(3)]
        assert phases[0] == {"forward"}
        assert {"forward", "backward"} <= phases[1] == phases[2]

    def test_autocast(self, dumps: Path) -> None:
        model = net().eval()
        with torch.autocast("cpu", torch.bfloat16):
            expected = model(INPUT)
        shadow = Shadow()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap, shadow.under(model):
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16):
                    result = model(INPUT)
                result.float().sum().backward()
        assert torch.equal(result, expected)
        assert_same_as_shadow(cap, shadow)
        record = next(iter(cap.dump().select("0/addmm_0", io="output")))
        assert record.dtype == "bfloat16"
        assert "0/_to_copy_0" in names_of(cap.dump())

    @pytest.mark.filterwarnings("ignore:Anomaly Detection")
    def test_anomaly_mode_and_profiler(self, dumps: Path) -> None:
        model = net()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            with torch.autograd.detect_anomaly(check_nan=True):
                model(INPUT).sum().backward()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                model(INPUT).sum().backward()
            with pytest.raises(RuntimeError, match="returned nan"), torch.autograd.detect_anomaly():
                (model(INPUT) * float("nan")).sqrt().sum().backward()
        assert "aten::addmm" in {event.key for event in profile.key_averages()}
        assert {record.step for record in cap.dump()} == {0, 1, 2}


class TestCheckpointing:
    class Net(torch.nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Tanh())
            self.last = torch.nn.Linear(4, 2)
            self.reentrant = reentrant

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            return self.last(checkpoint(self.block, x, use_reentrant=self.reentrant))

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_recomputed_operators(self, reentrant: bool, dumps: Path) -> None:
        def train(model: Any) -> list[Any]:
            torch.manual_seed(3)
            for _ in range(2):
                model(INPUT).sum().backward()
            return [parameter.grad for parameter in model.parameters()]

        torch.manual_seed(0)
        model = self.Net(reentrant)
        expected = train(copy.deepcopy(model))
        shadow = Shadow()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap, shadow.under(model):
            results = train(model)
        assert all(torch.equal(one, other) for one, other in zip(expected, results))
        assert_same_as_shadow(cap, shadow)
        assert {record.step for record in cap.dump()} == {0, 1}
        for step in (0, 1):
            tanh = {record.op_name: record for record in cap.dump().select("*tanh*", step=step, io="output")}
            assert {name: record.phase for name, record in tanh.items()} == {
                "block.2/tanh_0": "forward",
                "block.2/tanh_1": "backward",  # computed again
                "block.2/tanh_backward_0": "backward",
            }
            values = [tanh[f"block.2/tanh_{i}"].numpy().tobytes() for i in (0, 1)]
            assert values[0] == values[1]
            after = next(iter(cap.dump().select("last/*", step=step, phase="backward")))
            assert after.module == "last"

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_the_target_itself_is_checkpointed(self, reentrant: bool, dumps: Path) -> None:
        """Its second call, in the backward pass, is no step."""
        model = net()
        x = INPUT.clone().requires_grad_()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            for _ in range(3):
                checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        assert {record.step for record in cap.dump()} == {0, 1, 2}
        for step in range(3):
            again = cap.dump().select("0/addmm_1", step=step)
            assert {record.phase for record in again} == {"backward"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestFunctionTransforms:
    def test_values_and_gradients(self, dumps: Path) -> None:
        from torch.func import functional_call, grad, hessian, jvp, vjp, vmap

        model = net().eval()
        parameters = dict(model.named_parameters())

        def loss(values: Any, x: Any) -> Any:
            return functional_call(model, values, (x,)).square().sum()

        def run() -> list[Any]:
            per_sample = vmap(grad(loss), in_dims=(None, 0))(parameters, INPUT)
            value, tangent = jvp(lambda x: model(x).sin(), (INPUT,), (torch.ones_like(INPUT),))
            back = vjp(model, INPUT)[1](torch.ones(3, 2))[0]
            curved = hessian(lambda x: x.sin().sum())(INPUT[0])
            mapped = vmap(lambda x: torch.where(x > 0, x * 2, x), in_dims=1, out_dims=1)(INPUT)
            return [*per_sample.values(), value, tangent, back, curved, mapped]

        expected = run()
        shadow = Shadow()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap, shadow.under(model):
            results = run()
        assert [value_of(one) for one in expected] == [value_of(one) for one in results]
        assert_same_as_shadow(cap, shadow)
        assert cap.dump().errors() == []

    def test_overflow_inside_a_transform(self, dumps: Path) -> None:
        with ascend_dump.capture(path=dumps, scene="overflow", strict=True) as cap:
            result = torch.func.vmap(torch.func.grad(lambda x: (x * 3).exp().sum()))(torch.tensor([1.0, 100.0]))
        assert result.tolist()[1] == float("inf")
        origins = [record.op_type for record in cap.dump() if record.attrs.get("origin")]
        assert origins == ["aten::exp"]


class TestOtherModes:
    def test_flop_counter_around_the_call(self, dumps: Path) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        model = net().eval()
        with FlopCounterMode(display=False) as plain:
            model(INPUT)
        with ascend_dump.capture(model, path=dumps, steps="0|2", strict=True) as cap:
            for _ in range(4):
                with FlopCounterMode(display=False) as counter:
                    result = model(INPUT)
                assert counter.get_total_flops() == plain.get_total_flops() > 0
        assert torch.equal(result, model(INPUT))
        assert {record.step for record in cap.dump()} == {0, 2}

    @pytest.mark.parametrize("factor", [1.0, 2.0])
    @pytest.mark.parametrize("where", ["around the block", "in the block", "around the call", "started within"])
    def test_a_mode_of_the_user(self, where: str, factor: float, dumps: Path) -> None:
        model = net().eval()
        with Count(factor) as plain:
            expected = [model(INPUT) for _ in range(3)]
        counter = Count(factor)
        cap = ascend_dump.capture(model, path=dumps, steps="0|2", strict=True)

        def calls() -> list[Any]:
            return [model(INPUT) for _ in range(3)]

        if where == "around the block":
            with counter, cap:
                results = calls()
        elif where == "in the block":
            with cap, counter:
                results = calls()
        elif where == "around the call":
            results = []
            with cap:
                for _ in range(3):
                    with counter:
                        results.append(model(INPUT))
        else:
            with counter:
                cap.start()
                results = calls()
            cap.stop()
        assert [value_of(one) for one in results] == [value_of(one) for one in expected]
        assert counter.seen == plain.seen
        assert counter.entered == (3 if where == "around the call" else 1)
        assert {record.step for record in cap.dump()} == {0, 2}
        # What a mode makes of an operator is recorded: it lies above.
        assert ("3/mul_0" in names_of(cap.dump())) == (factor != 1.0)

    def test_modes_that_end_in_any_order(self, dumps: Path) -> None:
        model = net().eval()
        outer, inner = Count(), Count()
        outer.__enter__()
        cap = ascend_dump.capture(model, path=dumps, steps="0", strict=True).start()
        model(INPUT)
        inner.__enter__()
        torch.ones(1).sin()
        cap.stop()
        torch.ones(1).cos()
        assert [mode is outer or mode is inner for mode in modes()] == [True, True]
        inner.__exit__(None, None, None)
        torch.ones(1).tan()
        outer.__exit__(None, None, None)
        assert inner.seen[-1] == "aten::cos"
        assert outer.seen[-1] == "aten::tan"
        kinds = {record.op_type for record in cap.dump()}
        assert "aten::sin" in kinds
        assert not kinds & {"aten::cos", "aten::tan"}

    def test_function_modes(self, dumps: Path) -> None:
        def run(model: Any) -> Any:
            with Log() as log, torch.device("cpu"):
                model(INPUT).sum().backward()
                torch.ops.aten.add.Tensor(INPUT, INPUT)  # reaches the operator past the mode
                torch.ops.aten.mul_.Tensor(torch.ones(100, 100), INPUT[0, 0])
            return log.seen

        model = net()
        expected = run(model)
        for settings in ({}, {"scene": "overflow"}):
            with ascend_dump.capture(model, path=dumps, **settings) as cap:
                assert run(model) == expected
                assert run(model) == expected
        assert cap.dump().errors() == []

    def test_deterministic_algorithms_and_default_device(self, dumps: Path) -> None:
        torch.use_deterministic_algorithms(True)
        try:
            model = net()
            with torch.device("cpu"), ascend_dump.capture(model, path=dumps, strict=True) as cap:
                model(torch.ones(3, 4)).sum().backward()
        finally:
            torch.use_deterministic_algorithms(False)
        assert cap.dump().errors() == []


class Tagged(torch.Tensor):
    """A subclass as libraries make them: no dispatch of its own, other ideas of attributes."""

    calls: list[str] = []  # noqa: RUF012  (shared on purpose)

    @property
    def shape(self) -> Any:
        raise AttributeError("not for you")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def convert(tensor: Any) -> str:
    return f"{tuple(torch.Tensor.size(tensor))} converted"


#: Made before any capture, as libraries make theirs when they are imported.
HANDLED = {torch.Tensor.numpy: convert}


class Quantity(torch.Tensor):
    """A subclass that handles functions by a table, and refuses all that is asked of it otherwise."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in HANDLED:
            assert func is torch.Tensor.numpy
            with torch._C.DisableTorchFunction():
                return HANDLED[func](*args, **(kwargs or {}))
        raise TypeError(f"a Quantity has no {func.__name__}")


class Scaled(torch.Tensor):
    """A wrapper subclass: a plain tensor and a factor."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [one.inner if isinstance(one, Scaled) else one for one in args]
        result = func(*plain, **(kwargs or {}))
        return Scaled(result) if isinstance(result, torch.Tensor) else result


class TestSubclasses:
    def test_plain_subclass(self, dumps: Path) -> None:
        def run() -> Any:
            x = torch.arange(6.0).as_subclass(Tagged)
            y = (x * 2).sin()
            y.add_(x)
            return y

        expected = run()
        calls = list(Tagged.calls)
        Tagged.calls.clear()
        with ascend_dump.capture(path=dumps, strict=True) as cap:
            result = run()
        assert calls == Tagged.calls
        Tagged.calls.clear()
        assert type(result) is Tagged
        assert torch.equal(result.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
        record = next(iter(cap.dump().select("add__0", io="output")))
        assert record.numpy().tolist() == result.as_subclass(torch.Tensor).tolist()

    def test_handlers_get_the_methods_they_know(self, dumps: Path) -> None:
        class Convert(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return HANDLED.get(func, func)(*args, **(kwargs or {}))

        quantity = torch.ones(3).as_subclass(Quantity)
        plain = torch.ones(2)
        with ascend_dump.capture(path=dumps, strict=True) as cap:
            plain * 2
            assert quantity.numpy() == "(3,) converted"
            with Convert():
                assert plain.numpy() == "(2,) converted"
            # The one that does convert is seen as before.
            plain.numpy()[0] = 5
            plain * 2
        assert [one.numpy().tolist() for one in cap.dump().select("mul*", io="output")] == [[2, 2], [10, 2]]

    def test_handlers_see_the_calls_of_the_program_only(self, dumps: Path) -> None:
        def run() -> list[Any]:
            x = torch.ones(3)
            with Log() as log:
                x.mul(2).numpy()
                x.untyped_storage().resize_(0)
                torch.from_dlpack(torch.ones(2))
            return log.seen

        expected = run()
        with ascend_dump.capture(path=dumps, strict=True):
            assert run() == expected

    def test_wrapper_subclass(self, dumps: Path) -> None:
        with ascend_dump.capture(path=dumps, strict=True) as cap:
            wrapped = Scaled(torch.arange(4.0))
            result = (wrapped * 3).cos()
        assert isinstance(result, Scaled)
        assert torch.equal(result.inner, (torch.arange(4.0) * 3).cos())
        record = next(iter(cap.dump().select("cos_0", io="output")))
        assert record.numpy().tolist() == result.inner.tolist()

    def test_user_hooks_on_modules(self, dumps: Path) -> None:
        def run(model: Any, around: Any) -> list[str]:
            order: list[str] = []
            torch.manual_seed(1)
            handles = [
                model.register_forward_pre_hook(lambda module, args: order.append("pre")),
                model.register_forward_pre_hook(lambda module, args: order.append("first"), prepend=True),
                model.register_forward_hook(lambda module, args, out: order.append("post")),
                model[0].register_forward_hook(lambda module, args, out: out * 2),
                model[0].register_full_backward_hook(lambda module, gin, gout: order.append("backward")),
                model[3].weight.register_hook(lambda grad: order.append("grad")),
            ]
            with around:
                handles.append(model.register_forward_hook(lambda module, args, out: order.append("late")))
                model(INPUT.clone().requires_grad_()).sum().backward()
                handles.pop().remove()
                model(INPUT)
            for handle in handles:
                handle.remove()
            return order

        plain, captured = net(), net()
        expected = run(plain, contextlib.nullcontext())
        assert run(captured, ascend_dump.capture(captured, path=dumps, strict=True)) == expected
        for one, other in zip(plain.parameters(), captured.parameters()):
            assert torch.equal(one.grad, other.grad)
        assert not captured._forward_pre_hooks
        assert not captured._forward_hooks


class TestCustomOperators:
    @pytest.fixture
    def library(self) -> Iterator[Any]:
        with torch.library._scoped_library("ascend_dump_test", "FRAGMENT") as library:
            yield library

    def test_operators_of_a_library(self, library: Any, dumps: Path) -> None:
        def fill(x: Any, value: float) -> None:
            x.fill_(value)

        library.define("double(Tensor x) -> Tensor")
        library.define("fill(Tensor(a!) x, float value) -> ()")
        library.define("both(Tensor x) -> (Tensor, Tensor[])")
        library.impl("double", lambda x: x * 2, "CPU")
        library.impl("fill", fill, "CPU")
        library.impl("both", lambda x: (x + 1, [x + 2, x + 3]), "CompositeExplicitAutograd")
        ops = torch.ops.ascend_dump_test

        def run() -> Any:
            x = torch.ones(100, 100)
            ops.double(x)
            for value in range(5):
                x.sin()
                ops.fill(x, float(value))
            return ops.both(x)

        model = net()
        model.forward = run
        shadow = Shadow()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap, shadow.under(model):
            model()
        assert_same_as_shadow(cap, shadow)
        assert cap.dump().select(op_type="ascend_dump_test::fill")
        assert len(cap.dump().select(op_type="ascend_dump_test::both", io="output")) == 3

    def test_custom_op_decorator(self, dumps: Path) -> None:
        @torch.library.custom_op("ascend_dump_test2::half", mutates_args=("x",))
        def half(x: torch.Tensor) -> None:
            x.mul_(0.5)

        x = torch.full((90, 90), 8.0)
        with ascend_dump.capture(path=dumps, strict=True) as cap:
            for _ in range(3):
                x + 1
                half(x)
        values = [record.numpy()[0, 0] for record in cap.dump().select("half_*", io="input")]
        assert values == [8, 4, 2]

    def test_autograd_function(self, dumps: Path) -> None:
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x * x * x

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                (x,) = ctx.saved_tensors
                return grad * x.square() * 3

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cube = torch.nn.Linear(4, 4)

            def forward(self, x: Any) -> Any:
                return Cube.apply(self.cube(x))

        model = Net()
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            model(INPUT).sum().backward()
        backward = list(cap.dump().select(op_type="aten::pow", phase="backward")) + list(
            cap.dump().select(op_type="aten::square", phase="backward")
        )
        assert backward
        assert backward[0].source.startswith(__file__)

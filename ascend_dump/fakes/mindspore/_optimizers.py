"""Optimizers and training cells of the fake MindSpore (`mindspore.nn`).

An optimizer has the parameters of MindSpore 2.10.0, and runs its operators: Mul and AddN for the weight decay,
AssignAdd for the step counter, then one operator for each parameter, the last parameter first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.mindspore._cell import Cell
from ascend_dump.fakes.mindspore._functions import call, execute
from ascend_dump.fakes.mindspore._gradients import gradients
from ascend_dump.fakes.mindspore._graph import Tape
from ascend_dump.fakes.mindspore._process import current
from ascend_dump.fakes.mindspore._types import Parameter, ParameterTuple, Tensor

__all__ = ["CELLS", "OPTIMIZERS", "Optimizer", "TrainOneStepCell", "WithEvalCell", "WithLossCell"]


class Optimizer(Cell):
    """`nn.Optimizer`. A call is a graph in both modes, because MindSpore compiles `construct` with `jit`."""

    def __init__(self, learning_rate: Any, params: Iterable[Parameter], weight_decay: float = 0.0) -> None:
        super().__init__(auto_prefix=False)
        self._parameters = ParameterTuple(params)
        if not self._parameters:
            raise ValueError("For 'Optimizer', the argument parameters must not be empty.")
        if any(isinstance(parameter, dict) for parameter in self._parameters):
            raise NotSupported("the fake MindSpore has no groups of parameters", hint="pass the parameters themselves")
        if not isinstance(learning_rate, (int, float, Tensor)) or np.ndim(learning_rate):
            raise NotSupported("the fake MindSpore has no schedule for learning_rate", hint="pass a number")
        duplicates = [
            name for name, count in Counter(parameter.name for parameter in self._parameters).items() if count > 1
        ]
        if duplicates:
            raise ValueError(
                f"For {self.cls_name!r}, the name {duplicates[0]!r} already exists. Please set a unique name."
            )
        for name, value in (("learning rate", float(learning_rate)), ("weight_decay", float(weight_decay))):
            if value < 0:
                raise ValueError(f"For {self.cls_name!r}, the {name!r} must be float and must >= 0, but got '{value}'.")
        self.learning_rate = Parameter(_number(learning_rate), name="learning_rate")
        self.global_step = Parameter(Tensor(np.zeros(1, np.int32)), name="global_step")
        self.weight_decay = float(weight_decay)

    @property
    def parameters(self) -> ParameterTuple:
        return self._parameters

    def states(self, prefix: str, init: float = 0.0) -> ParameterTuple:
        """Create a state for each trained parameter: a parameter `{prefix}.{name}`, filled with `init`. Return them."""
        states = []
        for parameter in self._parameters:
            states.append(Parameter(Tensor(np.full_like(parameter.array, init)), name=f"{prefix}.{parameter.name}"))
            self._params[states[-1].name] = states[-1]
        return ParameterTuple(states)

    def __call__(self, gradients: Sequence[Tensor]) -> Any:
        if current().in_graph:
            return self._run(tuple(gradients))
        return self._run_graph((tuple(gradients),), {})

    def construct(self, gradients: Sequence[Tensor]) -> Any:
        if len(gradients) > len(self._parameters):
            raise RuntimeError(f"got {len(gradients)} gradients of {len(self._parameters)} parameters")
        if self.weight_decay:
            gradients = tuple(
                # As in MindSpore, parameters of normalisation layers have no weight decay.
                grad if "beta" in parameter.name or "gamma" in parameter.name else self._decay(parameter, grad)
                for parameter, grad in zip(self._parameters, gradients)
            )
        execute("AssignAdd", self.global_step, Tensor(np.ones(1, np.int32)))
        self.prepare()
        for index in reversed(range(len(self._parameters))):
            self.update(index, gradients[index])
        return True

    def _decay(self, parameter: Parameter, grad: Tensor) -> Tensor:
        decay = Tensor(np.asarray(self.weight_decay, parameter.array.dtype))
        return execute("AddN", call("Mul", parameter, decay), grad)[0]

    def _check_momentum(self, momentum: float) -> None:
        if momentum < 0:
            raise ValueError(f"For {self.cls_name!r}, the argument 'momentum' must be at least 0.0, but got {momentum}")

    def prepare(self) -> None:
        """Do nothing: for subclasses, called in each step before the parameters are updated."""

    def update(self, index: int, grad: Tensor) -> None:
        """Update the parameter with this index."""
        raise NotImplementedError


def _number(value: Any) -> Tensor:
    return Tensor(value) if isinstance(value, Tensor) else Tensor(np.asarray(value, np.float32))


class Momentum(Optimizer):
    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: Any,
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(learning_rate, params, weight_decay)
        _no_scale(loss_scale)
        self._check_momentum(momentum)
        self.momentum = Parameter(_number(momentum), name="momentum")
        self.moments = self.states("moments")
        self.use_nesterov = use_nesterov

    def update(self, index: int, grad: Tensor) -> None:
        variable, moment = self._parameters[index], self.moments[index]
        execute(
            *("ApplyMomentum", variable, moment, self.learning_rate, grad, self.momentum),
            use_nesterov=self.use_nesterov,
        )


class SGD(Optimizer):
    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: Any = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(learning_rate, params, weight_decay)
        _no_scale(loss_scale)
        self._check_momentum(momentum)
        if nesterov and (not momentum or dampening):
            raise ValueError(
                "For 'SGD', if 'nesterov' is true, 'momentum' must be > 0.0 and 'dampening' must equal to 0.0, "
                f"but got 'momentum' {momentum}, 'dampening' {dampening}."
            )
        self.momentum = Parameter(_number(momentum), name="momentum")
        self.accum = self.states("accum")
        self.stat = self.states("stat", 1.0)
        self.dampening, self.nesterov = dampening, nesterov

    def update(self, index: int, grad: Tensor) -> None:
        execute(
            *(
                "SGD",
                self._parameters[index],
                grad,
                self.learning_rate,
                self.accum[index],
                self.momentum,
                self.stat[index],
            ),
            dampening=self.dampening,
            weight_decay=0.0,
            nesterov=self.nesterov,
        )


class Adam(Optimizer):
    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(learning_rate, params, weight_decay)
        _no_scale(loss_scale)
        if use_nesterov:
            raise NotSupported("the fake MindSpore has no use_nesterov for Adam", hint="leave out use_nesterov")
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0 < beta < 1:
                raise ValueError(f"For 'Adam', the {name!r} must be in range of (0.0, 1.0), but got {beta}.")
        self.beta1, self.beta2, self.eps = (np.asarray(number, np.float32) for number in (beta1, beta2, eps))
        self.beta1_power = Parameter(_number(1.0), name="beta1_power")
        self.beta2_power = Parameter(_number(1.0), name="beta2_power")
        self.moment1, self.moment2 = self.states("moment1"), self.states("moment2")

    def prepare(self) -> None:
        for power, beta in ((self.beta1_power, self.beta1), (self.beta2_power, self.beta2)):
            execute("Assign", power, call("Mul", power, Tensor(beta)))

    def update(self, index: int, grad: Tensor) -> None:
        moments = (self.moment1[index], self.moment2[index])
        powers = (self.beta1_power, self.beta2_power)
        numbers = (self.beta1, self.beta2, self.eps)
        execute("Adam", self._parameters[index], *moments, *powers, self.learning_rate, *numbers, grad)


def _no_scale(loss_scale: float) -> None:
    if loss_scale != 1.0:
        raise NotSupported("the fake MindSpore has no loss_scale", hint="leave out loss_scale")


class WithLossCell(Cell):
    """`nn.WithLossCell`: computes the loss of a network."""

    def __init__(self, backbone: Cell, loss_fn: Cell) -> None:
        super().__init__(auto_prefix=False)
        self._backbone, self._loss_fn = backbone, loss_fn

    def construct(self, data: Any, label: Any) -> Tensor:
        loss: Tensor = self._loss_fn(self._backbone(data), label)
        return loss


class WithEvalCell(Cell):
    """`nn.WithEvalCell`: returns loss, outputs and labels."""

    def __init__(self, network: Cell, loss_fn: Cell, add_cast_fp32: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self._network, self._loss_fn = network, loss_fn

    def construct(self, data: Any, label: Any) -> tuple[Any, Any, Any]:
        outputs = self._network(data)
        return self._loss_fn(outputs, label), outputs, label


class TrainOneStepCell(Cell):
    """`nn.TrainOneStepCell`: runs forward pass, backward pass and optimizer, in graph mode as one graph."""

    def __init__(self, network: Cell, optimizer: Optimizer, sens: float = 1.0) -> None:
        super().__init__(auto_prefix=False)
        if sens != 1.0:
            raise NotSupported("the fake MindSpore has no sens", hint="leave out sens")
        self.network, self.optimizer = network, optimizer
        self.weights = optimizer.parameters

    def construct(self, *inputs: Any) -> Tensor:
        process = current()
        if process.tape is None:
            with process.recording(Tape(), graph=False) as tape:
                loss, grads = self._derive(tape, inputs)
        else:
            loss, grads = self._derive(process.tape, inputs)
        self.optimizer(grads)
        return loss

    def _derive(self, tape: Tape, inputs: tuple[Any, ...]) -> tuple[Tensor, list[Tensor]]:
        loss = self.network(*inputs)
        return loss, gradients(tape, loss, self.weights)


OPTIMIZERS = {"Optimizer": Optimizer, "Momentum": Momentum, "SGD": SGD, "Adam": Adam}
CELLS = {"WithLossCell": WithLossCell, "WithEvalCell": WithEvalCell, "TrainOneStepCell": TrainOneStepCell}

"""The class `Model` of the fake MindSpore (`mindspore.train`), its callbacks, and the metric `Accuracy`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.mindspore._cell import Cell
from ascend_dump.fakes.mindspore._optimizers import Optimizer, TrainOneStepCell, WithEvalCell, WithLossCell
from ascend_dump.fakes.mindspore._types import Tensor

__all__ = ["CALLBACKS", "Accuracy", "Model"]


class RunContext:
    """`train.RunContext`: the argument of the methods of callbacks."""

    def __init__(self, arguments: _Arguments) -> None:
        self._arguments = arguments
        self._stop = False

    def original_args(self) -> _Arguments:
        return self._arguments

    def request_stop(self) -> None:
        self._stop = True

    def get_stop_requested(self) -> bool:
        return self._stop


class _Arguments(dict[str, Any]):
    """The values that callbacks can read, as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Callback:
    """`train.Callback`: the base of callbacks, whose methods subclasses override."""

    def on_train_begin(self, run_context: RunContext) -> None:
        self.begin(run_context)

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        self.epoch_begin(run_context)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        self.step_end(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        self.epoch_end(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        self.end(run_context)

    def begin(self, run_context: RunContext) -> None:
        """Do nothing: called before training."""

    def epoch_begin(self, run_context: RunContext) -> None:
        """Do nothing: called before an epoch."""

    def step_begin(self, run_context: RunContext) -> None:
        """Do nothing: called before a step."""

    def step_end(self, run_context: RunContext) -> None:
        """Do nothing: called after a step."""

    def epoch_end(self, run_context: RunContext) -> None:
        """Do nothing: called after an epoch."""

    def end(self, run_context: RunContext) -> None:
        """Do nothing: called after training."""


class LossMonitor(Callback):
    """`train.LossMonitor`: print the loss every `per_print_times` steps."""

    def __init__(self, per_print_times: int = 1) -> None:
        self._every = per_print_times

    def step_end(self, run_context: RunContext) -> None:
        facts = run_context.original_args()
        step = (facts.cur_step_num - 1) % facts.batch_num + 1
        if self._every and facts.cur_step_num % self._every == 0:
            print(f"epoch: {facts.cur_epoch_num} step: {step}, loss is {facts.net_outputs.item()}", flush=True)


class TimeMonitor(Callback):
    """`train.TimeMonitor`: print the time of each epoch, and the mean time of its steps."""

    def epoch_begin(self, run_context: RunContext) -> None:
        self._start = time.monotonic()

    def epoch_end(self, run_context: RunContext) -> None:
        milliseconds = (time.monotonic() - self._start) * 1000
        steps = run_context.original_args().batch_num
        print(f"Train epoch time: {milliseconds:5.3f} ms, per step time: {milliseconds / steps:5.3f} ms", flush=True)


class Accuracy:
    """`nn.Accuracy`: the share of rows whose highest output is that of the labelled class."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._right = self._all = 0

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        guesses, classes = np.asarray(outputs).argmax(axis=1), np.asarray(labels)
        # Labels are class indices, or one row of scores for each row of outputs.
        self._right += int((guesses == (classes.argmax(axis=1) if classes.ndim == 2 else classes)).sum())
        self._all += len(guesses)

    # The name is MindSpore's. It has nothing to do with Python's eval.
    def eval(self) -> float:
        return self._right / self._all


class Model:
    """`train.Model`: trains and evaluates a network. With data sinking, steps run one by one here."""

    def __init__(
        self,
        network: Cell,
        loss_fn: Optional[Cell] = None,
        optimizer: Optional[Optimizer] = None,
        metrics: Any = None,
        eval_network: Optional[Cell] = None,
        amp_level: str = "O0",
        **settings: Any,
    ) -> None:
        if amp_level != "O0":
            raise NotSupported("the fake MindSpore has no mixed precision", hint="leave out amp_level")
        self._network, self._loss_fn, self._optimizer = network, loss_fn, optimizer
        self._metrics = _metrics(metrics)
        self._train_network = self._build(network, loss_fn, optimizer)
        self._eval_network = eval_network
        if eval_network is None and loss_fn is not None:
            self._eval_network = WithEvalCell(network, loss_fn)

    @property
    def train_network(self) -> Cell:
        return self._train_network

    @staticmethod
    def _build(network: Cell, loss_fn: Optional[Cell], optimizer: Optional[Optimizer]) -> Cell:
        inner = network if loss_fn is None else WithLossCell(network, loss_fn)
        return inner if optimizer is None else TrainOneStepCell(inner, optimizer)

    def train(
        self,
        epoch: int,
        train_dataset: Any,
        callbacks: Any = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
    ) -> None:
        self._train_network.set_train()
        callback_list = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
        facts = _Arguments(
            network=self._network,
            train_network=self._train_network,
            optimizer=self._optimizer,
            epoch_num=epoch,
            batch_num=train_dataset.get_dataset_size(),
            cur_epoch_num=initial_epoch,
            cur_step_num=initial_epoch * train_dataset.get_dataset_size(),
            net_outputs=None,
        )
        context = RunContext(facts)

        def call_back(method: str) -> None:
            for callback in callback_list:
                getattr(callback, method)(context)

        call_back("on_train_begin")
        for number in range(initial_epoch + 1, epoch + 1):
            facts.cur_epoch_num = number
            call_back("on_train_epoch_begin")
            for batch in train_dataset.create_tuple_iterator():
                facts.cur_step_num += 1
                facts.train_dataset_element = batch
                call_back("on_train_step_begin")
                facts.net_outputs = self._train_network(*batch)
                call_back("on_train_step_end")
                if context.get_stop_requested():
                    break
            call_back("on_train_epoch_end")
            if context.get_stop_requested():
                break
        call_back("on_train_end")

    # The name is MindSpore's. It has nothing to do with Python's eval.
    def eval(self, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False) -> dict[str, Any]:
        if self._eval_network is None or not self._metrics:
            raise ValueError(
                "For Model.eval, the model argument 'metrics' can not be None or empty, "
                "you should set the argument 'metrics' for model."
            )
        self._eval_network.set_train(False)
        for metric in self._metrics.values():
            metric.clear()
        for batch in valid_dataset.create_tuple_iterator():
            _, outputs, labels = self._eval_network(*batch)
            for metric in self._metrics.values():
                metric.update(outputs, labels)
        return {name: metric.eval() for name, metric in self._metrics.items()}

    def predict(self, *predict_data: Any) -> Any:
        self._network.set_train(False)
        return self._network(*predict_data)


def _metrics(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    unknown = [name for name in metrics or () if name not in ("accuracy", "acc")]
    if unknown:
        raise NotSupported(f"the fake MindSpore has no metric {unknown[0]!r}", hint="use 'accuracy'")
    return {name: Accuracy() for name in metrics or ()}


CALLBACKS = {"Callback": Callback, "LossMonitor": LossMonitor, "TimeMonitor": TimeMonitor, "RunContext": RunContext}

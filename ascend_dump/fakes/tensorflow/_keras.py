"""`tf.keras` of the fake TensorFlow: Sequential models of Dense layers in a graph, and their session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.tensorflow._gradients import GradientDescentOptimizer
from ascend_dump.fakes.tensorflow._graph import Tensor, current
from ascend_dump.fakes.tensorflow._ops import FUNCTIONS as TF
from ascend_dump.fakes.tensorflow._ops import NN, placeholder
from ascend_dump.fakes.tensorflow._session import Session
from ascend_dump.fakes.tensorflow._variables import INITIALIZERS, Variable, refuse_options

#: Options of `fit` and the like that change their speed, not their results. They are ignored.
_ON_SPEED = ("max_queue_size", "workers", "use_multiprocessing")

__all__ = ["Backend", "Dense", "History", "Sequential"]


class Backend:
    """`tf.keras.backend`: the session that all models use. names: number of layers by the beginning of their name."""

    def __init__(self) -> None:
        self._session: Any = None
        self.names: dict[str, int] = {}

    def set_session(self, session: Any) -> None:
        self._session = session

    def get_session(self) -> Any:
        default = current.session()
        if default is not None:
            return default
        if self._session is None or self._session.graph is not current.graph():
            self._session = Session()
        return self._session

    def clear_session(self) -> None:
        """Forget the session, and replace the default graph by an empty one."""
        self._session = None
        self.names.clear()
        current.reset()

    def unique(self, kind: str) -> str:
        number = self.names.get(kind, 0)
        self.names[kind] = number + 1
        return kind if number == 0 else f"{kind}_{number}"


class Dense:
    """`tf.keras.layers.Dense`: a layer that computes `activation(x @ kernel + bias)`."""

    def __init__(
        self,
        units: int,
        activation: Optional[str] = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        input_shape: Optional[Sequence[Optional[int]]] = None,
        input_dim: Optional[int] = None,
        name: Optional[str] = None,
    ) -> None:
        self.units = units
        self.input_shape = input_shape if input_dim is None else (input_dim,)
        self.name = name or "dense"
        self.weights: list[Variable] = []
        self._activation = activation
        self._use_bias = use_bias
        self._initializer = kernel_initializer or INITIALIZERS["glorot_uniform_initializer"]()
        if activation not in (None, "linear") and activation not in NN:
            raise NotSupported(
                f"the stand-in for tensorflow has no activation {activation!r}", hint=f"it has {', '.join(sorted(NN))}"
            )

    def __call__(self, x: Tensor) -> Tensor:
        with current.graph().name_scope(self.name + "/"):
            if not self.weights:
                size = x.shape[-1]
                self.weights.append(Variable(lambda: self._initializer([size, self.units]), name="kernel"))
                if self._use_bias:
                    self.weights.append(Variable(lambda: TF["zeros"]([self.units]), name="bias"))
            output: Tensor = TF["matmul"](x, self.weights[0], name="MatMul")
            if self._use_bias:
                output = NN["bias_add"](output, self.weights[1], name="BiasAdd")
            if self._activation in (None, "linear"):
                return output
            activated: Tensor = NN[self._activation](output, name=self._activation.capitalize())
            return activated


class History:
    def __init__(self) -> None:
        self.history: dict[str, list[float]] = {"loss": []}


class Sequential:
    """`tf.keras.Sequential`: a model of layers that run one after the other, in the session of the backend."""

    def __init__(self, layers: Sequence[Any] = (), name: Optional[str] = None, *, backend: Backend) -> None:
        self.layers: list[Any] = []
        self._backend = backend
        self._output: Any = None
        for layer in layers:
            self.add(layer)

    def add(self, layer: Any) -> None:
        """Add a layer. Raises ValueError if the first layer has no input_shape."""
        if not self.layers:
            if layer.input_shape is None:
                raise ValueError("The first layer in a Sequential model must get an `input_shape` argument.")
            self._input = self._output = placeholder("float32", [None, *layer.input_shape], f"{layer.name}_input")
        layer.name = self._backend.unique(layer.name)
        self.layers.append(layer)
        self._output = layer(self._output)

    @property
    def weights(self) -> list[Variable]:
        return [weight for layer in self.layers for weight in layer.weights]

    trainable_weights = weights

    def compile(self, optimizer: Any = "sgd", loss: Any = None, metrics: Any = None) -> None:
        """Add the operations of loss and training to the graph.

        Raises NotSupported for metrics, and for losses and optimizers that the fake lacks.
        """
        refuse_options("Sequential.compile", {"metrics": metrics or None})
        graph = current.graph()
        integers = loss == "sparse_categorical_crossentropy"
        shape = [None] if integers else self._output.shape.as_list()
        self._target = placeholder("int32" if integers else "float32", shape, f"{self.layers[-1].name}_target")
        with graph.name_scope("loss"):
            self._loss = _loss(loss, self._output, self._target)
        with graph.name_scope("training"):
            self._train = _optimizer(optimizer).minimize(self._loss, var_list=self.weights)

    def fit(
        self,
        x: Any,
        y: Any,
        batch_size: Optional[int] = None,
        epochs: int = 1,
        verbose: Any = 1,
        shuffle: bool = False,
        **options: Any,
    ) -> History:
        """Train on the batches in order, and return the loss of each epoch. Raises NotSupported for other options.

        The rows are not shuffled, even if `shuffle` is set.
        """
        refuse_options("Sequential.fit", {name: value or None for name, value in options.items()}, *_ON_SPEED)
        history, session = History(), self._session()
        for _ in range(epochs):
            feeds = self._feeds(x, y, batch_size)
            losses = [session.run([self._loss, self._train], feed)[0] for feed in feeds]
            history.history["loss"].append(self._mean(losses, feeds))
        return history

    def _feeds(self, x: Any, y: Any, batch_size: Optional[int]) -> list[dict[Any, Any]]:
        """Return the `feed_dict` of each batch. batch_size: 32 if it is None."""
        size = batch_size or 32
        targets = self._fitting(y)
        parts = [slice(start, start + size) for start in range(0, len(x), size)]
        return [{self._input: x[part], self._target: targets[part]} for part in parts]

    def _fitting(self, y: Any) -> Any:
        """Return labels with the rank of the model's target, by adding or removing a last dimension of size 1."""
        array, rank = np.asarray(y), len(self._target.shape)
        if array.ndim == rank - 1:
            return array[..., None]
        return array[..., 0] if array.ndim == rank + 1 and array.shape[-1] == 1 else array

    def _mean(self, losses: Sequence[Any], feeds: Sequence[dict[Any, Any]]) -> float:
        """Return the mean loss over all rows. Batches are weighted by size, because the last one may be smaller."""
        return float(np.average(losses, weights=[len(feed[self._input]) for feed in feeds]))

    def train_on_batch(self, x: Any, y: Any) -> Any:
        return self._session().run([self._loss, self._train], {self._input: x, self._target: self._fitting(y)})[0]

    def evaluate(self, x: Any, y: Any, batch_size: Optional[int] = None, verbose: Any = 1, **options: Any) -> Any:
        """Return the mean loss over all rows. Raises NotSupported for other options."""
        refuse_options("Sequential.evaluate", options, *_ON_SPEED)
        session, feeds = self._session(), self._feeds(x, y, batch_size)
        return self._mean([session.run(self._loss, feed) for feed in feeds], feeds)

    def predict(self, x: Any, batch_size: Optional[int] = None, verbose: Any = 0, **options: Any) -> Any:
        """Return the outputs for all rows. Raises NotSupported for other options."""
        refuse_options("Sequential.predict", options, *_ON_SPEED)
        session, size = self._session(), batch_size or 32
        parts = [session.run(self._output, {self._input: x[start : start + size]}) for start in range(0, len(x), size)]
        return np.concatenate(parts)

    def get_weights(self) -> list[Any]:
        weights: list[Any] = self._session().run([weight._as_graph_element() for weight in self.weights])
        return weights

    def set_weights(self, values: Sequence[Any]) -> None:
        session = self._session()
        for weight, value in zip(self.weights, values):
            session.run(weight.initializer, {weight.initial_value: value})

    def _session(self) -> Any:
        """Return the backend's session, after initialising the variables of this model that are not initialised."""
        session = self._backend.get_session()
        new = [weight.initializer for weight in self.weights if not session._has(weight.op)]
        if new:
            session.run(new)
        return session


def _loss(loss: Any, output: Tensor, target: Tensor) -> Tensor:
    if loss in ("mse", "mean_squared_error"):
        squared: Tensor = TF["reduce_mean"](TF["square"](TF["subtract"](output, target)))
        return squared
    if loss == "sparse_categorical_crossentropy":
        if output.op.type != "Softmax":
            raise NotSupported(
                "the stand-in for tensorflow has 'sparse_categorical_crossentropy' of a softmax only",
                hint="let the last layer have activation='softmax'",
            )
        logits = output.op.inputs[0]
        entropy: Tensor = NN["sparse_softmax_cross_entropy_with_logits"](labels=target, logits=logits)
        mean: Tensor = TF["reduce_mean"](entropy)
        return mean
    raise NotSupported(
        f"the stand-in for tensorflow has no loss {loss!r}", hint="it has 'mse' and 'sparse_categorical_crossentropy'"
    )


def _optimizer(optimizer: Any) -> Any:
    if optimizer == "sgd":
        return GradientDescentOptimizer(0.01, name="SGD")
    if hasattr(optimizer, "minimize"):
        return optimizer
    raise NotSupported(
        f"the stand-in for tensorflow has no optimizer {optimizer!r}",
        hint="it has 'sgd', and tf.train.GradientDescentOptimizer",
    )

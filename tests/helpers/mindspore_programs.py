"""Programs for MindSpore that run on the fake as on the real one, and what to say about the trees they leave."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "MINDSPORE_DUMP_CONFIG"
#: Of a test's own directory, where the dump goes.
OUT = "out"
_STAMP = re.compile(r"\.\d{16}\.")
_NUMBER = re.compile(r"\d+\.npy")


def settings(path: Path, **common: Any) -> dict[str, Any]:
    """The content of a dump JSON: everything at every step."""
    wanted = {
        "op_debug_mode": 0,
        "dump_mode": 0,
        "path": str(path),
        "net_name": "Net",
        "iteration": "all",
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        **common,
    }
    return {"common_dump_settings": wanted, "e2e_dump_settings": {"enable": True, "trans_flag": True}}


def write_settings(file: Path, content: dict[str, Any]) -> str:
    file.write_text(json.dumps(content))
    return str(file)


def names(root: Path) -> Counter[str]:
    """Every file below a directory without what differs from run to run: timestamps, and numbers of long names."""
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return Counter(
        _STAMP.sub(".T.", str(path.with_name("N.npy") if _NUMBER.fullmatch(path.name) else path)) for path in found
    )


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def dense_net() -> Any:
    """Three operators: MatMul, BiasAdd, ReLU."""
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(4, 3, weight_init="ones", bias_init="zeros")
            self.relu = nn.ReLU()

        def construct(self, x):
            return self.relu(self.fc(x))

    return Net()


def conv_net() -> Any:
    """The network of the recorded trees."""
    from mindspore import nn

    class ConvNet(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 2, 3, pad_mode="valid", weight_init="ones", has_bias=False)
            self.bn = nn.BatchNorm2d(2)
            self.relu = nn.ReLU()
            self.pool = nn.MaxPool2d(2, 2)
            self.flat = nn.Flatten()
            self.fc = nn.Dense(18, 3, weight_init="ones", bias_init="zeros")

        def construct(self, x):
            return self.fc(self.flat(self.pool(self.relu(self.bn(self.conv1(x))))))

    return ConvNet()


def images(seed: int = 0) -> Any:
    import mindspore as ms

    return ms.Tensor(np.random.RandomState(seed).randn(2, 1, 8, 8).astype(np.float32))


def rows(count: int = 2) -> Any:
    import mindspore as ms

    return ms.Tensor(np.arange(4 * count, dtype=np.float32).reshape(count, 4))


def in_graph_mode(device: str = "CPU", **context: Any) -> Any:
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE, **context)
    ms.set_device(device)
    return ms


def train(optimizer: str = "momentum") -> list[float]:
    """Three steps of `Model.train`; the losses."""
    ms = in_graph_mode()
    import mindspore.dataset as ds
    from mindspore import nn

    losses: list[float] = []

    class Note(ms.train.Callback):
        def step_end(self, run_context):
            losses.append(float(run_context.original_args().net_outputs.asnumpy()))

    def examples():
        random = np.random.RandomState(0)
        for number in range(6):
            yield random.randn(1, 8, 8).astype(np.float32), np.int32(number % 3)

    data = ds.GeneratorDataset(examples, ["x", "y"], shuffle=False).batch(2)
    net = conv_net()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    made = {
        "plain": lambda weights: nn.Momentum(weights, 0.01, 0.9),
        "momentum": lambda weights: nn.Momentum(weights, 0.01, 0.9, weight_decay=0.1),
        "sgd": lambda weights: nn.SGD(weights, 0.01, momentum=0.9),
        "adam": lambda weights: nn.Adam(weights, 0.01),
    }[optimizer](net.trainable_params())
    model = ms.train.Model(net, loss, made)
    model.train(1, data, callbacks=[Note()], dataset_sink_mode=False)
    return losses


def train_deep() -> None:
    """One step of a network with several equal operators, some in cells further in, and a tensor used twice."""
    ms = in_graph_mode()
    from mindspore import nn

    class Inner(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(8, 8, weight_init="ones", bias_init="zeros")
            self.relu = nn.ReLU()

        def construct(self, x):
            return self.relu(self.dense(x))

    class Deep(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(1, 2, 3, weight_init="ones")
            self.second = nn.Conv2d(2, 2, 3, weight_init="ones")
            self.third = nn.Conv2d(2, 1, 1, weight_init="ones")
            self.flat = nn.Flatten()
            self.narrow = nn.Dense(64, 8, weight_init="ones", bias_init="zeros", has_bias=False)
            self.one, self.other = Inner(), Inner()
            self.last = nn.Dense(8, 3, weight_init="ones", bias_init="zeros")
            self.tanh = nn.Tanh()

        def construct(self, x):
            x = self.third(self.second(self.first(x)))
            y = self.tanh(self.narrow(self.flat(x)))
            y = self.other(self.one(y) * y) + y
            return self.last(y * y)

    net = Deep()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), nn.SGD(net.trainable_params(), 0.1))
    step.set_train()
    step(images(), ms.Tensor(np.array([0, 2], np.int32))).asnumpy()


def infer() -> None:
    """Three forward runs of the convolution network."""
    in_graph_mode()
    net = conv_net()
    net.set_train(False)
    for seed in range(3):
        net(images(seed)).asnumpy()


def run_several_graphs() -> None:
    """A constant, bfloat16, other layers, and the same cell twice."""
    ms = in_graph_mode()
    from mindspore import nn, ops

    held = ms.Tensor(np.arange(8, dtype=np.float32).reshape(4, 2))

    class Constant(nn.Cell):
        def construct(self, x):
            return ops.matmul(x, held) + 2.5

    class Narrow(nn.Cell):
        def construct(self, x):
            return ops.cast(x, ms.bfloat16)

    class Layers(nn.Cell):
        def __init__(self):
            super().__init__()
            self.parts = nn.SequentialCell(nn.Dense(4, 4, "ones", "zeros", activation="tanh"), nn.Sigmoid())
            self.soft = nn.Softmax()
            self.loss = nn.MSELoss()

        def construct(self, x, *others):
            y = self.soft(self.parts(x) - others[0])
            return self.loss(y, x) + y.sum()

    class Types(nn.Cell):
        def construct(self, x):
            whole = (ops.cast(x, ms.int8), ops.cast(x, ms.uint8), ops.cast(x, ms.int32), ops.cast(x, ms.int64))
            return (*whole, ops.cast(x, ms.float16), ops.cast(x, ms.float64), ops.cast(x, ms.bool_))

    for found in Types()(rows()):
        found.asnumpy()
    for net, inputs in ((Constant(), [rows()]), (Narrow(), [rows()]), (Layers(), [rows(), rows()])):
        for _ in range(2):
            net(*inputs).asnumpy()
    Constant()(rows(3)).asnumpy()


def run_long_names() -> None:
    """An operator whose file name has more than 255 characters."""
    ms = in_graph_mode()
    from mindspore import nn

    name = "attribute_with_a_long_name_" * 4

    class Inner(nn.Cell):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()
            self.weight = ms.Parameter(ms.Tensor(np.ones((2, 4), np.float32)), name="another")

        def construct(self, x):
            return self.relu(x) + self.weight

    class Outer(nn.Cell):
        def __init__(self):
            super().__init__()
            setattr(self, name, Inner())

        def construct(self, x):
            return getattr(self, name)(x)

    class Outermost(nn.Cell):
        def __init__(self):
            super().__init__()
            setattr(self, name, Outer())

        def construct(self, x):
            return getattr(self, name)(x)

    Outermost()(rows()).asnumpy()


def run_pynative() -> None:
    """Compiled functions and methods between operators that are not."""
    import mindspore as ms
    from mindspore import nn, ops

    ms.set_device("CPU")

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.fc = nn.Dense(4, 3, weight_init="ones", bias_init="zeros")
            self.relu = nn.ReLU()

        @ms.jit
        def inner(self, x):
            return self.relu(self.fc(x))

        def construct(self, x):
            return ops.exp(self.inner(x)) + 1

    @ms.jit
    def product(a, b):
        return ops.tanh(a * b)

    net = Net()
    for _ in range(3):
        net(rows()).asnumpy()
        product(rows(), rows()).asnumpy()


def _own_step(mode: str) -> Any:
    """`value_and_grad` and an optimizer; also the loss function and the network, which must be kept."""
    import mindspore as ms
    from mindspore import nn

    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    net = dense_net()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.SGD(net.trainable_params(), 0.1)

    def forward(data, label):
        return loss(net(data), label)

    derive = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(x, y):
        value, grads = derive(x, y)
        optimizer(grads)
        return value

    return ms.jit(step) if mode == "jit" else step


def train_by_hand(mode: str) -> None:
    """Two steps of one's own. mode: "jit" (all of it is one graph), "graph", or "pynative" (only the optimizer is)."""
    import mindspore as ms

    step = _own_step(mode)
    for _ in range(2):
        step(rows(), ms.Tensor(np.array([0, 2], np.int32))).asnumpy()


def tensors(tmp_path: Path) -> list[str]:
    return sorted(name for name in names(tmp_path / OUT) if name.endswith(".npy"))


def load(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


def doubled(count: int) -> Any:
    """A network of one operator, and an input of so many elements of 4 bytes."""
    import mindspore as ms

    class Net(ms.nn.Cell):
        def construct(self, x):
            return x + x

    return Net(), ms.Tensor(np.ones(count, np.float32))

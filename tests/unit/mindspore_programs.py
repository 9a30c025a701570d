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


def train(callbacks: Any = None) -> list[float]:
    """Three steps of `Model.train` with Momentum; the losses."""
    import mindspore as ms
    import mindspore.dataset as ds
    from mindspore import nn

    in_graph_mode()
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
    model = ms.train.Model(net, loss, nn.Momentum(net.trainable_params(), 0.01, 0.9))
    model.train(1, data, callbacks=[Note(), *(callbacks or ())], dataset_sink_mode=False)
    return losses

"""Programs of users, one function each: `scenarios.py NAME DUMPS`. The last line printed is the result as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, jit, nn, ops
from networks import BIAS, Complex, ConvNet, DenseNet, InPlace, graph_mode, images, rows

import ascend_dump


def files(path: Any) -> list[str]:
    return sorted(os.path.relpath(os.path.join(at, name), path) for at, _, names in os.walk(path) for name in names)


def told(cap: ascend_dump.Capture) -> str:
    """What a capture says when it ends."""
    try:
        cap.stop()
    except ascend_dump.AscendDumpError as error:
        return str(error)
    return ""


def conv_net(dumps: str) -> Any:
    """A context manager with a target, and a training step that runs on after it."""
    graph_mode()
    net = ConvNet()
    with ascend_dump.capture(net, path=dumps, steps="0|2", strict=True) as cap:
        for step in range(4):
            net(Tensor(images(step)))
        inside = len(cap.dump())
    before = files(cap.path)
    net(Tensor(images(5)))
    return {
        "path": str(cap.path),
        "inside": inside,
        "same_after": files(cap.path) == before,
        "environment": os.environ.get("MINDSPORE_DUMP_CONFIG"),
        "problems": [problem.code for problem in cap.problems],
    }


def twice(dumps: str) -> Any:
    """Two captures with the same settings, a graph between them, and one with other settings."""
    graph_mode()
    net = DenseNet()
    paths = []
    for start in (0, 10):
        with ascend_dump.capture(net, path=dumps, steps="1-2", strict=True) as cap:
            for step in range(4):
                net(Tensor(rows(start + step)))
        paths.append(str(cap.path))
        net(Tensor(rows(99)))
        DenseNet(5)(Tensor(rows(99, 5)))
    before = [files(path) for path in paths]
    net(Tensor(rows(99)))
    after = [files(path) for path in paths]
    refused = ""
    try:
        ascend_dump.capture(net, path=dumps, steps="5").start()
    except ascend_dump.ConfigError as error:
        refused = str(error)
    nested = ""
    with ascend_dump.capture(net, path=dumps, steps="1-2"):
        try:
            ascend_dump.capture(net, path=dumps, steps="1-2").start()
        except ascend_dump.ConfigError as error:
            nested = str(error)
    return {"paths": paths, "same_after": before == after, "refused": refused, "nested": nested}


def decorated(dumps: str) -> Any:
    """Each call of the function is a step."""
    graph_mode()
    net = ConvNet()

    @ascend_dump.capture(path=dumps, framework="mindspore", layers=["conv", "name-regex(fc.+)"], strict=True)
    def epoch(start: int) -> str:
        for step in range(2):
            net(Tensor(images(start + step)))
        return str(epoch.capture.path)

    return {"paths": [epoch(0), epoch(10)]}


def train(dumps: str) -> Any:
    """A program that knows nothing of a dump: Model.train over three batches."""
    from mindspore import dataset

    graph_mode()

    def batches() -> Any:
        for step in range(3):
            yield rows(step), rows(50 + step, 3)

    net = nn.Dense(4, 3, weight_init="ones")
    model = ms.train.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), learning_rate=0.1))
    model.train(1, dataset.GeneratorDataset(batches, ["x", "y"], shuffle=False), dataset_sink_mode=False)
    return {}


def pynative(dumps: str) -> Any:
    """Single operators beside a compiled function, and a gradient through it."""
    ms.set_device("CPU")

    @jit
    def compiled(a: Any, b: Any) -> Any:
        return ops.tanh(a * b)

    with ascend_dump.capture(path=dumps, framework="mindspore", strict=True) as cap:
        for step in range(2):
            a = Tensor(rows(step))
            ops.exp(a) + 1
            compiled(a, a)
    return {"path": str(cap.path), "problems": [problem.code for problem in cap.problems]}


def late(dumps: str) -> Any:
    """A capture that comes after the first operator, and one after the first compile."""
    graph_mode()
    net = DenseNet()
    net(Tensor(rows(0)))
    try:
        ascend_dump.capture(net, path=dumps).start()
    except ascend_dump.ConfigError as error:
        return {"refused": str(error), "files": files(dumps) if os.path.isdir(dumps) else []}
    return {}


def nothing(dumps: str) -> Any:
    """Captures that write no tensor, each for a reason of its own."""
    graph_mode()
    net = DenseNet()
    cap = ascend_dump.capture(net, path=dumps, steps="1000", strict=True).start()
    net(Tensor(rows(0)))
    return {"said": told(cap), "records": len(cap.dump())}


def wrong_number(dumps: str) -> Any:
    """A full name with a number that no operator of this process has."""
    graph_mode()
    net = DenseNet()
    cap = ascend_dump.capture(net, path=dumps, layers="Default/fc-Dense/MatMul-op9", strict=True).start()
    net(Tensor(rows(0)))
    return {"said": told(cap)}


def only_operators(dumps: str) -> Any:
    """PyNative operators alone."""
    ms.set_device("CPU")
    cap = ascend_dump.capture(path=dumps, framework="mindspore", strict=True).start()
    ops.exp(Tensor(rows(0)))
    return {"said": told(cap), "problems": [problem.code for problem in cap.problems]}


def never_ran(dumps: str) -> Any:
    """Nothing runs in the first capture, so the second one is free in its settings."""
    graph_mode()
    net = DenseNet()
    said = told(ascend_dump.capture(net, path=dumps, steps="7", strict=True).start())
    with ascend_dump.capture(net, path=dumps, steps="0", strict=True) as cap:
        net(Tensor(rows(0)))
    return {"said": said, "path": str(cap.path)}


def two_graphs(dumps: str) -> Any:
    """A graph that runs after another one has that one's number."""
    graph_mode()
    first, second = DenseNet(), DenseNet(5)
    with ascend_dump.capture(first, path=dumps, steps="0", strict=True) as cap:
        for step in range(3):
            first(Tensor(rows(step)))
        second(Tensor(rows(0, 5)))
    return {"path": str(cap.path)}


def complex_numbers(dumps: str) -> Any:
    """The first graph has complex inputs: the program runs, the capture says that it has ended."""
    graph_mode()
    net = Complex()
    cap = ascend_dump.capture(net, path=dumps, strict=True).start()
    result = net(Tensor(np.full(3, 2j, "c8"))).asnumpy()
    return {"result": [str(one) for one in result], "said": told(cap), "files": files(cap.path)}


def complex_numbers_under_jit(dumps: str) -> Any:
    """The same of a function under `jit` in PyNative mode."""
    ms.set_device("CPU")

    @jit
    def square(x: Any) -> Any:
        return x * x

    cap = ascend_dump.capture(path=dumps, framework="mindspore", strict=True).start()
    result = square(Tensor(np.full(3, 2j, "c8"))).asnumpy()
    return {"result": [str(one) for one in result], "said": told(cap), "files": files(cap.path)}


def complex_numbers_later(dumps: str) -> Any:
    """A graph with complex inputs after another one; MindSpore dumps already and refuses it."""
    graph_mode()
    net = DenseNet()
    with ascend_dump.capture(net, path=dumps, strict=True) as cap:
        net(Tensor(rows(0)))
        try:
            Complex()(Tensor(np.ones(3, "c8")))
        except RuntimeError as error:
            message = str(error).splitlines()[0]
        net(Tensor(rows(1)))
    return {"message": message, "path": str(cap.path)}


def mode_inside_the_block(dumps: str) -> Any:
    """A program that chooses graph mode only after the capture has begun."""
    with ascend_dump.capture(path=dumps, framework="mindspore", strict=True) as cap:
        graph_mode()
        DenseNet()(Tensor(rows(0)))
    return {"path": str(cap.path), "problems": [problem.code for problem in cap.problems]}


def in_place_and_empty(dumps: str) -> Any:
    """An operator that changes its input, and a tensor without elements."""
    graph_mode()
    net = InPlace()
    with ascend_dump.capture(net, path=dumps, strict=True) as cap:
        net(Tensor(np.ones(3, "f4")))
        DenseNet()(Tensor(np.zeros((0, 4), "f4")))
    return {"path": str(cap.path)}


def refused_on_a_cpu(dumps: str) -> Any:
    """Settings that this device has not, told before anything runs."""
    graph_mode()
    net = DenseNet()
    said = {}
    for name, settings in {
        "stats": {"data": "stats"},
        "full": {"data": "full"},
        "set_dump": {"options": {"set_dump": True}},
        "overflow": {"scene": "overflow"},
        "watch": {"scene": "watch", "watch": ["a"]},
        "sample": {"options": {"sample_num": 3}},
        "backslash": {"layers": "re:op\\d"},
        "overflow_number": {"options": {"overflow_number": 1}},
    }.items():
        try:
            ascend_dump.capture(net, path=dumps, strict=True, **settings).start()
        except ascend_dump.AscendDumpError as error:
            said[name] = error.code
    return said


def own_configuration(dumps: str) -> Any:
    """The user has named a configuration already."""
    os.environ["MINDSPORE_DUMP_CONFIG"] = "/home/user/data_dump.json"
    try:
        ascend_dump.capture(path=dumps, framework="mindspore").start()
    except ascend_dump.ConfigError as error:
        return {"refused": str(error)}
    return {}


def recorder(dumps: str) -> Any:
    """NaN in one iteration, or a trigger, or neither: only some iterations stay."""
    how = os.environ["HOW"]
    graph_mode()
    net = Root()
    settings: dict[str, Any] = {"keep": 2, "until": "nonfinite" if how == "nan" else None}
    with ascend_dump.capture(net, path=dumps, strict=True, **settings) as cap:
        for step in range(8):
            net(Tensor(np.full((2, 4), -1.0 if how == "nan" and step == 4 else 1.0, np.float32)))
            if how == "trigger" and step == 4:
                cap.trigger("loss spike")
    return {"path": str(cap.path)}


class Root(nn.Cell):
    """NaN of negative numbers."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.sqrt(x) + 1


def distributed(dumps: str) -> Any:
    """One of several ranks, started by msrun, that knows nothing of a dump."""
    from mindspore.communication import get_group_size, get_rank, init

    graph_mode()
    init()
    net = DenseNet()
    for step in range(2):
        net(Tensor(rows(10 * get_rank() + step)))
    return {"rank": get_rank(), "world": get_group_size()}


if __name__ == "__main__":
    assert BIAS.size
    result = globals()[sys.argv[1]](sys.argv[2])
    print(json.dumps(result), flush=True)

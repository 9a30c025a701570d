"""A process with the fake MindSpore in graph mode, and a small network for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ascend_dump import fakes
from ascend_dump.native.mindspore.config.dump_json import CONFIG_VARIABLE

#: What says where a dump goes and which rank a process is.
_VARIABLES = (CONFIG_VARIABLE, "RANK", "RANK_ID", "RANK_SIZE", "MS_WORKER_NUM", "DEVICE_ID", "HCCL_EXEC_TIMEOUT")


@contextmanager
def graph_mode(monkeypatch: pytest.MonkeyPatch, device: str) -> Iterator[Any]:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with fakes.install("mindspore"):
        import mindspore

        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        mindspore.set_device(device)
        yield mindspore


def dense_net(ms: Any) -> Any:
    return ms.nn.SequentialCell(ms.nn.Dense(4, 3, weight_init="ones"), ms.nn.ReLU())


def step(ms: Any, net: Any, value: float = 1.0) -> None:
    net(ms.Tensor(np.full((2, 4), value, "f4")))

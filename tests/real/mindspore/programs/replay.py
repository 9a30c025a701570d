"""Hand each configuration to MindSpore: one JSON object a line on stdin, and one a line on stdout.

MindSpore reads a configuration once in a process, and its import is what takes longest, so each has a child that
is forked after the import and before anything has initialised the device.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn


class Net(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 3, weight_init="ones")
        self.relu = nn.ReLU()

    def construct(self, x: Any) -> Any:
        return self.relu(self.fc(x))


def run(case: dict[str, Any]) -> dict[str, Any]:
    os.environ.update(case["env"])
    os.environ["MINDSPORE_DUMP_CONFIG"] = case["file"]
    message = ""
    try:
        ms.set_context(mode=ms.GRAPH_MODE)
        ms.set_device("CPU")
        net = Net()
        for _ in range(3):
            net(Tensor(np.arange(8, dtype="f4").reshape(2, 4)))
    except RuntimeError as error:
        message = str(error).splitlines()[0]
    files = list(Path(case["out"]).rglob("*.npy"))
    return {"message": message, "files": len(files), "iterations": sorted({int(file.parent.name) for file in files})}


#: Side by side: with some configurations MindSpore sleeps for three seconds.
AT_ONCE = 4


def begin(case: dict[str, Any]) -> tuple[str, int, int]:
    """Its name, its child, and where the answer of that comes."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, json.dumps(run(case)).encode())
        os._exit(0)
    os.close(writer)
    return case["name"], child, reader


def end(name: str, child: int, reader: int) -> None:
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    print(json.dumps({"name": name, **json.loads(answer or b'{"message": "died", "files": -1}')}), flush=True)


def main() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    running = []
    for line in sys.stdin:
        running.append(begin(json.loads(line)))
        if len(running) == AT_ONCE:
            end(*running.pop(0))
    for one in running:
        end(*one)


if __name__ == "__main__":
    main()

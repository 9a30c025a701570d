"""Make the example's model for the simulated device, and two inputs: an ordinary one and one that overflows.

    python make_model.py

For a real device convert a model of your own: `atc --model=net.onnx --framework=5 --output=net --status_check=1
--soc_version=...`. The names of its operators will differ from those in the README.
"""

from __future__ import annotations

import numpy as np

from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save


def main() -> None:
    random = np.random.default_rng(0)
    first = random.normal(size=(8, 16)).astype(np.float16)
    second = random.normal(scale=0.1, size=(16, 4)).astype(np.float16)
    nodes = (
        OfflineNode("w1", "Const", const=first),
        OfflineNode("dense1", "MatMul", ("x:0", "w1:0")),
        OfflineNode("relu", "Relu", ("dense1:0",)),
        OfflineNode("square", "Mul", ("relu:0", "relu:0")),
        OfflineNode("w2", "Const", const=second),
        OfflineNode("dense2", "MatMul", ("square:0", "w2:0")),
        OfflineNode("out", "Relu", ("dense2:0",)),
    )
    save(OfflineModel("mlp", (TensorSpec("x", (1, 8), "float16"),), nodes, ("out:0",), True), "net.om")
    x = random.normal(size=(1, 8)).astype(np.float16)
    np.save("x.npy", x)
    np.save("large.npy", (x * 300).astype(np.float16))


if __name__ == "__main__":
    main()

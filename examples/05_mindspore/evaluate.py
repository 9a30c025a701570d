"""Count how many examples the trained network gets right. An ordinary script, like `train.py`.

python evaluate.py [--device CPU|GPU|Ascend]
"""

from __future__ import annotations

import argparse

import mindspore as ms
import numpy as np
from mindspore import nn
from network import Net, examples


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate a small network.")
    parser.add_argument("--device", default="CPU")
    args = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device(args.device)
    net = Net()
    with np.load("weights.npz") as weights:
        for one in net.get_parameters():
            one.set_data(ms.Tensor(weights[one.name]))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = ms.train.Model(net, loss, metrics={"accuracy"})
    found = model.eval(examples(24), dataset_sink_mode=False)
    print(f"accuracy: {found['accuracy']:.2f}")


if __name__ == "__main__":
    main()

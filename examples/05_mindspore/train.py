"""Train the network with `Model.train` and keep its weights. An ordinary script: nothing in it is about dumps.

python train.py [--device CPU|GPU|Ascend] [--rate 0.1] [--steps 6]
"""

from __future__ import annotations

import argparse

import mindspore as ms
import numpy as np
from mindspore import nn
from network import Net, examples


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description="Train a small network.")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args(arguments)
    ms.set_seed(1)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device(args.device)
    net = Net()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(net.trainable_params(), args.rate, 0.9)
    model = ms.train.Model(net, loss, optimizer)
    model.train(1, examples(8 * args.steps), callbacks=[ms.train.LossMonitor()], dataset_sink_mode=False)
    np.savez("weights.npz", **{one.name: one.asnumpy() for one in net.get_parameters()})


if __name__ == "__main__":
    main()

"""The same training with a capture around it: steps 0 and 2 are dumped."""

import torch
from train import Net, train

import ascend_dump

torch.manual_seed(0)
model = Net()
with ascend_dump.capture(model, steps="0|2", path="dumps"):
    train(model)

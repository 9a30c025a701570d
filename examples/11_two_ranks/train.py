"""Train a small network on several ranks. They are to have the same weights at every step; do they?

--same-batches gives all ranks the same batches, so that they have to compute the same, bit for bit.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(16, 32)
        torch.manual_seed(rank)  # for the dropout, which is to differ from rank to rank
        self.dropout = nn.Dropout(0.0 if "--same-batches" in sys.argv else 0.1)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.body(x).relu()))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Net(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(0 if "--same-batches" in sys.argv else rank)
    for step in range(3):
        x, wanted = torch.randn(8, 16, generator=batches), torch.randint(4, (8,), generator=batches)
        loss = nn.functional.cross_entropy(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        print(f"rank {rank} step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

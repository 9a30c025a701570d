"""A recommender with embedding bags, and a port with one joint table, padded bags and Adagrad by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator, normal, parameter_of, train_clearing_first

#: Rows of the tables.
_ROWS = (20, 12, 15)
_MODES = ("mean", "sum", "mean")
_RATE, _START = 0.05, 0.1


class Clicks(nn.Module):
    """The reference: numbers and bags meet by dot products."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, 8, mode=mode) for rows, mode in zip(_ROWS, _MODES))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers: Tensor, members: list[Tensor], starts: list[Tensor]) -> Tensor:
        dense = self.bottom(numbers)
        features = [bag(rows, first) for bag, rows, first in zip(self.bags, members, starts)]
        stacked = torch.stack([dense, *features], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        first, second = torch.triu_indices(4, 4, 1)
        pairs = products[:, first, second]  # place: click_model_pairs
        return self.top(torch.cat([dense, pairs], 1)).squeeze(1)


def _data() -> tuple[Tensor, list[list[Tensor]], Tensor]:
    drawn = generator()
    numbers = normal(drawn, 6, 5)
    bags = []
    for rows in _ROWS:
        lengths = torch.randint(1, 5, (6,), generator=drawn).tolist()
        bags.append([torch.randint(0, rows, (length,), generator=drawn) for length in lengths])
    return numbers, bags, torch.randint(0, 2, (6,), generator=drawn).to(numbers.dtype)


def reference() -> Program:
    model = Clicks()
    numbers, bags, clicked = _data()
    members = [torch.cat(bag) for bag in bags]
    starts = [torch.tensor([0, *(len(each) for each in bag[:-1])]).cumsum(0) for bag in bags]
    optimizer = torch.optim.Adagrad(model.parameters(), _RATE, initial_accumulator_value=_START, foreach=False)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0, dtype=numbers.dtype))
    return Program(model, train_clearing_first(optimizer, lambda: criterion(model(numbers, members, starts), clicked)))


class Port(nn.Module):
    """The port: one table, whose last row is for padding and is not trained."""

    def __init__(self, source: Clicks, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.table = parameter_of(torch.cat([bag.weight for bag in source.bags]))
        layers = [layer for layer in (*source.bottom, *source.top) if isinstance(layer, nn.Linear)]
        self.matrices = nn.ParameterList(layer.weight.detach().clone() for layer in layers)
        self.biases = nn.ParameterList(layer.bias.detach().clone() for layer in layers)

    def _dense(self, x: Tensor, *layers: int) -> Tensor:
        for layer in layers:
            x = torch.addmm(self.biases[layer], x, self.matrices[layer].t())
            x = x if layer == 3 else x.clamp_min(0)
        return x

    def _bag(self, index: int, rows: Tensor, kept: Tensor) -> Tensor:
        first = sum(_ROWS[:index])
        if self.fault == "rows" and index == 2:
            first += 1  # planted: click_model_rows
        taken = self.table[(rows + first) % len(self.table)] * kept[..., None]  # planted: click_model_rows
        if _MODES[index] == "sum":
            return taken.sum(1)
        if self.fault == "mean" and index == 0:
            return taken.mean(1)  # planted: click_model_mean
        return taken.sum(1) / kept.sum(1, keepdim=True)

    def forward(self, numbers: Tensor, bags: list[Tensor], kept: list[Tensor]) -> Tensor:
        dense = self._dense(numbers, 0, 1)
        features = [self._bag(index, rows, mask) for index, (rows, mask) in enumerate(zip(bags, kept))]
        features = [dense, *features]
        couples = [(first, second) for first in range(4) for second in range(first + 1, 4)]
        if self.fault == "pairs":
            couples = [(second, first) for first in range(4) for second in range(first)]
        products = [features[left] * features[right] for left, right in couples]  # planted: click_model_pairs
        met = torch.stack(products, 1).sum(2)  # planted: click_model_pairs
        return self._dense(torch.cat([dense, met], 1), 2, 3)[:, 0]


def port(fault: str) -> Program:
    model = Port(Clicks(), fault)
    numbers, bags, clicked = _data()
    rows = [nn.utils.rnn.pad_sequence(bag, batch_first=True) for bag in bags]
    lengths = [torch.tensor([len(each) for each in bag]) for bag in bags]
    kept = [(torch.arange(int(count.max())) < count[:, None]).to(numbers.dtype) for count in lengths]
    sums = [torch.full_like(parameter, 0.0 if fault == "start" else _START) for parameter in model.parameters()]

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            logits = model(numbers, rows, kept)
            weights = 1.0 if fault == "weights" else 1 + 2 * clicked  # place: click_model_weights
            terms = functional.softplus(logits) - clicked * logits
            loss = (terms * weights).mean()  # planted: click_model_weights
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, total, gradient in zip(model.parameters(), sums, gradients):
                    total += gradient**2  # planted: click_model_start
                    parameter -= _RATE * gradient / (total.sqrt() + 1e-10)  # planted: click_model_start
            losses.append(loss.item())
        return losses

    return Program(model, train)


NETWORK = Network(
    "click_model",
    reference,
    port,
    {
        "rows": Truth(modules=(r"bags\.2",), readers=("",)),
        "mean": Truth(modules=(r"bags\.0",), readers=("",)),
        "pairs": Truth(operators=(r":aten::(index|cat|stack)",), readers=("", r"top(\.0)?")),
        "weights": Truth(operators=(r".*:aten::binary_cross_entropy_with_logits",), readers=("",), visible=False),
        "start": Truth(visible=False),
    },
)

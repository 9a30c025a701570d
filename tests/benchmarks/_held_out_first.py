"""The first set of operators that no threshold was chosen by at first; what was changed for it has used it up."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import torch
from bench_calibration import Operators, heads, image, positive
from torch.nn import functional

__all__ = ["OPERATORS", "SCALES", "SEED", "SHAPES", "WRONG", "Optimizers"]

SHAPES = ((48, 320), (96, 704))
SCALES = (0.25, 3.0)
SEED = 20261123
#: Operators whose kernels give something wrong in some types.
WRONG: dict[str, tuple[torch.dtype, ...]] = {}


def volume(x: Any) -> Any:
    return x.reshape(2, 4, 4, 4, -1)


def unit(x: Any) -> Any:
    return torch.tanh(x) * 0.9


def taken(x: Any, *shape: int) -> Any:
    return x.reshape(-1)[: int(np.prod(shape))].reshape(shape)


def square(x: Any) -> Any:
    return taken(x, 16, 16) + 8 * x.std().detach() * torch.eye(16, dtype=x.dtype)


def rotated(x: Any) -> Any:
    """Rotary positions."""
    y = heads(x)
    angle = torch.arange(y.shape[-2], dtype=torch.float32)[:, None] * 0.01 ** (torch.arange(32) / 32)
    one, other = y.chunk(2, -1)
    return y * angle.cos().to(y.dtype) + torch.cat((-other, one), -1) * angle.sin().to(y.dtype)


def lstm(x: Any) -> Any:
    return torch.lstm_cell(x[:, :32], (x[:, 32:64], x[:, 64:96]), taken(x, 128, 32), taken(x.flip(0), 128, 32))[0]


def gru(x: Any) -> Any:
    return torch.gru_cell(x[:, :32], x[:, 32:64], taken(x, 96, 32), taken(x.flip(0), 96, 32))


def grouped(x: Any) -> Any:
    """Attention in which two heads share a key."""
    y = heads(x)
    return functional.scaled_dot_product_attention(y, y[:, :2], y[:, :2], enable_gqa=True)


def weighted(x: Any) -> Any:
    labels = torch.arange(x.shape[0]) % x.shape[1]
    return functional.cross_entropy(x, labels, positive(x[0]).detach(), label_smoothing=0.1)


def ctc(x: Any) -> Any:
    scores = x[:48, :320].reshape(48, 10, 32).float().log_softmax(-1)
    return functional.ctc_loss(scores, torch.arange(60).reshape(10, 6) % 31 + 1, [48] * 10, [6] * 10)


OPERATORS: Operators = {
    **{name: getattr(torch, name) for name in ("atan", "asinh", "expm1", "exp2", "sinc", "frac")},
    "sinh": lambda x: torch.sinh(unit(x)),
    "tan": lambda x: torch.tan(unit(x)),
    "erfinv": lambda x: torch.erfinv(unit(x)),
    "acosh": lambda x: torch.acosh(1.1 + positive(x)),
    "logit": lambda x: torch.logit(torch.sigmoid(x), 1e-3),
    "lgamma": lambda x: torch.lgamma(positive(x)),
    "digamma": lambda x: torch.digamma(0.1 + positive(x)),
    "log2": lambda x: positive(x).log2(),
    "log10": lambda x: positive(x).log10(),
    "selu": functional.selu,
    "celu": functional.celu,
    "softsign": functional.softsign,
    "tanhshrink": functional.tanhshrink,
    "softshrink": functional.softshrink,
    "hardsigmoid": functional.hardsigmoid,
    "prelu": lambda x: functional.prelu(x, x[0, :1]),
    "swiglu": lambda x: functional.silu(x[:, : x.shape[1] // 2]) * x[:, x.shape[1] // 2 :],
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)),
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "fmod": lambda x: torch.fmod(x, 0.7),
    "power of two tensors": lambda x: positive(x) ** unit(x.flip(0)),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "diff": lambda x: x.diff(dim=-1),
    "trapezoid": lambda x: torch.trapezoid(x, dx=0.3),
    "nansum": lambda x: x.nansum(-1),
    "sum of squares of columns": lambda x: x.square().sum(0),
    "variance and mean": lambda x: torch.cat(torch.var_mean(x, 0)),
    "norm of order 3": lambda x: torch.linalg.vector_norm(x, 3, -1),
    "matrix norm": lambda x: torch.linalg.matrix_norm(heads(x)),
    "normalize": lambda x: functional.normalize(x, dim=-1),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "cosine similarity": lambda x: functional.cosine_similarity(x, x.flip(0)),
    "pairwise distance": lambda x: functional.pairwise_distance(x, x.flip(1)),
    "cdist": lambda x: torch.cdist(x[:24], x[24:48]),
    "softmin": lambda x: functional.softmin(x, -1),
    "masked softmax": lambda x: torch.softmax(heads(x).masked_fill(heads(x) > 1, -1e4), -1),
    "instance norm": lambda x: functional.instance_norm(image(x)),
    "local response norm": lambda x: functional.local_response_norm(image(x), 3),
    "layer norm of images": lambda x: functional.layer_norm(image(x), image(x).shape[-2:]),
    "weight norm": lambda x: torch._weight_norm(x, x[:, :1], 0),
    "einsum": lambda x: torch.einsum("bhid,bhjd->bhij", heads(x), heads(x).flip(2)),
    "baddbmm": lambda x: torch.baddbmm(heads(x)[0, :, :, :1], heads(x)[0], heads(x)[1].mT, beta=0.5, alpha=0.1),
    "addbmm": lambda x: torch.addbmm(x[:1, :1], heads(x)[0], heads(x)[1].mT),
    "addmv": lambda x: torch.addmv(x[:, 0], x, x[0]),
    "dot": lambda x: torch.dot(x[0], x[1]),
    "outer": lambda x: torch.outer(x[0], x[1]),
    "bilinear form": lambda x: functional.bilinear(x[:, :16], x[:, 16:32], taken(x, 8, 16, 16)),
    "solve": lambda x: torch.linalg.solve(square(x), taken(x.flip(0), 16, 4)),
    "cholesky": lambda x: torch.linalg.cholesky(square(x) @ square(x).T),
    "fft": lambda x: torch.fft.rfft(x, dim=-1).abs(),
    "depthwise conv2d": lambda x: functional.conv2d(image(x), taken(x, 4, 1, 3, 3), padding=1, groups=4),
    "dilated conv2d": lambda x: functional.conv2d(image(x), taken(x, 6, 4, 3, 3), x[0, :6], dilation=2, stride=2),
    "conv3d": lambda x: functional.conv3d(volume(x), taken(x, 4, 4, 3, 3, 3), padding=1),
    "transposed conv1d": lambda x: functional.conv_transpose1d(x[None], taken(x, x.shape[0], 4, 3)),
    "adaptive average pool": lambda x: functional.adaptive_avg_pool2d(image(x), (5, 3)),
    "power average pool": lambda x: functional.lp_pool2d(image(x), 2, 3),
    "bicubic": lambda x: functional.interpolate(image(x), scale_factor=1.7, mode="bicubic"),
    "trilinear": lambda x: functional.interpolate(volume(x), scale_factor=2, mode="trilinear"),
    "grid sample": lambda x: functional.grid_sample(image(x), unit(image(x))[:, :2, :8].permute(0, 2, 3, 1)),
    "fold": lambda x: functional.fold(functional.unfold(image(x), 3), image(x).shape[-2:], 3),
    "huber": lambda x: functional.huber_loss(x, x.flip(0), delta=0.5),
    "l1": lambda x: functional.l1_loss(x, x.flip(0)),
    "poisson": lambda x: functional.poisson_nll_loss(unit(x), positive(x.flip(0)).detach()),
    "gaussian": lambda x: functional.gaussian_nll_loss(x, x.flip(0).detach(), positive(x.flip(1))),
    "triplet margin": lambda x: functional.triplet_margin_loss(x, x.flip(0), x.flip(1)),
    "cosine embedding": lambda x: functional.cosine_embedding_loss(x, x.flip(0), torch.ones(x.shape[0])),
    "soft margin": lambda x: functional.soft_margin_loss(x, x.flip(0).sign().detach()),
    "multilabel margin": lambda x: functional.multilabel_soft_margin_loss(x, (x.flip(0) > 0).to(x.dtype)),
    "weighted cross entropy": weighted,
    "ctc": ctc,
    "embedding bag": lambda x: functional.embedding_bag(torch.arange(64) % 11, x, torch.arange(0, 64, 4), mode="mean"),
    "scatter add": lambda x: torch.zeros(9, x.shape[1], dtype=x.dtype).scatter_add(
        0, (torch.arange(x.numel()).reshape(x.shape) * 7) % 9, x),
    "scatter mean": lambda x: x[:9].scatter_reduce(0, (torch.arange(x.numel()).reshape(x.shape) * 5) % 9, x, "mean"),
    "take along": lambda x: torch.take_along_dim(x, x.argsort(-1), -1),
    "lstm cell": lstm,
    "gru cell": gru,
    "rotary": rotated,
    "attention of groups": grouped,
    "attention with a bias": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), attn_mask=unit(heads(x)[..., :1] @ heads(x)[..., :1].mT).detach()),
}  # fmt: skip


class Optimizers:
    """All that the calibration does not have, each with some of the parameters."""

    def __init__(self, parameters: Any) -> None:
        every = list(parameters)
        kinds: list[Callable[[Any], torch.optim.Optimizer]] = [
            lambda p: torch.optim.Adamax(p, lr=0.01, foreach=False),
            lambda p: torch.optim.NAdam(p, lr=0.01, foreach=False),
            lambda p: torch.optim.RAdam(p, lr=0.01, foreach=False),
            lambda p: torch.optim.Adadelta(p, foreach=False),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        ]
        self._all = [kind(every[place::11]) for place, kind in enumerate(kinds)]

    def zero_grad(self) -> None:
        for one in self._all:
            one.zero_grad()

    def step(self) -> None:
        for one in self._all:
            one.step()

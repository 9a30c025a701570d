"""The second set of operators that no threshold was chosen by: other operators, shapes, scales, seed and optimizers."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import torch
from bench_calibration import Operators, heads, image, positive
from torch.nn import functional

__all__ = ["OPERATORS", "SCALES", "SEED", "SHAPES", "WRONG", "Optimizers"]

SHAPES = ((40, 416), (112, 608))
SCALES = (0.5, 12.0)
SEED = 20270117
#: Operators whose kernels give something wrong in some types.
WRONG: dict[str, tuple[torch.dtype, ...]] = {"matrix exponential": (torch.bfloat16, torch.float16)}

_special = torch.special


def volume(x: Any) -> Any:
    return x.reshape(2, 4, 4, 4, -1)


def unit(x: Any) -> Any:
    return torch.sin(x) * 0.95


def taken(x: Any, *shape: int) -> Any:
    return x.reshape(-1)[: int(np.prod(shape))].reshape(shape)


def square(x: Any) -> Any:
    return taken(x, 24, 24) + 12 * x.std().detach() * torch.eye(24, dtype=x.dtype)


def with_outliers(x: Any) -> Any:
    """Some channels are much larger than the others, as in large language models."""
    channels = torch.arange(x.shape[-1]) % 53 == 7
    return torch.where(channels, x * 50, x)


def linear_attention(x: Any) -> Any:
    q, k = (functional.elu(one) + 1 for one in (heads(x), heads(x).flip(2)))
    return q @ (k.mT @ heads(x)) / (q @ k.sum(2, keepdim=True).mT)


def mixture(x: Any) -> Any:
    """The two best of eight experts."""
    weights, chosen = x[:, :8].softmax(-1).topk(2)
    every = torch.einsum("nd,edf->enf", x[:, :32], taken(x.flip(1), 8, 32, 32))
    return (every.gather(0, chosen.T[..., None].expand(-1, -1, 32)) * weights.T[..., None]).sum(0)


def squeeze_and_excite(x: Any) -> Any:
    y = image(x)
    return y * torch.sigmoid(functional.linear(y.mean((2, 3)), taken(x, 4, 4)))[..., None, None]


def focal(x: Any) -> Any:
    target = (x.flip(0) > 0).to(x.dtype)
    loss = functional.binary_cross_entropy_with_logits(x, target, reduction="none")
    return (loss * (1 - torch.exp(-loss)) ** 2).mean()


def dice(x: Any) -> Any:
    p, q = x.sigmoid(), (x.flip(0) > 0).to(x.dtype)
    return 1 - (2 * (p * q).sum(-1) + 1) / (p.sum(-1) + q.sum(-1) + 1)


def sharpened(x: Any) -> Any:
    kernel = torch.tensor([[0.0, -1, 0], [-1, 5, -1], [0, -1, 0]], dtype=x.dtype)
    return functional.conv2d(image(x), kernel.expand(4, 1, 3, 3), groups=4)


def many_heads(x: Any) -> Any:
    y = x[:, :64].reshape(-1, 2, 64)
    return functional.multi_head_attention_forward(
        y, y, y, 64, 4, taken(x, 192, 64) if x.numel() >= 12288 else None, None, None, None, False, 0.0,
        torch.eye(64, dtype=x.dtype), None, need_weights=False,
    )[0]  # fmt: skip


def crossed(x: Any) -> Any:
    """Queries of another length than keys."""
    y = heads(x)
    return functional.scaled_dot_product_attention(y[:, :, :17], y, y.flip(2), scale=0.5)


def by_distance(x: Any) -> Any:
    """Attention with a penalty that grows with the distance."""
    y = heads(x)
    place = torch.arange(y.shape[2], dtype=y.dtype)
    penalty = -(place[:, None] - place[None]).abs() * 0.1
    return torch.softmax(y @ y.mT / 32**0.5 + penalty, -1) @ y


def turned_complex(x: Any) -> Any:
    """Rotary positions by complex numbers, in float32."""
    y = torch.view_as_complex(heads(x).float().reshape(2, 4, -1, 16, 2))
    angle = torch.arange(y.shape[2], dtype=torch.float32)[:, None] * 100 ** (-torch.arange(16) / 16)
    return torch.view_as_real(y * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


def pieces(x: Any) -> Any:
    return torch.segment_reduce(
        x, "mean", lengths=torch.tensor([5] * (x.shape[0] // 5) + [x.shape[0] % 5]), unsafe=True
    )


def spectrogram(x: Any) -> Any:
    return torch.stft(x.float(), 64, window=torch.hann_window(64), return_complex=True).abs().to(x.dtype)


OPERATORS: Operators = {
    **{name: getattr(torch, name) for name in ("erfc", "square", "rad2deg", "nan_to_num", "sgn", "relu", "negative")},
    **{name: (lambda x, name=name: getattr(torch, name)(unit(x))) for name in ("asin", "acos", "atanh", "cosh")},
    **{name: (lambda x, name=name: getattr(_special, name)(unit(x))) for name in ("i0", "i1e", "ndtr", "log_ndtr")},
    "erfcx": lambda x: _special.erfcx(unit(x)),
    "entropy": lambda x: _special.entr(positive(unit(x))),
    "xlog1py": lambda x: _special.xlog1py(x, positive(x.flip(0))),
    "multigammaln": lambda x: _special.multigammaln(positive(x) + 2, 2),
    "relu6": functional.relu6,
    "hardtanh": lambda x: functional.hardtanh(x, -0.7, 0.4),
    "threshold": lambda x: functional.threshold(x, 0.1, -2.0),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "squared relu": lambda x: functional.relu(x).square(),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "remainder": lambda x: torch.remainder(x, 0.25),
    "clamp": lambda x: x.clamp(-0.3, 0.6),
    "copysign": lambda x: torch.copysign(x, x.flip(1)),
    "ldexp": lambda x: torch.ldexp(x, torch.tensor(3)),
    "divided by a number": lambda x: x / 3.0,
    "float power": lambda x: torch.float_power(positive(x), 0.4).to(x.dtype),
    "logaddexp2": lambda x: torch.logaddexp2(x, x.flip(0)),
    "cumulative product": lambda x: (1 + 0.01 * unit(x)).cumprod(-1),
    "cummax": lambda x: x.cummax(-1).values,
    "logsumexp of two axes": lambda x: heads(x).logsumexp((1, 3)),
    "amin": lambda x: x.amin(0),
    "median": lambda x: x.median(-1).values,
    "quantile": lambda x: x.float().quantile(0.3, -1).to(x.dtype),
    "std and mean": lambda x: torch.cat(torch.std_mean(x, -1)),
    "norm of order 1": lambda x: torch.linalg.vector_norm(x, 1, -1),
    "largest norm": lambda x: torch.linalg.vector_norm(x, float("inf"), 0),
    "norm of order half": lambda x: torch.linalg.vector_norm(positive(x), 0.5, -1),
    "trace": lambda x: square(x).trace(),
    "top": lambda x: x.topk(5).values,
    "sorted": lambda x: x.sort(-1).values,
    "sum of products": lambda x: (x * x.flip(0)).sum((0, 1)),
    "running mean": lambda x: x.unfold(-1, 7, 1).mean(-1),
    "cumulative trapezoid": lambda x: torch.cumulative_trapezoid(x, dx=0.2),
    "addr": lambda x: torch.addr(x[:16, :20], x[0, :16], x[1, :20], beta=0.3, alpha=2.0),
    "kron": lambda x: torch.kron(taken(x, 8, 8), taken(x.flip(0), 4, 4)),
    "tensordot": lambda x: torch.tensordot(heads(x)[0], heads(x)[1], ([0, 2], [0, 2])),
    "three products": lambda x: torch.linalg.multi_dot([x, x.T, x[:, :8]]),
    "matrix exponential": lambda x: torch.linalg.matrix_exp(0.1 * unit(taken(x, 16, 16))),
    "matrix power": lambda x: torch.linalg.matrix_power(square(x) / square(x).norm().detach(), 3),
    "inverse": lambda x: torch.linalg.inv(square(x)),
    "log of the determinant": lambda x: torch.linalg.slogdet(square(x)).logabsdet,
    "triangular solve": lambda x: torch.linalg.solve_triangular(square(x).triu(), taken(x, 24, 3), upper=True),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(square(x) + square(x).T),
    "upper part of qr": lambda x: torch.linalg.qr(square(x)).R,
    "cross": lambda x: torch.linalg.cross(taken(x, 50, 3), taken(x.flip(0), 50, 3)),
    "covariance": lambda x: torch.cov(x[:12]),
    "correlation": lambda x: torch.corrcoef(x[:12]),
    "fft of two axes": lambda x: torch.fft.fft2(heads(x).float()).abs().to(x.dtype),
    "inverse fft": lambda x: torch.fft.irfft(torch.fft.rfft(x.float()), n=x.shape[-1]).to(x.dtype),
    "spectrogram": spectrogram,
    "transposed conv3d": lambda x: functional.conv_transpose3d(volume(x), taken(x, 4, 2, 2, 2, 2), stride=2),
    "grouped conv1d": lambda x: functional.conv1d(
        x[None], taken(x, x.shape[0], x.shape[0] // 8, 5), groups=8, dilation=2),
    "wide conv2d": lambda x: functional.conv2d(image(x), taken(x, 5, 4, 7, 7), padding=3, stride=2),
    "pointwise conv2d": lambda x: functional.conv2d(image(x), taken(x, 16, 4, 1, 1), x[0, :16]),
    "sharpened": sharpened,
    "transposed conv2d, in groups": lambda x: functional.conv_transpose2d(
        image(x), taken(x, 4, 3, 3, 3), stride=2, padding=1, groups=2),
    "average pool in 1d": lambda x: functional.avg_pool1d(x[None], 5, 2),
    "average pool in 3d": lambda x: functional.avg_pool3d(volume(x), 2),
    "adaptive largest pool": lambda x: functional.adaptive_max_pool2d(image(x), (4, 7)),
    "largest pool in 1d": lambda x: functional.max_pool1d(x[None], 3),
    "linear interpolation": lambda x: functional.interpolate(x[None], scale_factor=1.3, mode="linear"),
    "bilinear to the corners": lambda x: functional.interpolate(
        image(x), size=(37, 51), mode="bilinear", align_corners=True),
    "area": lambda x: functional.interpolate(image(x), size=(9, 11), mode="area"),
    "pixel shuffle": lambda x: functional.pixel_shuffle(image(x), 2),
    "reflected": lambda x: functional.pad(image(x), (2, 1, 3, 2), mode="reflect"),
    "batch norm in inference": lambda x: functional.batch_norm(
        image(x), x[0, :4].detach(), positive(x[1, :4]).detach(), x[2, :4], x[3, :4]),
    "batch norm of rows": lambda x: functional.batch_norm(x, None, None, training=True),
    "layer norm without weights": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "rms norm of two axes": lambda x: functional.rms_norm(image(x), image(x).shape[-2:]),
    "group norm of one group": lambda x: functional.group_norm(image(x), 1),
    "layer norm of outliers": lambda x: functional.layer_norm(with_outliers(x), x.shape[-1:], positive(x[0]), x[1]),
    "rms norm of outliers": lambda x: functional.rms_norm(with_outliers(x), x.shape[-1:], positive(x[0])),
    "linear of outliers": lambda x: functional.linear(with_outliers(x), x[:24], x[0, :24]),
    "softmax of outliers": lambda x: torch.softmax(with_outliers(x), -1),
    "gelu of outliers": lambda x: functional.gelu(with_outliers(x)),
    "log softmax of columns": lambda x: torch.log_softmax(heads(x), 1),
    "softmax with a temperature": lambda x: torch.softmax(x / 0.07, -1),
    "cross entropy of images": lambda x: functional.cross_entropy(
        image(x), torch.arange(image(x)[:, 0].numel()).reshape(image(x)[:, 0].shape) % 4),
    "cross entropy of soft labels": lambda x: functional.cross_entropy(x, x.flip(0).softmax(-1).detach()),
    "summed cross entropy": lambda x: functional.cross_entropy(
        x, torch.arange(x.shape[0]) % 5, reduction="sum", ignore_index=3),
    "hinge embedding": lambda x: functional.hinge_embedding_loss(x, x.flip(0).sign().detach() + 0.0),
    "margin ranking": lambda x: functional.margin_ranking_loss(x, x.flip(0), torch.ones_like(x).detach(), 0.2),
    "multi margin": lambda x: functional.multi_margin_loss(x, torch.arange(x.shape[0]) % x.shape[1]),
    "binary cross entropy of shares": lambda x: functional.binary_cross_entropy(
        torch.sigmoid(unit(x)), torch.sigmoid(x.flip(0)).detach()),
    "kl of logarithms": lambda x: functional.kl_div(
        x.log_softmax(-1), x.flip(0).log_softmax(-1).detach(), log_target=True, reduction="sum"),
    "smooth l1 with beta": lambda x: functional.smooth_l1_loss(x, x.flip(0), beta=0.1),
    "focal": focal,
    "dice": dice,
    "tanh cell": lambda x: torch.rnn_tanh_cell(x[:, :32], x[:, 32:64], taken(x, 32, 32), taken(x.flip(0), 32, 32)),
    "many heads": many_heads,
    "attention of another length": crossed,
    "attention by distance": by_distance,
    "linear attention": linear_attention,
    "rotary by complex numbers": turned_complex,
    "mixture of experts": mixture,
    "squeeze and excite": squeeze_and_excite,
    "index select": lambda x: x.index_select(0, torch.arange(90) % 7),
    "index put": lambda x: torch.zeros(6, x.shape[1], dtype=x.dtype).index_put(
        (torch.arange(x.shape[0]) % 6,), x, accumulate=True),
    "scatter of the largest": lambda x: x[:9].scatter_reduce(
        0, (torch.arange(x.numel()).reshape(x.shape) * 5) % 9, x, "amax"),
    "masked select": lambda x: x[x > 0],
    "segments": pieces,
    "embedding bag, summed": lambda x: functional.embedding_bag(
        torch.arange(96) % 13, x, torch.arange(0, 96, 6), mode="sum"),
    "embedding of few": lambda x: functional.embedding(torch.arange(1000) % 3, x[:, :48]),
    "repeated": lambda x: x.repeat_interleave(3, 0).reshape(3, -1).sum(0),
    "where": lambda x: torch.where(x > x.flip(0), x * 1.1, x - 0.3),
}  # fmt: skip


class Optimizers:
    """In groups of tensors at once, where neither the calibration nor the first set has that."""

    def __init__(self, parameters: Any) -> None:
        every = list(parameters)
        kinds: list[Callable[[Any], torch.optim.Optimizer]] = [
            lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1, amsgrad=True, foreach=True),
            lambda p: torch.optim.Rprop(p, lr=0.01, foreach=False),
            lambda p: torch.optim.ASGD(p, lr=0.01, foreach=False),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, dampening=0.1, foreach=True),
            lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5, foreach=False),
            lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
        ]
        self._all = [kind(every[place::13]) for place, kind in enumerate(kinds)]

    def zero_grad(self) -> None:
        for one in self._all:
            one.zero_grad()

    def step(self) -> None:
        for one in self._all:
            one.step()

"""Verdicts on operators, shapes and seeds that no threshold was chosen by at first: false alarms, and faults seen.

Usage: bench_held_out.py [DTYPE [WAY]]
       bench_held_out.py faults [DTYPE]

As `bench_calibration.py`, with other operators, other shapes and seeds, other optimizers, and images in channels-last
order besides. `faults` alters one output of each operator, with the inputs as they were, and with inputs that differ by
the rounding of another order of sums: which of seven faults is called different?

The first run, before any rule was changed for it (PyTorch 2.13): of 10046 outputs in float32 14 were called different
without being wrong, of 2730 in bfloat16 62, of 2711 in float16 57. That used the set up: what was
changed then is changed by it.

- Interpolations (bicubic, grid_sample) round the place between two pixels, an error that grows with the size of the
  image. Mended: their envelope has the length of the longest axis, in the type of the tensor for `grid_sampler`.
- `_embedding_bag_backward` and `_trilinear` add in bfloat16, `addbmm` and `soft_margin_loss_backward` round in between.
  Mended: these are listed with others that do.
- Gradients that are one constant (huber, soft margin) are all rounded to the same side, up to a whole unit. Mended: the
  bias of narrow types may be one unit instead of a half. So a factor of 1.001 before rounding to bfloat16 (a quarter
  of a unit) is not to be told from rounding; behind it, on values that are rounded already, it changes none of them.
- After that, with kernels of float64: 2 of 5228 in float32 (`logit_backward`), 15 of 2076 in bfloat16.
- Not mended: `logit` near 1, whose kernel clamps in the type of the tensor; `fmod`, whose kernel rounds the divisor; a
  sum of all elements in bfloat16 by several threads, which rounds its parts; the gradients of `grid_sampler` in
  bfloat16; and what inductor fuses of several operators (cells, rotary positions), which is judged here as one
  operator, and by `compare` never is.

Faults that are seen where inputs are equal, by the rules of the first run: in float32 97.4 % (an element) to 99.2 %, in
bfloat16 85.9 % (an element) to 96.6 %, in float16 90.6 % (x1.001) to 98.3 %; where inputs differ by rounding 96.6 % to
98.8 %, 87.5 % to 97.1 % and 88.1 % to 98.3 %.
"""

from __future__ import annotations

import copy
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from bench_calibration import ROUNDINGS, TYPES, Operators, Zoo, compiled, count, heads, image, positive, program, report
from compare_programs import dump
from compare_roundings import Otherwise
from torch.nn import functional

import ascend_dump
from ascend_dump.analysis.compare import Rules
from ascend_dump.analysis.compare._divergence import Divergence
from ascend_dump.analysis.compare._match import Match, align
from ascend_dump.analysis.compare._names import is_view
from ascend_dump.analysis.compare._operators import Operator, operators
from ascend_dump.analysis.compare._types import operator_class
from ascend_dump.reading import Record

SHAPES = ((48, 320), (96, 704))
SCALES = (0.25, 3.0)
SEED = 20261123


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


HELD_OUT: Operators = {
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


def _channels_last(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Images whose channels lie next to each other."""
    if func._schema.is_mutable or "attention" in func._schema.name:  # its kernel takes no such memory
        return func(*args, **kwargs)

    def turned(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
            return value.contiguous(memory_format=torch.channels_last)
        return value

    out = func(*(turned(one) for one in args), **kwargs)
    made = (
        [one.contiguous() if isinstance(one, torch.Tensor) else one for one in out] if isinstance(out, tuple) else out
    )
    return out.contiguous() if isinstance(out, torch.Tensor) else tuple(made) if isinstance(out, tuple) else out


WAYS: dict[str, Callable[..., Any]] = {
    **{
        name: ROUNDINGS[name]
        for name in ("four threads", "other order of sums", "strided inputs", "kernels of float64")
    },
    "channels last": lambda one, path, **settings: dump(one, path, under=Otherwise(_channels_last), **settings),
}


def usable(dtype: torch.dtype) -> Operators:
    """Those that PyTorch has in this type, forward and backward."""
    found: Operators = {}
    for name, operator in HELD_OUT.items():
        data = torch.randn(SHAPES[0], dtype=torch.float32).to(dtype).requires_grad_()
        try:
            operator(data).float().sum().backward()
        except (RuntimeError, NotImplementedError):
            print(f"not in {dtype}: {name}")
            continue
        found[name] = operator
    return found


# --- faults ---------------------------------------------------------------------------------------------------------


def _element(x: Any, draw: Any) -> Any:
    place = draw.integers(x.size)
    x.reshape(-1)[place] += 0.1 * (x.reshape(-1)[place] or np.sqrt(np.mean(x * x)))
    return x


def _some(x: Any, draw: Any) -> Any:
    x.reshape(-1)[draw.choice(x.size, max(1, x.size // 100), replace=False)] *= 1.05
    return x


def _tile(x: Any, draw: Any) -> Any:
    if x.size >= 1024:
        start = draw.integers(x.size - 256)
        x.reshape(-1)[start : start + 256] = 0
    return x


def _channels(x: Any, draw: Any) -> Any:
    axis = min(1, x.ndim - 1)
    if x.ndim and x.shape[axis] > 1:
        order = np.arange(x.shape[axis])
        order[:2] = order[1::-1]
        x = x.take(order, axis)
    return x


FAULTS: dict[str, Callable[[Any, Any], Any]] = {
    "x1.001": lambda x, draw: x * 1.001,
    "x1.01": lambda x, draw: x * 1.01,
    "an element +10 %": _element,
    "256 elements zero": _tile,
    "1 % of elements +5 %": _some,
    "sign": lambda x, draw: -x,
    "two channels permuted": _channels,
}


class _Given:
    """In place of what reads a dump: an array that was made of what is recorded."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def tensor(self, record: Record, format: Optional[str]) -> Any:
        return self._array

    def statistics(self, record: Record) -> None:
        return None


def altered(operator: Operator, fault: Callable[[Any, Any], Any], draw: Any) -> Optional[Operator]:
    """The operator with another first output; None where the fault changes nothing that is told from rounding."""
    record = operator.outputs[0]
    old = record.numpy()
    with np.errstate(all="ignore"):
        new = np.ascontiguousarray(fault(old.astype(np.float64).copy(), draw)).astype(old.dtype)
    if not np.isfinite(old.astype(np.float64)).all() or new.tobytes() == old.tobytes():
        return None
    wrong = copy.copy(record)
    wrong.loader = _Given(new)
    return replace(operator, outputs=[wrong, *operator.outputs[1:]])


def pairs(actual: Path, reference: Path) -> Iterator[tuple[Operator, Operator]]:
    """One operator of each type, pass and shape that computes something, as both dumps have it."""
    sides = [operators(ascend_dump.open(path)) for path in (actual, reference)]
    seen = set()
    for match in align(*sides):
        one = match.reference
        key = (operator_class(one.op_type), one.phase, tuple(record.shape for record in one.outputs))
        if key in seen or not one.outputs or is_view(one.op_type) or not one.inputs:
            continue
        first = one.outputs[0]
        if (first.dtype or "").startswith(("float", "bfloat")) and first.shape and not first.attrs.get("skipped"):
            seen.add(key)
            yield match.actual, one


def faults(only_type: str = "") -> int:
    """Print how many of the faults are called different, where inputs are equal and where they differ by rounding."""
    total, seen = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    torch.set_num_threads(1)
    for dtype in TYPES:
        if only_type not in str(dtype):
            continue
        one = program(dtype, SHAPES[0], SCALES[1], usable(dtype), Optimizers, SEED)
        with tempfile.TemporaryDirectory() as name:
            reference = dump(one, Path(name) / "reference", steps=1)
            actual = Path(name) / "actual"
            WAYS["other order of sums"](one, actual, steps=1)
            draw = np.random.default_rng(SEED)
            for way, side in (("equal", reference), ("rounded", actual)):
                for left, right in pairs(side, reference):
                    for fault, change in FAULTS.items():
                        wrong = altered(left, change, draw)
                        if wrong is None:
                            continue
                        key = (fault, str(dtype).partition(".")[2], way)
                        total[key] += 1
                        walked = Divergence(Rules()).walk(Match(wrong, right, "place", 1.0))
                        first = next(pair for pair in walked if pair.actual is wrong.outputs[0])
                        seen[key] += first.verdict == "different"
    print(f"{'fault':24}{'type':10}{'inputs':10}{'seen':>7}{'of':>6}")
    for key in total:
        print(f"{key[0]:24}{key[1]:10}{key[2]:10}{seen[key]:7}{total[key]:6}{seen[key] / total[key]:8.1%}")
    return sum(total.values()) - sum(seen.values())


def main(only_type: str = "", only_way: str = "") -> int:
    total, wrong = Counter[str](), Counter[str]()
    said: list[str] = []
    torch.set_num_threads(1)
    for dtype in TYPES:
        if only_type not in str(dtype):
            continue
        known = usable(dtype)
        for shape in SHAPES:
            for scale in SCALES:
                one = program(dtype, shape, scale, known, Optimizers, SEED)
                with tempfile.TemporaryDirectory() as name:
                    reference = dump(one, Path(name) / "reference", steps=1)
                    for way, run in WAYS.items():
                        if only_way not in way:
                            continue
                        actual = Path(name) / way
                        run(one, actual, steps=1)
                        where = f"{way} {dtype} {shape} {scale}"
                        count(ascend_dump.compare(actual, reference), total, wrong, said, where)
                        shutil.rmtree(actual)
                if only_way in "compiled" and shutil.which("g++") and scale == SCALES[0] and shape == SHAPES[0]:
                    torch.manual_seed(SEED)
                    compiled(Zoo(known, dtype, shape, scale), f"{dtype} {shape} {scale}", total, wrong, said)
    return report(total, wrong, said)


if __name__ == "__main__":
    if sys.argv[1:2] == ["faults"]:
        faults(*sys.argv[2:3])
    else:
        sys.exit(main(*sys.argv[1:3]) > 0)

"""Verdicts on operators that compute the same in another way: none may be called different.

Usage: bench_calibration.py [DTYPE [WAY]]

Every operator runs forward and, through autograd, backward, and parameters are updated by five optimizers; in float32,
bfloat16 and float16; over two shapes and two scales of the data. The reference is the kernel as it is, with one thread.
The other side takes the sums in another order, has inputs in another memory order, four threads, kernels of float64
whose results are rounded, or is compiled by inductor (where there is a C++ compiler). Both are dumped and compared.

Measured with PyTorch 2.13 on two x86-64 processors: 9589 outputs of 95 operators that differ in some bit, and 192 that
inductor compiled; none is called different. Outputs by operator, as ATen runs them:

_log_softmax 48, _log_softmax_backward_data 51, _scaled_dot_product_flash_attention_for_cpu 42,
_scaled_dot_product_flash_attention_for_cpu_backward 67, _softmax 59, _softmax_backward_data 28, _to_copy 88,
_unsafe_view 92, add 2014, addcdiv 309, addcmul 302, addmm 49, atan2 4, avg_pool2d 4, avg_pool2d_backward 2,
binary_cross_entropy_with_logits 6, bmm 45, cat 8, clone 167, convolution 48, convolution_backward 73, cos 8,
cumprod 8, cumsum 1, detach 1224, div 321, elu 4, elu_backward 5, embedding_dense_backward 10, eq 24, erf 10, exp
28, expand 36, flip 53, gelu 27, gelu_backward 24, glu 6, glu_backward 16, hardswish 4, hardswish_backward 10,
index_add 4, leaky_relu 4, leaky_relu_backward 4, lerp 165, linalg_vector_norm 8, log 12, log1p 12,
log_sigmoid_backward 6, log_sigmoid_forward 8, logsumexp 20, masked_fill 8, mean 844, mish 6, mish_backward 6, mm
147, mse_loss 7, mse_loss_backward 6, mul 1334, native_batch_norm 18, native_batch_norm_backward 20,
native_group_norm 16, native_group_norm_backward 16, native_layer_norm 41, native_layer_norm_backward 63, neg 4,
nll_loss_forward 7, permute 46, pow 72, prod 12, reciprocal 12, rsqrt 48, select_backward 138, sigmoid 21,
sigmoid_backward 9, silu 7, silu_backward 5, sin 8, slice 8, slice_backward 136, smooth_l1_loss 2, softplus 4,
softplus_backward 6, sqrt 316, squeeze 12, sub 85, sum 143, t 90, tanh 4, tanh_backward 4, transpose 8, unsqueeze
40, upsample_bilinear2d 4, upsample_bilinear2d_backward 4, view 214, xlogy 20

and compiled by inductor:

addcdiv 3, addcmul 3, addmm 3, amax 3, atan2 3, attention 3, average pool 3, batch norm 3, bilinear 3, binary cross
entropy 3, bmm 3, causal attention 3, conv1d 3, conv2d 3, cos 3, cross entropy 3, cumsum 3, div 3, elu 3, embedding
3, erf 3, exp 3, gather 3, gelu of tanh 3, gelu 3, glu 3, group norm 3, hardswish 3, index add 3, kl divergence 3,
layer norm 3, leaky relu 3, lerp 3, linear 3, log sigmoid 3, log softmax 3, log 3, log1p 3, logsumexp 3, max pool 3,
mean 3, mish 3, mm 3, mse 3, norm 3, pow 3, prod 3, reciprocal 3, rms norm 3, rsqrt 3, sigmoid 3, silu 3, sin 3,
smooth l1 3, softmax of columns 3, softmax 3, softplus 3, sqrt 3, std 3, sum of all 3, sum 3, tanh 3, transposed
conv2d 3, var 3
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import torch
from compare_programs import Program, dump
from compare_roundings import ROUNDINGS
from torch import nn
from torch.nn import functional

import ascend_dump
from ascend_dump.analysis.compare import Comparison, Rules, measure
from ascend_dump.analysis.judging.verdict import judge
from ascend_dump.analysis.operators.properties import operator_class, sums_in_own_type

WAYS = ("four threads", "other order of sums", "strided inputs", "kernels of float64")
TYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((64, 256), (128, 1024))
SCALES = (1.0, 8.0)


Operators = dict[str, Callable[[Any], Any]]


def positive(x: Any) -> Any:
    return x.abs() + 0.01


def heads(x: Any) -> Any:
    return x.reshape(2, 4, -1, 32)


def image(x: Any) -> Any:
    return x.reshape(2, 4, -1, 32)


OPERATORS: Operators = {
    **{name: getattr(torch, name) for name in ("exp", "sigmoid", "tanh", "erf", "sin", "cos")},
    "gelu": functional.gelu,
    "gelu of tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "elu": functional.elu,
    "hardswish": functional.hardswish,
    "leaky relu": functional.leaky_relu,
    "glu": functional.glu,
    "log sigmoid": functional.logsigmoid,
    "log": lambda x: positive(x).log(),
    "log1p": lambda x: positive(x).log1p(),
    "sqrt": lambda x: positive(x).sqrt(),
    "rsqrt": lambda x: positive(x).rsqrt(),
    "reciprocal": lambda x: positive(x).reciprocal(),
    "pow": lambda x: positive(x).pow(1.7),
    "div": lambda x: x / positive(x.flip(0)),
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x.flip(0), x.flip(1), value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x.flip(0), positive(x.flip(1)), value=0.5),
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax of columns": lambda x: torch.softmax(x, 0),
    "log softmax": lambda x: torch.log_softmax(x, -1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:], positive(x[0]), x[1]),
    "rms norm": lambda x: functional.rms_norm(x, x.shape[-1:], positive(x[0])),
    "group norm": lambda x: functional.group_norm(image(x), 2, positive(x[0, :4]), x[1, :4]),
    "batch norm": lambda x: functional.batch_norm(image(x), None, None, positive(x[0, :4]), x[1, :4], training=True),
    "sum": lambda x: x.sum(-1),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(0),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(0),
    "cumsum": lambda x: x.cumsum(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, -1),
    "amax": lambda x: x.amax(-1),
    "mm": lambda x: x @ x.T,
    "addmm": lambda x: torch.addmm(x[0, : x.shape[0]], x, x.T),
    "bmm": lambda x: heads(x)[0] @ heads(x)[0].mT,
    "linear": lambda x: functional.linear(x, x[:32], x[0, :32]),
    "conv1d": lambda x: functional.conv1d(x[None], x[:8, : 3 * x.shape[0]].repeat(1, 3).reshape(-1)[: 24 * x.shape[0]]
                                          .reshape(8, x.shape[0], 3), padding=1),
    "conv2d": lambda x: functional.conv2d(image(x), x.reshape(-1)[:288].reshape(8, 4, 3, 3), x[0, :8], padding=1),
    "transposed conv2d": lambda x: functional.conv_transpose2d(image(x), x.reshape(-1)[:128].reshape(4, 8, 2, 2),
                                                               x[0, :8], stride=2),
    "average pool": lambda x: functional.avg_pool2d(image(x), 4),
    "max pool": lambda x: functional.max_pool2d(image(x), 2),
    "bilinear": lambda x: functional.interpolate(image(x), scale_factor=2, mode="bilinear"),
    "attention": lambda x: functional.scaled_dot_product_attention(heads(x), heads(x), heads(x)),
    "causal attention": lambda x: functional.scaled_dot_product_attention(heads(x), heads(x), heads(x), is_causal=True),
    "mse": lambda x: functional.mse_loss(x, x.flip(0)),
    "smooth l1": lambda x: functional.smooth_l1_loss(x, x.flip(0)),
    "cross entropy": lambda x: functional.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1]),
    "binary cross entropy": lambda x: functional.binary_cross_entropy_with_logits(x, torch.sigmoid(x.flip(0)).detach()),
    "kl divergence": lambda x: functional.kl_div(x.log_softmax(-1), x.flip(0).softmax(-1).detach(),
                                                 reduction="batchmean"),
    "embedding": lambda x: functional.embedding(torch.arange(64) % 7, x),
    "index add": lambda x: torch.index_add(x[:7], 0, torch.arange(x.shape[0]) % 7, x),
    "gather": lambda x: x.gather(1, torch.arange(x.numel()).reshape(x.shape) % x.shape[1]),
    "prod": lambda x: (x[:, :16] * 0.1 + 1).prod(-1),
}  # fmt: skip


class Zoo(nn.Module):
    """Every operator on data of its own, and parameters whose gradients the optimizers take."""

    def __init__(self, operators: Operators, dtype: torch.dtype, shape: tuple[int, int], scale: float) -> None:
        super().__init__()
        self.operators = operators
        self.data = nn.ParameterList([(scale * torch.randn(shape)).to(dtype) for _ in operators])

    def forward(self, x: Any) -> Any:
        total = x
        for data, operator in zip(self.data, self.operators.values()):
            made = operator(data)
            # Gradients that are no more alike than those of a network.
            weights = torch.linspace(-1, 1, made.numel(), dtype=made.dtype).reshape(made.shape)
            total = total + (made * weights).mean().float()
        return total


class Optimizers:
    """All of them, each with some of the parameters."""

    def __init__(self, parameters: Any) -> None:
        every = list(parameters)
        kinds: list[Callable[[Any], torch.optim.Optimizer]] = [
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False),
            lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
            lambda p: torch.optim.AdamW(p, lr=0.01),
            lambda p: torch.optim.Adagrad(p, lr=0.01, foreach=False),
            lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=False),
        ]
        self._all = [kind(every[place::9]) for place, kind in enumerate(kinds)]

    def zero_grad(self) -> None:
        for one in self._all:
            one.zero_grad()

    def step(self) -> None:
        for one in self._all:
            one.step()


def program(
    dtype: torch.dtype,
    shape: tuple[int, int],
    scale: float,
    operators: Operators = OPERATORS,
    optimizers: Any = Optimizers,
    seed: int = 0,
) -> Program:
    def build() -> Zoo:
        torch.manual_seed(seed)
        return Zoo(operators, dtype, shape, scale)

    batch = [torch.zeros(()), torch.zeros(())]
    return Program(
        f"{dtype} {shape} {scale}", build, lambda times: list(batch), lambda total, target: total - target, optimizers
    )


def count(found: Comparison, total: Counter[str], wrong: Counter[str], said: list[str], where: str) -> None:
    for pair in found.pairs:
        if pair.record.io != "output" or pair.measure is None:
            continue
        name = operator_class(pair.record.op_type)
        total[name] += 1
        if pair.verdict not in ("equal", "noise") and not pair.explained:
            wrong[name] += 1
            said.append(f"{where}: {pair.record.label} {pair.record.dtype} {pair.record.shape}: {pair.reason}")


def compiled(zoo: Zoo, where: str, total: Counter[str], wrong: Counter[str], said: list[str]) -> None:
    """What inductor makes of the operators, forward."""
    torch._dynamo.reset()

    def every(data: list[Any]) -> list[Any]:
        return [operator(one) for operator, one in zip(zoo.operators.values(), data)]

    data = [one.detach() for one in zoo.data]
    for name, a, b in zip(zoo.operators, torch.compile(every)(data), every(data)):
        x, y = (as_array(one) for one in (a, b))
        found = measure(x, y)
        terms = max(data[0].numel() // max(y.size, 1), 64)
        total[f"{name}, compiled"] += 1
        own_type = sums_in_own_type(name.replace(" ", "_"))
        verdict, reason = judge(found, y.dtype.name, Rules(), terms=terms, own_type=own_type)
        if verdict == "different":
            wrong[f"{name}, compiled"] += 1
            said.append(f"compiled {where}: {name}: {reason}, rms {found.rms:.3g}")


def as_array(tensor: Any) -> Any:
    import ml_dtypes

    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def main(only_type: str = "", only_way: str = "") -> int:
    total, wrong = Counter[str](), Counter[str]()
    said: list[str] = []
    torch.set_num_threads(1)
    for dtype in TYPES:
        for shape in SHAPES:
            for scale in SCALES:
                if only_type not in str(dtype):
                    continue
                one = program(dtype, shape, scale)
                with tempfile.TemporaryDirectory() as name:
                    reference = dump(one, Path(name) / "reference", steps=1)
                    for way in WAYS:
                        if only_way not in way:
                            continue
                        actual = Path(name) / way
                        ROUNDINGS[way](one, actual, steps=1)
                        where = f"{way} {dtype} {shape} {scale}"
                        count(ascend_dump.compare(actual, reference), total, wrong, said, where)
                        shutil.rmtree(actual)
                if only_way in "compiled" and shutil.which("g++") and scale == 1.0 and shape == SHAPES[0]:
                    compiled(Zoo(OPERATORS, dtype, shape, scale), f"{dtype} {shape} {scale}", total, wrong, said)
    return report(total, wrong, said)


def report(total: Counter[str], wrong: Counter[str], said: list[str]) -> int:
    """Print the table; how many outputs were called different."""
    operators = {name.partition(",")[0] for name in total}
    print(f"{'operator':45}{'differ':>8}{'different':>10}")
    for name in sorted(total):
        print(f"{name:45}{total[name]:8}{wrong[name]:10}")
    print(f"{f'{len(operators)} operators':45}{sum(total.values()):8}{sum(wrong.values()):10}")
    for line in said:
        print("wrong:", line)
    return sum(wrong.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]) > 0)

"""Stateless random GE operators: their values depend only on a seed and an offset.

The device uses Philox4x32-10 (`alg` 1). Here NumPy's Philox4x64-10 is used, with the seed as key and the offset as
initial counter. So equal seeds and offsets lead to equal values. Their distribution is that of the device, but the
values differ from the device's.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np
import torch

from ascend_dump.fakes.kernels._ge_table import integers, operator
from ascend_dump.fakes.kernels.ge_model import GeOp
from ascend_dump.fakes.kernels.ge_values import torch_dtype

__all__: list[str] = []

_FLOAT, _INT64 = 0, 9  # ge::DataType
#: The size of a dropout mask is a multiple of this number of bits.
_MASK_BITS = 128


def _generator(seed: Any, offset: Optional[Any]) -> Any:
    """Return a generator for a seed and an offset.

    offset: one number, or the two numbers that torchair writes, 0 and the offset.
    """
    counter = [0] if offset is None else integers(offset)
    [key] = integers(seed)
    wrapped = [value % 2**64 for value in (key, *counter)]
    return np.random.Generator(np.random.Philox(key=wrapped[0], counter=[*wrapped[1:], 0, 0, 0][:4]))


def _tensor(values: Any, number: int) -> Any:
    """Return an array as a tensor of the type with this number (ge::DataType)."""
    return torch.from_numpy(values).to(torch_dtype(number))


@operator("StatelessRandomUniformV2")
def _uniform(op: GeOp, shape: Any, key: Any, counter: Any, alg: Any) -> Any:
    number = op.attrs.get("dtype", _FLOAT)
    # Round down to the precision of the type. Otherwise the conversion could round up to 1.0.
    steps = 2 / torch.finfo(torch_dtype(number)).eps
    return _tensor(np.floor(_generator(key, counter).random(integers(shape)) * steps) / steps, number)


@operator("StatelessRandomNormalV2")
def _normal(op: GeOp, shape: Any, key: Any, counter: Any, alg: Any) -> Any:
    return _tensor(_generator(key, counter).standard_normal(integers(shape)), op.attrs.get("dtype", _FLOAT))


@operator("StatelessBernoulli")
def _bernoulli(op: GeOp, shape: Any, probability: Any, seed: Any, offset: Any) -> Any:
    drawn = _generator(seed, offset).random(integers(shape))
    return _tensor(drawn < probability.double().numpy(), op.attrs.get("dtype", _FLOAT))


@operator("StatelessRandperm")
def _permutation(op: GeOp, n: Any, seed: Any, offset: Any) -> Any:
    return _tensor(_generator(seed, offset).permutation(int(n)), op.attrs.get("dtype", _INT64))


@operator("StatelessDropOutGenMask")
def _dropout_mask(op: GeOp, shape: Any, probability: Any, seed: Any, seed1: Any, offset: Optional[Any] = None) -> Any:
    """Return a mask with one bit for each element, 1 to keep it.

    The bits are packed into bytes, lowest bit first, and padded to a multiple of 128 bits.
    """
    count = math.prod(integers(shape))
    mask = np.zeros(-(-count // _MASK_BITS) * _MASK_BITS, bool)
    mask[:count] = _generator(seed, offset).random(count) < float(probability)
    return torch.from_numpy(np.packbits(mask, bitorder="little"))


@operator("DropOutDoMask")
def _drop(op: GeOp, x: Any, mask: Any, keep_probability: Any) -> Any:
    is_kept = torch.from_numpy(np.unpackbits(mask.numpy(), count=x.numel(), bitorder="little")).bool().reshape(x.shape)
    keep = float(keep_probability)
    # With keep_probability 0 every element is dropped, and none is scaled.
    return torch.where(is_kept, x.float() / (keep or 1.0), 0.0).to(x.dtype)

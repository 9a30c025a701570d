"""Recognise weights into which a low-rank adapter (LoRA) was merged.

PEFT keeps a weight and its adapter apart, as `X.base_layer.weight`, `X.lora_A.NAME.weight` and `X.lora_B.NAME.weight`.
Merged, they are one weight: base + factor * (B @ A), for layers with transposed weights base + factor * (B @ A).T.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LowRankAdapter", "adapters_in", "merged_factor"]

_DOWN = re.compile(r"(?P<layer>.+)\.lora_A\.(?P<name>[^.]+)\.weight")
#: The error of each element in roundings of its terms: the product is rounded, the sum, and maybe the weights before.
_ROUNDINGS = 4.0
#: The factor is found by least squares. It has to be this many times its standard deviation.
_DEVIATIONS = 10.0
#: A factor within this many standard deviations of the one found is as good.
_NEAR = 4.0


class LowRankAdapter(NamedTuple):
    """The names of an adapter: of its layer, of its weight without the adapter, and of its two matrices."""

    layer: str
    base: str
    down: str
    up: str

    @property
    def merged(self) -> str:
        """The name of the weight after merging."""
        return f"{self.layer}.weight"

    def formula(self, factor: float) -> str:
        """Return the merged weight in words, with names relative to the layer."""
        begin, end = len(self.layer) + 1, -len(".weight")
        base, up, down = (name[begin:end] for name in (self.base, self.up, self.down))
        return f"{base} + {factor:.6g} * {up} @ {down}"


def adapters_in(names: Iterable[str]) -> Iterator[LowRankAdapter]:
    """Yield the adapters whose three weights are among these names."""
    known = set(names)
    for name in sorted(known):
        match = _DOWN.fullmatch(name)
        if match is not None:
            layer = match["layer"]
            adapter = LowRankAdapter(
                layer, f"{layer}.base_layer.weight", name, f"{layer}.lora_B.{match['name']}.weight"
            )
            if adapter.base in known and adapter.up in known:
                yield adapter


def merged_factor(
    weight: np.ndarray, base: np.ndarray, down: np.ndarray, up: np.ndarray, dtype: str
) -> Optional[float]:
    """Return the factor with which an adapter was merged into a weight; None if the weight is not the merged one.

    It is found by least squares, and rounded to as few digits as the types of the weights allow.

    weight, base  matrices of one shape
    down, up      the matrices A of shape (rank, inputs) and B of shape (outputs, rank)
    dtype         the coarsest type of these tensors, which limits the accuracy
    """
    import numpy as np

    kind = float_kind(dtype)
    if kind is None or base.ndim != 2 or weight.shape != base.shape or down.ndim != 2 or up.ndim != 2:
        return None
    if up.shape[1] != down.shape[0]:
        return None
    with np.errstate(all="ignore"):
        product = up.astype(np.float64) @ down.astype(np.float64)
        change = weight.astype(np.float64) - base.astype(np.float64)
        rounded = np.abs(weight).astype(np.float64) + np.abs(base).astype(np.float64)
        for adapter in (product, product.T):
            size = float((adapter * adapter).sum())
            if adapter.shape != change.shape or not 0 < size < math.inf:
                continue
            factor = float((change * adapter).sum() / size)
            error = change - factor * adapter
            is_rounding = (np.abs(error) <= _ROUNDINGS * kind.unit * (rounded + np.abs(factor * adapter))).all()
            deviation = math.sqrt(float((error * error).mean()) / size)
            if factor and is_rounding and abs(factor) > _DEVIATIONS * deviation:
                return _shortest(factor, deviation)
    return None


def _shortest(factor: float, deviation: float) -> float:
    """Return the number with the fewest digits that is as good as a factor of this standard deviation."""
    texts = (f"{factor:.{digits}g}" for digits in range(1, 17))
    return next((float(text) for text in texts if abs(float(text) - factor) <= _NEAR * deviation), factor)

"""Find tokens that a router sends to other experts because nearly equal scores were rounded differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.token_parts import CommonTokens, token_part
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LeftOut", "Rerouted", "rerouted_tokens"]

_CHOOSING = frozenset({"topk", "argmax", "TopKV2", "aclnnTopk", "moe_gating_top_k", "npu_moe_gating_top_k"})
#: The largest difference of the scores of a token, relative to the largest score, that rounding may explain: in
#: rounding units, but at most _MOST.
_UNITS, _MOST = 256.0, 0.1


class Rerouted(NamedTuple):
    """Tokens that a router sends to different experts on the two sides, because of rounding.

    name       the module of the router
    numbers    numbers of these tokens
    tokens     number of all tokens in the tensor
    margin     the largest gap between the scores of two experts of which each side chose one
    reordered  numbers of tokens that have the same experts in another order
    """

    name: str
    numbers: np.ndarray
    tokens: int
    margin: float
    reordered: np.ndarray

    @property
    def text(self) -> str:
        """Return one sentence."""
        goes = "tokens go" if len(self.numbers) > 1 else "tokens goes"
        return (
            f"routing: {self.name}: {len(self.numbers)} of {self.tokens} {goes} to another expert, margin "
            f"{self.margin:.2g}, within rounding"
        )


def rerouted_tokens(
    match: Match, scores: Sequence[tuple[Record, Record]], chosen: Sequence[tuple[Record, Record]], unit: float
) -> Optional[Rerouted]:
    """Return the tokens for which an operator chose different elements on the two sides, only because of rounding.

    None if there are no such tokens, or if the operator chooses nothing.

    scores  the pairs of its inputs with the values of tokens
    chosen  the pairs of its outputs with the values of tokens
    unit    the rounding unit of the program that computes in the coarser type
    """
    import numpy as np

    if operator_class(match.reference.op_type) not in _CHOOSING:
        return None
    of_scores = next((pair for pair in scores if _is_matrix(pair[0]) and _is_float(pair[0])), None)
    of_choice = next((pair for pair in chosen if _is_matrix(pair[0]) and not _is_float(pair[0])), None)
    if of_scores is None or of_choice is None:
        return None
    part = token_part(of_choice[0])
    if part is None or len(of_scores[0].shape or ()) != 2 or (of_scores[0].shape or ())[0] != len(part.numbers):
        return None
    try:
        a, b = (record.numpy().astype(np.float64) for record in of_scores)
        picked = [record.numpy().astype(np.int64).reshape(len(a), -1) for record in of_choice]
    except AscendDumpError:
        return None
    if picked[0].shape != picked[1].shape or not all(((ids >= 0) & (ids < a.shape[1])).all() for ids in picked):
        return None  # other numbers of experts are no rounding
    limit = min(_UNITS * unit, _MOST)
    rows, margins, reordered = [], [], []
    for row in np.flatnonzero((picked[0] != picked[1]).any(axis=1)).tolist():
        only_a, only_b = np.setdiff1d(picked[0][row], picked[1][row]), np.setdiff1d(picked[1][row], picked[0][row])
        differs = a[row] != b[row]  # scores of experts that are left out are -Inf on both sides
        distance = float(np.abs(a[row][differs] - b[row][differs]).max(initial=0.0))
        if not only_a.size:
            reordered.append(row)
            continue
        margin = float(b[row][only_b].max() - b[row][only_a].min())
        largest = float(np.abs(b[row][np.isfinite(b[row])]).max(initial=0.0))
        if abs(margin) <= 2 * distance <= 2 * limit * largest:
            rows.append(row)
            margins.append(abs(margin))
    if not rows and not reordered:
        return None
    name = match.reference.module or match.reference.label
    return Rerouted(name, part.numbers[rows], len(part.numbers), max(margins, default=0.0), part.numbers[reordered])


class LeftOut:
    """Tokens that are no longer compared, because a router sent them, or earlier tokens, to other experts."""

    def __init__(self, tokens: CommonTokens) -> None:
        import numpy as np

        self._tokens = tokens
        self._mask = np.zeros(tokens.count, bool)
        #: Tokens that are left out only inside of the module `_module`.
        self._reordered = np.zeros(tokens.count, bool)
        self._module = ""
        self._rerouted: list[Rerouted] = []

    def add(self, rerouted: Rerouted, module: str) -> None:
        """Add the tokens of a router. module: path of the router; the module around it also contains the experts"""
        if rerouted.numbers.size:
            self._rerouted.append(rerouted)
            self._mask[rerouted.numbers] = True
        self._reordered[:] = False
        self._reordered[rerouted.reordered] = True
        self._module = module.rpartition(".")[0]

    def at(self, module: str) -> np.ndarray:
        """Return [tokens]: True for the tokens that are left out in a module."""
        if self._reordered.any() and self._module and not f"{module}.".startswith(f"{self._module}."):
            self._reordered[:] = False
        return self._mask | self._reordered

    def attend(self) -> None:
        """Also leave out all tokens after a left-out token of a request: attention computes them from this token."""
        import numpy as np

        index_of = self._tokens.index_of
        for number in np.flatnonzero(self._mask).tolist():
            sequence, position = index_of[number]
            self._mask |= (index_of[:, 0] == sequence) & (index_of[:, 1] > position)

    def notes(self) -> list[str]:
        """Return a sentence for each router that sent tokens to other experts, and one on the left-out tokens."""
        if not self._rerouted:
            return []
        texts = [rerouted.text for rerouted in self._rerouted]
        return [*texts, f"behind them, {int(self._mask.sum())} of {self._tokens.count} tokens are not compared"]


def _is_matrix(record: Record) -> bool:
    return len(record.shape or ()) in (1, 2) and token_part(record) is not None


def _is_float(record: Record) -> bool:
    return float_kind(record.dtype or "") is not None

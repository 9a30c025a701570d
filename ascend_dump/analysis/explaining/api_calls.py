"""Judge the tensors of API calls on an NPU by the tensors of their kernels.

A file of an API call contains the whole storages of its tensors, as flat arrays that ignore the offset. So it also
contains elements that the call does not use (op-plugin 517f2e7d, op_plugin/utils/op_api_common.cpp:430; opbase aa3cd74,
op_dfx.cpp:793). The files of its kernels contain exactly the tensors. So the verdict on the kernels decides.
"""

from __future__ import annotations

from dataclasses import replace

from ascend_dump.analysis.explaining.rank_state import FOLLOWS, RankState
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, OriginNumber
from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.pairing.matches import Match

__all__ = ["ApiCalls"]

_KERNELS_AGREE = "its kernels agree, and the file of an API call has more than its tensors: whole storages"


class ApiCalls:
    """The paired kernels of the API calls of a step, with the origins of their differences."""

    def __init__(self) -> None:
        #: By the position of a kernel of actual: the position of its partner in the reference.
        self._partners: dict[int, int] = {}
        self._causes: dict[int, frozenset[OriginNumber]] = {}

    def add_kernel(self, match: Match, causes: frozenset[OriginNumber]) -> None:
        self._partners[match.actual.position] = match.reference.position
        self._causes[match.actual.position] = causes

    def causes_of(self, match: Match) -> frozenset[OriginNumber]:
        """Return the origins of the differences of the paired kernels of a call."""
        return NO_ORIGINS.union(*(self._causes.get(kernel.position, NO_ORIGINS) for kernel in match.actual.kernels))

    def has_all_kernels(self, match: Match) -> bool:
        """Return True if the kernels of both calls are recorded and paired with each other."""
        partners = [self._partners.get(kernel.position) for kernel in match.actual.kernels]
        return bool(partners) and partners == [kernel.position for kernel in match.reference.kernels]

    def judge(self, state: RankState, match: Match) -> list[Pair]:
        """Judge the tensors of a call for which `has_all_kernels` is True, and return their pairs."""
        causes = self.causes_of(match)
        pairs = []
        for a, b in (*match.inputs, *match.outputs):
            difference, pair = state.compare(match, a, b)
            if a is not None and b is not None and difference.verdict not in ("equal", "unreadable"):
                if not causes:
                    pair = replace(pair, verdict="noise", reason=_KERNELS_AGREE)
                else:
                    pair = replace(pair, explained=True, reason=FOLLOWS)
                    state.remember(pair, (identity_of(a), identity_of(b)), causes)
            pairs.append(pair)
        return pairs

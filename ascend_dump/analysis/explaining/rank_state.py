"""The state of the walk over one rank: it is shared by the judges of inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Optional

from ascend_dump.analysis.explaining.changed_arguments import ChangedArguments
from ascend_dump.analysis.explaining.input_evidence import is_compared
from ascend_dump.analysis.explaining.known_differences import KnownDifferences
from ascend_dump.analysis.explaining.origins import Drafts
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.judging.noise import NoiseJudge
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.numerics.tensor_pair import Difference, Differences
from ascend_dump.analysis.operators.module_calls import ModuleCalls
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.operators.undefined_outputs import written_inputs
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.analysis.replay.rerun import Rerun
from ascend_dump.common.units import counted
from ascend_dump.reading import Record

__all__ = ["FOLLOWS", "FOLLOWS_ROUNDING", "FOLLOWS_UNDEFINED", "OperatorPair", "RankState"]

#: Reasons of differences that known ones explain.
FOLLOWS = "follows from an earlier difference"
FOLLOWS_ROUNDING = "follows from earlier rounding"
FOLLOWS_UNDEFINED = "follows from a tensor without a defined value"


class OperatorPair:
    """Two paired operators with the differences of their inputs.

    is_replaced  another operator runs in place of that of the reference
    written      indices of inputs that the operator overwrites: they are judged as outputs
    inputs       pairs of the other inputs, as far as they were judged
    causes       origins of the differences of the inputs
    noise        differences of the inputs that are within rounding
    """

    def __init__(self, match: Match) -> None:
        self.match = match
        # Another name in another framework is no change of the program.
        self.is_replaced = match.tensors is None and (
            operator_class(match.actual.op_type) != operator_class(match.reference.op_type)
        )
        self.written = written_inputs(match.reference)
        self.inputs: list[Pair] = []
        self.causes: set[OriginNumber] = set()
        self.noise: list[InputNoise] = []

    def add(self, causes: Collection[OriginNumber], noise: Optional[InputNoise]) -> None:
        """Add the origins and the noise of an input."""
        self.causes.update(causes)
        if noise is not None:
            self.noise.append(noise)

    @property
    def noise_causes(self) -> frozenset[OriginNumber]:
        """The origins that the noise of the inputs may be a consequence of."""
        return NO_ORIGINS.union(*(noise.causes for noise in self.noise))

    @property
    def has_equal_inputs(self) -> bool:
        """True if all inputs that it reads were compared and are equal."""
        return all(pair.verdict == "equal" or pair.undefined for pair in self.inputs)

    @property
    def is_blind(self) -> bool:
        """True if no input could be compared, so that each may differ by rounding."""
        return any(self.match.unpaired_inputs) and not any(map(is_compared, self.inputs))


@dataclass
class RankState:
    """The knowledge of one rank at one moment of the walk.

    unreadable  number of unreadable records so far
    """

    rules: Rules
    rerun: Optional[Rerun]
    judge: NoiseJudge
    differences: Differences = field(default_factory=Differences)
    known: KnownDifferences = field(default_factory=KnownDifferences)
    arguments: ChangedArguments = field(default_factory=ChangedArguments)
    modules: ModuleCalls = field(default_factory=ModuleCalls)
    drafts: Drafts = field(default_factory=Drafts)
    unreadable: int = 0

    def compare(self, match: Match, a: Optional[Record], b: Optional[Record]) -> tuple[Difference, Pair]:
        """Return the difference of two records, and their pair before its numbers are judged."""
        difference = self.differences.between(a, b)
        verdict, reason = difference.verdict, difference.reason
        transformation = "cast" if difference.cast else difference.layout
        return difference, Pair(a, b, match.how, match.confidence, verdict, reason, transformation, difference.measure)

    def look_up_unpaired(self, side: int, record: Record) -> tuple[frozenset[OriginNumber], Optional[InputNoise]]:
        """Return the origins and the noise of an input without a partner. side: 0 of actual.

        Hidden origins are left out: an operator that only one side runs does not prove that values differ.
        """
        return self.known.look_up_unpaired(side, record, lambda origin: not self.drafts[origin].hidden)

    def is_regrouped(self, causes: Collection[OriginNumber]) -> bool:
        """Return True if only operators of one side, which computes in another type, explain a difference.

        Autograd adds gradients in another order there: neither side has the partial sums of the other.
        """
        return self.differences.cast is not None and self.drafts.are_hidden(causes)

    def remember(self, pair: Pair, contents: Optional[tuple[Any, Any]], causes: frozenset[OriginNumber]) -> None:
        """Note the origins of a difference of outputs."""
        if pair.actual is not None and pair.reference is not None:
            self.known.add_written(pair.actual, pair.reference, contents, causes)

    def unreadable_evidence(self) -> list[str]:
        """Return the evidence that earlier records, which are unreadable, may contain the cause."""
        if not self.unreadable:
            return []
        return [f"{counted(self.unreadable, 'earlier record')} could not be read: the cause may be among them"]

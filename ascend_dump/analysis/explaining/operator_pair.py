"""Two paired operators, with the differences of their inputs."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.input_evidence import is_compared
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import Border
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.numerics.tensor_pair import are_of_other_integers
from ascend_dump.analysis.operators.operator import is_read_for
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.operators.undefined_outputs import written_inputs
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["OperatorPair"]

#: The largest confidence of pairs by order.
_BY_ORDER = 0.7
#: The largest relative distance of two tensors with the same elements, but for rounding.
_SAME_ELEMENTS = 1e-4


class OperatorPair:
    """Two paired operators with the differences of their inputs.

    is_replaced  another operator runs in place of the reference's operator
    written      indices of inputs that the operator overwrites: they are judged as outputs
    inputs       pairs of the other inputs, as far as they were judged
    causes       origins of the differences of the inputs
    noise        differences of the inputs that are within rounding
    borders      inputs that differ and that were made inside a stretch (a part that is built differently)
    is_cast      an input has another type on both sides, because one program casts it
    """

    def __init__(self, match: Match) -> None:
        self.match = match
        # Frameworks name operators differently, so another name proves nothing between frameworks.
        self.is_replaced = match.tensors is None and (
            operator_class(match.actual.op_type) != operator_class(match.reference.op_type)
        )
        self.written = written_inputs(match.reference)
        self.inputs: list[Pair] = []
        self.causes: set[OriginNumber] = set()
        self.noise: list[InputNoise] = []
        #: For each input: its index, its origins and its noise.
        self._read: list[tuple[Optional[int], frozenset[OriginNumber], tuple[InputNoise, ...]]] = []
        self.borders: list[Border] = []

    @property
    def is_cast(self) -> bool:
        return any(pair.transformation == "cast" and pair.verdict != "structure" for pair in self.inputs)

    def add(self, causes: Collection[OriginNumber], *noise: InputNoise, index: Optional[int] = None) -> None:
        """Add the origins and the noise of an input. index: of the input in the reference; None if it is unpaired."""
        self.causes.update(causes)
        self.noise.extend(noise)
        self._read.append((index, frozenset(causes), noise))

    @property
    def are_in_another_order(self) -> bool:
        """True if all inputs that differ have the same elements in another order, but for rounding.

        For example, one program has the tokens of a batch in the order of their positions.
        """
        import numpy as np

        differing = [pair for pair in self.inputs if pair.differs]
        for pair in differing:
            if pair.actual is None or pair.reference is None:
                return False
            try:
                x, y = (np.sort(side.numpy().astype(np.float64), axis=None) for side in (pair.actual, pair.reference))
            except (AscendDumpError, TypeError, ValueError):
                return False
            if x.shape != y.shape:
                return False
            apart, finite = x != y, np.isfinite(y)
            if not np.isfinite(x[apart]).all() or not finite[apart].all():  # masks may be infinite on both sides
                return False
            if float(np.linalg.norm(x[apart] - y[apart])) > _SAME_ELEMENTS * float(np.linalg.norm(y[finite])):
                return False
        return bool(differing)

    def proves_border(self, outputs: Sequence[Pair]) -> bool:
        """Return True if outputs have one shape and other values, and only one input differs, which leaves a stretch.

        Operators that are paired by their order prove nothing.
        """
        differ = any(pair.verdict == "different" and pair.has_one_shape for pair in outputs)
        inputs = [pair for pair in self.inputs if pair.verdict not in ("equal", "noise")]
        if not differ or self.match.confidence <= _BY_ORDER or not len(inputs) == len(self.borders) == 1:
            return False
        return inputs[0] is self.borders[0].pair

    def of_output(self, output: Optional[Record]) -> OperatorPair:
        """Return the pair with the origins and the noise of those inputs from which an output is computed.

        They are all inputs, except for operators on lists, which compute each tensor of a list by itself.
        """
        reference = self.match.reference
        if output is None or all(is_read_for(reference, index, output.index) for index, *_ in self._read):
            return self
        read, other = (
            [source for source in self._read if is_read_for(reference, source[0], output.index) is is_read]
            for is_read in (True, False)
        )
        part = copy.copy(self)
        part.causes = self.causes - NO_ORIGINS.union(*(causes for _, causes, _ in other))
        part.causes |= NO_ORIGINS.union(*(causes for _, causes, _ in read))
        left_out = {id(noise) for *_, noises in other for noise in noises}
        left_out -= {id(noise) for *_, noises in read for noise in noises}
        part.noise = [noise for noise in self.noise if id(noise) not in left_out]
        part.inputs = [pair for pair in self.inputs if is_read_for(reference, pair.record.index, output.index)]
        return part

    @property
    def noise_causes(self) -> frozenset[OriginNumber]:
        """The origins from which the noise of the inputs may follow."""
        return NO_ORIGINS.union(*(noise.causes for noise in self.noise))

    @property
    def has_equal_inputs(self) -> bool:
        """True if all inputs with a defined value were compared and are equal."""
        return all(pair.verdict == "equal" or pair.undefined for pair in self.inputs)

    @property
    def integers(self) -> list[str]:
        """The evidence of equal inputs in other types of integers: flags and numbers index in other ways."""
        return [
            f"{pair.record.label}: {pair.reason}"
            for pair in self.inputs
            if pair.verdict == "equal" and are_of_other_integers(pair.actual, pair.reference)
        ]

    @property
    def is_blind(self) -> bool:
        """True if there are inputs, but none could be compared: each may differ by rounding."""
        return any(self.match.unpaired_inputs) and not any(map(is_compared, self.inputs))

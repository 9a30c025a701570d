"""Pair the operators of one network in two frameworks, or before and after a compiler decomposed its operators.

Names and order are little evidence: one side fuses operators that the other side runs one by one, and branches run in
any order. Tensors are better evidence: the same network on the same data makes the same values up to rounding, maybe in
another layout. `cross_framework_passes.py` pairs operators by their tensors.

One side may have a single operator for several operators of the other side, such as the gradients of a convolution.
Then each of the several operators is paired with one of the further outputs of the single operator. Unpaired operators
between paired ones belong to the pair that reads their results; their tensors are compared if both sides have them.
Views, sources (constants, variables), operators without floating-point values, and modules whose tensors are recorded
for functions too are left out, and only counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Callable, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.tensor_pair import Types, identity_of, type_of
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, common_module
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.api_calls import api_calls
from ascend_dump.analysis.pairing.cross_framework_passes import pair_operators
from ascend_dump.analysis.pairing.fusion_names import FusedOutputs, is_fused
from ascend_dump.analysis.pairing.matches import Match, RecordPair
from ascend_dump.analysis.pairing.module_duplicates import without_modules
from ascend_dump.analysis.pairing.one_sided_reads import one_sided_read, other_source
from ascend_dump.analysis.pairing.paired_operators import PairedOperators
from ascend_dump.analysis.pairing.program_graph import Output, ProgramGraph, Read, output_of
from ascend_dump.reading import Record

__all__ = ["CrossFrameworkPairs", "is_cross_framework", "pair_cross_framework"]

#: Programs are of different frameworks if they have few types of operators in common: less than this share of all types
#: (_SHARED), and less than this share of the types of the program with fewer types (_CONTAINED).
_SHARED, _CONTAINED = 0.34, 0.8
#: Share of the types of operators that only one side has, above which one program is a decomposed one.
_ALONE = 0.05
#: Share of operators with source lines in a program that no compiler has changed.
_WITH_LINES = 0.9
#: Share of operators of the forward pass with a line that the other program has too, below which it is another program.
_IN_COMMON = 0.5
#: Types of operators that only graphs of TensorFlow have.
_OF_GRAPHS = frozenset(("Const", "Placeholder"))
#: Names of operators in MindSpore.
_NUMBERED = re.compile(r"-op\d+$")
#: Largest distance of outputs of the same inputs, in units of rounding of the coarser type.
_AGREE = 64


@dataclass
class CrossFrameworkPairs:
    """Matches in the order of the reference, and the operators that only one side has.

    alone       for each side: the operators that only this side has
    updates     for each side: the positions of operators of an optimizer that the other side computes in another way
    gradients   for each side: the positions of operators of the backward pass that only this side has
    inside      for each side: the number of unpaired operators that lead to a paired one
    left_out    for each side: the number of operators that are neither paired, nor inside, nor alone
    views       for each side, by the identity of a view: the tensor that it is a view of
    types       for each side, by the identity of a tensor: the types in which the program has it and its views
    """

    matches: list[Match] = field(default_factory=list)
    alone: tuple[list[Operator], list[Operator]] = field(default_factory=lambda: ([], []))
    updates: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    gradients: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    inside: tuple[int, int] = (0, 0)
    left_out: tuple[int, int] = (0, 0)
    views: tuple[dict[Hashable, Hashable], dict[Hashable, Hashable]] = field(default_factory=lambda: ({}, {}))
    types: Types = field(default_factory=lambda: ({}, {}))


#: A program with fewer modules that run operators may be the whole network as one.
_FEW_MODULES = 3


def is_cross_framework(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Return True if these are programs in two frameworks, or one program with operators fused or decomposed on a side.

    PyTorch is recognised by the namespace in the types of its operators, MindSpore by the numbers in their names. If
    one side is only a part of the program, nearly all of its types occur on the other side too.
    """
    types = [{operator.op_type for operator in side if operator.op_type} for side in (actual, reference)]
    if not all(types):
        return False
    eager = [any("::" in name for name in names) for names in types]
    if any(eager):
        return not all(eager) or _is_decomposed(actual, reference)
    if _is_numbered(actual) != _is_numbered(reference) or is_fused(actual, reference):
        return True
    if _is_eager_tensorflow(actual) != _is_eager_tensorflow(reference):
        return True
    shared = len(types[0] & types[1])
    return shared < _SHARED * len(types[0] | types[1]) and shared < _CONTAINED * min(map(len, types))


def _is_numbered(operators: Sequence[Operator]) -> bool:
    return 2 * sum(_NUMBERED.search(operator.op_name) is not None for operator in operators) > len(operators)


def _is_eager_tensorflow(operators: Sequence[Operator]) -> bool:
    """Return True for operators with source lines and without the constants and placeholders of a graph.

    The graph of the same program has these as operators, and an optimizer as one operator for each parameter.
    """
    has_sources = any(record.source for operator in operators for record in operator.outputs)
    return has_sources and not any(operator.op_type in _OF_GRAPHS for operator in operators)


def _without_wrapper(modules: set[str]) -> set[str]:
    """Return the paths of modules without the path of a wrapper that contains all of them."""
    paths = {path for path in modules if path}
    wrapper = common_module(paths)
    return {path[len(wrapper) :].lstrip(".") for path in paths if path != wrapper} or paths


def _are_of_port(here: set[str], there: set[str]) -> bool:
    """Return True for paths of modules of two programs, most of which do not end alike."""
    few = min((here, there), key=len)
    ends = [f".{path}" for path in (there if few is here else here)]
    alike = sum(any(f".{path}".endswith(end) or end.endswith(f".{path}") for end in ends) for path in few)
    return len(few) >= _FEW_MODULES and 2 * alike < len(few)


def _have_own_lines(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Return True if nearly all operators of both programs have source lines, and few operators have common ones.

    A compiler puts its graph where the program was, so its operators have the lines of the program or none. One script
    may train both programs, so that they have the lines of the loss and of the backward pass in common.
    """
    lines = [[operator.source for operator in side if operator.source] for side in (actual, reference)]
    if any(len(known) < _WITH_LINES * len(side) for known, side in zip(lines, (actual, reference))):
        return False
    forward = [[x.source for x in side if x.phase != "backward"] for side in (actual, reference)]
    common = set(lines[0]) & set(lines[1])
    return all(sum(line in common for line in of_side) < _IN_COMMON * len(of_side) for of_side in forward)


def _is_decomposed(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Return True if the programs have no common modules, and each runs types of operators that the other never runs.

    A compiler decomposes operators mostly into types that both programs run anyway. So _ALONE is small. It leaves no
    modules but the whole network, or puts their paths behind its own; a port has modules with other names.
    """
    modules = [_without_wrapper({operator.module_path for operator in side}) for side in (actual, reference)]
    if modules[0] & modules[1] or not any(modules) or _are_of_port(*modules) or _have_own_lines(actual, reference):
        return False
    types = [{operator_class(x.op_type) for x in side if not is_view(x.op_type)} for side in (actual, reference)]
    alone = types[0] - types[1], types[1] - types[0]
    return all(alone) and sum(map(len, alone)) > _ALONE * sum(map(len, types))


def pair_cross_framework(
    actual: Sequence[Operator], reference: Sequence[Operator], mapping: Optional[Mapping[str, str]] = None
) -> CrossFrameworkPairs:
    """Pair the operators of one step of two programs in different frameworks.

    mapping: from names of operators of actual to names of operators of the reference.
    """
    actual, reference = api_calls(actual), api_calls(reference)
    counts = len(actual), len(reference)
    actual, reference = without_modules(actual), without_modules(reference)
    a, b = ProgramGraph(actual), ProgramGraph(reference)
    pairs = pair_operators(a, b, mapping or {})
    result = CrossFrameworkPairs(views=(a.views, b.views), types=(a.types, b.types))
    fused = FusedOutputs(actual, reference)
    pieces = _pieces(a, b, pairs, fused)
    paired = (
        {*(pair.position for pair in pairs.values()), *(piece.position_a for piece in pieces)},
        {*pairs, *(piece.position_b for piece in pieces)},
    )
    parts = {piece.position_a for piece in pieces}, {piece.position_b for piece in pieces}
    inside = a.leading_to(paired[0]), b.leading_to(paired[1])
    outputs = {
        position: _outputs(
            a.tensors[pair.position],
            b.tensors[position],
            fused.outputs(pair.position, position),
            same_type=actual[pair.position].op_type == reference[position].op_type,
        )
        for position, pair in pairs.items()
    }
    tensors = [*(tensor for pairs_of in outputs.values() for tensor in pairs_of), *(piece.outputs for piece in pieces)]
    same = {(identity_of(x), identity_of(y)) for x, y in tensors if x is not None and y is not None}
    for position, pair in pairs.items():
        agree = _agree(a.tensors[pair.position][0], b.tensors[position][0])
        inputs, unpaired = _inputs(a, b, pair.position, position, paired, same, agree=agree)
        operators = actual[pair.position], reference[position]
        one_sided = None if agree else one_sided_read((a, b), (pair.position, position), unpaired, parts)
        source = None if agree else other_source((a, b), (pair.position, position), unpaired, parts)
        match = Match(*operators, pair.how, pair.confidence, (inputs, outputs[position]), _records(unpaired))
        result.matches.append(match._replace(one_sided=one_sided, other_source=source))
    for piece in pieces:
        inputs, unpaired = _inputs(a, b, piece.position_a, piece.position_b, paired, same, agree=True)
        operators = actual[piece.position_a], reference[piece.position_b]
        records = _records(unpaired)
        result.matches.append(Match(*operators, piece.how, piece.confidence, (inputs, [piece.outputs]), records))
    result.matches.sort(key=lambda match: match.reference.position)
    reported = paired[0] | inside[0], paired[1] | inside[1]
    for number, side in enumerate((a, b)):
        broken = {position for position, operator in enumerate(side.operators) if operator.broken}
        alone = [position for position in side.computing if position not in reported[number]]
        alone += sorted(broken.difference(alone, paired[number]))
        result.alone[number].extend(side.operators[position] for position in alone)
        result.updates[number].update(side.operators[x].position for x in alone if side.is_of_optimizer(x))
        result.gradients[number].update(side.operators[x].position for x in alone if side.is_backward(x))
        reported[number].update(alone)
    result.inside = (len(inside[0]), len(inside[1]))
    result.left_out = (counts[0] - len(reported[0]), counts[1] - len(reported[1]))
    return result


class _Piece(NamedTuple):
    """Two operators of which one made a single output, and the other made the same tensor as one of several outputs."""

    position_a: int
    position_b: int
    outputs: RecordPair
    how: str = "value"
    confidence: float = 0.9


def _pieces(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators, fused: FusedOutputs) -> list[_Piece]:
    taken = {pair.position for pair in pairs.values()}
    pieces = [_Piece(*piece, "provenance", 1.0) for piece in fused.unpaired((taken, pairs))]
    fused_b = {piece.position_b for piece in pieces}.difference(pairs)
    taken.update(piece.position_a for piece in pieces)
    free_b = [position for position in b.computing if position not in pairs and position not in fused_b]
    for position, further in _further_outputs(b, free_b, a):
        pieces.append(_Piece(further.operator, position, (further.record, b.tensors[position][0].record)))
        taken.add(further.operator)
    free_a = [position for position in a.computing if position not in taken]
    for position, further in _further_outputs(a, free_a, b):
        pieces.append(_Piece(position, further.operator, (a.tensors[position][0].record, further.record)))
    return pieces


def _further_outputs(side: ProgramGraph, positions: Sequence[int], other: ProgramGraph) -> Iterator[tuple[int, Output]]:
    """Yield operators whose first output is a further output, after the first, of an operator of the other side.

    Each output is used once. Outputs with equal elements are searched first, because the next operator may change a
    tensor only a little.
    """
    waiting = [position for position in positions if (tensor := side.tensors[position][0]).size > 1 and tensor.norm]
    further = [output for position in other.computing for output in other.tensors[position][1:]]
    tests: list[Callable[[Output, Output], bool]] = [Output.has_same_elements, Output.is_same]
    for test in tests if further else ():
        for position in list(waiting):
            tensor = side.tensors[position][0]
            found = next((output for output in further if test(output, tensor) and output.is_same(tensor)), None)
            if found is not None:
                yield position, found
                waiting.remove(position)
                further = [output for output in further if output is not found]


def _inputs(
    a: ProgramGraph,
    b: ProgramGraph,
    position_a: int,
    position_b: int,
    paired: tuple[set[int], set[int]],
    same: set[tuple[Optional[Hashable], Optional[Hashable]]],
    *,
    agree: bool,
) -> tuple[list[RecordPair], tuple[list[Read], list[Read]]]:
    """Return the pairs of inputs of two paired operators that are the same tensor, and the other inputs of each side.

    Two inputs are the same tensor if they are paired outputs, or have the same values. If the outputs do not agree,
    parameters of the same size are paired too, without other evidence: one of them may be wrong. If the outputs agree,
    such parameters are different ones.

    same    identities of the outputs that are paired
    agree   True if the outputs of the two operators agree
    """
    read_a, read_b = a.reads_outside(position_a, paired[0]), b.reads_outside(position_b, paired[1])
    order = {id(read.record): number for number, read in enumerate(read_b)}
    pairs: list[RecordPair] = []

    def is_same(x: Read, y: Read) -> bool:
        return (x.root, y.root) in same

    def may_be_one_parameter(x: Read, y: Read) -> bool:
        return not a.is_overwritten(x.record) and not b.is_overwritten(y.record) and _may_be_one_parameter(x, y)

    tests: list[Callable[[Read, Read], bool]] = [
        # First tensors with equal elements: new parameters of one shape are near to each other.
        lambda x, y: is_same(x, y) and _are_equal(x, y),
        lambda x, y: x.maker is None and y.maker is None and _are_equal(x, y),
        lambda x, y: is_same(x, y) and _are_near(x, y),
        # Only for equal sizes: one side may read a part of the tensor that the other side reads as a whole.
        lambda x, y: is_same(x, y) and _size(x) == _size(y),
        lambda x, y: x.maker is None and y.maker is None and _are_near(x, y),
    ]
    for test in tests if agree else [*tests, may_be_one_parameter]:
        j = 0
        while j < len(read_b):
            i = next((i for i, read in enumerate(read_a) if test(read, read_b[j])), None)
            if i is None:
                j += 1
            else:
                pairs.append((read_a.pop(i).record, read_b.pop(j).record))
    pairs.sort(key=lambda pair: order[id(pair[1])])
    return pairs, (read_a, read_b)


def _records(unpaired: tuple[list[Read], list[Read]]) -> tuple[list[Record], list[Record]]:
    return [read.record for read in unpaired[0]], [read.record for read in unpaired[1]]


def _agree(a: Output, b: Output) -> bool:
    """Return True if two outputs have the same values up to rounding, in some layout."""
    if a.array is None or b.array is None:
        return a.is_same(b)
    distance, kind = a.distance(b), float_kind(type_of(a.record, b.record))
    return distance is not None and kind is not None and distance <= _AGREE * kind.unit


def _are_near(a: Read, b: Read) -> bool:
    output_a, output_b = output_of(0, a.record), output_of(0, b.record)
    return output_a is not None and output_b is not None and output_a.is_same(output_b)


def _are_equal(a: Read, b: Read) -> bool:
    output_a, output_b = output_of(0, a.record), output_of(0, b.record)
    are_known = output_a is not None and output_b is not None
    return are_known and output_a.has_same_elements(output_b) and output_a.is_same(output_b)  # type: ignore[union-attr, arg-type]


def _size(read: Read) -> int:
    return math.prod(read.record.shape or ())


def _may_be_one_parameter(a: Read, b: Read) -> bool:
    """Return True if two inputs may be one parameter with different values: no operator made them, sizes are equal.

    A mask is no parameter.
    """
    if a.maker is not None or b.maker is not None or not _size(a) == _size(b) > 1:
        return False
    return not any(tensor is not None and tensor.fills for tensor in (output_of(0, a.record), output_of(0, b.record)))


def _is_at_same_index(a: Output, b: Output) -> bool:
    return a.record.index == b.record.index and a.record.shape == b.record.shape


def _outputs(
    a: Sequence[Output], b: Sequence[Output], fused: Sequence[RecordPair], *, same_type: bool
) -> list[RecordPair]:
    """Return the pairs of outputs of two paired operators.

    Pairs by fusion information are used first. Without them, the first outputs are paired if they have the same size.
    Further outputs are paired by value. For operators of the same type they are also paired by index, because a
    gradient that is only rounding noise has other values on each side.
    """
    pairs = list(fused)
    done = {id(record) for pair in fused for record in pair}
    free_a, free_b = ([output for output in side if id(output.record) not in done] for side in (a, b))
    if not fused and free_a[0].size == free_b[0].size:
        pairs.append((free_a.pop(0).record, free_b.pop(0).record))
    tests: list[Callable[[Output, Output], bool]] = [Output.is_same, _is_at_same_index]
    for test in tests if same_type else tests[:1]:
        for output_b in list(free_b):
            output_a = next((output for output in free_a if test(output, output_b)), None)
            if output_a is not None:
                free_a.remove(output_a)
                free_b.remove(output_b)
                pairs.append((output_a.record, output_b.record))
    return pairs or [(a[0].record, b[0].record)]

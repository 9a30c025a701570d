"""The passes that pair operators of two programs in two frameworks, the strongest evidence first.

mapping     the user's mapping
provenance  fusion information in the dump, or in a graph beside the dump (GE, torchair)
name        both operators have the same name and type, in graphs
place       operators of eager programs that run equally often in the same module on both sides, in the same phases and
            with the same shapes; first operators with equal values, and after the pass "value" the others
value       the outputs have the same values in some layout; without values, the statistics have to be nearly equal.
            Numbers have to be made of outputs of the same paired operators too
parameter   on each side, only one unpaired operator of this operation reads this parameter
inputs      on each side, only one unpaired operator of this operation reads these outputs of paired operators, or this
            part of one, such as a gate. If the output is not read on one side, other operators may lie between. Or the
            operators end stretches that read the same paired outputs, and if possible the same parameters
order       the longest common subsequence of operations and sizes, for operators whose values differ after a fault
dataflow    operators without partners that made the corresponding inputs of two paired operators
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Callable, Optional

from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.pairing.by_numbers import pair_by_numbers
from ascend_dump.analysis.pairing.by_sources import agreeing_pairs, pair_by_indices, pair_by_sources
from ascend_dump.analysis.pairing.fusion_names import origins_of
from ascend_dump.analysis.pairing.paired_operators import PairedOperator, PairedOperators, paired_in_actual, partners
from ascend_dump.analysis.pairing.parts_of_outputs import numbered_sources, pair_by_parts, part_numbers, source_of
from ascend_dump.analysis.pairing.program_graph import NEAR, Output, ProgramGraph, Read, output_of
from ascend_dump.analysis.pairing.sequences import common

__all__ = ["pair_operators"]

#: Pairs by order are made in rounds. Each round pairs this fraction (1/8) of the operators in the same order.
_AT_ONCE = 8


def pair_operators(a: ProgramGraph, b: ProgramGraph, mapping: Mapping[str, str]) -> PairedOperators:
    """Pair operators by all passes. mapping: from names of operators of actual to names of the reference."""
    pairs: PairedOperators = {}
    is_of_pytorch = _is_of_pytorch(a) and _is_of_pytorch(b)
    a.has_other_optimizer = b.has_other_optimizer = not is_of_pytorch
    _by_mapping(a, b, mapping, pairs)
    _by_provenance(a, b, pairs)
    _by_calls(a, b, pairs, equal=True)
    _by_value(a, b, pairs, _same_or_of_list(a, b), 0.95)
    pair_by_numbers(a, b, pairs)
    a.parts, b.parts = part_numbers(a, b, pairs)
    _by_calls(a, b, pairs, equal=False)
    _by_parameter(a, b, pairs)
    _by_inputs(a, b, pairs)
    pair_by_parts(a, b, pairs)
    _by_inputs(a, b, pairs)
    _by_value(a, b, pairs, Output.resembles, 0.85)
    if not is_of_pytorch:
        pair_by_indices(a, b, pairs)
        pair_by_sources(a, b, pairs, _by_inputs)
    agreeing = None if is_of_pytorch else agreeing_pairs(a, b, pairs)
    while _by_order(a, b, pairs, agreeing):
        _by_inputs(a, b, pairs)
    _by_ends(a, b, pairs)
    _by_dataflow(a, b, pairs)
    _drop_strangers(a, b, pairs)
    return pairs


def _by_mapping(a: ProgramGraph, b: ProgramGraph, mapping: Mapping[str, str], pairs: PairedOperators) -> None:
    by_name = {b.operators[position].op_name: position for position in b.computing}
    for position_a in a.computing:
        position_b = by_name.get(mapping.get(a.operators[position_a].op_name, ""))
        if position_b is not None:
            pairs.setdefault(position_b, PairedOperator(position_a, "mapping", 1.0))


def _by_provenance(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> None:
    """Pair a fused operator by the names of its original operators; else by its own name, if the types are equal."""
    origins = [{position: origins_of(side.operators[position]) for position in side.computing} for side in (a, b)]
    makers = {name: position for position, names in origins[1].items() for name in names}
    named = {b.operators[position].op_name: position for position in b.computing}
    taken = paired_in_actual(pairs)

    def pair(position_a: int, position_b: Optional[int], how: str, confidence: float) -> None:
        if position_b is not None and position_b not in pairs and position_a not in taken:
            pairs[position_b] = PairedOperator(position_a, how, confidence)
            taken.add(position_a)

    for position_a, names in origins[0].items():
        name = a.operators[position_a].op_name
        for origin in names:
            pair(position_a, named.get(origin), "provenance", 1.0)
            pair(position_a, makers.get(origin), "provenance", 1.0)
        pair(position_a, makers.get(name), "provenance", 1.0)
        same = named.get(name)
        if same is None or _is_eager(a, position_a):
            continue
        if a.operators[position_a].op_type == b.operators[same].op_type:
            pair(position_a, same, "name", 0.9)


def _is_of_pytorch(side: ProgramGraph) -> bool:
    """Return True for an eager program of PyTorch, on a host or on an NPU."""
    return any("::" in operator.op_type or operator.op_type.startswith("aclnn") for operator in side.operators)


def _is_eager(side: ProgramGraph, position: int) -> bool:
    """Return True if the operator is of an eager program, where its name only numbers the calls.

    Such names are no evidence: if a compiler decomposed operators, the fifth addition of one program is not the fifth
    of the other.
    """
    return "::" in side.operators[position].op_type


def _by_calls(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators, *, equal: bool) -> None:
    """Pair eager operators of one type that run equally often in a module on both sides, in equal phases and shapes.

    This pairs optimizers, which run the same operators however a compiler changed the network. While their tensors are
    all zero, there is no other evidence.

    equal: pair only operators that made the same values, because the two sides may have run others in another order
    """
    taken = paired_in_actual(pairs)
    calls_a, calls_b = _calls(a), _calls(b)
    for key in calls_a.keys() & calls_b.keys():
        if [_call(a, position) for position in calls_a[key]] == [_call(b, position) for position in calls_b[key]]:
            positions_a = [position for position in calls_a[key] if a.tensors[position] and position not in taken]
            positions_b = [position for position in calls_b[key] if b.tensors[position] and position not in pairs]
            if [_call(a, position) for position in positions_a] == [_call(b, position) for position in positions_b]:
                for position_a, position_b in zip(positions_a, positions_b):
                    if not equal or a.tensors[position_a][0].is_same(b.tensors[position_b][0]):
                        pairs[position_b] = PairedOperator(position_a, "place", 0.9)


def _calls(side: ProgramGraph) -> dict[tuple[str, str], list[int]]:
    calls: dict[tuple[str, str], list[int]] = {}
    for position, operator in enumerate(side.operators):
        if _is_eager(side, position):
            calls.setdefault((operator.module_path, operator.op_type), []).append(position)
    return calls


def _call(side: ProgramGraph, position: int) -> Hashable:
    operator = side.operators[position]
    return (operator.phase, tuple(record.shape for record in operator.outputs))


def _by_value(
    a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators, same: Callable[[Output, Output], bool], confidence: float
) -> None:
    """Pair operators by the values of their first outputs.

    Further outputs, such as means and masks, may be the first outputs of other operators in the other program.

    same: returns True if two outputs have the same values
    """
    outputs = sorted((a.tensors[position][0] for position in a.computing), key=lambda output: output.norm)
    norms = [output.norm for output in outputs]
    taken = paired_in_actual(pairs)
    for count, position_b in enumerate(b.computing):
        tensor = b.tensors[position_b][0]
        if position_b in pairs or tensor.size < 2 or tensor.norm == 0:
            continue
        low, high = (bisect_left(norms, tensor.norm * (1 + sign * 2 * NEAR)) for sign in (-1, 1))
        candidates = [output for output in outputs[low:high] if output.operator not in taken]
        # The same operation first, then operators that run at about the same time.
        share = count / len(b.computing)
        candidates.sort(
            key=lambda output: (not _alike(a, b, output.operator, position_b), abs(_share(a, output) - share))
        )
        for output in candidates:
            if same(output, tensor):
                taken.add(output.operator)
                pairs[position_b] = PairedOperator(output.operator, "value", confidence)
                break


def _same_or_of_list(a: ProgramGraph, b: ProgramGraph) -> Callable[[Output, Output], bool]:
    """Return a function that returns True for outputs of the same values.

    If an output has exactly the elements of a further output on the other side, only equal elements count as the same.
    Else the output would be paired with the result of the next operator of the optimizer, such as a gradient with
    weight decay, whose values are nearly the same.
    """
    lists = [
        {_elements(output) for position in side.computing for output in side.tensors[position][1:]} for side in (a, b)
    ]

    def test(of_a: Output, of_b: Output) -> bool:
        if _elements(of_a) in lists[1] or _elements(of_b) in lists[0]:
            return of_a.has_same_elements(of_b) and of_a.is_same(of_b)
        return of_a.is_same(of_b)

    return test


def _elements(output: Output) -> tuple[int, float, float, float]:
    return output.size, output.low, output.high, output.norm


def _by_parameter(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> None:
    taken = paired_in_actual(pairs)
    readers_a, readers_b = (
        _readers(side, [x for x in side.computing if x not in paired and not side.is_of_optimizer(x)])
        for side, paired in ((a, taken), (b, set(pairs)))
    )
    for positions, tensor in readers_b:
        candidates = [readers for readers, parameter in readers_a if parameter.is_same(tensor)]
        if len(candidates) != 1 or any(same is not tensor and same.is_same(tensor) for _, same in readers_b):
            continue
        for position_b in positions:
            free = [position for position in candidates[0] if position not in taken]
            alike = [position for position in free if _alike(a, b, position, position_b)]
            if len(alike) == 1 and position_b not in pairs:
                pairs[position_b] = PairedOperator(alike[0], "parameter", 0.9)
                taken.add(alike[0])


def _readers(side: ProgramGraph, positions: Sequence[int]) -> list[tuple[list[int], Output]]:
    """Return the tensors that no operator computed, each with the positions of the operators that read it.

    An addition that completes a linear layer also counts as a reader of the tensors of its product.
    """
    readers: dict[Hashable, tuple[list[int], Output]] = {}
    for position in positions:
        reads = list(side.reads(position))
        if side.is_linear(position):
            reads += [read for fused in side.before(position) for read in side.reads(fused)]
        for record, root, maker in reads:
            tensor = output_of(position, record) if maker is None and root is not None else None
            if tensor is not None and tensor.size > 1 and tensor.norm > 0:
                positions_of, _ = readers.setdefault(root, ([], tensor))
                positions_of.append(position)
    return list(readers.values())


def _by_inputs(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> None:
    """Pair operators with the same paired inputs, again and again: other operators read the outputs of new pairs."""
    shared: list[Hashable] = [None]
    while shared:
        keys_a, keys_b = _by_key(a, partners(pairs)), _by_key(b, {position: position for position in pairs})
        shared = [key for key in keys_a.keys() & keys_b.keys() if len(keys_a[key]) == len(keys_b[key]) == 1]
        for key in shared:
            pairs[keys_b[key][0]] = PairedOperator(keys_a[key][0], "inputs", 0.85)


def _by_key(side: ProgramGraph, partner: Mapping[int, int]) -> dict[Hashable, list[int]]:
    """Return unpaired operators whose inputs are all paired, by operation, these inputs, and the size of the output."""
    by_key: dict[Hashable, list[int]] = {}
    for position in side.computing:
        reads = [read for read in side.reads(position) if read.maker is not None]
        if side.is_of_optimizer(position):
            continue
        if position not in partner and reads and all(read.maker in partner for read in reads):
            sources = frozenset(source_of(side, read, partner) for read in reads)
            key = (side.does(position), sources, side.tensors[position][0].size)
            by_key.setdefault(key, []).append(position)
    return by_key


def _by_order(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators, agreeing: Optional[Mapping[int, int]]) -> bool:
    """Pair the first of the operators in the same order; return False if there are none.

    Only a part is paired at a time, because the inputs of new pairs are better evidence for the other operators.

    agreeing: the pairs with the same values; None for all pairs. Operators that lead to them are left out, because one
    program may compute the same values in another way.
    """
    taken = paired_in_actual(pairs)
    settled = partners(pairs) if agreeing is None else agreeing
    inner = a.leading_to(settled, taken), b.leading_to(settled.values(), pairs)
    free_a = [position for position in a.computing if position not in taken and position not in inner[0]]
    free_b = [position for position in b.computing if position not in pairs and position not in inner[1]]
    free_a = [position for position in free_a if not a.is_of_optimizer(position)]
    free_b = [position for position in free_b if not b.is_of_optimizer(position)]
    partner, itself = partners(pairs), {position: position for position in pairs}
    ordered = []
    for i, j in common([_key(a, x, partner) for x in free_a], [_key(b, x, itself) for x in free_b]):
        read_a = {source_of(a, read, partner) for read in a.reads(free_a[i])} - {None}
        read_b = {source_of(b, read, itself) for read in b.reads(free_b[j])} - {None}
        # If each reads a paired tensor that the other does not read, they belong to different branches.
        if not (read_a - read_b and read_b - read_a):
            ordered.append((free_a[i], free_b[j]))
    for position_a, position_b in ordered[: 1 + len(ordered) // _AT_ONCE]:
        pairs[position_b] = PairedOperator(position_a, "order", 0.7)
    return bool(ordered)


def _by_ends(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> None:
    """Pair operators of the same operation that lead from the same paired operators to an output of the same size.

    On each side, no other unpaired operator of this operation may do so.
    On one side at least, the output must not lead to a paired operator. An example is a loss of which the other program
    keeps a part for its gradients.
    """
    sides = []
    for side, partner in ((a, partners(pairs)), (b, {position: position for position in pairs})):
        inner, paired = side.leading_to(set(partner)), set(partner)
        ends: dict[Hashable, list[tuple[int, bool]]] = {}
        for position in side.computing:
            if position not in partner and not side.is_of_optimizer(position):
                makers = {partner[maker] for _, _, maker in side.reads_outside(position, paired) if maker is not None}
                if makers:
                    key = (side.does(position), frozenset(makers), side.tensors[position][0].size)
                    ends.setdefault(key, []).append((position, position in inner))
        sides.append(ends)
    for shared in sides[0].keys() & sides[1].keys():
        if len(sides[0][shared]) == len(sides[1][shared]) == 1:
            [(position_a, is_inner_a)], [(position_b, is_inner_b)] = sides[0][shared], sides[1][shared]
            if not (is_inner_a and is_inner_b):
                pairs[position_b] = PairedOperator(position_a, "inputs", 0.8)


def _drop_strangers(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> None:
    """Drop weak pairs whose inputs are not the same: a difference between guessed partners would prove nothing."""
    strangers = [0]
    while strangers:
        partner, paired = partners(pairs), set(pairs)
        strangers = []
        for position, pair in pairs.items():
            if pair.how in ("order", "dataflow"):
                read_a = a.reads_outside(pair.position, partner)
                makers_a = {partner[read.maker] for read in read_a if read.maker is not None}
                read_b = b.reads_outside(position, paired)
                makers_b = {read.maker for read in read_b if read.maker is not None}
                is_near = makers_a or _read_one_tensor(a, b, pair.position, position, read_a, read_b)
                if makers_a != makers_b or not is_near:
                    strangers.append(position)
        for position in strangers:
            del pairs[position]


def _read_one_tensor(
    a: ProgramGraph,
    b: ProgramGraph,
    position_a: int,
    position_b: int,
    outside_a: Sequence[Read],
    outside_b: Sequence[Read],
) -> bool:
    """Return True if two operators read a tensor of the same values, or none at all.

    outside_a, outside_b: the tensors that enter the operator together with the unpaired operators before it. The other
    side may have fused these operators.
    """
    read_a, read_b = a.operators[position_a].inputs, b.operators[position_b].inputs
    if not read_a and not read_b:
        return True
    roots_a, roots_b = (
        {*(identity_of(record) for record in records), *(read.root for read in outside)} - {None}
        for records, outside in ((read_a, outside_a), (read_b, outside_b))
    )
    if roots_a & roots_b:
        return True
    values_a, values_b = (
        [value for value in (output_of(position, record) for record in records) if value is not None]
        for position, records in (
            (position_a, [*read_a, *(read.record for read in outside_a)]),
            (position_b, [*read_b, *(read.record for read in outside_b)]),
        )
    )
    return any(x.is_same(y) for y in values_b for x in values_a)


def _by_dataflow(a: ProgramGraph, b: ProgramGraph, pairs: PairedOperators) -> None:
    taken = paired_in_actual(pairs)
    # Pairs with equal values are left out: the operators before them are right.
    waiting = sorted((position for position, pair in pairs.items() if pair.how != "value"), reverse=True)
    while waiting:
        position = waiting.pop(0)
        makers_a = _free_makers(a, pairs[position].position, taken)
        makers_b = _free_makers(b, position, set(pairs))
        sizes_a, sizes_b = (
            Counter(side.tensors[maker][0].size for maker in makers) for side, makers in ((a, makers_a), (b, makers_b))
        )
        for maker in makers_b:
            size = b.tensors[maker][0].size
            if sizes_a[size] == sizes_b[size] == 1:
                [partner] = [candidate for candidate in makers_a if a.tensors[candidate][0].size == size]
                pairs[maker] = PairedOperator(partner, "dataflow", 0.8)
                taken.add(partner)
                waiting.append(maker)


def _free_makers(side: ProgramGraph, position: int, paired: set[int]) -> list[int]:
    """Return the unpaired operators that made the inputs of an operator; for a linear layer also of its product."""
    parts = [position]
    if side.is_linear(position):
        parts += [fused for fused in side.before(position) if fused not in paired]
    makers = [maker for part in parts for _, _, maker in side.reads(part) if maker is not None]
    return [maker for maker in dict.fromkeys(makers) if maker not in paired and maker not in parts]


def _key(side: ProgramGraph, position: int, partner: Mapping[int, int]) -> Hashable:
    shape = side.tensors[position][0].record.shape or ()
    return (side.does(position), math.prod(shape), numbered_sources(side, position, partner))


def _alike(a: ProgramGraph, b: ProgramGraph, position_a: int, position_b: int) -> bool:
    return a.does(position_a) == b.does(position_b)


def _share(side: ProgramGraph, tensor: Output) -> float:
    return bisect_left(side.computing, tensor.operator) / len(side.computing)

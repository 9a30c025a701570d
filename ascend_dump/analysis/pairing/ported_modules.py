"""Pair the calls of modules of a network and of its port, whose modules have other names and classes.

Dumps of `level="module"` have no weights and no operators between modules. What remains is compared, the strongest
evidence first:

- results with the same values: both programs have the module, whatever its name is
- modules that a program repeats: `blocks.1.out` is to `layers.1.attention.o_proj` as `blocks.0.out` is to
  `layers.0.attention.o_proj`. So a module is known even if its result is wrong
- modules that read the same values and make tensors of one size, if both programs have equally many
- behind a difference, modules in one order with tensors of the same sizes

Calls of the backward pass and updates belong to the modules of the forward pass, and modules that are known from one
step are known in all later ones. All others are built differently: they are counted only.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.tensor_pair import type_of
from ascend_dump.analysis.operators.next_request import is_of_module, is_update
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.cross_framework import CrossFrameworkPairs
from ascend_dump.analysis.pairing.matches import Match, RecordPair
from ascend_dump.analysis.pairing.program_graph import NEAR, Output, ProgramGraph, output_of
from ascend_dump.analysis.pairing.sequences import common
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["PortedModules", "are_ported_modules"]

#: Minimum number of modules of a network.
_FEW_MODULES = 3
#: Largest share of modules of the smaller program whose path the other program has, too.
_IN_COMMON = 0.5
#: Largest relative difference of the norms of a parameter in two programs, which may have updated it differently.
_NEAR_NORM = 1e-2
#: Largest relative distance of tensors that differ by rounding, and in units of rounding.
_CLOSE, _UNITS = 1e-4, 4.0
#: Largest relative difference of a loss by rounding.
_NEAR_LOSS = 1e-5
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def are_ported_modules(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Return True for calls of modules of two programs, most of which have other paths in the other program."""
    if not all(_are_calls(side) for side in (actual, reference)):
        return False
    paths = [{operator.module_path for operator in side if operator.module_path} for side in (actual, reference)]
    shared = len(paths[0] & paths[1])
    return max(map(len, paths)) >= _FEW_MODULES and (not shared or shared < _IN_COMMON * min(map(len, paths)))


class PortedModules:
    """Pairs calls step by step, and keeps which modules correspond."""

    def __init__(self) -> None:
        #: The paths in actual, by those in the reference. The whole networks correspond.
        self._partners: dict[str, str] = {"": ""}

    def pair(self, actual: Sequence[Operator], reference: Sequence[Operator]) -> CrossFrameworkPairs:
        """Return the pairs of calls of a step, in the order of the reference."""
        sides = _CallsOfModules(actual), _CallsOfModules(reference)
        step = _PortedStep(*sides, self._partners)
        found = dict(step.agreeing)
        taken = set(found.values())
        for b, a in step.calls_of_partners():
            if b not in found and a not in taken:
                found[b] = a
        graphs = sides[0].graph, sides[1].graph
        matches = []
        for b, a in sorted(found.items()):
            inputs, unpaired = _inputs(actual[a], reference[b], agree=step.close.get(b) == a)
            outputs = _outputs((graphs[0].tensors[a], graphs[1].tensors[b]), (actual[a], reference[b]))
            evidence = ("value", 0.9) if step.agreeing.get(b) == a else ("name", 0.8)
            matches.append(Match(actual[a], reference[b], *evidence, (inputs, outputs), unpaired))
        alone_a, alone_b = (
            [operator for n, operator in enumerate(side) if operator.broken and n not in paired]
            for side, paired in ((actual, set(found.values())), (reference, found))
        )
        return CrossFrameworkPairs(
            matches,
            alone=(alone_a, alone_b),
            left_out=(len(actual) - len(matches) - len(alone_a), len(reference) - len(matches) - len(alone_b)),
            views=(graphs[0].views, graphs[1].views),
            types=(graphs[0].types, graphs[1].types),
        )


class _ModuleResult(NamedTuple):
    """The first result of a call in the forward pass.

    read      the first tensor of floating-point values that the module reads; None if there is none
    is_inner  True if the module calls no other module
    """

    operator: int
    output: Output
    read: Optional[Output]
    is_inner: bool


class _CallsOfModules:
    """The calls of the modules of one program.

    results    the results in the forward pass, in the order in which they are complete
    of_module  by path: the positions of the calls of the module, by "forward_0", "backward_0", "update_0"
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        self.graph = ProgramGraph(operators)
        self.of_module: dict[str, dict[str, int]] = {}
        for position, operator in enumerate(operators):
            self.of_module.setdefault(operator.module, {})[operator.op_name.rpartition("/")[2]] = position
        outer = {path.rpartition(".")[0] for path in self.of_module if path}
        self.results = [
            _ModuleResult(
                position, self.graph.tensors[position][0], _first_read(operator), operator.module not in outer
            )
            for position, operator in enumerate(operators)
            if operator.phase == "forward" and self.graph.tensors[position]
        ]

    def path(self, position: int) -> str:
        return self.operators[position].module


class _PortedStep:
    """The modules of a step that correspond.

    agreeing  the positions of calls in actual whose results are like those of calls of the reference, by position there
    close     those of them whose results differ by rounding only
    """

    def __init__(self, actual: _CallsOfModules, reference: _CallsOfModules, partners: dict[str, str]) -> None:
        """partners: the paths in actual of modules that are known, by those in the reference. More are added."""
        self._actual, self._reference, self._partners = actual, reference, partners
        same = [*_same_results(actual, reference)]
        self.agreeing = {b: a for b, a, _ in same}
        graphs = actual.graph, reference.graph
        self.close = {
            b: a for b, a in self.agreeing.items() if _are_close(graphs[0].tensors[a][0], graphs[1].tensors[b][0])
        }
        #: For each side: the paths of modules inside of modules whose results agree.
        self._settled = _inside(actual, self.close.values()), _inside(reference, self.close)
        self._add_agreeing((b, a) for b, a, is_read in same if is_read)
        if not _have_same_end(actual, reference):
            self._add_analogous()
            self._add_with_same_inputs()
            self._add_in_order()

    def calls_of_partners(self) -> Iterator[tuple[int, int]]:
        """Yield the positions in the reference and in actual of calls with one number of modules that correspond."""
        for path, partner in self._partners.items():
            for name, b in self._reference.of_module.get(path, {}).items():
                a = self._actual.of_module.get(partner, {}).get(name)
                if a is not None and _may_correspond(self._actual.operators[a], self._reference.operators[b]):
                    yield b, a

    def _add_agreeing(self, calls: Iterable[tuple[int, int]]) -> None:
        """Add the modules that read and make the same, each with the module with which most of its calls agree.

        calls: their positions in the reference and in actual
        """
        votes = Counter((self._reference.path(b), self._actual.path(a)) for b, a in calls)
        taken = set(self._partners.values())
        for (path, partner), _ in votes.most_common():
            if path not in self._partners and partner not in taken:
                self._partners[path] = partner
                taken.add(partner)

    def _add_analogous(self) -> None:
        """Add modules that a program repeats, by the numbers in the paths of modules with a partner."""
        templates: dict[str, set[tuple[str, tuple[int, ...]]]] = {}
        for path, partner in self._partners.items():
            numbers, of_partner = _numbers(path), _numbers(partner)
            if numbers and len(numbers) == len(of_partner):
                offsets = tuple(y - x for x, y in zip(numbers, of_partner))
                templates.setdefault(_NUMBER.sub("*", path), set()).add((_NUMBER.sub("*", partner), offsets))
        taken = self._settled[0].union(self._partners.values())
        for path, of_path in self._reference.of_module.items():
            candidates = templates.get(_NUMBER.sub("*", path), set())
            if path in self._partners or path in self._settled[1] or len(candidates) != 1:
                continue
            [(partner, steps)] = candidates
            for number, offset in zip(_numbers(path), steps):
                partner = partner.replace("*", str(number + offset), 1)
            calls = self._actual.of_module.get(partner, {})
            if partner not in taken and _have_same_sizes(self._actual, calls, self._reference, of_path):
                self._partners[path] = partner
                taken.add(partner)

    def _add_with_same_inputs(self) -> None:
        """Add modules that read the same values and make a tensor of one size, in order; inner modules first.

        A module and the first one that it calls may read the same. Both programs must have equally many.
        """
        for is_inner in (True, False):
            free = [[result for result in side if result.is_inner or not is_inner] for side in self._free()]
            reads = _TensorsByNorm((result.read, result) for result in free[0])
            groups: dict[tuple[int, ...], tuple[list[_ModuleResult], list[_ModuleResult]]] = {}
            for result in free[1]:
                readers = [other for other in reads.same(result.read) if other.output.size == result.output.size]
                readers.sort(key=lambda other: other.operator)
                groups.setdefault(tuple(other.operator for other in readers), (readers, []))[1].append(result)
            for of_actual, of_reference in groups.values():
                if len(of_actual) == len(of_reference):
                    for pair in zip(of_actual, of_reference):
                        self._add(*pair)

    def _add_in_order(self) -> None:
        """Add modules that read what the other program does not have, in one order, with tensors of the same sizes.

        So they are behind a difference.
        """
        reference, actual = (
            _TensorsByNorm((tensor, result) for result in side.results for tensor in (result.output, result.read))
            for side in (self._reference, self._actual)
        )
        for is_inner in (True, False):
            rows = [
                [
                    result
                    for result in side
                    if result.is_inner == is_inner
                    and result.read is not None
                    and next(others.same(result.read), None) is None
                ]
                for side, others in zip(self._free(), (reference, actual))
            ]
            keys = [[_kind(side, result) for result in row] for side, row in zip((self._actual, self._reference), rows)]
            for i, j in common(*keys):
                self._add(rows[0][i], rows[1][j])

    def _add(self, of_actual: _ModuleResult, of_reference: _ModuleResult) -> None:
        path, partner = self._reference.path(of_reference.operator), self._actual.path(of_actual.operator)
        if path not in self._partners and partner not in self._partners.values():
            self._partners[path] = partner

    def _free(self) -> tuple[list[_ModuleResult], list[_ModuleResult]]:
        """Return the results of modules without a partner, outside of modules whose results agree."""
        taken = self._settled[0].union(self._partners.values()), self._settled[1].union(self._partners)
        of_actual, of_reference = (
            [result for result in side.results if side.path(result.operator) not in paths]
            for side, paths in zip((self._actual, self._reference), taken)
        )
        return of_actual, of_reference


def _are_calls(operators: Sequence[Operator]) -> bool:
    first = (next(operator.records, None) for operator in operators)
    return bool(operators) and all(record is not None and is_of_module(record) for record in first)


def _first_read(operator: Operator) -> Optional[Output]:
    return next((read for record in operator.inputs if (read := output_of(0, record)) is not None), None)


def _sizes(operator: Operator) -> list[int]:
    """Return the numbers of elements of the results, which may have other layouts in the other program."""
    return [math.prod(record.shape or ()) for record in operator.outputs]


def _may_correspond(a: Operator, b: Operator) -> bool:
    """Return True for results of the same sizes; updates of parameters are those of nearly equal parameters."""
    if _sizes(a) != _sizes(b):
        return False
    first = next(b.records, None)
    if first is None or not is_update(first):
        return True
    try:
        norms = [record.statistics().l2norm or 0.0 for side in (a, b) for record in side.inputs[:1]]
    except AscendDumpError:
        return False
    return len(norms) == 2 and abs(norms[0] - norms[1]) <= _NEAR_NORM * max(norms)


class _TensorsByNorm:
    """Finds tensors with the same values, each with the result that it belongs to."""

    def __init__(self, tensors: Iterable[tuple[Optional[Output], _ModuleResult]]) -> None:
        found = [(tensor, result) for tensor, result in tensors if tensor is not None]
        self._tensors = sorted(found, key=lambda pair: pair[0].norm)
        self._norms = [tensor.norm for tensor, _ in self._tensors]

    def same(self, tensor: Optional[Output]) -> Iterator[_ModuleResult]:
        """Yield the results of the tensors with the values of a tensor."""
        if tensor is not None:
            low, high = (bisect_left(self._norms, tensor.norm * (1 + sign * 2 * NEAR)) for sign in (-1, 1))
            for other, result in self._tensors[low : high + 1]:
                if other.is_same(tensor):
                    yield result


def _same_results(actual: _CallsOfModules, reference: _CallsOfModules) -> Iterator[tuple[int, int, bool]]:
    """Yield the positions in the reference and in actual of calls in the forward pass with the same result.

    The last value is True if they also read the same. These come first: a module and the last one that it calls have
    one result, and read different tensors.
    """
    taken: tuple[set[int], set[int]] = (set(), set())
    order = {result.operator: number / len(actual.results) for number, result in enumerate(actual.results)}
    by_norm = _TensorsByNorm((result.output, result) for result in actual.results)
    for is_read in (True, False):
        for number, result in enumerate(reference.results):
            if result.operator in taken[1] or result.output.size < 2 or not result.output.norm:
                continue
            share = number / len(reference.results)
            candidates = [
                (other.is_inner != result.is_inner, abs(order[other.operator] - share), other.operator)
                for other in by_norm.same(result.output)
                if other.operator not in taken[0] and (not is_read or _read_same(other, result))
            ]
            if candidates:
                position = min(candidates)[-1]
                taken[0].add(position)
                taken[1].add(result.operator)
                yield result.operator, position, is_read


def _read_same(a: _ModuleResult, b: _ModuleResult) -> bool:
    """Return True for calls that read the same values, or no floating-point values."""
    if a.read is None or b.read is None:
        return a.read is b.read
    return a.read.is_same(b.read)


def _numbers(path: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(path)))


def _have_same_sizes(
    actual: _CallsOfModules, calls_a: Mapping[str, int], reference: _CallsOfModules, calls_b: Mapping[str, int]
) -> bool:
    """Return True if modules are called, and all calls that both have make tensors of the same sizes."""
    shared = [name for name in calls_a.keys() & calls_b.keys() if name.startswith("forward")]
    return bool(shared) and all(
        _sizes(actual.operators[calls_a[name]]) == _sizes(reference.operators[calls_b[name]]) for name in shared
    )


def _have_same_end(actual: _CallsOfModules, reference: _CallsOfModules) -> bool:
    """Return True if the last results are the same: then what differs inside is built differently."""
    ends = [side.results[-1].output for side in (actual, reference) if side.results]
    if len(ends) < 2:
        return True
    a, b = ends
    # A loss says little about the network: a fault may change it by less than a thousandth.
    return a.is_same(b) and (_are_close(a, b) if a.size > 1 else abs(a.total - b.total) <= _NEAR_LOSS * abs(b.total))


def _are_close(a: Output, b: Output) -> bool:
    """Return True if tensors that are the same differ by rounding only. A norm hides much of a fault before it."""
    kind = float_kind(type_of(a.record, b.record))
    if a.array is None or b.array is None or kind is None:
        return True
    distance = a.distance(b)
    return distance is not None and distance <= max(_CLOSE, _UNITS * kind.unit)


def _inside(calls: _CallsOfModules, agreeing: Iterable[int]) -> set[str]:
    """Return the paths of modules inside of modules whose results agree."""
    outer = {calls.path(position) for position in agreeing}
    return {path for path in calls.of_module if any(around in outer for around in _modules_around(path))}


def _modules_around(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def _kind(calls: _CallsOfModules, result: _ModuleResult) -> Hashable:
    """Return what modules that correspond have in common, whatever their names and classes are."""
    path = calls.path(result.operator)
    updates = [position for name, position in calls.of_module[path].items() if name.startswith("update_")]
    sizes = sorted(size for position in updates for size in _sizes(calls.operators[position]))
    read = None if result.read is None else result.read.size
    return result.output.size, read, tuple(sizes)


def _inputs(a: Operator, b: Operator, *, agree: bool) -> tuple[list[RecordPair], tuple[list[Record], list[Record]]]:
    """Return the pairs of inputs of two calls, and the other inputs of each side.

    If the results agree, only inputs that agree are paired: the modules may have other signatures.
    """
    free_a, unpaired = [*a.inputs], []
    pairs: list[RecordPair] = []
    for record in b.inputs:
        partner = next((other for other in free_a if _agree(other, record)), None)
        if partner is None:
            unpaired.append(record)
        else:
            free_a.remove(partner)
            pairs.append((partner, record))
    for record in [] if agree else [*unpaired]:
        partner = next((other for other in free_a if other.index == record.index and other.shape == record.shape), None)
        if partner is not None:
            free_a.remove(partner)
            unpaired.remove(record)
            pairs.append((partner, record))
    return pairs, (free_a, unpaired)


def _agree(a: Record, b: Record) -> bool:
    if a.content is not None and a.content == b.content:
        return True
    of_a, of_b = output_of(0, a), output_of(0, b)
    return of_a is not None and of_b is not None and of_a.is_same(of_b)


def _outputs(tensors: tuple[Sequence[Output], Sequence[Output]], calls: tuple[Operator, Operator]) -> list[RecordPair]:
    """Return the pairs of results of two calls, in their order.

    tensors: the results of each side that are floating-point values
    """
    of_a, of_b = ([output.record for output in outputs] or call.outputs for outputs, call in zip(tensors, calls))
    return [*zip(of_a, of_b)]

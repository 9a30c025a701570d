"""Find the parts of two programs that are built differently: stretches of operators without partners.

A stretch lies between tensors that both programs have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ascend_dump.analysis.numerics.float_types import float_kind, is_float_tensor
from ascend_dump.analysis.numerics.other_layouts import have_other_elements
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, common_module, storage_of
from ascend_dump.analysis.operators.properties import PRODUCTS, RANDOM, operator_class, writes
from ascend_dump.analysis.pairing.data_flow import DataFlow, Flows, has_storages
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.analysis.pairing.weak_pairs import Node, Partners, computes, exits, stored_names, unpaired_components
from ascend_dump.reading import Record

__all__ = ["Stretch", "stretches_of"]

#: Operators that multiply a tensor by weights.
_PRODUCTS = frozenset(PRODUCTS) | {"convolution"}


@dataclass
class Stretch:
    """Operators without partners that pass tensors to each other, or to the same operator with a partner.

    operators  the operators of actual, and of the reference
    exits      inputs of paired operators that the stretch made: position of the operator in the reference, index of
               the input
    results    pairs of tensors that both sides make and no paired operator reads: the last value of a parameter, or a
               result of the whole program
    states     buffers that operators of both sides update, as far as module paths do not pair them: those of actual and
               of the reference that were equal before the step, as they are after it
    modules    for each side: the paths of all modules that run in the step; empty if unknown
    """

    operators: tuple[list[Operator], list[Operator]] = field(default_factory=lambda: ([], []))
    exits: list[tuple[int, int]] = field(default_factory=list)
    results: list[tuple[Record, Record]] = field(default_factory=list)
    states: list[tuple[list[Record], list[Record]]] = field(default_factory=list)
    modules: tuple[Collection[str], Collection[str]] = ((), ())

    @property
    def module(self) -> str:
        """The path of the innermost module that contains all operators; "" if there is none."""
        return common_module(operator.module for side in self.operators for operator in side)

    @property
    def _computing(self) -> list[Operator]:
        return [operator for side in self.operators for operator in side if computes(operator)]

    def caller_of(self, operator: Operator) -> Optional[str]:
        """Return the path of the module that calls the module of an operator, if one side lacks it; else None.

        That module has the line that differs: it calls another module, or one less. If only one side runs the stretch
        in the forward pass, and it consists of several modules, this is the module around them. Random operators are no
        evidence of a call: a dropout that evaluates is called, and runs none.
        """
        if any(operator_class(member.op_type) in RANDOM for member in self._computing):
            return None
        is_of_one_side = not all(self.operators) and self.phases == {"forward"}
        if is_of_one_side and len({op.module_path for op in self._computing}) > 1 and self.module:
            return self.module
        levels = operator.module.split(".") if operator.module else []
        paths = [".".join(levels[:count]) for count in range(1, len(levels) + 1)] if all(self.modules) else []
        of_one_side = (path for path in paths if (path in self.modules[0]) != (path in self.modules[1]))
        outermost = next(of_one_side, None)
        return None if outermost is None else outermost.rpartition(".")[0]

    @property
    def phases(self) -> set[str]:
        """The phases of the operators."""
        return {operator.phase for side in self.operators for operator in side}

    def leading_to(self, tensors: Collection[int], flows: Flows, *, ends: Collection[int] = ()) -> Stretch:
        """Return the operators from which tensors are computed.

        tensors  the identities of inputs of paired operators, or of outputs of the stretch, of both sides
        ends     the identities of outputs of the stretch: operators that lead to them only are left out
        """
        leading: tuple[list[Operator], list[Operator]] = ([], [])
        for side, flow in enumerate(flows):
            inside = {
                operator.position: operator
                for operator in self.operators[side]
                if not any(id(record) in ends for record in operator.outputs)
            }
            waiting = [source for sources in flow.sources for source in sources if id(source.record) in tensors]
            before = {
                position
                for position, operator in inside.items()
                if any(id(record) in tensors for record in operator.outputs)
            }
            waiting += [source for position in before for source in flow.sources[position]]
            while waiting:
                source = waiting.pop()
                for output in (source.maker, source.root):
                    if output is not None and output.position in inside and output.position not in before:
                        before.add(output.position)
                        waiting += flow.sources[output.position]
            leading[side].extend(inside[position] for position in sorted(before))
        return Stretch(leading, modules=self.modules)

    def without(self, other: Stretch) -> Stretch:
        """Return the operators that are not in another stretch; all of them if none that computes is left."""
        inside = {id(operator) for side in other.operators for operator in side}
        here, there = ([operator for operator in side if id(operator) not in inside] for side in self.operators)
        return Stretch((here, there), modules=self.modules) if any(map(computes, (*here, *there))) else self

    def without_masks(self) -> Stretch:
        """Return the operators without those that make masks and positions outside of the modules that read them.

        Programs make masks in many ways. A wrong one shows where it is read: in a module that both programs have.
        """
        modules = {operator.module_path for operator in self._computing if _reads_values(operator)}
        masks = [op for op in self._computing if modules and not _reads_values(op) and op.module_path not in modules]
        return self.without(Stretch((masks, []))) if masks else self

    def without_common(self) -> Stretch:
        """Return the operators of which the other side has none of the same type; all of them if both sides have some.

        So a part that one side lacks is named by it, although other operators of the stretch are on both sides. A
        module that one side lacks comes first, because the other modules may be built from other types. Views and
        copies are no cause while operators that compute are there.
        """
        sides = [[op for op in side if computes(op) or not self._computing] for side in self.operators]
        counts = [Counter(operator.op_type for operator in side) for side in sides]
        extra = [counts[0] - counts[1], counts[1] - counts[0]]
        modules = [{operator.module_path for operator in side if computes(operator)} for side in self.operators]
        alone = modules[0] ^ modules[1]
        is_in_module = modules[0] & modules[1] and bool(modules[0] - modules[1]) != bool(modules[1] - modules[0])
        if any(extra) and is_in_module:
            here, there = ([op for op in side if op.module_path in alone] for side in self.operators)
            return Stretch((here, there), modules=self.modules)
        if bool(extra[0]) == bool(extra[1]):
            return self
        here, there = (
            [operator for operator in side if operator.op_type in extra_types]
            for side, extra_types in zip(self.operators, extra)
        )
        return Stretch((here, there), modules=self.modules)

    def to_first_product(self, flows: Flows) -> Stretch:
        """Return the operators that lead to the first product which differs on both sides; all if there is none.

        Operators behind it are no cause, whatever one side lacks there. Both sides run equally many products of its
        type and shape. Its elements differ in any order: right programs may have weights in another order.
        """
        for actual, reference in self._common_products():
            if have_other_elements(actual.outputs[0], reference.outputs[0]):
                return self.leading_to({id(actual.outputs[0]), id(reference.outputs[0])}, flows)
        return self

    def _common_products(self) -> list[tuple[Operator, Operator]]:
        """Return the products of a type and shape of which both sides have equally many, in pairs by their order."""
        groups: dict[Hashable, tuple[list[Operator], list[Operator]]] = {}
        for side, operators in enumerate(self.operators):
            for operator in operators:
                if operator_class(operator.op_type) in _PRODUCTS and operator.outputs:
                    key = operator.op_type, operator.outputs[0].shape, operator.phase
                    groups.setdefault(key, ([], []))[side].append(operator)
        pairs = [pair for here, there in groups.values() if len(here) == len(there) for pair in zip(here, there)]
        return sorted(pairs, key=lambda pair: pair[1].position)

    def makers(self, *outputs: Record) -> list[tuple[Operator, Record]]:
        """Return the operators of the stretch that made these outputs, each with its output."""
        return [
            (operator, record)
            for side in self.operators
            for operator in side
            for record in operator.outputs
            if any(record is output for output in outputs)
        ]


def stretches_of(
    actual: Sequence[Operator],
    reference: Sequence[Operator],
    matches: Sequence[Match],
    read_flows: Callable[[], Flows],
    *,
    are_complete: bool = True,
) -> dict[Node, Stretch]:
    """Return the stretch of each operator without a partner, by side (0: actual) and position.

    Each operator is a stretch of its own if the storages of its tensors are not recorded.

    read_flows    returns the data flow of both programs, which takes time
    are_complete  False if operators are left out, so that a module without operators may run
    """
    sides = actual, reference
    partners = Partners((match.actual.position, match.reference.position) for match in matches)
    alone = [
        (side, operator) for side in (0, 1) for operator in sides[side] if operator.position not in partners.of(side)
    ]
    if not alone:
        return {}
    if not has_storages(*sides):
        return {(side, operator.position): _of_one(side, operator) for side, operator in alone}
    flows = read_flows()
    results = list(_results(flows, partners))
    components = unpaired_components(flows, partners)
    for node_a, node_b, _ in results:
        components.join(node_a, node_b)
    modules: tuple[Collection[str], Collection[str]] = ((), ())
    if are_complete:
        modules = _modules(actual), _modules(reference)
    stretches: dict[Node, Stretch] = {}
    for side, operator in alone:
        node = side, operator.position
        stretch = stretches[node] = stretches.setdefault(components.find(node), Stretch(modules=modules))
        stretch.operators[side].append(operator)
    for node_a, _, pair in results:
        stretches[node_a].results.append(pair)
    _add_states(flows, partners, stretches)
    for makers, reader in exits(flows, partners):
        stretches[makers[0]].exits.append(reader)
    return stretches


def _reads_values(operator: Operator) -> bool:
    """Return True if an operator reads a tensor of floating-point values that is no single number."""
    return any(map(is_float_tensor, operator.inputs))


def _modules(operators: Sequence[Operator]) -> set[str]:
    """Return the paths of the modules that compute in the forward pass, and of the modules around them."""
    running = {operator.module for operator in operators if operator.phase == "forward" and computes(operator)}
    levels = [path.split(".") for path in running if path]
    return {".".join(path[:count]) for path in levels for count in range(1, len(path) + 1)}


def _of_one(side: int, operator: Operator) -> Stretch:
    stretch = Stretch()
    stretch.operators[side].append(operator)
    return stretch


def _results(flows: Flows, partners: Partners) -> Iterator[tuple[Node, Node, tuple[Record, Record]]]:
    """Yield (operator of actual, operator of the reference, their outputs): unpaired operators with the same result."""
    results = [_named_results(flow, partners.of(side)) for side, flow in enumerate(flows)]
    for side, flow in enumerate(flows):
        _add_buffers(flow, partners.of(side), results[side])
        _add_unread(flow, partners.of(side), results[side])
    for key, results_a in results[0].items():
        results_b = results[1].get(key, [])
        if len(results_a) == len(results_b):
            for (position_a, a), (position_b, b) in zip(results_a, results_b):
                yield (0, position_a), (1, position_b), (a, b)
    yield from _losses(flows, results)


def _losses(flows: Flows, results: Sequence[_Results]) -> Iterator[tuple[Node, Node, tuple[Record, Record]]]:
    """Yield the only number of each side that no operator reads, if one side makes it in a module and the other not.

    A loss may be computed by a module, or by functions. Numbers that are updated in place are states.
    """
    numbers = []
    for flow, of_side in zip(flows, results):
        own = [
            (key, position, record)
            for key, outputs in of_side.items()
            for position, record in outputs
            if key in (_loss_key("forward"), _loss_key("other")) and not writes(flow.operators[position].op_type)
        ]
        if len(own) != 1:
            return
        numbers += own
    (key_a, position_a, a), (key_b, position_b, b) = numbers
    if key_a != key_b:
        yield (0, position_a), (1, position_b), (a, b)


def _loss_key(phase: str) -> Hashable:
    return (phase, (), "float")


_Results = dict[Hashable, list[tuple[int, Record]]]


def _named_results(flow: DataFlow, partners: dict[int, int]) -> _Results:
    """Return the last value of each parameter and optimizer state, if an operator without a partner wrote it.

    A loop that is written by hand updates `parameter.data`, which has no name but the memory of the parameter.
    """
    last: dict[str, tuple[int, Record]] = {}
    stored = stored_names(flow)
    shapes = {record.parameter: record.shape for operator in flow.operators for record in operator.records}
    for position, operator in enumerate(flow.operators):
        for record in operator.outputs:
            name = record.parameter or stored.get((storage_of(record) or (-1,))[0])
            if name and record.shape == shapes[name] and not is_view(operator.op_type):
                last[name] = position, record
    return {name: [(position, record)] for name, (position, record) in last.items() if position not in partners}


def _add_buffers(flow: DataFlow, partners: dict[int, int], results: _Results) -> None:
    """Add the last values of buffers. Their key is their module, and their content before."""
    for begin, before, position, record in _buffers(flow, partners):
        key = ("buffer", flow.operators[begin].module, before.shape, before.dtype, before.content)
        results.setdefault(key, []).append((position, record))


def _buffers(flow: DataFlow, partners: dict[int, int]) -> Iterator[tuple[int, Record, int, Record]]:
    """Yield the memory without a name that operators read first, and an operator without a partner wrote.

    Such memory is a buffer, such as a running mean: for later steps, both programs need the same content after it.
    Yields (position of the first reader, the content before, position of the last writer, the content after).
    """
    first: dict[int, tuple[int, Record]] = {}
    last: dict[int, tuple[int, Record]] = {}
    for position, operator in enumerate(flow.operators):
        for record in operator.records:
            storage = storage_of(record)
            if storage is not None:
                first.setdefault(storage[0], (position, record))
                if record.io == "output" and not is_view(operator.op_type):
                    last[storage[0]] = position, record
    records = (record for operator in flow.operators for record in operator.records if record.parameter)
    named = {record.attrs.get("storage") for record in records}
    for number, (position, record) in last.items():
        begin, before = first[number]
        if before.io == "input" and position not in partners and number not in named and before.content is not None:
            yield begin, before, position, record


def _add_states(flows: Flows, partners: Partners, stretches: dict[Node, Stretch]) -> None:
    """Add the buffers that both sides of a stretch update, and that are in modules of other names.

    A module that is written anew has its own name. In a stretch, both sides update equally many buffers that are
    equal before the step.
    """
    groups: dict[Hashable, tuple[list[Record], list[Record]]] = {}
    paired = {id(record) for stretch in stretches.values() for pair in stretch.results for record in pair}
    owners: dict[Hashable, Stretch] = {}
    for side, flow in enumerate(flows):
        for _, before, position, record in _buffers(flow, partners.of(side)):
            stretch = stretches.get((side, position))
            is_of_module = bool(flow.operators[position].module) and record.shape == before.shape
            if stretch is not None and is_of_module and id(record) not in paired:
                key = id(stretch), before.shape, before.dtype, before.content
                owners[key] = stretch
                groups.setdefault(key, ([], []))[side].append(record)
    for owner, group in groups.items():
        if len(group[0]) == len(group[1]):
            owners[owner].states.append(group)


def _add_unread(flow: DataFlow, partners: dict[int, int], results: _Results) -> None:
    """Add the outputs that no operator of the same pass reads.

    Their key is the parameter in their memory; if there is none, their phase, shape and type: a flag is no other form
    of a loss. Types of floating-point numbers are one, because programs round differently. Order is no evidence for
    parameters: ranks that update different parameters, and send them to each other, do so in another order than one
    rank.
    """
    parameters = {
        record.attrs.get("storage", -1): record.parameter
        for operator in flow.operators
        for record in operator.records
        if record.parameter
    }
    named = {position for outputs in results.values() for position, _ in outputs}
    for position, operator in enumerate(flow.operators):
        if position in partners or position in named or not computes(operator):
            continue
        readers = (flow.operators[reader] for reader in flow.readers[position])
        if operator.outputs and not any(_continues(operator, reader) for reader in readers):
            record = operator.outputs[0]
            parameter = parameters.get(record.attrs.get("storage", -2))
            kind = "float" if float_kind(record.dtype or "") is not None else record.dtype
            own = (operator.phase, record.shape, kind)
            key: Hashable = own if parameter is None else ("memory", parameter, record.shape)
            results.setdefault(key, []).append((position, record))


def _continues(operator: Operator, reader: Operator) -> bool:
    """Return True if a reader computes, and is of the same pass. Gradients read many tensors of the forward pass."""
    in_backward = [member.phase == "backward" for member in (operator, reader)]
    return in_backward[0] == in_backward[1] and computes(reader)

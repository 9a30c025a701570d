"""Find the differences of one step that reach a result of the program.

Where two programs are built differently, inner tensors differ although both compute the same, for example if a factor
is applied before a product or after it. Such a difference reaches no result if everything that is computed from it
agrees again. The results are the last values of parameters, gradients and states; tensors that no operator reads; and
numbers that leave the program.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Callable, Optional

from ascend_dump.analysis.explaining.differing import Differing, Node, leading_nodes
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import EnteredStretch
from ascend_dump.analysis.explaining.tracking.reordered_parameters import ReorderedParameters
from ascend_dump.analysis.explaining.uncertain_ends import UncertainEnds
from ascend_dump.analysis.judging.input_noise import OriginNumber
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.collectives import is_contribution
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import COPIES, SHAPED, operator_class, writes
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, Flows, Made
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.reading import Record

__all__ = ["Effects", "reached_by_values"]

#: A difference that another part cancels is this many times smaller behind that part.
_TIMES_LESS = 10.0
#: A smaller relative distance is rounding in any type, so the difference that is said to be read there is none.
_ROUNDED = 2e-6


@dataclass
class Effects:
    """The differences of a step.

    flows      the data flow of both programs
    partners   for each side: the position of each paired operator -> the position of its pair in the reference
    differing  the pairs of operators with differences, by position in the reference
    stretches  the stretches, by side (0: actual) and position of each of their operators
    agree      returns True if a tensor of actual and one of the reference are equal but for rounding
    reordered  the parameters that one program has in another order
    """

    flows: Flows
    partners: tuple[Mapping[int, int], Mapping[int, int]]
    differing: Mapping[int, Differing]
    stretches: Mapping[tuple[int, int], EnteredStretch]
    agree: Callable[[Record, Record], bool]
    reordered: ReorderedParameters

    def __post_init__(self) -> None:
        self._last = tuple(map(_last_of_parameters, self.flows))
        self._updates = tuple(map(_last_updates, self.flows))
        self._outside = tuple(map(_readers_of_outside, self.flows))
        self._unread = tuple(map(_unread_results, self.flows))
        self._alike: dict[str, bool] = {}
        self._uncertain = UncertainEnds(self.flows, self.differing)

    def of(
        self,
        origins: Sequence[tuple[OriginNumber, Node]],
        earlier: Collection[OriginNumber] = (),
        sizes: Collection[OriginNumber] = (),
        alone: Collection[OriginNumber] = (),
        ended: Collection[OriginNumber] = (),
    ) -> tuple[set[OriginNumber], set[Node]]:
        """Return the origins whose differences reach a result, and all nodes that lead to a result.

        Gradients are computed from tensors of the forward pass. So a gradient that differs is evidence that these
        tensors reach a result, unless another origin that reaches a result explains the gradient already.

        origins: origins where the programs are built differently, each with its node
        earlier: origins whose differences reached a result in an earlier step
        sizes: origins at inputs of other sizes, such as parts of a batch. They reach only results that no other origin
            explains
        alone: origins of differences that no other origin explained when they began
        ended: origins whose differences ended in an earlier step. They reach only results that no other origin explains
        """
        all_edges = [(node, follower) for node in self._nodes() for follower in self._followers(node)]
        edges = [edge for edge in all_edges if not any(node in self._uncertain for node in edge if node is not None)]
        forward = {number for number, node in origins if not self._is_backward(node)}
        crossing = {edge for edge in edges if self._is_crossing(*edge, forward)}
        first = leading_nodes(edge for edge in edges if edge not in crossing)
        causes = frozenset[OriginNumber]().union(*(differing.causes for differing in self.differing.values()))
        proven = {*causes} - {number for number, _ in origins} | {*earlier}
        for number, node in origins:
            follows = self._causes(node) - {number} or (number in forward and self._is_backward(node))
            if node in first and not follows:
                proven.add(number)
        leading = leading_nodes(edge for edge in edges if not (edge in crossing and self._causes(edge[1]) & proven))
        others = proven - {*sizes}
        unexplained = leading_nodes(edge for edge in edges if edge[1] is not None or not self._causes(edge[0]) & others)
        lasting = leading_nodes(edge for edge in edges if not self._is_explained(edge, proven.difference(ended)))
        reached = {
            number
            for number, node in origins
            if node in (lasting if number in ended else leading)
            and (number in alone or not (self._causes(node) - {number}) & proven)
            and (number not in sizes or node in unexplained)
        }
        if not reached and self._uncertain:
            remaining = self._uncertain.origins(origins, all_edges) - {*sizes}
            return remaining, leading | leading_nodes(all_edges) if remaining else leading
        return reached, leading

    def carried(self, ended: Set[OriginNumber], leading: Set[Node]) -> set[OriginNumber]:
        """Return the origins that alone explain a tensor from before the step, which leads to a result.

        For example, weights that one program puts back after their update are read in the next step only.

        ended: origins whose differences ended in an earlier step
        """
        origins = set[OriginNumber]()
        for position, differing in self.differing.items():
            if position in leading and differing.causes <= ended:
                sources = self.flows[0].sources[differing.match.actual.position]
                outside = {id(source.record) for source in sources if source.root and source.root.position == OUTSIDE}
                if any(pair.differs and id(pair.actual) in outside for pair in differing.inputs):
                    origins |= differing.causes
        return origins

    def compensated(self, parameters: Set[OriginNumber]) -> Iterator[tuple[OriginNumber, int]]:
        """Yield the parameters whose difference another part of the program may cancel, each with its operators.

        For example a normalisation that one side has folded into the weights before it, or a factor that is moved from
        one weight to the next. A part that only one side has reads the difference, or an operator that reads two
        differences has a result that agrees.

        parameters: the origins at parameters. The operators are given by their positions in the reference
        """
        cancelled, remaining = set[OriginNumber](), set[OriginNumber]()
        for differing in self.differing.values():
            inputs = sum(pair.differs for pair in differing.inputs)
            if (inputs > 1 and not differing.differing_outputs) or self._is_read_alone(differing):
                cancelled |= differing.causes & parameters
            if not _is_smaller_behind(differing):
                remaining |= differing.causes
        cancelled -= remaining
        for position, differing in self.differing.items():
            yield from ((number, position) for number in differing.causes & cancelled)

    def _is_explained(self, edge: tuple[Node, Optional[Node]], proven: Set[OriginNumber]) -> bool:
        """Return True if a proven origin explains the node that follows, or the result of a node."""
        node, follower = edge
        return bool(self._causes(node if follower is None else follower) & proven)

    def _is_read_alone(self, differing: Differing) -> bool:
        """Return True if an operator without a partner reads an output that differs."""
        for pair in differing.differing_outputs:
            for side, record in enumerate((pair.actual, pair.reference)):
                operator = differing.match.reference if side else differing.match.actual
                if record is not None:
                    made = _before_views(self.flows[side], operator, record)
                    readers = self.flows[side].readers[made.position] if made.position != OUTSIDE else ()
                    if any(reader not in self.partners[side] for reader in readers):
                        return True
        return False

    def _nodes(self) -> list[Node]:
        return [*self.differing, *dict.fromkeys(self.stretches.values())]

    def _is_crossing(self, node: Node, follower: Optional[Node], forward: Set[OriginNumber]) -> bool:
        """Return True if an operator of the backward pass reads a difference of the forward pass.

        A stretch of the backward pass may only prepare values that the forward pass has saved, so that no gradient that
        differs enters it. forward: the origins in the forward pass
        """
        if follower is None or not self._is_backward(follower):
            return False
        if isinstance(node, EnteredStretch) and node.number in forward and not node.causes - {node.number}:
            return True
        return not self._is_backward(node)

    def _is_backward(self, node: Node) -> bool:
        if isinstance(node, EnteredStretch):
            # A stretch of both passes leads on in the forward pass.
            return all(operator.phase == "backward" for side in node.stretch.operators for operator in side)
        return self.differing[node].match.reference.phase == "backward"

    def _causes(self, node: Optional[Node]) -> frozenset[OriginNumber]:
        if isinstance(node, EnteredStretch):
            return frozenset(node.causes)
        return frozenset() if node is None else self.differing[node].causes

    def _followers(self, node: Node) -> Iterator[Optional[Node]]:
        """Yield the nodes that read a difference of this node and may differ because of it; None for a result."""
        if node in self._uncertain:
            yield None
            return
        if isinstance(node, EnteredStretch):
            if node.is_open:
                yield from self._followers_of_open(node)
            if node.result_differs:
                yield None
            if node.differs:
                yield from (position for position in node.readers if position in self.differing)
            return
        match, inputs = self.differing[node].match, self.differing[node].inputs
        if any(pair.differs and pair.actual is not None and is_contribution(pair.actual) for pair in inputs):
            yield None  # other ranks receive it
        for pair in self.differing[node].differing_outputs:
            for side, operator in enumerate((match.actual, match.reference)):
                yield from self._readers(side, operator, pair.actual if side == 0 else pair.reference, [pair])
        differing = self.differing[node]
        if any(pair.verdict == "undecided" and _may_go_on(differing, pair) for pair in differing.outputs):
            yield None

    def _followers_of_open(self, node: EnteredStretch) -> Iterator[Optional[Node]]:
        """Yield the readers of all outputs of a stretch, if none of these outputs was compared.

        New tensors that one side computes and nothing reads, such as a number for a log, change no result. The readers
        of what a module returns are not known.
        """
        is_alone = not all(node.stretch.operators)
        for side, operators in enumerate(node.stretch.operators):
            for operator in operators:
                may_be_read = writes(operator.op_type) or any(map(is_of_module, operator.outputs))
                if is_alone and not (may_be_read or self.flows[side].readers[operator.position]):
                    continue
                for output in operator.outputs:
                    yield from self._readers(side, operator, output)

    def _readers(
        self, side: int, operator: Operator, output: Optional[Record], pairs: Sequence[Pair] = ()
    ) -> Iterator[Optional[Node]]:
        """Yield the nodes that read an output and may differ because of it. pairs: its pair, if it was compared"""
        # An input that an operator overwrites is a buffer: its new value is a result.
        ends_alike = output is not None and output.parameter is not None and self._ends_alike(output.parameter)
        if output is None or (output.io == "input" and not ends_alike) or self._is_last(side, output):
            yield None
            return
        flow, is_read = self.flows[side], False
        made = _before_views(flow, operator, output)
        readers = self._outside[side].get(made, ()) if made.position == OUTSIDE else flow.readers[made.position]
        for position in readers:
            records = _read_from(flow, position, made)
            if not records or not _computes_from(flow.operators[position]):
                continue
            is_read = True
            if any(self._is_last(side, record) for record in records) or not flow.operators[position].outputs:
                yield None
            yield from self._node(side, position, records, pairs)
        is_result = not (is_read or ends_alike or _is_statistic(flow, operator, output))
        if is_result and not self._is_result_of_both(side, operator, output):
            yield None

    def _is_result_of_both(self, side: int, operator: Operator, output: Record) -> bool:
        """Return True if an unread result agrees with an unread result of the other side that is not its pair.

        A program that divides a batch into parts adds up more terms. So its last sum has a partner which is no pair. A
        loss may be computed by an operator, and by a sum over such operators on the other side.
        """
        if not any(unread is output for _, unread in self._unread[side]):
            return False
        has_pair = operator.position in self.partners[side]
        results = [
            (output, unread) if side == 0 else (unread, output)
            for position, unread in self._unread[1 - side]
            if not (has_pair and position in self.partners[1 - side])
        ]
        return any(self.agree(a, b) for a, b in results if a.shape == b.shape and a.dtype == b.dtype)

    def _node(
        self, side: int, position: int, records: Sequence[Record], pairs: Sequence[Pair]
    ) -> Iterator[Optional[Node]]:
        """Yield the node of a reader, unless its outputs agree.

        Yield None, a result, if the reader overwrites only a part of the memory: the difference may remain in the rest.
        """
        partner = self.partners[side].get(position)
        if partner is None:
            stretch = self.stretches.get((side, position))
            if stretch is None or not stretch.agrees or self._uncertain.add_part(stretch, pairs):
                yield stretch
        elif partner in self._uncertain or (partner in self.differing and self.differing[partner].differing_outputs):
            yield partner
        elif _writes_part(self.flows[side].operators[position], records):
            yield None

    def _is_last(self, side: int, record: Record) -> bool:
        """Return True for the last record of a parameter, its gradient or state, unless it agrees on both sides."""
        if record.parameter is not None:
            return self._last[side].get(record.parameter) is record and not self._ends_alike(record.parameter)
        return id(record) in self._updates[side]

    def _ends_alike(self, name: str) -> bool:
        """Return True if the last values of a parameter, its gradient or state agree.

        A program that divides a batch into parts adds up gradients, so these last values may be in no pair.
        """
        if name not in self._alike:
            a, b = (last.get(name) for last in self._last)
            self._alike[name] = a is not None and b is not None and a.shape == b.shape and self._agree(a, b)
        return self._alike[name]

    def _agree(self, a: Record, b: Record) -> bool:
        """Return True if the last values of a parameter agree, in the order that each program has."""
        if self.agree(a, b):
            return True
        reordered = self.reordered.in_order_of_reference(a, self.flows)
        return reordered is not None and self.agree(reordered, b)


def reached_by_values(origins: Sequence[tuple[OriginNumber, Node]], leading: Set[Node]) -> set[OriginNumber]:
    """Return the origins that lead to a result by a tensor that was compared and differs.

    A part from which nothing was compared leads to results too, but that alone does not prove that its values differ:
    if its differences ended in an earlier step, they count as ended.
    """
    return {
        number
        for number, node in origins
        if node in leading and not (isinstance(node, EnteredStretch) and node.is_open)
    }


def _is_smaller_behind(differing: Differing) -> bool:
    """Return False if outputs agree, but are not much nearer than the inputs.

    The rounding of a coarse type explains a large error too, which shows that the difference is still there.
    """
    before, behind = (
        [pair.measure.rel_l2 for pair in pairs if pair.measure is not None and pair.verdict != "equal"]
        for pairs in ([pair for pair in differing.inputs if pair.differs], differing.outputs)
    )
    ends = max(before, default=0.0) > _ROUNDED and not differing.differing_outputs
    return not ends or max(behind, default=0.0) <= max(before) / _TIMES_LESS


def _may_go_on(differing: Differing, output: Pair) -> bool:
    """Return True if an output, whose statistics do not prove a difference, is about as far off as a differing input.

    Statistics that agree end a difference only if they agree much better than those of the inputs.
    """
    if output.measure is None or output.undefined:
        return False
    before = [_largest(pair) for pair in differing.inputs if pair.verdict == "different" and pair.has_one_shape]
    return _largest(output) > max(_ROUNDED, max(before, default=math.inf) / _TIMES_LESS)


def _largest(pair: Pair) -> float:
    """Return the largest relative distance that is known; 0 if none is."""
    return 0.0 if pair.measure is None else max(pair.measure.max_rel, pair.measure.rel_l2)


def _unread_results(flow: DataFlow) -> list[tuple[int, Record]]:
    """Return the floating-point results outside of the backward pass that no operator reads, with their positions."""
    return [
        (operator.position, output)
        for operator, readers in zip(flow.operators, flow.readers)
        if operator.phase != "backward" and computes(operator)
        for output in operator.outputs
        if float_kind(output.dtype or "") is not None
        and not any(
            _read_from(flow, reader, Made(operator.position, output.index))
            for reader in readers
            if _computes_from(flow.operators[reader])
        )
    ]


def _last_of_parameters(flow: DataFlow) -> dict[str, Record]:
    return {
        record.parameter: record
        for operator in flow.operators
        for record in (*operator.inputs, *operator.outputs)
        if record.parameter
    }


def _last_updates(flow: DataFlow) -> set[int]:
    """Return the identities of the last records of buffers, and of memory that is updated in place outside of
    the forward and the backward pass, for example by the optimizer.

    A buffer is memory that an operator reads before any operator of the step has written it. Memory is no buffer if an
    operator of the step computed its first value: it is an intermediate result, such as a root to which a number is
    added. New states begin as constants or copies.
    """
    last: dict[int, Record] = {}
    outside, inside, computed = set[int](), set[int](), set[int]()
    for operator in flow.operators:
        outside.update(memory for record in operator.inputs if (memory := _memory_of(record)) not in inside)
        for record in operator.outputs:
            memory = _memory_of(record)
            is_update = writes(operator.op_type) and operator.phase not in ("forward", "backward")
            if ((is_update and memory not in computed) or memory in outside) and not is_view(operator.op_type):
                last[memory] = record
            elif memory not in outside:
                if memory not in inside and computes(operator) and operator_class(operator.op_type) not in COPIES:
                    computed.add(memory)
                inside.add(memory)
    return set(map(id, last.values()))


def _memory_of(record: Record) -> int:
    """Return the number of a storage; -1 if it is unknown."""
    storage = storage_of(record)
    return -1 if storage is None else storage[0]


def _readers_of_outside(flow: DataFlow) -> dict[Made, set[int]]:
    """Return, by tensor, the readers of tensors that no operator made, and of their views."""
    readers: dict[Made, set[int]] = {}
    for position, sources in enumerate(flow.sources):
        for source in sources:
            if source.root is not None and source.root.position == OUTSIDE:
                readers.setdefault(source.root, set()).add(position)
    return readers


def _is_statistic(flow: DataFlow, operator: Operator, output: Record) -> bool:
    """Return True for an unread later output of an operator whose first output is read, as the sums of an attention.

    A backward pass would read it. Parts of a tensor are no statistics.
    """
    if output.index == 0 or is_view(operator.op_type) or is_of_module(output) or not flow.readers[operator.position]:
        return False
    return any(
        source.root is not None and source.root.position == operator.position and source.root.output == 0
        for reader in flow.readers[operator.position]
        for source in flow.sources[reader]
    )


def _before_views(flow: DataFlow, operator: Operator, output: Record) -> Made:
    """Return the tensor that an output is a view or copy of, else the output itself."""
    sources = flow.sources[operator.position]
    if sources and sources[0].root is not None and is_view(operator.op_type):
        return sources[0].root
    return Made(operator.position, output.index)


def _read_from(flow: DataFlow, reader: int, made: Made) -> list[Record]:
    """Return the inputs of a reader that are the tensor `made`, or a view or copy of it."""
    return [source.record for source in flow.sources[reader] if made in (source.maker, source.root)]


def _computes_from(operator: Operator) -> bool:
    """Return True if an operator computes floating-point values from its inputs, or has no outputs.

    Views are left out: their readers are readers of the viewed tensor too. Indices and flags may be equal by chance.
    """
    if operator.function in SHAPED or is_view(operator.op_type):
        return False
    return not operator.outputs or any(float_kind(record.dtype or "") is not None for record in operator.outputs)


def _writes_part(operator: Operator, read: Sequence[Record]) -> bool:
    """Return True if an operator writes to a part of the memory that it reads, so that the rest stays as it is."""
    if not writes(operator.op_type):
        return False
    memory = set(map(_memory_of, read))
    return any(
        _memory_of(output) in memory and output.nbytes != output.attrs.get("storage_nbytes")
        for output in operator.outputs
    )

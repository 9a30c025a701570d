"""The tensors that one rank contributes to reductions in a step, and the operators that made them."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.collectives import collective_of, is_contribution_to
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import COPIES, VIEWS, operator_class
from ascend_dump.analysis.ranks.collective_results import content_of_record
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.reading import Record

__all__ = ["BiasedTerm", "NamedGradient", "StepContributions", "WrongOperation"]

_GRADIENT = ".grad"
#: Operators that pass gradients on to a reduction: the parts of a flat tensor, and tensors with another factor.
_PASSES_ON = frozenset({"cat", "mul", "div", "_flatten_dense_tensors", "_foreach_mul", "_foreach_div"})
#: Operators with a bias: the positions of the bias, of the input and of the weight.
_BIASED = {"addmm": (0, 1, 2), "linear": (2, 0, 1)}
_NO_SUMS = ("max", "min", "product")
_PASSES = ("forward", "backward")


class WrongOperation(NamedTuple):
    """A reduction that is no sum. operation: its name"""

    record: Record
    operation: str
    ranks: tuple[int, ...]


class BiasedTerm(NamedTuple):
    """A product with a bias that is a term of a sum over ranks. factors: the contents of its input and its weight"""

    record: Record
    name: str
    bias: Record
    factors: tuple[Hashable, ...]
    ranks: tuple[int, ...]


class NamedGradient(NamedTuple):
    """A gradient that is a term of a sum over ranks. content: that of its parameter; None if it is not recorded"""

    record: Record
    parameter: str
    content: Hashable
    ranks: tuple[int, ...]


class StepContributions:
    """The reductions of one rank in one step, operator by operator in the order of the dump.

    repeated  the first reduction of a tensor that the same ranks have added up before
    biased    by the number of the term: products with a bias
    gradients by call: gradients that are added up in their own memory
    """

    def __init__(self) -> None:
        self.repeated: Optional[tuple[Record, tuple[int, ...]]] = None
        self.biased: dict[Hashable, BiasedTerm] = {}
        self.gradients: dict[Hashable, NamedGradient] = {}
        self._operations: dict[int, WrongOperation] = {}
        self._parameters: dict[str, Hashable] = {}
        #: Storages of gradients, or of tensors that are made of them; and those that are copied into gradients.
        self._of_gradients: set[int] = set()
        self._copied: dict[int, int] = {}
        #: By storage: the ranks that added it up, or the product with a bias that it is.
        self._sums: dict[int, tuple[int, ...]] = {}
        self._products: dict[int, OperatorRun] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        phase = run.first.phase
        if run.is_named:
            for record, storage, name in run.tensors:
                if name.endswith(_GRADIENT) and " of " not in name:
                    self._of_gradients.add(storage)
                elif name and " of " not in name and phase == "forward" and record.io == "input":
                    self._parameters.setdefault(name, content_of_record(record))
        if run.is_collective:
            self._look_at_collective(run)
            return
        kind = operator_class(run.first.op_type)
        is_copy = kind in COPIES or kind in VIEWS or is_view(run.first.op_type)
        if kind == "copy" and len(run.inputs) == 2 and run.outputs:
            target, source = run.outputs[0].storage, run.inputs[1].storage
            if target in self._of_gradients:
                self._copied[source] = run.number
            self._pass_on(source, target)
        elif is_copy and run.inputs:
            for _, storage, _ in run.outputs:
                if storage != run.inputs[0].storage:
                    self._pass_on(run.inputs[0].storage, storage)
        else:
            is_of_gradients = kind in _PASSES_ON and not run.read.isdisjoint(self._of_gradients)
            for _, storage, _ in run.outputs:
                self._sums.pop(storage, None)
                self._products.pop(storage, None)
                if is_of_gradients:
                    self._of_gradients.add(storage)
                if kind in _BIASED and phase == "forward" and len(run.inputs) == len(_BIASED[kind]):
                    self._products[storage] = run

    def operations(self) -> list[WrongOperation]:
        """Return the reductions of gradients that are no sums. Ask after the last operator of the step."""
        return [
            operation
            for storage, operation in self._operations.items()
            if storage in self._of_gradients
            or self._copied.get(storage, -1) > int(operation.record.attrs.get("seq", 0))
        ]

    def _pass_on(self, source: int, target: int) -> None:
        """Note that a tensor is a copy or a view of another one."""
        for storages in (self._sums, self._products):
            if source in storages:
                storages[target] = storages[source]  # type: ignore[assignment]
            else:
                storages.pop(target, None)
        if source in self._of_gradients:
            self._of_gradients.add(target)

    def _look_at_collective(self, run: OperatorRun) -> None:
        found = collective_of(run.first)
        if found is None:
            return
        call, ranks = found
        is_reduction = call.kind in ("all_reduce", "reduce_scatter", "reduce") and len(ranks) > 1
        for record, storage, name in run.inputs if is_reduction else ():
            if is_contribution_to(record, call) and _is_tensor(record):
                self._add(record, storage, name, call, ranks)
        for _, storage, _ in run.outputs:
            self._products.pop(storage, None)
            self._sums.pop(storage, None)
            if call.kind == "all_reduce" and call.reduce == "sum":
                self._sums[storage] = ranks

    def _add(self, record: Record, storage: int, name: str, call: CollectiveCall, ranks: tuple[int, ...]) -> None:
        if call.reduce in _NO_SUMS:
            self._operations.setdefault(storage, WrongOperation(record, call.reduce, ranks))
        if call.reduce != "sum":
            return
        is_gradient = bool(name) and name.endswith(_GRADIENT)
        if self._sums.get(storage) == ranks and (record.phase in _PASSES or is_gradient) and self.repeated is None:
            self.repeated = record, ranks
        product = self._products.get(storage)
        if product is not None and record.phase == "forward":
            bias, *factors = (product.inputs[position] for position in _BIASED[operator_class(product.first.op_type)])
            contents = tuple(content_of_record(factor.record) for factor in factors)
            key = (call.kind, call.nth, call.ranks)
            term = BiasedTerm(product.first, bias.name, bias.record, contents, ranks)
            self.biased.setdefault(key, term)
        if is_gradient and call.kind == "all_reduce":
            parameter = name[: -len(_GRADIENT)]
            content = self._parameters.get(parameter)
            self.gradients[call.ranks, call.nth] = NamedGradient(record, parameter, content, ranks)


def _is_tensor(record: Record) -> bool:
    """Return True for a tensor of floats with more than one element: single numbers may be any property of tensors."""
    return float_kind(record.dtype or "") is not None and math.prod(record.shape or ()) > 1

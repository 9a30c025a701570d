"""Divide a program into segments: successive operators of one layer, including its quantising operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator, module_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.reading import Record

__all__ = ["Segment", "find_modules", "is_quantiser", "outputs_of", "segments_of", "tensor_key"]

#: Parts of the names of operators that quantise, dequantise or observe.
_QUANTISING = ("quantize", "quantise", "fake_quant", "dequant", "moving_avg_obs", "choose_qparams", "int_repr")
#: Types of quantised elements.
_NARROW = ("int8", "uint8", "int4", "uint4", "float8", "qint", "quint", "hifloat8")


def is_quantiser(operator: Operator) -> bool:
    """Return True for an operator that only quantises, dequantises or observes."""
    name = operator.op_type.rpartition("::")[2].lower()
    return any(part in name for part in _QUANTISING)


def tensor_key(record: Record) -> Optional[tuple[Any, ...]]:
    """Return a key that is equal for an output and for the inputs that read it; None if the content is not known."""
    content = record.content
    if content is None:
        return None
    return (*content, record.dtype, record.shape)


@dataclass
class Segment:
    """Successive operators of a layer.

    module  the module of the reference, without wrappers
    nth     the index of the segment among all segments of its module
    path    the module as the program names it
    """

    module: str
    nth: int = 0
    path: str = ""
    operators: list[Operator] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.path or 'the model'}{f' (part {self.nth + 1})' if self.nth else ''}"

    @property
    def main_type(self) -> str:
        """The type of the operator that computes most.

        This is the last operator in `_HEAVY`; else the last operator that is no view and does not only quantise.
        """
        computing = [
            operator for operator in self.operators if not is_view(operator.op_type) and not is_quantiser(operator)
        ]
        heavy = [operator for operator in computing if operator_class(operator.op_type) in _HEAVY]
        return (heavy or computing or self.operators)[-1].op_type

    @property
    def has_quantisers(self) -> bool:
        return any(
            is_quantiser(operator)
            or operator.op_type.startswith(("quantized::", "_quantized::"))
            or operator_class(operator.op_type) in ("_int_mm", "_scaled_mm", "_weight_int8pack_mm")
            or any((record.dtype or "").startswith(_NARROW) for record in operator.records)
            for operator in self.operators
        )


_HEAVY = frozenset(
    ("mm", "bmm", "addmm", "baddbmm", "linear", "convolution", "_scaled_dot_product_flash_attention_for_cpu")
)


def find_modules(operators: Iterable[Operator]) -> set[str]:
    """Return the modules that operators belong to."""
    return {module_of(operator.module) for operator in operators}


def segments_of(operators: Sequence[Operator], modules: Collection[str]) -> dict[tuple[str, int], Segment]:
    """Divide the forward pass into segments, and return them by module and number.

    Segments that compute no floating-point numbers, or that only quantise, are left out. Their neighbours are joined if
    they belong to one module.

    modules: the modules of the reference. An operator belongs to the innermost of them that contains its own module.
    """
    joined: list[Segment] = []
    for segment in _runs(operators, modules):
        computes = any(not is_view(operator.op_type) and not is_quantiser(operator) for operator in segment.operators)
        if not computes or next(iter(outputs_of(segment)), None) is None:
            continue
        if joined and joined[-1].module == segment.module:
            joined[-1].operators += segment.operators
        else:
            joined.append(segment)
    counts = Counter[str]()
    numbered = {}
    for segment in joined:
        segment.nth = counts[segment.module]
        counts[segment.module] += 1
        numbered[segment.module, segment.nth] = segment
    return numbered


def _runs(operators: Sequence[Operator], modules: Collection[str]) -> Iterable[Segment]:
    parents = {module.rpartition(".")[0] for module in modules if module}
    current: Optional[Segment] = None
    for operator in operators:
        if operator.phase not in ("forward", ""):
            continue
        module = _owner(module_of(operator.module), modules)
        record = next(operator.records, None)
        if record is not None and is_of_module(record) and module in parents:
            continue  # the record of a container repeats the values of its modules
        if current is None or current.module != module:
            if current is not None:
                yield current
            current = Segment(module, path=operator.module if module_of(operator.module) == module else module)
        current.operators.append(operator)
    if current is not None:
        yield current


def _owner(module: str, modules: Collection[str]) -> str:
    while module and module not in modules:
        module = module.rpartition(".")[0]
    return module


def outputs_of(segment: Segment) -> Iterable[Record]:
    """Yield the floating-point outputs of a segment, the last one first."""
    for operator in reversed(segment.operators):
        for record in operator.outputs:
            if (record.dtype or "").startswith(("float", "bfloat")) or record.attrs.get("quantization"):
                yield record

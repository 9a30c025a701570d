"""Find the same products in two programs by their weights, also if one program fuses several products into one.

An engine multiplies with the weights of queries, keys and values at once, where another program has three products. The
rows of the wide weight are the rows of the narrow weights, one weight after the other. A wide product is divided into
narrow products, so that both programs have the same operators.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.axis_maps import AxisMap, part_of
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import COPIES, operator_class
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["NarrowPart", "as_far_as_weights_show", "is_product", "same_weights", "wide_products"]

_PRODUCTS = frozenset({"mm", "addmm", "linear", "matmul"})
#: Operators that have a weight of their own.
_WITH_WEIGHTS = frozenset({"mul", "embedding", "native_layer_norm", "_fused_rms_norm"})


class _Product(NamedTuple):
    """A product of activations with a weight.

    weight  the record of the weight
    rows    hashes of the rows of the weight, one row for each output
    axis    the axis of the recorded weight that belongs to the outputs
    """

    operator: Operator
    weight: Record
    rows: tuple[bytes, ...]
    axis: int

    @property
    def width(self) -> int:
        """The number of inputs of each output."""
        return (self.weight.shape or (0, 0))[1 - self.axis]


class NarrowPart(NamedTuple):
    """The part of a wide product that is a narrow product.

    outputs  the ranges of its outputs, one after the other
    width    the number of outputs of the wide product
    weight   the index of the input that is the weight
    axis     the axis of the weight that belongs to the outputs
    """

    outputs: tuple[slice, ...]
    width: int
    weight: int
    axis: int

    def of(self, operator: Operator) -> Operator:
        """Return the narrow product; its records are parts of the records of the wide product."""
        inputs = []
        for record in operator.inputs:
            axis = self.axis if record.index == self.weight else 0 if record.shape == (self.width,) else None
            inputs.append(record if axis is None else part_of(record, AxisMap(axis, self.outputs)))
        outputs = [part_of(record, AxisMap(len(record.shape or ()) - 1, self.outputs)) for record in operator.outputs]
        if self._is_whole:
            return replace(operator, inputs=inputs, outputs=outputs)
        ranges = ",".join(f"{piece.start}:{piece.stop}" for piece in self.outputs)
        return replace(operator, op_name=f"{operator.op_name}[{ranges}]", inputs=inputs, outputs=outputs)

    @property
    def _is_whole(self) -> bool:
        return sum(len(range(piece.start, piece.stop)) for piece in self.outputs) == self.width


def is_product(operator: Operator) -> bool:
    """Return True for a product of two matrices, such as activations and a weight."""
    return operator_class(operator.op_type) in _PRODUCTS


def same_weights(actual: Sequence[Operator], reference: Sequence[Operator]) -> dict[str, str]:
    """Return the names of operators of actual, each with the name of the reference operator that has the same weight.

    A weight that several operators of one side use is no evidence. Weights of different types are the same if they are
    equal in the coarser type. The weight of the only product of a module is that of this module on the other side, even
    if it is stale. So is the part of a wide weight that is left over, see `_left_over`.
    """
    common_type = _common_type(actual, reference)
    sides = [_by_weight(side, common_type) for side in (actual, reference)]
    names = {a: sides[1][key] for key, a in sides[0].items() if key in sides[1]}
    modules = [_by_module(side) for side in (actual, reference)]
    taken = {*names.values()}
    for key, a in modules[0].items():
        b = modules[1].get(key)
        if a not in names and b is not None and b not in taken:
            names[a] = b
    for known in (names, {b: a for a, b in names.items()}):
        of_actual = known is names
        wide, narrow = (actual, reference) if of_actual else (reference, actual)
        for a, b in _left_over(wide, narrow, known).items():
            names.update({a: b} if of_actual else {b: a})
    return names


def as_far_as_weights_show(
    matches: Sequence[Match], sides: Sequence[Sequence[Operator]], mapping: Container[str]
) -> list[Match]:
    """Return matches of operators that have the same weight, with weaker evidence for those of norms of two kinds.

    Two products with the same weight are the same layer. But a norm may multiply by its weight before it divides, or
    after, so that the two operators that do it are not the same.

    sides: the operators of both sides; mapping: names of operators of actual that the user has paired
    """
    flows: list[DataFlow] = []
    result = []
    for match in matches:
        is_by_weight = match.how == "mapping" and match.actual.op_name not in mapping
        if is_by_weight and operator_class(match.reference.op_type) == "mul":
            flows = flows or [DataFlow(operators) for operators in sides]
            pair = zip(flows, (match.actual, match.reference))
            if len({_reads_quotient(flow, operator) for flow, operator in pair}) > 1:
                match = match._replace(how="parameter", confidence=0.9)
        result.append(match)
    return result


def _reads_quotient(flow: DataFlow, operator: Operator) -> bool:
    """Return True if an operator reads a product or quotient of vectors with one number for each vector."""
    waiting = [next(n for n, candidate in enumerate(flow.operators) if candidate is operator)]
    while waiting:
        for source in flow.sources[waiting.pop()]:
            if source.maker is None or source.maker.position == OUTSIDE:
                continue
            maker = flow.operators[source.maker.position]
            function = operator_class(maker.op_type)
            if function in ("mul", "div") and any((record.shape or (0,))[-1] == 1 for record in maker.inputs):
                return True
            if function in COPIES or is_view(maker.op_type):
                waiting.append(source.maker.position)
    return False


def _left_over(wide: Sequence[Operator], narrow: Sequence[Operator], known: Mapping[str, str]) -> dict[str, str]:
    """Return the part without a partner of each wide product, if one product beside the partners has none either.

    wide, narrow: the operators of both sides; known: by name of an operator of the wide side, that of its partner
    """
    parts: dict[str, list[Operator]] = {}
    for operator in filter(is_product, wide):
        whole, is_part, _ = operator.op_name.partition("[")
        if is_part:
            parts.setdefault(whole, []).append(operator)
    by_name, taken = {operator.op_name: operator for operator in narrow}, {*known.values()}
    result = {}
    for of_wide in parts.values():
        alone = [part for part in of_wide if part.op_name not in known]
        parents = {_parent_of(by_name[known[part.op_name]]) for part in of_wide if part.op_name in known}
        beside = [
            op for op in filter(is_product, narrow) if _parent_of(op) in parents and op.op_name not in taken and alone
        ]
        fitting = [op for op in beside if _count_outputs(op) == _count_outputs(alone[0])]
        if len(alone) == len(fitting) == 1:
            result[alone[0].op_name] = fitting[0].op_name
    return result


def _count_outputs(operator: Operator) -> int:
    return (operator.outputs[0].shape or (0,))[-1] if operator.outputs else 0


def _by_module(operators: Sequence[Operator]) -> dict[Hashable, str]:
    """Return the only product of each module that has one, by the path of the module and the shape of the weight."""
    products: dict[str, list[_Weight]] = {}
    for product in _of_weights(operators):
        if product.operator.module:
            products.setdefault(product.operator.module_path, []).append(product)
    return {(path, of[0].weight.shape): of[0].operator.op_name for path, of in products.items() if len(of) == 1}


def _common_type(*sides: Sequence[Operator]) -> str:
    """Return the coarser type of the weights of both sides; "" if the weights of both sides have one type."""
    types = []
    for operators in sides:
        counts = Counter(product.weight.dtype for product in _of_weights(operators))
        types += [dtype for dtype, _ in counts.most_common(1) if dtype is not None and float_kind(dtype) is not None]
    return max(types, key=_unit) if len({*types}) > 1 else ""


def _unit(dtype: str) -> float:
    kind = float_kind(dtype)
    return 0.0 if kind is None else kind.unit


def _by_weight(operators: Sequence[Operator], common_type: str) -> dict[object, str]:
    names: dict[object, Optional[str]] = {}
    written = _written_storages(operators)
    keys: list[tuple[object, Operator]] = [
        (("product", product.rows), product.operator) for product in _products(operators, common_type)
    ]
    for operator in operators:
        if operator_class(operator.op_type) in _WITH_WEIGHTS:
            contents = [_content(record, common_type) for record in operator.inputs if _is_weight(record, written)]
            keys += [((operator_class(operator.op_type), content), operator) for content in contents if content]
    for key, operator in keys:
        names[key] = None if key in names else operator.op_name
    return {key: name for key, name in names.items() if name is not None}


def wide_products(
    operators: Sequence[Operator], narrow: Sequence[Operator], *, may_reorder: bool
) -> dict[int, list[NarrowPart]]:
    """Return for each wide product, by its position, the parts that are products of the other side.

    narrow       the operators of the other side
    may_reorder  a product with the same outputs as one of the other side, in another order, is returned as one part
    """
    common_type = _common_type(operators, narrow)
    in_both = {product.rows for product in _products(operators, common_type)}
    by_row: dict[bytes, list[_Product]] = {}
    for product in _products(narrow, common_type):
        if product.rows not in in_both:
            for row in dict.fromkeys(product.rows):
                by_row.setdefault(row, []).append(product)
    wide: dict[int, list[NarrowPart]] = {}
    own_rows = {row for product in _products(operators, common_type) for row in product.rows} if by_row else set()
    others = [each for each in _products(narrow, common_type) if by_row and own_rows.isdisjoint(each.rows)]
    for product in _products(operators, common_type) if by_row else ():
        parts = _parts_of(product, by_row, others)
        if len(parts) > 1 or (may_reorder and parts and len(parts[0]) > 1):
            weight = product.weight.index, product.axis
            wide[product.operator.position] = [NarrowPart(part, len(product.rows), *weight) for part in parts]
    return wide


def _parts_of(
    product: _Product, by_row: Mapping[bytes, Sequence[_Product]], others: Sequence[_Product]
) -> list[tuple[slice, ...]]:
    """Return the outputs of a wide product that are those of each narrow product; none unless they cover all outputs.

    More than half of the rows of a narrow weight have to be rows of the wide weight, since some may be wrong. A weight
    of which all rows are wrong, such as a stale one, is the part that is left over.

    others: narrow products none of whose rows is a row of a wide weight
    """
    indices: dict[bytes, list[int]] = {}
    for index in range(len(product.rows) - 1, -1, -1):
        indices.setdefault(product.rows[index], []).append(index)
    narrow = {id(of_row): of_row for row in product.rows for of_row in by_row.get(row, ())}
    covered: set[int] = set()
    numbers_of: list[list[int]] = []
    for of_part in sorted(narrow.values(), key=lambda each: (-len(each.rows), each.operator.position)):
        numbers = _numbers_of(of_part.rows, indices, len(product.rows), covered)
        if numbers is not None:
            covered.update(numbers)
            numbers_of.append(numbers)
    left_over = sorted({*range(len(product.rows))} - covered)
    if left_over and numbers_of and _is_left_over(left_over, product, [*narrow.values()], others):
        numbers_of.append(left_over)
    elif left_over:
        return []
    if all(map(_are_blocks, numbers_of)):
        return sorted(map(_ranges, numbers_of), key=lambda part: part[0].start)
    # Rows were moved by mistake: the comparison of one weight after the other shows it.
    ends = [*accumulate(len(numbers) for numbers in sorted(numbers_of, key=median))]
    return [(slice(begin, end),) for begin, end in zip([0, *ends], ends)]


def _is_left_over(
    numbers: Sequence[int], product: _Product, neighbours: Sequence[_Product], others: Sequence[_Product]
) -> bool:
    """Return True if one other product in the parent module of the narrow products has as many rows as are left over.

    numbers: the rows of the wide weight that no narrow weight has
    """
    parents = {_parent_of(neighbour.operator) for neighbour in neighbours}
    beside = [other for other in others if _parent_of(other.operator) in parents and len(other.rows) == len(numbers)]
    is_block = numbers[-1] - numbers[0] + 1 == len(numbers)
    return is_block and len(beside) == 1 and beside[0].width == product.width


def _parent_of(operator: Operator) -> str:
    return (operator.module or "").rpartition(".")[0]


def _numbers_of(
    rows: Sequence[bytes], indices: Mapping[bytes, Sequence[int]], count: int, covered: Set[int]
) -> Optional[list[int]]:
    """Return the index in the wide weight of each row of a narrow one; None if it is not a part of the wide one.

    A row that the wide weight lacks is expected behind the row before it.

    indices  by row: its indices in the wide weight, the last one first
    count    the number of rows of the wide weight
    covered  indices of rows of other narrow weights
    """
    remaining: dict[bytes, list[int]] = {}
    numbers: list[Optional[int]] = []
    for row in rows:
        of_row = remaining.setdefault(row, [index for index in indices.get(row, ()) if index not in covered])
        numbers.append(of_row.pop() if of_row else None)
    known = [(offset, number) for offset, number in enumerate(numbers) if number is not None]
    if 2 * len(known) <= len(rows):
        return None
    first_offset, first = known[0]
    result = [first - first_offset + offset for offset in range(first_offset)]
    for number in numbers[first_offset:]:
        result.append(result[-1] + 1 if number is None and result else first if number is None else number)
    is_valid = len({*result}) == len(rows) and min(result) >= 0 and max(result) < count and covered.isdisjoint(result)
    return result if is_valid else None


def _are_blocks(numbers: Sequence[int]) -> bool:
    """Return True if the order of rows may be that of a layout, such as one by heads: blocks of one size are moved.

    The order jumps at most of the boundaries between the blocks. Rows that were moved by mistake jump once.

    >>> _are_blocks([0, 1, 4, 5]), _are_blocks([0, 2, 1, 3]), _are_blocks([3, 0, 1, 2, 4, 5])
    (True, True, False)
    """
    jumps = [index for index in range(1, len(numbers)) if numbers[index] != numbers[index - 1] + 1]
    size = math.gcd(len(numbers), *jumps)
    return 2 * len(jumps) >= len(numbers) // size - 1


def _ranges(numbers: Sequence[int]) -> tuple[slice, ...]:
    """Return the ranges of consecutive numbers.

    >>> _ranges([4, 5, 9])
    (slice(4, 6, None), slice(9, 10, None))
    """
    begins = [index for index, number in enumerate(numbers) if index == 0 or number != numbers[index - 1] + 1]
    ends = [*begins[1:], len(numbers)]
    return tuple(slice(numbers[begin], numbers[end - 1] + 1) for begin, end in zip(begins, ends))


class _Weight(NamedTuple):
    """The weight of a product. axis: the axis of the recorded weight that belongs to the outputs"""

    operator: Operator
    weight: Record
    axis: int


def _products(operators: Sequence[Operator], common_type: str) -> Iterable[_Product]:
    for operator, record, axis in _of_weights(operators):
        rows = _row_hashes(record, axis, common_type)
        if rows:
            yield _Product(operator, record, rows, axis)


def _of_weights(operators: Sequence[Operator]) -> Iterable[_Weight]:
    """Yield the first weight of each product."""
    written = _written_storages(operators)
    for operator in operators:
        if operator_class(operator.op_type) not in _PRODUCTS or not operator.outputs:
            continue
        count = (operator.outputs[0].shape or (0,))[-1]
        for record in operator.inputs:
            shape = record.shape or ()
            if len(shape) == 2 and count in shape and _is_weight(record, written):
                yield _Weight(
                    operator, record, 1 if shape[1] == count and operator_class(operator.op_type) != "linear" else 0
                )
                break


def _written_storages(operators: Sequence[Operator]) -> set[int]:
    """Return the storages that operators write to without reading them, so that views of weights are not included."""
    written: set[int] = set()
    for operator in operators:
        read = {record.attrs.get("storage") for record in operator.inputs}
        written.update(
            storage
            for record in operator.outputs
            if (storage := record.attrs.get("storage", -1)) is not None and storage not in read
        )
    return written


def _is_weight(record: Record, written: set[int]) -> bool:
    storage = record.attrs.get("storage", -1)
    return bool(record.shape) and storage is not None and storage >= 0 and storage not in written


def _row_hashes(record: Record, axis: int, common_type: str) -> tuple[bytes, ...]:
    import numpy as np
    import xxhash

    array = _array(record, common_type)
    if array is None:
        return ()
    rows = np.ascontiguousarray(array if axis == 0 else array.T)
    return tuple(xxhash.xxh3_64_digest(row.view(np.uint8).data) for row in rows)


def _content(record: Record, common_type: str) -> Optional[Hashable]:
    """Return a key of the values of a weight; None if they are unknown."""
    if not common_type:
        return record.content[0] if record.content else None
    array = _array(record, common_type)
    return None if array is None else (array.shape, array.tobytes())


def _array(record: Record, common_type: str) -> Optional[np.ndarray]:
    """Return a weight, in the common type of both sides if it is given; None if it cannot be read."""
    import ml_dtypes
    import numpy as np

    try:
        array: np.ndarray = record.numpy()
    except AscendDumpError:
        return None
    if common_type and common_type != record.dtype and _unit(record.dtype or ""):
        return array.astype(np.dtype(getattr(ml_dtypes, common_type, common_type)))
    return array

"""Find the calls of a model in the steps of a dump, and the token ids that each call reads."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "INTEGERS",
    "NO_TOKEN",
    "REJECTED",
    "ModelCall",
    "Token",
    "calls_of_step",
    "embedding_tables",
    "has_slots_first",
    "table_of_ids",
]

#: Number of a sequence, and index of the token in the sequence, from 0.
Token = tuple[int, int]
#: A slot without a token of a request: padding.
NO_TOKEN: Token = (-1, -1)
#: A slot of a token that a draft model proposed and the model rejected, or of padding behind the tokens of a request.
REJECTED: Token = (-2, -2)
#: Types of ids.
INTEGERS = ("int32", "int64")
#: Operators that look up rows of any table, not only of embeddings.
_INDEXING = frozenset({"index", "index_select"})


@dataclass
class ModelCall:
    """One run of the model. A slot is a place for a token in a row of its input.

    operators   the operators of the call, in execution order
    ids         ids of the tokens: [rows, slots]
    ids_record  the record of the ids
    slots       [row][slot]: the token of each slot
    keys        [row][key]: the tokens whose keys a cache holds after the call, in the order of the cache
    integers    the integer records before and in the first layer, by their names; None until they are needed
    slots_first  True if the program has its ids and positions as [slots, rows]
    counted      number of slots of padding before requests that its positions count as tokens
    """

    operators: list[Operator]
    ids: np.ndarray
    ids_record: Record
    slots: list[list[Token]] = field(default_factory=list)
    keys: list[list[Token]] = field(default_factory=list)
    integers: Optional[dict[Hashable, Record]] = None
    slots_first: bool = False
    counted: int = 0

    @property
    def rows(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return int(self.ids.shape[1])

    def in_rows(self, array: np.ndarray) -> np.ndarray:
        """Return integers of the slots or keys of this call with the axis of rows first, as `ids` has it."""
        is_turned = self.slots_first and array.shape[:2] != self.ids.shape
        if is_turned and array.size == self.ids.size:
            array = array.reshape(self.width, self.rows).T
        elif is_turned and array.ndim == 2 and array.shape[1] == self.rows:
            array = array.T
        return array


def calls_of_step(operators: Sequence[Operator], table: frozenset[Hashable] = frozenset()) -> Iterator[ModelCall]:
    """Yield the calls of a step, without its backward pass.

    A call begins with the operators that make its ids, positions and other integers, and look up the embeddings of the
    ids. The first call also has all operators before. Operators of other models, such as a model that drafts tokens,
    are left out.

    table: what `table_of_ids` returns, if the program has no operators for embeddings but indexes a table
    """
    operators = _of_captured_model(operators)
    lookups: list[tuple[int, Operator, Record]] = []
    end = _end_of_forward(operators)
    for number, operator in enumerate(operators[:end]):
        ids = _embedded_ids(operator)
        if ids is None and table & (names := _names_of_table(operator)):
            ids, table = _indexing_ids(operator), table | names
        if ids is not None:
            lookups.append((number, operator, ids))
    model = _model_of(lookups)
    of_model = [(number, ids) for number, operator, ids in lookups if _key_of(operator) == model]
    computed = _computed_from([number for number, _ in of_model], operators[:end])
    begins = [(_begin_of_inputs(operators, number, computed), ids) for number, ids in of_model]
    for index, (begin, ids) in enumerate(begins):
        start = 0 if index == 0 else begin
        stop = begins[index + 1][0] if index + 1 < len(begins) else end
        try:
            array = ids.numpy().astype("int64")
        except AscendDumpError:
            continue
        if not array.size:
            continue
        rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
        yield ModelCall(list(operators[start:stop]), rows, ids)


def _model_of(lookups: Sequence[tuple[int, Operator, Record]]) -> Optional[Hashable]:
    """Return the key of the lookups of the model's ids: that of the first lookup, or of the decoder behind an encoder.

    A decoder looks other ids up in the table of the encoder, in a module of its own.
    """
    if not lookups:
        return None
    _, first, ids = lookups[0]
    decoders = [
        _key_of(operator)
        for _, operator, other in lookups
        if operator.module != first.module
        and first.inputs[0].content == operator.inputs[0].content is not None
        and ids.content != other.content
    ]
    return decoders[-1] if decoders else _key_of(first)


def _key_of(lookup: Operator) -> Hashable:
    return lookup.module, lookup.op_type, lookup.inputs[0].shape


def _computed_from(lookups: Sequence[int], operators: Sequence[Operator]) -> set[int]:
    """Return the positions of the operators that compute with floats that lookups of ids return."""
    positions: set[int] = set()
    storages: set[int] = set()
    first = set(lookups)
    for number, operator in enumerate(operators):
        read = {of_input[0] for record in operator.inputs if _is_float(record) and (of_input := storage_of(record))}
        if number in first or read & storages:
            positions.add(number)
            made = (of_output for record in operator.outputs if (of_output := storage_of(record)))
            storages.update(storage for storage, _ in made)
    return positions


def _begin_of_inputs(operators: Sequence[Operator], lookup: int, computed: Container[int]) -> int:
    """Return the position of the first operator that makes inputs of a call, outside of modules, right before a lookup.

    computed: the positions of the operators that compute with results of lookups. They belong to the call before, while
    other operators with floats may make inputs, such as angles
    """
    begin = lookup
    while begin and not operators[begin - 1].module:
        makes_floats = any(map(_is_float, operators[begin - 1].records))
        if begin - 1 in computed or (makes_floats and not _has_storages(operators[begin - 1])):
            break
        begin -= 1
    return begin


def _has_storages(operator: Operator) -> bool:
    return all(storage_of(record) is not None for record in operator.records)


def has_slots_first(calls: Sequence[ModelCall]) -> bool:
    """Return True if most tensors of a program have the axis of slots before that of rows, as in Megatron.

    A view that joins both axes then has all rows of the first slot, then those of the next. It looks like a view of
    the other order, so that only the other tensors tell the order.
    """
    count = 0
    for call in calls:
        if min(call.rows, call.width) == 1 or call.rows == call.width:
            continue
        rows_first, slots_first = (call.rows, call.width), (call.width, call.rows)
        for operator in call.operators:
            for record in operator.outputs:
                shape = record.shape or ()
                if len(shape) == 3 and _is_float(record):
                    count += (shape[:2] == slots_first) - (shape[:2] == rows_first)
    return count > 0


def _is_float(record: Record) -> bool:
    return float_kind(record.dtype or "") is not None


def embedding_tables(calls: Sequence[ModelCall]) -> list[Record]:
    """Return the tables of embeddings that the calls read, or index."""
    return [
        op.inputs[0]
        for call in calls
        for op in call.operators
        if any(ids is call.ids_record for ids in (_embedded_ids(op), _indexing_ids(op)))
    ]


def table_of_ids(steps: Sequence[Sequence[Operator]], tables: Sequence[Record], *, guess: bool) -> frozenset[Hashable]:
    """Return what names the table that a program without operators for embeddings indexes with ids of tokens.

    Empty if there is no such table.

    tables  the embeddings of the other side: a table with the content of one is taken first, else one of the same
            shape, such as a table in a narrower type
    guess   True to take else the first parameter that is indexed with integers that do not just count up
    """
    contents = {content for table in tables if (content := table.content) is not None}
    shapes = {table.shape for table in tables}
    of_shape = guessed = frozenset[Hashable]()
    for operator in (operator for step in steps for operator in step[: _end_of_forward(step)]):
        ids = _indexing_ids(operator)
        if ids is None:
            continue
        table = operator.inputs[0]
        if table.content is not None and table.content in contents:
            return _names_of_table(operator)
        if not of_shape and table.shape in shapes and not _count_up(ids):
            of_shape = _names_of_table(operator)
        if guess and not guessed and table.parameter is not None and not _count_up(ids):
            guessed = _names_of_table(operator)
    return of_shape or guessed


def _end_of_forward(operators: Sequence[Operator]) -> int:
    return next((n for n, operator in enumerate(operators) if operator.phase == "backward"), len(operators))


def _indexing_ids(operator: Operator) -> Optional[Record]:
    """Return the integers with which an operator reads whole rows of a table of floats; None for other operators."""
    if operator_class(operator.op_type) not in _INDEXING or len(operator.inputs) != 2 or len(operator.outputs) != 1:
        return None
    table, ids = operator.inputs
    shape, rows = table.shape or (), ids.shape or ()
    reads_rows = len(shape) == 2 and bool(rows) and operator.outputs[0].shape == (*rows, shape[1])
    return ids if reads_rows and ids.dtype in INTEGERS and _is_float(table) else None


def _names_of_table(operator: Operator) -> frozenset[Hashable]:
    """Return the name of the parameter that an operator reads first, and its content, as far as they are known.

    In each step, only the first record of a parameter has its name.
    """
    names = (name for table in operator.inputs[:1] for name in (table.parameter, table.content))
    return frozenset(name for name in names if name is not None)


def _count_up(ids: Record) -> bool:
    """Return True if integers may be positions: each is one more than the one before, or 0. A single one may be too."""
    try:
        flat = ids.numpy().reshape(-1).astype("int64")
    except AscendDumpError:
        return True
    return bool(((flat[1:] == flat[:-1] + 1) | (flat[1:] == 0)).all())


def _of_captured_model(operators: Sequence[Operator]) -> Sequence[Operator]:
    """Return the operators without all operators of other models that look up ids.

    Module paths of other models begin with the name of a class, in capitals.
    """
    roots = {operator.module.partition(".")[0] for operator in operators if operator.module and _embedded_ids(operator)}
    others = {root for root in roots if root[:1].isupper()}
    if not others or others == roots:
        return operators
    return [operator for operator in operators if operator.module.partition(".")[0] not in others]


def _embedded_ids(operator: Operator) -> Optional[Record]:
    """Return the ids that an operator looks up in a table; None for other operators."""
    if operator_class(operator.op_type) not in ("embedding", "Embedding", "GatherV2", "aclnnEmbedding"):
        return None
    ids = [record for record in operator.inputs if record.dtype in INTEGERS and record.shape]
    return ids[0] if len(ids) == 1 and len(operator.inputs) == 2 and len(operator.inputs[0].shape or ()) == 2 else None

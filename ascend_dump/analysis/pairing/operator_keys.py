"""The keys by which operators of two runs of one framework are paired, and the evidence that equal keys are."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import Callable, Optional

from ascend_dump.analysis.numerics.device_formats import shape_in_model
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.arguments import arguments_of, in_any_order
from ascend_dump.analysis.operators.names import is_source
from ascend_dump.analysis.operators.next_request import is_of_module, is_update
from ascend_dump.analysis.operators.operator import Operator, module_of, storage_of
from ascend_dump.analysis.operators.properties import operator_class, writes
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.dump_format import Placement
from ascend_dump.reading import Record

__all__ = [
    "KEYS_ANYWHERE",
    "KEYS_IN_GRAPHS",
    "KEYS_OF_PARTS",
    "KEYS_OF_UPDATES",
    "Key",
    "call_site",
    "called_as_often",
    "contents_of",
    "is_same",
    "keys_in_gaps",
    "keys_of_placements",
    "keys_of_viewed_parameters",
    "kind_of",
    "name_of_module",
    "place_of_call",
]

#: Returns the key of an operator; None if it has none.
Key = Callable[[Operator], Optional[Hashable]]
_CONVOLUTIONS = frozenset({"convolution", "_convolution", "convolution_backward"})


def called_as_often(*sides: Sequence[Operator]) -> tuple[list[Operator], list[Operator]]:
    """Return the calls of modules that both programs call equally often, and the updates of parameters, of both sides.

    Names number the calls of a module. If one program makes a call less, the numbers of later calls are moved.
    """
    calls = [[operator for operator in side if name_of_module(operator) is not None] for side in sides]
    here, there = (Counter(map(_pass_of_module, side)) for side in calls)
    actual, reference = (
        [call for call in side if _is_update(call) or here[_pass_of_module(call)] == there[_pass_of_module(call)]]
        for side in calls
    )
    return actual, reference


def _pass_of_module(call: Operator) -> Hashable:
    return call.module_path, call.op_name.rpartition("/")[2].partition("_")[0]


def keys_in_gaps(*sides: Sequence[Operator]) -> Sequence[tuple[Key, str, float]]:
    """Return the keys for gaps. Module calls of other names are paired in one module of both programs only.

    Layers are alike, so a call in one layer would be paired with a call in the next layer.
    """
    calls = [{operator.module_path for operator in side if name_of_module(operator)} for side in sides]
    paths = calls[0] & calls[1]
    if not paths:
        return _KEYS_IN_GAPS

    def within(key: Key) -> Key:
        return lambda operator: (key(operator), _module_around(operator, paths), _all_shapes(operator))

    return [(within(key) if how == "order" else key, how, confidence) for key, how, confidence in _KEYS_IN_GAPS]


def _module_around(operator: Operator, paths: Collection[str]) -> str:
    """Return the innermost of some module paths around the module of an operator; "" if there is none."""
    path = operator.module_path.rpartition(".")[0]
    while path and path not in paths:
        path = path.rpartition(".")[0]
    return path


def _all_shapes(operator: Operator) -> Hashable:
    return tuple([_sorted(record.shape) for record in operator.records])


def keys_of_placements(*sides: Sequence[Operator]) -> Sequence[tuple[Key, str, float]]:
    """Return the key by shapes of whole tensors, if exactly one of two sides records the placement of parts."""
    placed = [{id(operator) for operator in side if any(map(_whole_shape, operator.records))} for side in sides]
    if bool(placed[0]) == bool(placed[1]):
        return ()
    divided = {id(operator) for side, of_side in zip(sides, placed) if of_side for operator in side}
    known = placed[0] | placed[1]

    def key(operator: Operator) -> Hashable:
        if id(operator) in divided and id(operator) not in known:
            return id(operator)
        return place_of_call(operator), tuple([_whole_shape(record) or record.shape for record in operator.records])

    return ((key, "place", 0.9),)


def keys_of_viewed_parameters(*sides: Sequence[Operator]) -> Sequence[tuple[Key, str, float]]:
    """Return the key of operators that write by a view of a parameter, such as those of averages of weights.

    A view has no name itself. Memory with several parameters gives none.
    """
    parameter_of: dict[int, str] = {}
    for operators in sides:
        names: dict[int, set[str]] = {}
        for record in (record for operator in operators for record in operator.records if record.parameter):
            names.setdefault((storage_of(record) or (-1,))[0], set()).add(record.parameter or "")
        for operator in operators:
            if operator.module or operator.phase != "other" or not writes(operator.op_type):
                continue
            memory = [names.get((storage_of(record) or (-1,))[0], set()) for record in operator.inputs]
            viewed = [name for names_there in memory if len(names_there) == 1 for name in names_there]
            if len(viewed) == 1 and not any(record.parameter for record in operator.records):
                parameter_of[id(operator)] = viewed[0]

    def key(operator: Operator) -> Optional[Hashable]:
        name = parameter_of.get(id(operator), "")
        is_weight = name and " of " not in name and not name.endswith(".grad")
        return (_place_and_line(operator), name, _shapes(operator)) if is_weight else None

    return ((key, "parameter", 0.9),)


def _whole_shape(record: Record) -> Optional[tuple[int, ...]]:
    placement = Placement.of(record.attrs)
    return None if placement is None else placement.shape


def contents_of(operator: Operator) -> Optional[Hashable]:
    """Return class, module and bytes of all inputs and outputs; None without outputs, or if a hash is missing."""
    inputs, outputs = ([record.content for record in side] for side in (operator.inputs, operator.outputs))
    if not outputs or None in inputs or None in outputs:
        return None
    return (_class(operator), operator.module_path, in_any_order(operator, inputs), tuple(outputs))


def is_same(actual: Operator, reference: Operator) -> bool:
    """Return True if name, module and bytes are the same. Missing values must be missing for the same reason."""
    names = [(x.op_type, x.op_name, x.phase, x.module, len(x.inputs), len(x.broken)) for x in (actual, reference)]
    records_a, records_b = ((*x.inputs, *x.outputs) for x in (actual, reference))
    return (
        names[0] == names[1]
        and not actual.broken
        and len(records_a) == len(records_b)
        and all(a.io == b.io and a.index == b.index and _has_same_value(a, b) for a, b in zip(records_a, records_b))
    )


def _has_same_value(a: Record, b: Record) -> bool:
    content = a.content
    if content is not None:
        return content == b.content
    same = (a.dtype, a.shape, a.attrs.get("skipped")) == (b.dtype, b.shape, b.attrs.get("skipped"))
    return same and b.content is None and is_no_value(a) and is_no_value(b)


def _class(operator: Operator) -> Hashable:
    """Return the class of an operator, with the kernel's name for a kernel, so that it differs from its API call.

    A transposed convolution is another operator than a convolution.
    """
    name = operator_class(operator.op_type)
    if name in _CONVOLUTIONS:
        arguments = arguments_of(operator)
        if arguments is not None and arguments.values.get("transposed"):
            name += " transposed"
    return name if operator.kernel is None else (name, operator.kernel)


@functools.lru_cache(maxsize=4096)
def _sorted(shape: Optional[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(shape or ()))


def _shapes(operator: Operator) -> Hashable:
    """Return the shapes of the outputs, with sorted axes; of the inputs if there are no outputs."""
    records = operator.outputs or operator.inputs
    return tuple([_sorted(shape_in_model(record)) for record in records])


def call_site(operator: Operator) -> Optional[Hashable]:
    return (_class(operator), operator.module_path, operator.phase, _shapes(operator))


def _update(operator: Operator) -> Optional[Hashable]:
    """Return the class, the phase and the names of optimizer tensors that an operator uses; None if it uses none."""
    names = tuple([record.parameter for record in (*operator.inputs, *operator.outputs)])
    return (_class(operator), operator.phase, names) if any(names) else None


def kind_of(operator: Operator) -> Hashable:
    return (_class(operator), operator.phase, _shapes(operator))


def place_of_call(operator: Operator) -> Hashable:
    """Return class, module and phase, and True if the result is integers, such as positions instead of values."""
    records = operator.outputs or operator.inputs
    makes_integers = bool(records) and (records[0].dtype or "").startswith("int")
    return (_class(operator), operator.module_path, operator.phase, makes_integers)


def _place_and_line(operator: Operator) -> Hashable:
    """Return the call with its line of the program, since several ranks may run calls that one rank does not need."""
    record = next(operator.records, None)
    return place_of_call(operator), None if record is None else record.source


def _call_and_axes(operator: Operator) -> Hashable:
    """Return the call with the numbers of axes of its tensors, for operators that may have other shapes on a side.

    An update in place has the shape of what it updates, which is the same tensor on both sides.
    """
    if operator.op_type.endswith("_"):
        return (place_of_call(operator), _all_shapes(operator))
    axes = [None if record.shape is None else len(record.shape) for record in (*operator.inputs, *operator.outputs)]
    return (place_of_call(operator), tuple(axes))


def _effect(operator: Operator) -> Hashable:
    """Return the phase, what the operator does, for each output True if it has floats, and the shapes.

    So operators that compute, views and copies, and constants are paired among themselves only; nor are flags paired
    with numbers.
    """
    are_floats = tuple([float_kind(record.dtype or "") is not None for record in operator.outputs])
    return (operator.phase, computes(operator), is_source(operator.op_type), are_floats, _shapes(operator))


def _name(operator: Operator) -> Optional[Hashable]:
    return (operator.op_name, call_site(operator)) if _is_named(operator) and not _is_update(operator) else None


def name_of_module(operator: Operator) -> Optional[Hashable]:
    """Return the name of a module call, without the levels of wrappers.

    Its tensors may differ: a module may get no gradient in one program. Its class may differ: it may be replaced.
    """
    record = next(operator.records, None)
    if record is None or not is_of_module(record):
        return None
    if is_update(record):
        return _update_of_parameter(operator)
    return operator.module_path, operator.op_name.rpartition("/")[2]


def _update_of_parameter(operator: Operator) -> Optional[Hashable]:
    """Return the name of the parameter that an optimizer updates, without the levels of wrappers."""
    name = next((record.parameter for record in operator.records if record.parameter), None)
    return None if name is None else ("update", module_of(name))


def _name_and_contents(operator: Operator) -> Optional[Hashable]:
    contents = contents_of(operator)
    return (operator.op_name, contents) if _is_named(operator) and contents is not None else None


def _is_update(operator: Operator) -> bool:
    record = next(operator.records, None)
    return record is not None and is_update(record)


def _is_named(operator: Operator) -> bool:
    """Return True if the name identifies the operator. Names of API calls and kernels on an NPU only number calls."""
    return bool(operator.op_name) and operator.kernel is None and not operator.op_type.startswith("aclnn")


KEYS_ANYWHERE: Sequence[tuple[Key, str, float]] = ((contents_of, "content", 0.9),)
#: Operators of a graph have unique names, and branches run in any order. Eager operators are numbered in execution
#: order, so that an additional operator renames all later ones.
KEYS_IN_GRAPHS: Sequence[tuple[Key, str, float]] = (
    (_name_and_contents, "content", 1.0),
    (contents_of, "content", 0.95),
    (_name, "name", 0.9),
)
#: Parameters are updated in any order.
KEYS_OF_UPDATES: Sequence[tuple[Key, str, float]] = ((_update, "parameter", 0.95),)
_KEYS_IN_GAPS: Sequence[tuple[Key, str, float]] = (
    (call_site, "place", 0.9),
    (kind_of, "order", 0.7),
    (_call_and_axes, "place", 0.6),
    (_effect, "order", 0.5),
)
KEYS_OF_PARTS: Sequence[tuple[Key, str, float]] = (
    (_place_and_line, "place", 0.9),
    (place_of_call, "place", 0.9),
    (lambda operator: (_class(operator), operator.phase), "order", 0.7),
)

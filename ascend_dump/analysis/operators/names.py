"""Names of operations in each framework, from the files `operators.json` and `aclnn.json`.

`aclnn.json` was made from the sources of op-plugin, of the version named in that file. It lists for each operator of
`op_plugin_functions.yaml` the APIs that the C++ function of the same name calls by `EXEC_NPU_CMD`, directly or through
helper functions of the same source file.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Optional

import msgspec

from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.statistics.nonfinite.masks import plain_name

__all__ = [
    "api_names",
    "aten_names",
    "continues",
    "element_rule",
    "is_source",
    "is_view",
    "may_enlarge_errors",
    "moves_elements",
    "name_in_rules",
    "operation",
    "reports_no_outputs",
    "without_counterpart",
    "written_as",
]

_VERSION = re.compile(r"V\d+$")


class _Names(msgspec.Struct, forbid_unknown_fields=True):
    """The file `operators.json`.

    views       operations that return the elements of their input in another shape, order, type or memory
    moves       further operations that compute nothing: each output element is an element of an input, or a constant
    sources     operations that bring data into a program and compute nothing
    elements    for each rule of `element_rule`: the operations that it holds for
    continues   for an operator: the operators that other frameworks fuse with it if it directly follows them
    same        for an operation: its names in all frameworks
    """

    about: str
    views: frozenset[str]
    moves: frozenset[str]
    sources: frozenset[str]
    elements: dict[str, frozenset[str]]
    continues: dict[str, frozenset[str]]
    same: dict[str, frozenset[str]]


@functools.lru_cache(maxsize=1)
def _names() -> _Names:
    return msgspec.json.decode((Path(__file__).parent / "operators.json").read_bytes(), type=_Names)


@functools.lru_cache(maxsize=1)
def _operations() -> dict[str, str]:
    return {name: operation for operation, names in _names().same.items() for name in names}


class _Callers(msgspec.Struct, forbid_unknown_fields=True):
    """The file `aclnn.json`.

    called_by        for an API on an NPU: the ATen operators that call it, the most likely first, separated by spaces
    written_as       for an API: the other API that it calls, under whose name a dump records the call
    without_outputs  APIs whose outputs are recorded among their inputs
    """

    about: str
    called_by: dict[str, str]
    written_as: dict[str, str]
    without_outputs: frozenset[str]


@functools.lru_cache(maxsize=1)
def _table() -> _Callers:
    return msgspec.json.decode((Path(__file__).parent / "aclnn.json").read_bytes(), type=_Callers)


@functools.lru_cache(maxsize=1)
def _callers() -> dict[str, str]:
    """Return the ATen operators that call an API, by the name under which a dump records the API."""
    table = _table()
    callers = dict(table.called_by)
    for api, written in table.written_as.items():
        callers[written] = " ".join(filter(None, (callers.get(written), table.called_by.get(api))))
    return callers


@functools.lru_cache(maxsize=4096)
def name_in_rules(op_type: str) -> str:
    """Return the name by which rules of masks and constants know an operator; for an API, from its ATen operator."""
    names = aten_names(op_type) if op_type.startswith("aclnn") else ()
    return plain_name(names[0] if names else op_type)


def written_as(api: str) -> str:
    """Return the name under which a dump records a call of an API: `aclnnAdd` for `aclnnInplaceAdd`."""
    return _table().written_as.get(api, api)


def aten_names(api: str) -> tuple[str, ...]:
    """Return the ATen operators that call an API on an NPU, the most likely first; () if none is known.

    Versions of a listed API are accepted: `aclnnRmsNormV9` has the callers of `aclnnRmsNorm`. Names that begin with
    `npu_` are operators of torch_npu. A dump records a generated API without the prefix `aclnn`: `ForeachAddScalar`.
    """
    callers = _callers()
    spellings = (api, _VERSION.sub("", api), f"aclnn{api}")
    return tuple(next((callers[name] for name in spellings if name in callers), "").split())


def reports_no_outputs(api: str) -> bool:
    """Return True for an API whose outputs are recorded among its inputs: a dump has no output files of its calls."""
    return api in _table().without_outputs


@functools.lru_cache(maxsize=1)
def _called() -> dict[str, list[tuple[int, str]]]:
    called: dict[str, list[tuple[int, str]]] = {}
    for api, names in _table().called_by.items():
        for position, name in enumerate(names.split()):
            called.setdefault(name, []).append((position, api))
    return called


def api_names(aten: str) -> tuple[str, ...]:
    """Return the APIs that an ATen operator most likely calls on an NPU; () if none is known."""
    called = _called().get(aten, [])
    likeliest = min((position for position, _ in called), default=0)
    return tuple(api for position, api in called if position == likeliest)


def without_counterpart(op_type: str) -> str:
    """Return why an operator of an NPU cannot run on a CPU or GPU, because it has no ATen operator; "" if it can."""
    names = aten_names(op_type)
    if not op_type.startswith("aclnn") or any(not name.lstrip("_").startswith("npu_") for name in names):
        return ""
    if names:
        return f"op-plugin calls it for {names[0]}, which is no operator of ATen"
    return "no operator of op-plugin is known to call it"


@functools.lru_cache(maxsize=4096)
def operation(op_type: str) -> str:
    """Return our common name of an operation, which all frameworks share; the operator's own name if there is none."""
    operations = _operations()
    names = [operator_class(name) for name in (op_type, *aten_names(op_type))]
    # Without a common name, an API call gets the name of the ATen operator.
    return next((operations[name] for name in names if name in operations), names[1 if len(names) > 1 else 0])


@functools.lru_cache(maxsize=4096)
def is_view(op_type: str) -> bool:
    return operator_class(op_type) in _names().views


@functools.lru_cache(maxsize=4096)
def moves_elements(op_type: str) -> bool:
    """Return True for an operator that computes nothing, such as a view, a copy or a gather."""
    return is_view(op_type) or operation(op_type) in _names().moves


@functools.lru_cache(maxsize=4096)
def is_source(op_type: str) -> bool:
    return operator_class(op_type) in _names().sources


@functools.lru_cache(maxsize=4096)
def element_rule(op_type: str) -> Optional[str]:
    """Return how the error of an output element follows from the errors of the input elements at the same index.

    relative     the relative errors of the inputs add up
    exponential  the relative error of the output is the absolute error of the input
    growth       1 is subtracted from an exponential, so that a small input has a small output with the same error
    selection    the output has about the error of one input, and no rounding error of its own
    sum          the absolute errors add up, and the output is rounded relative to the inputs, which may be larger
    update       a product or quotient of the other inputs is added to the first input
    gradient     the first input is multiplied by a function of the other inputs without steep parts
    jump         any difference of an input may change the output completely
    None         the operator does not compute element by element, or its rule is not known
    """
    name = operation(op_type).removeprefix("_foreach_")
    return next((rule for rule, names in _names().elements.items() if name in names), None)


def may_enlarge_errors(op_type: str) -> bool:
    """Return True unless the error of an output element is known to be about as large as the errors of its inputs.

    Frameworks capitalise the names of functions such as GELU in different ways.
    """
    rule = element_rule(op_type) or element_rule(op_type.lower())
    return rule in (None, "jump") and not moves_elements(op_type)


def continues(op_type: str) -> frozenset[str]:
    """Return the operators with which other frameworks fuse an operator of this type if it directly follows them."""
    return _names().continues.get(operator_class(op_type), frozenset())

"""Reasons why an operator cannot be run again, and the operators that are refused by their name."""

from __future__ import annotations

import re

from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.dump_format import Arguments

__all__ = ["REASONS", "NotRun", "depends_on_type", "refuse_by_name"]

#: Codes of the reasons why an operator is not run again, and their meanings.
REASONS = {
    "arguments": "the dump does not record its arguments",
    "graph": "no text of torchair's graph names the node of PyTorch's graph that it was made for",
    "library": "it is no operator of PyTorch itself",
    "collective": "it needs the other processes",
    "random": "it draws random numbers, and the dump records only a hash of the generator's state",
    "uninitialised": "its outputs are uninitialised memory",
    "effects": "it changes a tensor's memory itself, or something outside of tensors",
    "outside": "it reads memory outside of its input",
    "outputs": "it returns no tensor, or none that is recorded with values",
    "inputs": "an input is not recorded with values",
    "unreadable": "an input cannot be read",
    "cut": "an argument was too long to be recorded",
    "type": "one of its tensors has a type or a layout that cannot be reproduced",
    "kernel": "PyTorch on this host cannot run it",
    "unchecked": "its kernel may not check its arguments, so it is run only from dumps that you trust",
    "size": "its outputs would take far more memory than its records",
}

_NAME = re.compile(r"(\w+)\.(\w+)\.(\w+)", re.ASCII)
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")
#: Operators with effects besides their results. The names have no trailing underscore, the mark of in-place operators.
_WITH_EFFECTS = frozenset(
    {
        *("set", "set_data", "resize", "resize_as", "resize_sparse", "resize_as_sparse", "swap", "requires_grad"),
        *("from_file", "record_stream", "rename", "retain_grad", "_print", "_local_scalar_dense", "_assert_async"),
        *("_resize_output", "_coalesced", "_version", "_backward", "_test_serialization_subcmul", "_backtrace"),
    }
)
#: Operators whose result has another meaning in a finer type, instead of only being more precise.
_OF_THEIR_TYPE = frozenset({"aten.view.dtype", "aten.nan_to_num", "aten.nan_to_num_", "aten.nextafter", "aten.frexp"})
_OUTSIDE = frozenset({"as_strided", "as_strided_copy", "as_strided_scatter", "_reshape_alias", "unsafe_chunk"})


class NotRun(Exception):
    """An operator cannot be run again. reason: a key of `REASONS`; the message is its meaning with details."""

    def __init__(self, reason: str, details: str = "") -> None:
        self.reason = reason
        super().__init__(f"{REASONS[reason]}{f': {details}' if details else ''}")


def refuse_by_name(call: Arguments) -> tuple[str, str]:
    """Return the name and the overload of an ATen operator. Raises NotRun for those that are never run again."""
    match = _NAME.fullmatch(call.operator)
    if match is None:
        raise NotRun("library", call.operator[:100])
    library, name, overload = match.groups()
    if library in _COLLECTIVES:
        raise NotRun("collective")
    if library != "aten" or name.startswith("__"):
        raise NotRun("library", call.operator[:100])
    if call.generator is not None:
        raise NotRun("random")
    kind = operator_class(f"aten::{name}")
    if kind in _WITH_EFFECTS:
        raise NotRun("effects")
    if kind in _OUTSIDE:
        raise NotRun("outside")
    return name, overload


def depends_on_type(call: Arguments) -> bool:
    """Return True if the result has another meaning in a finer type, instead of only being more precise."""
    return call.operator in _OF_THEIR_TYPE or call.operator.rpartition(".")[0] in _OF_THEIR_TYPE

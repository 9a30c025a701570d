"""Why an operator cannot be run again, and which ones cannot by what they are."""

from __future__ import annotations

import re

from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.dump_format import Arguments

__all__ = ["REASONS", "NotRun", "depends_on_type", "refuse_by_name"]

#: Why an operator is not run again, and what that means.
REASONS = {
    "arguments": "the dump does not say what it was called with",
    "graph": "no text of torchair's graph tells which node of PyTorch's graph it was made for",
    "library": "it is no operator of PyTorch itself",
    "collective": "it needs the other processes",
    "random": "it draws random numbers, and the dump holds a hash of the generator's state only",
    "uninitialised": "its outputs are memory that nobody has filled",
    "effects": "it changes a tensor's memory itself, or something outside of tensors",
    "outside": "it reads memory outside of the tensor it is given",
    "outputs": "it gives no tensor, or none that is recorded with values",
    "inputs": "an input is not recorded with values",
    "unreadable": "an input cannot be read",
    "cut": "an argument was too long to be kept",
    "type": "a tensor of it has a type or a layout that cannot be made again",
    "kernel": "PyTorch on this host cannot run it",
    "size": "its outputs would take far more memory than what is recorded",
}

_NAME = re.compile(r"(\w+)\.(\w+)\.(\w+)", re.ASCII)
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")
#: By their names without the mark of in-place forms.
_WITH_EFFECTS = frozenset(
    {
        *("set", "set_data", "resize", "resize_as", "resize_sparse", "resize_as_sparse", "swap", "requires_grad"),
        *("from_file", "record_stream", "rename", "retain_grad", "_print", "_local_scalar_dense", "_assert_async"),
        *("_resize_output", "_coalesced", "_version", "_backward", "_test_serialization_subcmul", "_backtrace"),
    }
)
#: What they give is another thing in another type.
_OF_THEIR_TYPE = frozenset({"aten.view.dtype", "aten.nan_to_num", "aten.nan_to_num_", "aten.nextafter", "aten.frexp"})
_OUTSIDE = frozenset({"as_strided", "as_strided_copy", "as_strided_scatter", "_reshape_alias", "unsafe_chunk"})


class NotRun(Exception):
    """An operator cannot be run again. reason: of `REASONS`; the message says more."""

    def __init__(self, reason: str, more: str = "") -> None:
        self.reason = reason
        super().__init__(f"{REASONS[reason]}{f': {more}' if more else ''}")


def refuse_by_name(call: Arguments) -> tuple[str, str]:
    """The name and the overload of an ATen operator. Raises NotRun for those that cannot be run again at all."""
    found = _NAME.fullmatch(call.operator)
    if found is None:
        raise NotRun("library", call.operator[:100])
    library, name, overload = found.groups()
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
    """Whether an operator gives something else in a finer type, not the same more precisely."""
    return call.operator in _OF_THEIR_TYPE or call.operator.rpartition(".")[0] in _OF_THEIR_TYPE

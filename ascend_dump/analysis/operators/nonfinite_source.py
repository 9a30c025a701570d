"""Say where NaN or Inf comes from if no recorded operator produced it from finite inputs.

It comes from a number in the program, a parameter, an input of the model, or an operator that is not recorded.
"""

from __future__ import annotations

import cmath
from typing import Any, NamedTuple

from ascend_dump.analysis.operators.names import name_in_rules
from ascend_dump.analysis.operators.nonfinite import CONSTANTS, NonFiniteOperator, is_nonfinite
from ascend_dump.dump_format import Cut, Named, TensorOf, plain_text
from ascend_dump.errors import ReadError
from ascend_dump.reading import Record
from ascend_dump.statistics.nonfinite.masks import FILLING

__all__ = ["GRAPH_INPUTS", "ProgramNumbers", "first_nonfinite_input", "source_of"]

#: Types of the operators that stand for parameters and constants, and for inputs, in graphs.
_PARAMETERS = ("parameter", "refdata", "variable", "variablev2", "varhandleop", "const", "constant")
GRAPH_INPUTS = ("data", "placeholder", "placeholderwithdefault", "iteratorgetnext", "getnext")

#: Characters of an argument that are shown.
_LONGEST = 80


class ProgramNumbers(NamedTuple):
    """The numbers that the program gave an operator, as far as arguments are recorded.

    alone   True if arguments are recorded, and none of them is or may contain an input tensor
    wrong   the arguments that are NaN or Inf, as in `fill_value=nan`; "" if there are none
    """

    alone: bool
    wrong: str

    @classmethod
    def of(cls, record: Record) -> ProgramNumbers:
        try:
            call = record.arguments
        except ReadError:
            call = None
        if call is None:
            return cls(False, "")
        tensors = any(map(_may_be_input, call.values.values()))
        wrong = [f"{name}={plain_text(value)[:_LONGEST]}" for name, value in call.values.items() if _is_wrong(value)]
        return cls(not tensors, ", ".join(wrong))

    @property
    def makes_it_itself(self) -> bool:
        return self.alone and not self.wrong


def _may_be_input(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_may_be_input, value))
    if isinstance(value, Named):
        return value.kind == "object"  # it may hold tensors
    return isinstance(value, TensorOf) and value.io == "input"


def _is_wrong(value: Any) -> bool:
    if isinstance(value, Cut):
        value = value.values
    if isinstance(value, list):
        return any(map(_is_wrong, value))
    return isinstance(value, (float, complex)) and not cmath.isfinite(value)


def first_nonfinite_input(nonfinite: NonFiniteOperator) -> Record:
    """Return the first input with NaN or Inf; `nonfinite.record` if no input has any."""
    pairs = zip(nonfinite.inputs, nonfinite.input_statistics)
    return next(
        (record for record, statistics in pairs if statistics is not None and is_nonfinite(statistics)),
        nonfinite.record,
    )


def source_of(nonfinite: NonFiniteOperator) -> str:
    """Return a sentence that says where the NaN or Inf of an operator comes from.

    This is for operators that, as far as the dump shows, did not produce NaN or Inf from finite inputs.
    """
    kind = nonfinite.record.op_type.lower()
    if kind in _PARAMETERS:
        noun = "constant" if kind.startswith("const") else "parameter"
        return f"the {noun} {nonfinite.record.op_name} has NaN or Inf"
    if kind in GRAPH_INPUTS:
        return f"the input {nonfinite.record.op_name} of the model has NaN or Inf"
    wrong = [
        f"input {record.index} ({record.dtype}{list(record.shape or ())})"
        for record, statistics in zip(nonfinite.inputs, nonfinite.input_statistics)
        if statistics is not None and is_nonfinite(statistics)
    ]
    name = nonfinite.record.op_name or nonfinite.record.path.name
    if name_in_rules(nonfinite.record.op_type) in CONSTANTS:
        return f"{name} is a constant of the program, as in torch.tensor(...)"
    arguments = ProgramNumbers.of(nonfinite.record)
    if arguments.alone and arguments.wrong:
        return f"{name} has no tensor inputs: the program gave it {arguments.wrong}"
    if wrong:
        return (
            f"{' and '.join(wrong)} of {name} had NaN or Inf before the recording began: an input, a parameter or a "
            "buffer of the model, or the result of an operator that is not recorded"
        )
    if name_in_rules(nonfinite.record.op_type) in FILLING and not nonfinite.inputs:
        return f"{name} fills in a number of the program"
    return (
        f"the inputs of {name} are not all recorded: it made the value itself, or got it from an operator before it. "
        "Dump with mode='all' to tell"
    )

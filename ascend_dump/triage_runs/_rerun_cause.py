"""Does the operator that made NaN or Inf compute wrongly, or was it given something wrong?"""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

from ascend_dump.analysis.operators.nonfinite import CONSTANTS, NonFiniteOperator, find_nonfinite
from ascend_dump.analysis.triage import Cause, Triage
from ascend_dump.common.units import counted
from ascend_dump.errors import AscendDumpError, ReadError
from ascend_dump.reading import Dump, Record
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite.masks import plain_name

__all__ = ["run_cause_again"]

#: Inputs whose values are told.
_MOST_INPUTS = 3


def run_cause_again(found: Triage, dump: Dump) -> Triage:
    """Run the cause again on this host, from its recorded inputs, and say what that shows.

    Unchanged where the dump has no tensors of it, or there is no PyTorch.
    """
    cause = found.cause
    if cause is None or found.next is not None:
        return found
    said = _said_of(cause, dump)
    if not said:
        return found
    cause = replace(cause, evidence=(*cause.evidence, said))
    return replace(found, cause=cause, advice=f"{said}; {found.advice}")


def _said_of(cause: Cause, dump: Dump) -> str:
    from ascend_dump.analysis.replay import replay

    records = [one for one in dump.select(step=cause.step, rank=cause.rank) if one.op_name == cause.op_name]
    try:
        again = replay(records)
    except AscendDumpError:
        return ""
    if again.pairs:
        begin = f"run again on this host from its recorded inputs, {cause.op_name} gives"
        if all(one.verdict in ("equal", "noise") for one in again.pairs):
            return f"{begin} the same: it computes rightly, and {_why_right(records)}"
        return f"{begin} something else: this operator computes wrongly"
    return f"{cause.op_name} cannot be run again: {again.refused[0].message}" if again.refused else ""


def _why_right(records: Sequence[Record]) -> str:
    """Where NaN or Inf comes from, of an operator that computes rightly."""
    finding = next(find_nonfinite(records), None)
    what = "NaN" if finding is None or finding.statistics.nan else "Inf"
    if finding is not None and plain_name(records[0].op_type) in CONSTANTS:
        return f"the program gave it {what} as a constant"
    constant = None if finding is not None and finding.kind == "carried" else _constant(records)
    if constant is not None:
        return f"the program gave it the constant {constant}"
    if finding is not None and finding.kind in ("origin", "nan-made"):
        return f"{what} is right for its inputs: find out why {_inputs(finding)}"
    return "its inputs were already wrong"


def _constant(records: Sequence[Record]) -> Optional[str]:
    """The argument that is NaN or Inf, such as `value=nan`; None where none is."""
    try:
        call = next((one.arguments for one in records if one.arguments is not None), None)
    except ReadError:
        return None
    given = {} if call is None else call.values
    return next((f"{name}={value}" for name, value in given.items() if _is_nonfinite(value)), None)


def _is_nonfinite(value: Any) -> bool:
    return isinstance(value, (float, complex)) and not cmath.isfinite(value)


def _inputs(finding: NonFiniteOperator) -> str:
    """What the values of the inputs are, as far as that explains the result: zeros, else how large they are."""
    given = [(one, found) for one, found in zip(finding.inputs, finding.input_statistics) if found is not None]
    with_zeros = [(one, found) for one, found in given if found.zero]
    told = [f"input {one.index} {_in_words(found)}" for one, found in (with_zeros or given)[:_MOST_INPUTS]]
    return ", and ".join(told)


def _in_words(found: Statistics) -> str:
    if found.zero:
        return f"has {counted(found.zero, 'zero')}"
    if found.posinf or found.neginf:
        return "has Inf"
    if found.min is None or found.max is None:
        return "has no values"
    return f"has values from {found.min:.3g} to {found.max:.3g}"

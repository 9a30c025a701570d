"""Run the operator that made NaN or Inf again: either it is wrong, or its inputs are."""

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

#: Inputs whose values are described.
_MOST_INPUTS = 3


def run_cause_again(triage: Triage, dump: Dump) -> Triage:
    """Run the cause again on this host, from its recorded inputs, and add the result to the evidence.

    Returns the triage unchanged if the dump lacks its tensors or PyTorch is not installed.
    """
    cause = triage.cause
    if cause is None or triage.next is not None:
        return triage
    sentence = _sentence_of(cause, dump)
    if not sentence:
        return triage
    cause = replace(cause, evidence=(*cause.evidence, sentence))
    return replace(triage, cause=cause, advice=f"{sentence}; {triage.advice}")


def _sentence_of(cause: Cause, dump: Dump) -> str:
    from ascend_dump.analysis.replay import replay

    records = [record for record in dump.select(step=cause.step, rank=cause.rank) if record.op_name == cause.op_name]
    try:
        again = replay(records)
    except AscendDumpError:
        return ""
    if again.pairs:
        begin = f"run again on this host from its recorded inputs, {cause.op_name} gives"
        if all(pair.verdict in ("equal", "noise") for pair in again.pairs):
            return f"{begin} the same: the operator is correct; {_why_right(records)}"
        return f"{begin} another result: this operator is wrong"
    return f"{cause.op_name} cannot be run again: {again.refused[0].message}" if again.refused else ""


def _why_right(records: Sequence[Record]) -> str:
    """Return the source of NaN or Inf of a correct operator."""
    finding = next(find_nonfinite(records), None)
    what = "NaN" if finding is None or finding.statistics.nan else "Inf"
    if finding is not None and plain_name(records[0].op_type) in CONSTANTS:
        return f"the program passes {what} as a constant"
    constant = None if finding is not None and finding.kind == "carried" else _constant(records)
    if constant is not None:
        return f"the program passes the constant {constant}"
    if finding is not None and finding.kind in ("origin", "nan-made"):
        return f"its inputs already lead to {what}: find out why {_inputs(finding)}"
    return "its inputs were already wrong"


def _constant(records: Sequence[Record]) -> Optional[str]:
    """Return the argument that is NaN or Inf, such as `value=nan`, or None."""
    try:
        call = next((record.arguments for record in records if record.arguments is not None), None)
    except ReadError:
        return None
    arguments = {} if call is None else call.values
    return next((f"{name}={value}" for name, value in arguments.items() if _is_nonfinite(value)), None)


def _is_nonfinite(value: Any) -> bool:
    return isinstance(value, (float, complex)) and not cmath.isfinite(value)


def _inputs(finding: NonFiniteOperator) -> str:
    """Describe the inputs as far as they explain the result: their zeros, else their ranges."""
    pairs = zip(finding.inputs, finding.input_statistics)
    measured = [(record.index, statistics) for record, statistics in pairs if statistics is not None]
    with_zeros = [(index, statistics) for index, statistics in measured if statistics.zero]
    texts = [f"input {index} {_in_words(statistics)}" for index, statistics in (with_zeros or measured)[:_MOST_INPUTS]]
    return ", and ".join(texts)


def _in_words(statistics: Statistics) -> str:
    if statistics.zero:
        return f"has {counted(statistics.zero, 'zero')}"
    if statistics.posinf or statistics.neginf:
        return "has Inf"
    if statistics.min is None or statistics.max is None:
        return "has no values"
    return f"has values from {statistics.min:.3g} to {statistics.max:.3g}"

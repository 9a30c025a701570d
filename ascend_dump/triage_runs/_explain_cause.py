"""Explain why an operator produces NaN or Inf: by the values of its inputs, and by replaying it.

The replay shows whether the operator computes wrong values, or is correct and gets wrong inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.operators.nonfinite import CONSTANTS, find_nonfinite
from ascend_dump.analysis.operators.nonfinite_source import GRAPH_INPUTS
from ascend_dump.analysis.triage import Cause, Triage
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Dump, Record
from ascend_dump.statistics.nonfinite.masks import plain_name
from ascend_dump.triage_runs.input_patterns import constant_argument, input_patterns, ranges, wrong_index

__all__ = ["explain_cause", "is_carried"]


def is_carried(cause: Cause, dump: Dump) -> bool:
    """Return True if the operator of a cause has NaN or Inf in its inputs already, from before the recording."""
    finding = next(find_nonfinite(_records_of(cause, dump)), None)
    return finding is not None and finding.kind == "carried"


def explain_cause(triage: Triage, dump: Dump) -> Triage:
    """Return the triage with `Triage.why`.

    The operator of the cause is replayed. If it gives the recorded result, this is added to the evidence of the cause;
    if it gives another one, this is the reason.
    """
    cause = triage.cause
    assert cause is not None, "there is a cause"
    records = _records_of(cause, dump)
    why = _why(cause, records)
    is_computed = cause.kind not in ("raised", "taken in", "outside", "uninitialised")
    is_right = _is_right(records) if is_computed and triage.next is None else None
    if is_right is False:
        why = "it is wrong: replayed on this host with its recorded inputs, it gives another result"
    elif is_right:
        text = f"replayed on this host with its recorded inputs, {cause.op_name} gives the same result: it is correct"
        cause = replace(cause, evidence=(*cause.evidence, text))
    reaches = cause.evidence[1] if cause.kind not in ("", "raised") else ""
    return replace(triage, cause=cause, why="; ".join(filter(None, [why, reaches])))


def _records_of(cause: Cause, dump: Dump) -> list[Record]:
    return [record for record in dump.select(step=cause.step, rank=cause.rank) if record.op_name == cause.op_name]


def _is_right(records: Sequence[Record]) -> Optional[bool]:
    """Replay an operator. Return True if it gives the recorded outputs, False if not, None if it cannot be replayed."""
    from ascend_dump.analysis.replay import replay

    try:
        again = replay(records)
    except AscendDumpError:
        return None
    # The verdict "undecided" is no contradiction: the replay may compute in a type of higher precision, and then its
    # result may be finite, or have NaN in other elements.
    return all(pair.verdict in ("equal", "noise", "undecided") for pair in again.pairs) if again.pairs else None


def _why(cause: Cause, records: Sequence[Record]) -> str:
    """Return in words why the operator produces NaN or Inf, or raises an exception."""
    if cause.kind == "raised":
        return f"{cause.evidence[0]}; {_indices(records)}"
    if cause.kind in ("taken in", "outside", "filled", "parameter filled", "uninitialised"):
        return cause.evidence[0].partition(": ")[2]
    finding = next(find_nonfinite(records), None)
    what = "NaN" if finding is None or finding.statistics.nan else "Inf"
    if plain_name(cause.op_type) in GRAPH_INPUTS:
        return f"the data that the program takes in here has {what}"
    if plain_name(cause.op_type) in CONSTANTS:
        return f"the program passes {what} in here, from Python or numpy"
    if finding is not None and finding.kind == "carried":
        return f"its inputs have {what} already, and no recorded operator made it"
    constant = constant_argument(records)
    if constant is not None:
        return f"the program passes the constant {constant}"
    patterns = input_patterns(records)
    return f"{patterns}, which leads to {what}" if patterns else f"it makes {what} of finite inputs"


def _indices(records: Sequence[Record]) -> str:
    """Describe the inputs of an operator that raised an exception: a wrong index, the shapes, and ranges of indices."""
    inputs = [record for record in records if record.io == "input"]
    shapes = ", ".join(f"input {record.index} is {record.dtype}{list(record.shape or ())}" for record in inputs)
    indices = [record for record in inputs if (record.dtype or "").startswith(("int", "uint"))]
    return "; ".join(filter(None, [wrong_index(records), shapes, ranges(indices)]))

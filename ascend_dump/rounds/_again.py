"""Does the operator that made NaN or Inf compute wrongly, or was it given something wrong?"""

from __future__ import annotations

from dataclasses import replace

from ascend_dump._errors import AscendDumpError
from ascend_dump.analysis.triage import Cause, Triage
from ascend_dump.reading import Dump

__all__ = ["run_cause_again"]


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

    of_step = dump.select(step=cause.step, rank=cause.rank)
    try:
        again = replay([one for one in of_step if one.op_name == cause.op_name])
    except AscendDumpError:
        return ""
    if again.pairs:
        begin = f"run again on this host from its recorded inputs, {cause.op_name} gives"
        if all(one.verdict in ("equal", "noise") for one in again.pairs):
            return f"{begin} the same: it computes rightly, and its inputs were already wrong"
        return f"{begin} something else: this operator computes wrongly"
    return f"{cause.op_name} cannot be run again: {again.refused[0].message}" if again.refused else ""

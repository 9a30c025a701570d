"""A second opinion on uncertain origins: their operators are replayed on the recorded inputs.

A dump may be malicious. So only operators whose kernels check shapes and arguments are replayed by default;
`replay=True` replays the others too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Optional

from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.compare._comparison import Comparison
from ascend_dump.analysis.explaining.results import Origin
from ascend_dump.analysis.replay.checked_operators import is_checked
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Dump, Record

__all__ = ["with_second_opinion"]

#: Maximum number of origins that need no second opinion: one change of a program has few.
_MAX_CERTAIN_ORIGINS = 3
#: Maximum number of origins whose operators are replayed: reading their tensors takes time.
_MAX_REPLAYED_ORIGINS = 3


def with_second_opinion(comparison: Comparison, dumps: Sequence[Dump]) -> Comparison:
    """Add the results of a replay to the evidence of uncertain origins, and return the comparison.

    Origins are uncertain if one of them has the kind "unknown", or if there are more than `_MAX_CERTAIN_ORIGINS`.
    Without PyTorch nothing is added.

    dumps: actual and the reference
    """
    origins = comparison.origins
    is_sure = len(origins) <= _MAX_CERTAIN_ORIGINS and all(origin.kind != "unknown" for origin in origins)
    if is_sure or find_spec("torch") is None:
        return comparison
    first = [_with_evidence(origin, dumps) for origin in origins[:_MAX_REPLAYED_ORIGINS]]
    return replace(comparison, origins=(*first, *origins[_MAX_REPLAYED_ORIGINS:]))


def _with_evidence(origin: Origin, dumps: Sequence[Dump]) -> Origin:
    record = origin.pair.record
    if token_part(record) is not None:
        return origin  # the operators of several calls
    if record.io != "output" or not (record.op_type or "").startswith("aten::"):
        return origin
    sides = [side for side in (origin.pair.actual, origin.pair.reference) if side is not None]
    if not all(is_checked(side.op_type) for side in sides):
        hint = "undecided: run `ascend-dump compare --replay` to replay this operator, if you trust the dump"
        return replace(origin, evidence=(*origin.evidence, hint))
    return replace(origin, evidence=(*origin.evidence, *_replay_sentences(origin, dumps)))


def _replay_sentences(origin: Origin, dumps: Sequence[Dump]) -> Iterator[str]:
    """Replay the operator of each side, and yield a sentence with the result."""
    sides = ("actual", origin.pair.actual), ("the reference", origin.pair.reference)
    for dump, (side, record) in zip(dumps, sides):
        text = None if record is None else _replay_verdict(dump, record)
        if text is not None:
            yield f"replay: the output of {side} {text}"


def _replay_verdict(dump: Dump, record: Record) -> Optional[str]:
    from ascend_dump.analysis.replay import replay

    step_records = dump.select(step=record.step, rank=record.rank)
    try:
        replayed = replay([candidate for candidate in step_records if candidate.execution == record.execution])
    except AscendDumpError:
        return None
    output = next((pair for pair in replayed.pairs if pair.record.index == record.index), None)
    if output is None:
        return None
    if output.verdict in ("equal", "noise"):
        return "is right for its inputs"
    return f"is wrong for its inputs: {output.reason}" if output.verdict == "different" else None

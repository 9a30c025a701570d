"""A second opinion where a comparison is not sure: operators are run again on their recorded inputs.

Nothing proves that the files of a dump are harmless, so without being asked it runs only operators whose kernels check
shapes and arguments. `replay=True` runs the others too.
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

#: One change of a program has few origins.
_MANY = 3
#: Origins whose operators are run again: reading their tensors takes time.
_MOST = 3


def with_second_opinion(comparison: Comparison, dumps: Sequence[Dump]) -> Comparison:
    """Return the comparison; if it is not sure of its origins, with the results of running their operators again.

    It is not sure of an origin of the kind "unknown", nor of many of them. Without PyTorch nothing is added.

    dumps: actual and the reference
    """
    origins = comparison.origins
    is_sure = len(origins) <= _MANY and all(origin.kind != "unknown" for origin in origins)
    if is_sure or find_spec("torch") is None:
        return comparison
    first = [_with_evidence(origin, dumps) for origin in origins[:_MOST]]
    return replace(comparison, origins=(*first, *origins[_MOST:]))


def _with_evidence(origin: Origin, dumps: Sequence[Dump]) -> Origin:
    record = origin.pair.record
    if token_part(record) is not None:
        return origin  # the operators of several calls
    if record.io != "output" or not (record.op_type or "").startswith("aten::"):
        return origin
    sides = [side for side in (origin.pair.actual, origin.pair.reference) if side is not None]
    if not all(is_checked(side.op_type) for side in sides):
        settles = "to settle it, compare with `--replay`, which runs it again; only if you trust the dump"
        return replace(origin, evidence=(*origin.evidence, settles))
    return replace(origin, evidence=(*origin.evidence, *_sentences(origin, dumps)))


def _sentences(origin: Origin, dumps: Sequence[Dump]) -> Iterator[str]:
    """Yield a sentence for each side whose operator can be run again."""
    sides = ("actual", origin.pair.actual), ("the reference", origin.pair.reference)
    for dump, (side, record) in zip(dumps, sides):
        text = None if record is None else _result(dump, record)
        if text is not None:
            yield f"run again, the output of {side} {text}"


def _result(dump: Dump, record: Record) -> Optional[str]:
    from ascend_dump.analysis.replay import replay

    of_step = dump.select(step=record.step, rank=record.rank)
    try:
        again = replay([one for one in of_step if one.execution == record.execution])
    except AscendDumpError:
        return None
    output = next((pair for pair in again.pairs if pair.record.index == record.index), None)
    if output is None:
        return None
    if output.verdict in ("equal", "noise"):
        return "is right for its inputs"
    return f"is wrong for its inputs: {output.reason}" if output.verdict == "different" else None

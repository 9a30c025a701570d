"""Find a step that got the same inputs and parameters as an earlier one, and gave another output.

The inputs of a step are the tensors that its operators read and that no operator of the step wrote before: the request,
the parameters, and whatever the program keeps between steps. Where all of them have equal bytes, a program without
random numbers has to give equal results.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.reading import Dump, Record

if TYPE_CHECKING:
    from ascend_dump.analysis.compare import Comparison

__all__ = ["ChangedRepeat", "find_changed_repeat"]

#: Pairs of steps that are compared, at most.
_MOST_COMPARED = 4
#: Kinds of origins that mean another request or random numbers.
_EXPECTED = ("random", "input", "parameter", "unknown", "uninitialised")


class ChangedRepeat(NamedTuple):
    """A step that repeats an earlier one, with other results. comparison: with the earlier step as the reference."""

    step: int
    earlier: int
    rank: Optional[int]
    comparison: Comparison


class _StepContent(NamedTuple):
    """A step of a rank. inputs: digest of its inputs. content: digest of all its records."""

    step: int
    rank: Optional[int]
    inputs: bytes
    content: bytes


def find_changed_repeat(dump: Dump) -> Optional[ChangedRepeat]:
    """Return the first step with the inputs of an earlier one and with other results beyond rounding; None if there is
    none, and for dumps that record no hashes. Reads tensors only where the results differ.
    """
    from ascend_dump.analysis.compare import compare

    if len(dump.known_values("step")) < 2:
        return None
    first: dict[Any, _StepContent] = {}
    compared = 0
    for step in _steps(dump):
        earlier = first.setdefault((step.rank, step.inputs), step)
        if earlier.content == step.content or compared >= _MOST_COMPARED:
            continue
        compared += 1
        comparison = compare(*(dump.select(step=number, rank=step.rank) for number in (step.step, earlier.step)))
        if comparison.origins and not any(origin.kind in _EXPECTED for origin in comparison.origins):
            return ChangedRepeat(step.step, earlier.step, step.rank, comparison)
    return None


def _steps(dump: Dump) -> Iterator[_StepContent]:
    """Yield the steps whose inputs all have hashes."""
    key: Any = None
    members: list[Record] = []
    for batch in dump.batches():
        for record in batch:
            place = record.run, record.rank, record.step
            if place != key:
                yield from _step_of(members)
                key, members = place, []
            members.append(record)
    yield from _step_of(members)


def _step_of(records: list[Record]) -> Iterator[_StepContent]:
    import xxhash

    if not records or records[0].step is None:
        return
    inputs, content = xxhash.xxh3_128(), xxhash.xxh3_128()
    written: set[str] = set()
    has_inputs = False
    for record in records:
        digest = record.attrs.get("hash")
        if record.error is not None or (not digest and record.io == "input"):
            return
        content.update(f"{record.op_name}\0{record.io}\0{record.index}\0{digest}\n".encode("utf-8", "replace"))
        if record.io != "input":
            written.add(str(digest))
        elif digest not in written:
            has_inputs = True
            inputs.update(f"{record.shape}\0{digest}\n".encode("utf-8", "replace"))
    if has_inputs:
        yield _StepContent(records[0].step, records[0].rank, inputs.digest(), content.digest())

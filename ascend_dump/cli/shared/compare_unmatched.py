"""Texts of `compare` about records without a partner: first about ranks, steps and runs, then about operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.common.units import counted

if TYPE_CHECKING:
    from ascend_dump.analysis.compare import Comparison, Pair
    from ascend_dump.reading import Dump, Record

__all__ = ["unmatched_lines"]

_SHOWN = 10
_SIDES = ("ACTUAL", "REFERENCE")


def unmatched_lines(dumps: Sequence[Dump], comparison: Comparison, alone: Sequence[Pair]) -> Iterator[str]:
    """Yield lines about records without a partner.

    dumps: actual and the reference, as they were compared. alone: the pairs that have one record only.
    """
    if not alone:
        return
    yield from _on_one_side("rank", dumps, comparison)
    if not _is_by_tokens(comparison):
        yield from _on_one_side("step", dumps, comparison)
    yield from _several_runs(comparison)
    names = list(dict.fromkeys(pair.record.op_name or pair.record.op_type for pair in alone))
    suffix = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    records, verb = counted(len(alone), "record"), "has" if len(alone) == 1 else "have"
    yield f"{records} of {counted(len(names), 'operator')} {verb} no partner: {', '.join(names[:_SHOWN])}{suffix}"


def _is_by_tokens(comparison: Comparison) -> bool:
    """Return True if the tokens of all calls were compared at once: no step has a partner of its own then."""
    from ascend_dump.analysis.alignment.token_parts import token_part

    return any(token_part(pair.actual) is not None for pair in comparison.pairs.looked_at())


def _on_one_side(field: str, dumps: Sequence[Dump], comparison: Comparison) -> Iterator[str]:
    from ascend_dump.dump_format import ranks_text

    values = [dump.known_values(field) for dump in dumps]
    paired = {
        getattr(side, field)
        for pair in comparison.pairs.looked_at()
        if pair.actual is not None and pair.reference is not None
        for side in (pair.actual, pair.reference)
    }
    if None in values[0] | values[1]:
        return  # some records have no known rank or step
    for number, side in enumerate(_SIDES):
        # Without the values in `paired`: a rank may be paired with another rank, for example if tensors are sharded.
        only = sorted(values[number] - values[1 - number] - paired)
        if only:
            noun = field if len(only) == 1 else f"{field}s"
            yield f"only {side} has the {noun} {ranks_text(only)}"


class _RunsOfStep(NamedTuple):
    """The runs that recorded one step of one rank, with a record of each run, for both sides."""

    actual: dict[str, Record]
    reference: dict[str, Record]


def _several_runs(comparison: Comparison) -> Iterator[str]:
    """Yield a line about the first step of a rank that has more runs on one side than on the other."""
    runs_by_step: dict[tuple[Optional[int], Optional[int]], _RunsOfStep] = {}
    for pair in comparison.pairs.looked_at():
        runs = runs_by_step.setdefault((pair.record.rank, pair.record.step), _RunsOfStep({}, {}))
        for runs_of_side, record in zip(runs, (pair.actual, pair.reference)):
            if record is not None and record.run is not None:
                runs_of_side.setdefault(record.run, record)
    for (rank, step), runs in runs_by_step.items():
        counts = [len(runs_of_side) for runs_of_side in runs]
        if min(counts) and counts[0] != counts[1]:
            larger = counts.index(max(counts))
            names = ", ".join(sorted(runs[larger]))
            name, record = max(runs[larger].items())
            path = next((str(above) for above in record.path.parents if above.name == name), str(record.path))
            where = f"step {step}" if rank is None else f"rank {rank}, step {step}"
            yield (
                f"{where}: {_SIDES[larger]} has {counts[larger]} runs of the program ({names}), "
                f"{_SIDES[1 - larger]} {counts[1 - larger]}; give the directory of one run, such as {path}, "
                "or in Python ascend_dump.open(...).select(run=...)"
            )
            return

"""Compare the weights of two checkpoints or dumps."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Optional, Union

from ascend_dump.analysis.weights.comparison import WeightComparison, WeightFinding, ordered
from ascend_dump.analysis.weights.findings import findings_of
from ascend_dump.analysis.weights.matching import match_weights
from ascend_dump.analysis.weights.sides import Watch, read_sides
from ascend_dump.analysis.weights.unusual_layouts import with_unusual_layouts
from ascend_dump.reading import Dump
from ascend_dump.reading.weights import Weights, open_weights

__all__ = ["compare_weights"]

_Source = Union[Dump, Weights, str, "os.PathLike[str]"]


def compare_weights(
    actual: _Source, reference: _Source, *, earlier: Optional[_Source] = None, watch: Optional[Watch] = None
) -> WeightComparison:
    """Compare two checkpoints, or the parameters in dumps, whatever the names and the layout of their weights.

    actual, reference  each a .safetensors file, a file of `torch.save` (which is not unpickled), a directory of these
                       with or without an index of Hugging Face, or a dump; the reference is assumed to be correct
    earlier            an earlier state of the reference. A weight that differs from the reference, but is equal to this
                       state, is stale
    watch              an iterator function that receives each tensor read and yields it, for a progress display

    Weights are paired by the content of their rows, so a weight is found under any name, also if it was cast, permuted,
    split, concatenated or transposed. A weight without equal content is paired like the same weight of other layers, or
    else by its name. Tensors are read once or twice, in pieces of 16 MB. In addition, 8 bytes of memory are needed for
    each row. A weight that may be transposed is loaded as a whole.

    Raises the errors of `open_weights`: DumpNotFound, CorruptDump, UnknownFormat, ConfigError, NotSupported.

    >>> comparison = ascend_dump.compare_weights("engine.safetensors", "checkpoint")   # doctest: +SKIP
    >>> comparison.verdict, comparison.findings[0].relation                            # doctest: +SKIP
    """
    sides = [side if isinstance(side, Weights) else open_weights(side) for side in (actual, reference)]
    before = None if earlier is None else earlier if isinstance(earlier, Weights) else open_weights(earlier)
    pair = read_sides(sides[0], sides[1], watch or _unchanged)
    findings = with_unusual_layouts([*findings_of(*pair, match_weights(*pair))], pair)
    findings = [*_stale(findings, sides[0], before)]
    totals = len(sides[0].tensors), len(sides[1].tensors)
    return WeightComparison(
        sides[0].source, sides[1].source, ordered(findings), totals, sum(side.nbytes for side in sides)
    )


def _unchanged(tensors: Iterable[Any]) -> Iterable[Any]:
    return tensors


def _stale(findings: list[WeightFinding], actual: Weights, earlier: Optional[Weights]) -> Iterable[WeightFinding]:
    """Yield the findings. The relation of weights that were not brought up to date becomes "stale".

    These are weights that are equal to the earlier state, and weights that are a small update away while more weights
    are equal than updated.
    """
    updated = [finding for finding in findings if finding.relation in ("updated", "different")]
    same = sum(finding.verdict in ("equal", "noise") for finding in findings)
    is_few = sum(finding.relation == "updated" for finding in findings) < same
    in_earlier = _equal_to_earlier(updated, actual, earlier) if earlier is not None and updated else frozenset[str]()
    for finding in findings:
        if finding.relation in ("updated", "different") and {*finding.actual} <= in_earlier:
            assert earlier is not None
            yield finding._replace(relation="stale", measure=f"equal to {earlier.source}; {finding.measure}")
        elif finding.relation == "updated" and is_few:
            yield finding._replace(relation="stale", measure=f"{finding.measure}, while {same} others are equal")
        else:
            yield finding


def _equal_to_earlier(findings: list[WeightFinding], actual: Weights, earlier: Weights) -> frozenset[str]:
    names = {name for finding in findings for name in finding.actual}
    subset = actual._replace(tensors={name: tensor for name, tensor in actual.tensors.items() if name in names})
    pair = read_sides(subset, earlier, _unchanged)
    return frozenset(
        name
        for finding in findings_of(*pair, match_weights(*pair))
        if finding.actual and (finding.verdict in ("equal", "noise") or finding.relation == "part")
        for name in finding.actual
    )

"""Drop origins at updates that each rank makes of its own gradients, if the ranks average their parameters afterwards.

Such programs, like DiLoCo, update the parameters of a rank by its own part of the batch. The gradients and parameters
of a rank differ from those of the whole batch then, until their mean over ranks is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ascend_dump.analysis.alignment.rank_relations import NOT_REDUCED
from ascend_dump.analysis.explaining.results import Origin, Pair

__all__ = ["without_local_updates"]


def without_local_updates(origins: Sequence[Origin], pairs: Iterable[Pair]) -> Sequence[Origin]:
    """Return no origins if all are updates whose mean over ranks agrees, and later steps compute what one rank does.

    A missing reduction is no such update: the parameters that the next step reads differ then.

    pairs: the pairs of all ranks
    """
    are_local = all(
        origin.kind == "parameter" and any(text.endswith(NOT_REDUCED) for text in origin.evidence) for origin in origins
    )
    if not origins or not are_local:
        return origins
    first = min(-1 if origin.step is None else origin.step for origin in origins)
    has_later_step = False
    for pair in pairs:
        if pair.record.phase in ("forward", "backward"):
            if pair.differs:
                return origins
            has_later_step |= (pair.record.step or 0) > first
    return [] if has_later_step else origins

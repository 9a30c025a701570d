"""Parameters with one gradient on several ranks, by their contents: data parallelism keeps such parameters equal.

A gradient is synchronised over the ranks where the optimizer reads the same content, although backward wrote different
ones. No name of a wrapper and no kind of collective is needed, and shards have gradients of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.ranks.launches import RankRun
from ascend_dump.reading import Record

__all__ = ["SynchronisedGradients"]

_GRADIENT = ".grad"


class _GradientContents(NamedTuple):
    """The content that backward wrote, and the one that the optimizer read."""

    local: Hashable
    reduced: Hashable


class SynchronisedGradients:
    """Gathers the gradients of parameters, operator by operator in the order of the dump."""

    def __init__(self) -> None:
        #: The first content of each tensor of the current step, by rank: its memory and shape as key.
        self._written: dict[RankRun, tuple[Optional[int], dict[Hashable, Hashable]]] = {}
        #: By step, parameter, and rank.
        self._gradients: dict[tuple[Optional[int], str], dict[RankRun, _GradientContents]] = {}
        #: The parameter in a storage of a step.
        self._parameters: dict[tuple[RankRun, Optional[int], int], str] = {}

    def look_at(self, record: Record, attrs: Mapping[str, Any]) -> None:
        """Add a record with a rank, and its attributes."""
        storage, content = attrs.get("storage"), attrs.get("hash")
        if storage is None or content is None or record.rank is None:
            return
        rank = (record.rank, record.run)
        step, written = self._written.get(rank, (None, {}))
        if step != record.step or rank not in self._written:
            step, written = self._written[rank] = record.step, {}
        memory = (storage, attrs.get("storage_offset"), record.shape)
        parameter = attrs.get("parameter")
        if parameter is None:
            if record.io == "output":
                written.setdefault(memory, content)
        elif parameter.endswith(_GRADIENT):
            if record.io == "input":
                # The last one is that of the optimizer: the gradient was reduced and clipped before.
                local = written.setdefault(memory, content)
                gradients = self._gradients.setdefault((step, parameter[: -len(_GRADIENT)]), {})
                gradients[rank] = _GradientContents(local, content)
        elif " of " not in parameter:
            self._parameters[rank, step, storage] = parameter

    def parameter_of(self, record: Record) -> Optional[str]:
        """Return the name of the parameter that a record holds; None if no optimizer reads it in this step."""
        if record.rank is None:
            return None
        storage = record.attrs.get("storage", -1)
        return self._parameters.get(((record.rank, record.run), record.step, storage))

    def ranks_of(self, parameter: str, step: Optional[int], runs: Sequence[RankRun]) -> tuple[RankRun, ...]:
        """Return those of the runs with the same gradient of a parameter, made from different ones; else nothing."""
        gradients = self._gradients.get((step, parameter), {})
        by_content: dict[Hashable, list[RankRun]] = {}
        for run in runs:
            if run in gradients:
                by_content.setdefault(gradients[run].reduced, []).append(run)
        largest = max(by_content.values(), key=len, default=[])
        return tuple(largest) if len({gradients[run].local for run in largest}) > 1 else ()

    @functools.cached_property
    def any_synchronised(self) -> bool:
        """True if a parameter of any step has a synchronised gradient. Ask after the last operator."""
        return any(self.ranks_of(name, step, [*ranks]) for (step, name), ranks in self._gradients.items())

"""Find parameters whose gradient several ranks have in common: data parallelism keeps such parameters equal.

Only contents are compared, so that no wrapper or collective has to be known by name. A gradient is synchronised over
ranks if it has the same content on them at some time of a step, and backward wrote different contents there. Equal
contents of backward count too, unless all elements are equal, or other ranks have another gradient: two ranks with the
same part of a model compute the same without a reduction. Shards have gradients of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks.launches import RankRun
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["FILLS", "SynchronisedGradients", "is_constant"]

_GRADIENT = ".grad"


#: Operators whose result says nothing about a gradient.
FILLS = ("aten::zero_", "aten::fill_", "aten::_foreach_zero_")


class _GradientContents(NamedTuple):
    """The contents of a gradient on one rank in one step.

    local    the content that the backward pass wrote
    records  all contents in the order of the step, each with its first record
    """

    local: Hashable
    records: dict[Hashable, Record]


class SynchronisedGradients:
    """Gathers the gradients of parameters, operator by operator in the order of the dump."""

    def __init__(self) -> None:
        #: By rank: the current step, and the first content of each of its tensors, by memory and shape.
        self._written: dict[RankRun, tuple[Optional[int], dict[Hashable, Hashable]]] = {}
        #: By step and parameter, and then by rank.
        self._gradients: dict[tuple[Optional[int], str], dict[RankRun, _GradientContents]] = {}
        #: Contents that gradients were filled with.
        self._fillings: set[Hashable] = set()
        #: By rank, step and storage: the name of the parameter in it.
        self._parameters: dict[tuple[RankRun, Optional[int], int], str] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator of a rank."""
        first = run.first
        rank = (first.rank or 0, first.run)
        step, written = self._written.get(rank, (None, {}))
        if step != first.step or rank not in self._written:
            step, written = self._written[rank] = first.step, {}
        for record, storage, name in run.tensors:
            attrs = record.attrs
            content = attrs.get("hash")
            if content is None or record.error is not None:
                continue
            if not name:
                if record.io == "output":
                    written.setdefault((storage, attrs.get("storage_offset"), record.shape), content)
            elif name.endswith(_GRADIENT):
                gradients = self._gradients.setdefault((step, name[: -len(_GRADIENT)]), {})
                if record.io == "input" and rank not in gradients:
                    memory = (storage, attrs.get("storage_offset"), record.shape)
                    gradients[rank] = _GradientContents(written.setdefault(memory, content), {})
                if record.io == "output" and record.op_type in FILLS:
                    self._fillings.add(content)
                elif rank in gradients:
                    gradients[rank].records.setdefault(content, record)
            elif " of " not in name:
                self._parameters[rank, step, storage] = name

    def parameter_of(self, record: Record) -> Optional[str]:
        """Return the name of the parameter in the storage of a record; None if no record of the step names it."""
        if record.rank is None:
            return None
        storage = record.attrs.get("storage", -1)
        return self._parameters.get(((record.rank, record.run), record.step, storage))

    def ranks_of(
        self,
        parameter: str,
        step: Optional[int],
        runs: Sequence[RankRun],
        until: Optional[Mapping[RankRun, int]] = None,
    ) -> tuple[RankRun, ...]:
        """Return those of the runs over which the gradient of a parameter is synchronised in a step; () if none are.

        until: by run, the sequence number of the last operator that counts; None if all count
        """
        gradients = self._gradients.get((step, parameter), {})
        by_content: dict[Hashable, list[RankRun]] = {}
        for run in runs:
            for content, record in gradients[run].records.items() if run in gradients else ():
                is_later = until is not None and record.attrs.get("seq", 0) > until[run]
                if content not in self._fillings and not is_later:
                    by_content.setdefault(content, []).append(run)
        for content, ranks in sorted(by_content.items(), key=lambda item: len(item[1]), reverse=True):
            if len(ranks) > 1:
                is_reduced = len({gradients[run].local for run in ranks}) > 1
                is_common = len(ranks) == sum(run in gradients for run in runs)
                if is_reduced or (is_common and not is_constant(gradients[ranks[0]].records[content])):
                    return tuple(ranks)
        return ()

    def are_left_out(
        self, parameter: str, step: Optional[int], runs: Sequence[RankRun], synchronised: Sequence[RankRun]
    ) -> bool:
        """Return True if the other runs have a gradient too, each one of its own, so that no second group exists."""
        gradients = self._gradients.get((step, parameter), {})
        contents = [
            {content for content in gradients[run].records if content not in self._fillings} if run in gradients else {}
            for run in runs
            if run not in synchronised
        ]
        count = sum(map(len, contents))
        return bool(contents) and all(contents) and len(set[Hashable]().union(*contents)) == count

    def has_synchronised_sibling(self, parameter: str, step: Optional[int], runs: Sequence[RankRun]) -> bool:
        """Return True if another parameter of the same module has a gradient that all the runs have in common.

        step: a step; its gradients and those of the step before it count
        """
        module, _, own_name = parameter.rpartition(".")
        siblings = [name for name in self._steps if name.rpartition(".")[0] == module and name != parameter]
        return bool(module and own_name) and any(
            len(self.ranks_of(name, moment, runs)) == len(runs)
            for name in siblings
            for moment in (step, self.step_before(name, step))
        )

    def step_before(self, parameter: str, step: Optional[int]) -> Optional[int]:
        """Return the last step with a gradient of a parameter before a step; None if there is none."""
        steps = self._steps.get(parameter, ())
        return max((earlier for earlier in steps if step is not None and earlier < step), default=None)

    @functools.cached_property
    def _steps(self) -> dict[str, list[int]]:
        """The steps with gradients, by parameter. Ask after the last operator."""
        steps: dict[str, list[int]] = {}
        for step, name in self._gradients:
            if step is not None:
                steps.setdefault(name, []).append(step)
        return steps

    @functools.cached_property
    def any_synchronised(self) -> bool:
        """True if a parameter of any step has a synchronised gradient. Ask after the last operator."""
        return any(self.ranks_of(name, step, [*ranks]) for (step, name), ranks in self._gradients.items())

    @functools.cached_property
    def named(self) -> frozenset[str]:
        """The parameters with a gradient in any step. Ask after the last operator."""
        return frozenset(name for _, name in self._gradients)

    def share_of(self, runs: Sequence[RankRun]) -> float:
        """Return the share of parameters with a gradient that all these runs have in common."""
        ranks_of_name: dict[str, list[bool]] = {}
        for (step, name), ranks in self._gradients.items():
            if all(run in ranks for run in runs):
                ranks_of_name.setdefault(name, []).append(len(self.ranks_of(name, step, runs)) == len(runs))
        return sum(map(any, ranks_of_name.values())) / max(len(ranks_of_name), 1)

    @functools.cached_property
    def share(self) -> float:
        """The share of parameters with a synchronised gradient. Ask after the last operator."""
        ranks_of_name: dict[str, list[bool]] = {}
        for (step, name), ranks in self._gradients.items():
            if len(ranks) > 1:
                ranks_of_name.setdefault(name, []).append(bool(self.ranks_of(name, step, [*ranks])))
        return sum(map(any, ranks_of_name.values())) / max(len(ranks_of_name), 1)


def is_constant(record: Record) -> bool:
    """Return True if all elements are equal, as after an initialisation, or if they cannot be read."""
    try:
        statistics = record.statistics()
    except AscendDumpError:
        return True
    return statistics.max is None or statistics.max == statistics.min

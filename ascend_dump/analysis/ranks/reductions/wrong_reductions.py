"""Find reductions over ranks that contradict the tensors they reduce.

Gradients are added up, and not reduced to their maximum. A sum over ranks is the same on all of them, so that a second
sum multiplies it by their number. If each rank adds a bias to its term of a sum, the sum contains it as many
times. And the gradients of parameters that are not equal have no common sum.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Optional

from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words, moment_of
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.analysis.ranks.reductions.contributions import BiasedTerm, NamedGradient, StepContributions
from ascend_dump.analysis.ranks.synchronised_gradients import is_constant

__all__ = ["WrongReductions"]

#: Number of steps of each rank that are looked at: a bias may begin with zeros.
_MOST_STEPS = 2


class WrongReductions:
    """Gathers the reductions of the first steps of all ranks, in the order of the dump."""

    def __init__(self) -> None:
        self._steps: dict[RankRun, dict[Optional[int], StepContributions]] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None:
            return
        steps = self._steps.setdefault((first.rank, first.run), {})
        step = steps.get(first.step)
        if step is None:
            if len(steps) == _MOST_STEPS:
                return
            step = steps[first.step] = StepContributions()
        step.look_at(run)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first wrong reduction of each kind, for each launch."""
        for ranks in ranks_of_launches(self._steps):
            for findings in (_operations(ranks), _repeated(ranks), _biased(ranks), _mixed(ranks)):
                yield from sorted(findings, key=lambda finding: moment_of(finding.record))[:1]


def _operations(ranks: dict[int, dict[Optional[int], StepContributions]]) -> Iterator[RankFinding]:
    for steps in ranks.values():
        for step in steps.values():
            for record, operation, members in step.operations():
                text = (
                    f"{record.label} are gradients, and {in_words(members)} take their {operation} here: "
                    "gradients have to be added up or averaged"
                )
                yield RankFinding(record, text)


def _repeated(ranks: dict[int, dict[Optional[int], StepContributions]]) -> Iterator[RankFinding]:
    for steps in ranks.values():
        for step in steps.values():
            if step.repeated is not None:
                record, members = step.repeated
                if not is_constant(record):
                    text = (
                        f"{in_words(members)} add up {record.label}, which is already their sum: the result is "
                        f"{len(members)} times the sum"
                    )
                    yield RankFinding(record, text)


def _biased(ranks: dict[int, dict[Optional[int], StepContributions]]) -> Iterator[RankFinding]:
    terms: dict[Hashable, dict[int, BiasedTerm]] = {}
    for rank, steps in ranks.items():
        for step, contributions in steps.items():
            for key, term in contributions.biased.items():
                terms.setdefault((step, key), {})[rank] = term
    for of_ranks in terms.values():
        first = next(iter(of_ranks.values()))
        biases = {content_of_record(term.bias) for term in of_ranks.values()}
        factors = [set(contents) for contents in zip(*(term.factors for term in of_ranks.values()))]
        is_split = all(len(contents) == len(of_ranks) and None not in contents for contents in factors)
        if not (first.name and len(of_ranks) == len(first.ranks) and len(biases) == 1 and None not in biases):
            continue
        if is_split and not is_constant(first.bias):
            text = (
                f"{in_words(first.ranks)} add {first.name}, which is the same on all of them, to their terms of a sum "
                f"over these ranks: the sum contains it {len(first.ranks)} times"
            )
            yield RankFinding(first.record, text)


def _mixed(ranks: dict[int, dict[Optional[int], StepContributions]]) -> Iterator[RankFinding]:
    calls: dict[Hashable, dict[int, NamedGradient]] = {}
    for rank, steps in ranks.items():
        for step, contributions in steps.items():
            for key, gradient in contributions.gradients.items():
                calls.setdefault((step, key), {})[rank] = gradient
    for of_ranks in calls.values():
        names = {gradient.parameter for gradient in of_ranks.values()}
        contents = {gradient.content for gradient in of_ranks.values()}
        if len(names) < 2 or len(contents) != len(of_ranks) or None in contents:
            continue
        first = of_ranks[min(of_ranks)]
        other_rank, other = next((rank, one) for rank, one in of_ranks.items() if one.parameter != first.parameter)
        text = (
            f"{in_words(first.ranks)} add up gradients of parameters that are not equal: of {first.parameter} on rank "
            f"{min(of_ranks)}, and of {other.parameter} on rank {other_rank}"
        )
        yield RankFinding(first.record, text)

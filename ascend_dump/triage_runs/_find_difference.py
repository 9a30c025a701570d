"""Find the first operator that differs between two programs: by statistics and hashes first, then by a few tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Optional

from ascend_dump.analysis.compare import Comparison, Pair, compare
from ascend_dump.analysis.suspects import gives_view, producers_of
from ascend_dump.analysis.triage import Cause, Triage
from ascend_dump.errors import CaptureError
from ascend_dump.reading import Dump, Record
from ascend_dump.triage_runs._determinism import first_other_step, first_unequal, is_unequal, other_content, unequal
from ascend_dump.triage_runs._runner import PROGRAM, REFERENCE, SECOND_RUN, RoundResult, RoundRunner, no_dump

__all__ = ["find_difference", "find_nondeterminism"]

#: Operators whose tensors one round records, beside the producers of their inputs; and the number of such rounds.
_MOST_OPERATORS, _MOST_ROUNDS = 8, 3

_Commands = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class _ComparedSteps:
    """The same steps of both programs, and their comparison."""

    steps: str
    program: RoundResult
    reference: RoundResult
    compared: Comparison


def find_difference(
    runner: RoundRunner, commands: _Commands, directory: Path, steps: str, *, replay: bool, confirm: bool
) -> Triage:
    """Find the first operator that differs from the reference."""
    sides = _first_steps(runner, commands, steps)
    if sides is None:
        return _nothing(directory, "the programs do not differ: the outputs of all steps are the same")
    cause, reasons = None, [*sides.program.reasons, *sides.reference.reasons]
    compared = sides.compared
    checked: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        operators = list(islice(_suspicious(sides.compared, checked), _MOST_OPERATORS))
        if not operators:
            break
        checked |= {_name(pairs[0]) for pairs in operators}
        compared_tensors, tensors, differing = _with_tensors(runner, commands, sides, operators, replay=replay)
        reasons += filter(None, [*differing, *tensors.program.reasons, *tensors.reference.reasons])
        compared = compared_tensors
        cause = _cause(compared_tensors, operators)
        if cause is not None:
            break
    if cause is None:
        advice = {
            "noise": "the programs differ by rounding only",
            "undecided": "statistics agree, and the tensors of what differs first are within rounding of each other",
            "equal": "the programs do not differ in these steps",
        }.get(sides.compared.verdict, "no difference has an origin: `ascend-dump compare` lists what differs")
        return Triage(directory, (), sides.compared, None, advice, tuple(reasons))
    command = f"ascend-dump compare {compared.actual} {compared.reference}"
    advice = f"the tensors of {cause.op_name} are recorded on both sides: `{command}`"
    result = Triage(compared.actual, (), compared, None, advice, tuple(reasons), cause)
    return replace(result, confirmation=_confirm(runner, sides, result)) if confirm else result


def find_nondeterminism(runner: RoundRunner, commands: _Commands, directory: Path, steps: str) -> Triage:
    """Find the first operator with another result in a second run of the program."""
    sides = _first_steps(runner, commands, steps)
    if sides is None:
        return _nothing(directory, "two runs do not differ: the outputs of all steps are the same")
    operator = next(unequal(sides.compared), None)
    if operator is None:
        advice = f"two runs differ, but not in steps {sides.steps} each time: `--step` records other steps"
        return Triage(directory, (), sides.compared, None, advice)
    differs = [pair for pair in operator if is_unequal(pair)]
    evidence = [f"{pair.record.label} has other bytes in the second run" for pair in differs]
    if differs[0].record.io == "input":
        evidence.append("no recorded operator wrote it: it came from outside")
    origins = [pair for pair in sides.compared.origins if pair.op_name == differs[0].record.op_name]
    evidence += [text for pair in origins for text in pair.evidence]
    cause = Cause.of(differs[0].record, dict.fromkeys(evidence))
    advice = (
        f"{cause.op_name} is the first operator that differs: seed all random generators, and see "
        "torch.use_deterministic_algorithms for kernels that add in an arbitrary order"
    )
    return Triage(sides.compared.actual, (), sides.compared, None, advice, cause=cause)


def _nothing(directory: Path, advice: str) -> Triage:
    return Triage(directory, (), None, None, advice)


# The steps to record.


def _first_steps(runner: RoundRunner, commands: _Commands, steps: str) -> Optional[_ComparedSteps]:
    """Record and compare the first steps that differ; None if all steps agree."""
    sides = _statistics(runner, commands, steps)
    if sides.compared.verdict != "equal":
        return sides
    a = runner.watch(PROGRAM, "looks for the first step that differs", until="end")
    b = runner.watch(_other(commands), "looks for the first step that differs", until="end")
    step = first_other_step(a.outlines, b.outlines)
    if step is None:
        steps_text = "one has more steps" if a.last_step != b.last_step else f"{a.last_step + 1} steps"
        runner.conclude(b, f"the outputs of all steps are the same ({steps_text})")
        return None
    runner.conclude(b, f"the first step with other outputs is {step}")
    return _statistics(runner, commands, f"{step - 1}-{step}" if step else "0")


def _other(commands: _Commands) -> str:
    """Return the program to compare with."""
    return REFERENCE if REFERENCE in commands else SECOND_RUN


def _statistics(runner: RoundRunner, commands: _Commands, steps: str) -> _ComparedSteps:
    results = []
    for program in (PROGRAM, _other(commands)):
        result = runner.record(program, f"records statistics and hashes, steps {steps}", steps=steps)
        if result.dump is None:
            raise no_dump(result, commands[program])
        results.append(result)
    a, b = results
    assert a.dump is not None
    assert b.dump is not None
    sides = _ComparedSteps(steps, a, b, compare(a.dump, b.dump))
    runner.conclude(b, _words(sides.compared))
    return sides


def _words(compared: Comparison) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in compared.counts.items())


# The operators to record.


def _suspicious(compared: Comparison, checked: set[str]) -> Iterator[list[Pair]]:
    """Yield the pairs of operators that may be the cause: the origins by statistics, and the first unequal hashes."""
    groups: dict[str, list[Pair]] = {}
    for pair in compared.pairs.looked_at():
        groups.setdefault(f"{pair.record.step} {pair.record.op_name}", []).append(pair)
    names = [f"{origin.step} {origin.op_name}" for origin in compared.origins]
    names += [f"{pairs[0].record.step} {pairs[0].record.op_name}" for pairs in islice(first_unequal(compared), 4)]
    for name in dict.fromkeys(names):
        pairs = groups.get(name, [])
        if pairs and _name(pairs[0]) not in checked:
            yield pairs


def _name(pair: Pair) -> str:
    return f"{pair.record.step} {pair.record.op_name}"


def _with_tensors(
    runner: RoundRunner,
    commands: _Commands,
    sides: _ComparedSteps,
    operators: Sequence[Sequence[Pair]],
    *,
    replay: bool,
) -> tuple[Comparison, _ComparedSteps, list[str]]:
    """Record the tensors of these operators and of the producers of their inputs on both sides, and compare them."""
    steps = "|".join(sorted({str(pairs[0].record.step) for pairs in operators}, key=int))
    results: list[RoundResult] = []
    dumps: list[Dump] = []
    reasons: list[str] = []
    for program, before in ((PROGRAM, sides.program), (REFERENCE, sides.reference)):
        assert before.dump is not None
        records = [_side(pairs, program) for pairs in operators]
        names = [name.op_name for name in records if name is not None]
        if not names:
            continue
        producers = producers_of(before.dump, names)
        layers = list(dict.fromkeys([*names, *producers]))
        purpose = f"records tensors of {', '.join(layers[:3])}{', …' if len(layers) > 3 else ''}"
        result = runner.record(program, purpose, steps=steps, data="tensor", layers=[_exactly(name) for name in layers])
        if result.dump is None:
            raise no_dump(result, commands[program])
        changed = other_content(before.dump, result.dump)
        if changed is not None:
            reasons.append(f"the {program} is not deterministic: {changed} differs between rounds")
        results.append(result)
        dumps.append(result.dump)
    if len(results) < 2:
        raise CaptureError(
            "an operator runs in one of the programs only, and nothing else differs",
            hint="`ascend-dump compare` of the dumps of the first rounds names it",
        )
    compared = compare(dumps[0], dumps[1], replay=replay)
    runner.conclude(results[1], _words(compared))
    return compared, _ComparedSteps(steps, results[0], results[1], compared), reasons


def _side(pairs: Sequence[Pair], program: str) -> Optional[Record]:
    return next(
        (record for pair in pairs for record in [pair.actual if program == PROGRAM else pair.reference] if record), None
    )


def _exactly(name: str) -> str:
    """Return the pattern of `layers` for a name."""
    import re

    return f"re:^{re.escape(name)}$"


def _cause(compared: Comparison, operators: Sequence[Sequence[Pair]]) -> Optional[Cause]:
    """Return the first origin among these operators, in execution order."""
    names = {_name(pairs[0]): number for number, pairs in enumerate(operators)}
    origins = [origin for origin in compared.origins if f"{origin.step} {origin.op_name}" in names]
    return None if not origins else Cause.of(origins[0].pair.record, origins[0].evidence)


# Confirming the cause.


def _confirm(runner: RoundRunner, sides: _ComparedSteps, result: Triage) -> str:
    """Run the program with the reference's outputs in place of the cause's, and count the differences that disappear.

    A view has no memory of its own: for a view its input is replaced.
    """
    assert result.comparison is not None
    assert result.cause is not None
    cause = result.cause
    pairs = [
        pair
        for pair in result.comparison.pairs
        if pair.record.op_name == cause.op_name and pair.record.step == cause.step
    ]
    io = "input" if gives_view([pair.record for pair in pairs]) else "output"
    chosen = [pair for pair in pairs if pair.record.io == io and pair.actual and pair.reference and not pair.undefined]
    if not chosen:
        return f"not tried: {cause.op_name} has no {io} that both sides recorded"
    if io == "input":
        chosen = [pair for pair in chosen if pair.verdict not in ("equal", "noise")]
        if not chosen:
            return f"not tried: {cause.op_name} is a view of its input, which is the same on both sides"
    names = {pair.reference.op_name for pair in chosen if pair.reference is not None}
    if names != {cause.op_name}:
        return f"not tried: it is called {', '.join(sorted(names))} in the reference, and a graft needs the same name"
    dump = str(result.comparison.reference)
    graft = {f"{cause.op_name}.{io}.{pair.record.index}": dump for pair in chosen}
    with_right = f"with the reference's {io} of {cause.op_name}"
    purpose = f"runs {with_right}"
    again = runner.record(PROGRAM, purpose, steps=str(cause.step), graft=graft)
    if again.dump is None or again.reasons:
        runner.conclude(again, "could not be tried")
        # Without the hint, which is for a user who starts a capture.
        return f"not tried: {next(iter(again.reasons), 'nothing was recorded').partition(chr(10))[0]}"
    assert sides.reference.dump is not None
    before = _later_differences(sides.compared, cause)
    compared = compare(again.dump, sides.reference.dump.select(step=cause.step))
    after = _later_differences(compared, cause)
    gone = before.keys() - after.keys()
    remaining = next((pair.record.op_name for key, pair in after.items() if key in before), "")
    count = f"{len(gone)} of {len(before)}"
    text = f"{with_right}, {count} later outputs that differed do not"
    first_differing = {pair.op_name for pair in compared.origins} | {
        pairs[0].record.op_name for pairs in first_unequal(compared)
    }
    if not remaining:
        verdict = "confirmed"
    elif gone and remaining in first_differing:
        # Its inputs are correct in this run.
        verdict = "confirmed"
        text += f"; the others begin with {remaining}, a cause of its own"
    else:
        verdict = "not confirmed"
        text += f"; {remaining} still differs"
    runner.conclude(again, verdict)
    return f"{verdict}: {text}"


def _later_differences(compared: Comparison, cause: Cause) -> dict[tuple[str, int], Pair]:
    """Return the outputs of other operators that differ in the step of the cause."""
    return {
        (pair.record.op_name, pair.record.index): pair
        for pair in compared.pairs.looked_at()
        if pair.record.step == cause.step
        and pair.record.io != "input"
        and pair.record.op_name != cause.op_name
        and pair.verdict not in ("equal", "noise")
    }

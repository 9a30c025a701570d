"""From two programs to the operator in which they part: statistics and hashes first, then a few tensors."""

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

#: Operators whose tensors are recorded in one round, with those that made their inputs; and how often at most.
_MOST_OPERATORS, _MOST_ROUNDS = 8, 3

_Commands = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class _Sides:
    """The same steps of both programs, and what comparing them gave."""

    steps: str
    program: RoundResult
    reference: RoundResult
    compared: Comparison


def find_difference(
    runner: RoundRunner, commands: _Commands, directory: Path, steps: str, *, replay: bool, confirm: bool
) -> Triage:
    """Find the operator that makes the program another one than the reference."""
    sides = _first_steps(runner, commands, steps)
    if sides is None:
        return _nothing(directory, "the programs do not differ: the outputs of all steps are the same")
    cause, reasons = None, [*sides.program.reasons, *sides.reference.reasons]
    compared = sides.compared
    known: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        operators = list(islice(_suspicious(sides.compared, known), _MOST_OPERATORS))
        if not operators:
            break
        known |= {_name(pairs[0]) for pairs in operators}
        found, tensors, other = _with_tensors(runner, commands, sides, operators, replay=replay)
        reasons += filter(None, [*other, *tensors.program.reasons, *tensors.reference.reasons])
        compared = found
        cause = _cause(found, operators)
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
    advice = f"the tensors of {cause.op_name} are there on both sides: `{command}`"
    result = Triage(compared.actual, (), compared, None, advice, tuple(reasons), cause)
    return replace(result, confirmation=_confirm(runner, sides, result)) if confirm else result


def find_nondeterminism(runner: RoundRunner, commands: _Commands, directory: Path, steps: str) -> Triage:
    """Find the first operator that gives something else when the program is run a second time."""
    sides = _first_steps(runner, commands, steps)
    if sides is None:
        return _nothing(directory, "two runs do not differ: the outputs of all steps are the same")
    operator = next(unequal(sides.compared), None)
    if operator is None:
        advice = f"two runs differ, and not in steps {sides.steps} each time: `--step` records others"
        return Triage(directory, (), sides.compared, None, advice)
    differs = [one for one in operator if is_unequal(one)]
    evidence = [f"{one.record.label} has other bytes in the second run" for one in differs]
    if differs[0].record.io == "input":
        evidence.append("no recorded operator made that: it came from outside")
    origins = [one for one in sides.compared.origins if one.op_name == differs[0].record.op_name]
    evidence += [text for one in origins for text in one.evidence]
    cause = Cause.of(differs[0].record, dict.fromkeys(evidence))
    advice = (
        f"{cause.op_name} is the first that differs: seed what draws random numbers, and see "
        "torch.use_deterministic_algorithms for kernels that add in any order"
    )
    return Triage(sides.compared.actual, (), sides.compared, None, advice, cause=cause)


def _nothing(directory: Path, advice: str) -> Triage:
    return Triage(directory, (), None, None, advice)


# Which steps.


def _first_steps(runner: RoundRunner, commands: _Commands, steps: str) -> Optional[_Sides]:
    """The first steps in which both differ; None where there are none."""
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
    """What the program is compared with."""
    return REFERENCE if REFERENCE in commands else SECOND_RUN


def _statistics(runner: RoundRunner, commands: _Commands, steps: str) -> _Sides:
    results = []
    for program in (PROGRAM, _other(commands)):
        result = runner.record(program, f"records statistics and hashes, steps {steps}", steps=steps)
        if result.dump is None:
            raise no_dump(result, commands[program])
        results.append(result)
    a, b = results
    assert a.dump is not None
    assert b.dump is not None
    sides = _Sides(steps, a, b, compare(a.dump, b.dump))
    runner.conclude(b, _words(sides.compared))
    return sides


def _words(compared: Comparison) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in compared.counts.items())


# Which operators.


def _suspicious(compared: Comparison, known: set[str]) -> Iterator[list[Pair]]:
    """The pairs of operators that may be the cause: what statistics prove, and what hashes tell apart first."""
    groups: dict[str, list[Pair]] = {}
    for pair in compared.pairs.looked_at():
        groups.setdefault(f"{pair.record.step} {pair.record.op_name}", []).append(pair)
    names = [f"{one.step} {one.op_name}" for one in compared.origins]
    names += [f"{pairs[0].record.step} {pairs[0].record.op_name}" for pairs in islice(first_unequal(compared), 4)]
    for name in dict.fromkeys(names):
        pairs = groups.get(name, [])
        if pairs and _name(pairs[0]) not in known:
            yield pairs


def _name(pair: Pair) -> str:
    return f"{pair.record.step} {pair.record.op_name}"


def _with_tensors(
    runner: RoundRunner, commands: _Commands, sides: _Sides, operators: Sequence[Sequence[Pair]], *, replay: bool
) -> tuple[Comparison, _Sides, list[str]]:
    """Record the tensors of these operators and of those that made their inputs, on both sides, and compare them."""
    steps = "|".join(sorted({str(pairs[0].record.step) for pairs in operators}, key=int))
    results: list[RoundResult] = []
    dumps: list[Dump] = []
    reasons: list[str] = []
    for program, before in ((PROGRAM, sides.program), (REFERENCE, sides.reference)):
        assert before.dump is not None
        records = [_side(pairs, program) for pairs in operators]
        names = [one.op_name for one in records if one is not None]
        if not names:
            continue
        made = producers_of(before.dump, names)
        layers = list(dict.fromkeys([*names, *made]))
        purpose = f"records tensors of {', '.join(layers[:3])}{', …' if len(layers) > 3 else ''}"
        result = runner.record(program, purpose, steps=steps, data="tensor", layers=[_exactly(one) for one in layers])
        if result.dump is None:
            raise no_dump(result, commands[program])
        other = other_content(before.dump, result.dump)
        if other is not None:
            reasons.append(f"the {program} does not repeat itself: {other} was another one in each round")
        results.append(result)
        dumps.append(result.dump)
    if len(results) < 2:
        raise CaptureError(
            "an operator runs in one of the programs only, and nothing else differs",
            hint="`ascend-dump compare` of the dumps of the first rounds says which",
        )
    compared = compare(dumps[0], dumps[1], replay=replay)
    runner.conclude(results[1], _words(compared))
    return compared, _Sides(steps, results[0], results[1], compared), reasons


def _side(pairs: Sequence[Pair], program: str) -> Optional[Record]:
    return next((one for pair in pairs for one in [pair.actual if program == PROGRAM else pair.reference] if one), None)


def _exactly(name: str) -> str:
    """A pattern of `layers` for one name."""
    import re

    return f"re:^{re.escape(name)}$"


def _cause(found: Comparison, operators: Sequence[Sequence[Pair]]) -> Optional[Cause]:
    """The first origin among the operators in question, in the order these ran."""
    names = {_name(pairs[0]): place for place, pairs in enumerate(operators)}
    origins = [one for one in found.origins if f"{one.step} {one.op_name}" in names]
    return None if not origins else Cause.of(origins[0].pair.record, origins[0].evidence)


# Whether it is the cause.


def _confirm(runner: RoundRunner, sides: _Sides, result: Triage) -> str:
    """Run the program with the reference's outputs in place of the cause's: what differs then?

    A view has no output of its own: there the memory is replaced that it shows.
    """
    assert result.comparison is not None
    assert result.cause is not None
    cause = result.cause
    pairs = [
        one for one in result.comparison.pairs if one.record.op_name == cause.op_name and one.record.step == cause.step
    ]
    io = "input" if gives_view([one.record for one in pairs]) else "output"
    chosen = [one for one in pairs if one.record.io == io and one.actual and one.reference and not one.undefined]
    if not chosen:
        return f"not tried: {cause.op_name} has no {io} that both sides recorded"
    if io == "input":
        chosen = [one for one in chosen if one.verdict not in ("equal", "noise")]
        if not chosen:
            return f"not tried: {cause.op_name} only shows a part of its input, which is the same on both sides"
    names = {one.reference.op_name for one in chosen if one.reference is not None}
    if names != {cause.op_name}:
        return f"not tried: the reference calls it {', '.join(sorted(names))}, and a graft takes one name for both"
    dump = str(result.comparison.reference)
    graft = {f"{cause.op_name}.{io}.{one.record.index}": dump for one in chosen}
    with_right = f"with the reference's {io} of {cause.op_name}"
    purpose = f"runs {with_right}"
    again = runner.record(PROGRAM, purpose, steps=str(cause.step), graft=graft)
    if again.dump is None or again.reasons:
        runner.conclude(again, "could not be tried")
        # Without the hint, which is for who started the capture.
        return f"not tried: {next(iter(again.reasons), 'nothing was recorded').partition(chr(10))[0]}"
    assert sides.reference.dump is not None
    before = _behind(sides.compared, cause)
    compared = compare(again.dump, sides.reference.dump.select(step=cause.step))
    after = _behind(compared, cause)
    gone = before.keys() - after.keys()
    left = next((pair.record.op_name for key, pair in after.items() if key in before), "")
    count = f"{len(gone)} of {len(before)}"
    text = f"{with_right}, {count} outputs that differed behind it do not"
    own = {one.op_name for one in compared.origins} | {pairs[0].record.op_name for pairs in first_unequal(compared)}
    if not left:
        verdict = "confirmed"
    elif gone and left in own:
        # Whatever it reads is right by now.
        verdict = "confirmed"
        text += f"; the others begin with {left}, which is a cause of its own"
    else:
        verdict = "not confirmed"
        text += f"; {left} differs still"
    runner.conclude(again, verdict)
    return f"{verdict}: {text}"


def _behind(compared: Comparison, cause: Cause) -> dict[tuple[str, int], Pair]:
    """Outputs that differ, but those of the cause itself, in its step."""
    return {
        (one.record.op_name, one.record.index): one
        for one in compared.pairs.looked_at()
        if one.record.step == cause.step
        and one.record.io != "input"
        and one.record.op_name != cause.op_name
        and one.verdict not in ("equal", "noise")
    }

"""Find the first operator that differs between two programs: first by statistics and hashes, then by a few tensors."""

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

#: Maximum number of operators whose tensors are recorded in one round, in addition to the operators that produce their
#: inputs; and maximum number of such rounds.
_MOST_OPERATORS, _MOST_ROUNDS = 8, 3

_Commands = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class _ComparedSteps:
    """The rounds that recorded the same steps of both programs, and the comparison of their dumps."""

    steps: str
    program: RoundResult
    reference: RoundResult
    compared: Comparison


def find_difference(
    runner: RoundRunner, commands: _Commands, directory: Path, steps: str, *, replay: bool, confirm: bool
) -> Triage:
    """Find the first operator whose result differs from the reference.

    replay, confirm: as for `run_triage`
    """
    first_rounds = _first_steps(runner, commands, steps)
    if first_rounds is None:
        return _nothing(directory, "the programs do not differ: the outputs of all steps are the same")
    cause, reasons = None, [*first_rounds.program.reasons, *first_rounds.reference.reasons]
    compared = first_rounds.compared
    checked: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        operators = list(islice(_suspicious(first_rounds.compared, checked), _MOST_OPERATORS))
        if not operators:
            break
        checked |= {_name(pairs[0]) for pairs in operators}
        compared_tensors, tensors, differing = _with_tensors(runner, commands, first_rounds, operators, replay=replay)
        reasons += filter(None, [*differing, *tensors.program.reasons, *tensors.reference.reasons])
        compared = compared_tensors
        cause = _cause(compared_tensors, operators)
        if cause is not None:
            break
    if cause is None:
        advice = {
            "noise": "the programs differ by rounding only",
            "undecided": "statistics agree, and the tensors of the first differing operators differ by rounding only",
            "equal": "the programs do not differ in these steps",
        }.get(first_rounds.compared.verdict, "no difference has an origin: `ascend-dump compare` lists what differs")
        return Triage(directory, (), first_rounds.compared, None, advice, tuple(reasons))
    command = f"ascend-dump compare {compared.actual} {compared.reference}"
    advice = f"the tensors of {cause.op_name} are recorded on both sides: `{command}`"
    result = Triage(compared.actual, (), compared, None, advice, tuple(reasons), cause)
    return replace(result, confirmation=_confirm(runner, first_rounds, result)) if confirm else result


def find_nondeterminism(runner: RoundRunner, commands: _Commands, directory: Path, steps: str) -> Triage:
    """Find the first operator whose result differs in a second run of the program."""
    first_rounds = _first_steps(runner, commands, steps)
    if first_rounds is None:
        return _nothing(directory, "two runs do not differ: the outputs of all steps are the same")
    operator = next(unequal(first_rounds.compared), None)
    if operator is None:
        advice = f"two runs differ, but not every time in steps {first_rounds.steps}: `--step` records other steps"
        return Triage(directory, (), first_rounds.compared, None, advice)
    differs = [pair for pair in operator if is_unequal(pair)]
    evidence = [f"{pair.record.label} has other bytes in the second run" for pair in differs]
    if differs[0].record.io == "input":
        evidence.append("no recorded operator wrote it: it came from outside")
    origins = [pair for pair in first_rounds.compared.origins if pair.op_name == differs[0].record.op_name]
    evidence += [text for pair in origins for text in pair.evidence]
    cause = Cause.of(differs[0].record, dict.fromkeys(evidence))
    advice = (
        f"{cause.op_name} is the first operator that differs: seed all random generators, and see "
        "torch.use_deterministic_algorithms for kernels that add in an arbitrary order"
    )
    return Triage(first_rounds.compared.actual, (), first_rounds.compared, None, advice, cause=cause)


def _nothing(directory: Path, advice: str) -> Triage:
    return Triage(directory, (), None, None, advice)


# The steps to record.


def _first_steps(runner: RoundRunner, commands: _Commands, steps: str) -> Optional[_ComparedSteps]:
    """Record and compare these steps of both programs.

    If these steps are equal, find the first step that differs; record and compare that step and the step before it.
    Returns None if all steps are equal.
    """
    first_rounds = _statistics(runner, commands, steps)
    if first_rounds.compared.verdict != "equal":
        return first_rounds
    a = runner.watch(PROGRAM, "looks for the first step that differs", until="end")
    b = runner.watch(_second_program(commands), "looks for the first step that differs", until="end")
    step = first_other_step(a.outlines, b.outlines)
    if step is None:
        steps_text = "one has more steps" if a.last_step != b.last_step else f"{a.last_step + 1} steps"
        runner.conclude(b, f"the outputs of all steps are the same ({steps_text})")
        return None
    runner.conclude(b, f"the first step with other outputs is {step}")
    return _statistics(runner, commands, f"{step - 1}-{step}" if step else "0")


def _second_program(commands: _Commands) -> str:
    """Return the name of the program to compare with: the reference, or the second run."""
    return REFERENCE if REFERENCE in commands else SECOND_RUN


def _statistics(runner: RoundRunner, commands: _Commands, steps: str) -> _ComparedSteps:
    results = []
    for program in (PROGRAM, _second_program(commands)):
        result = runner.record(program, f"records statistics and hashes, steps {steps}", steps=steps)
        if result.dump is None:
            raise no_dump(result, commands[program])
        results.append(result)
    a, b = results
    assert a.dump is not None
    assert b.dump is not None
    first_rounds = _ComparedSteps(steps, a, b, compare(a.dump, b.dump))
    runner.conclude(b, _verdict_counts(first_rounds.compared))
    return first_rounds


def _verdict_counts(compared: Comparison) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in compared.counts.items())


# The operators to record.


def _suspicious(compared: Comparison, checked: set[str]) -> Iterator[list[Pair]]:
    """Yield the pairs of each operator that may be the cause and is not in `checked`.

    These are the origins of the comparison, and the first operators with equal inputs and unequal outputs.
    """
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
    first_rounds: _ComparedSteps,
    operators: Sequence[Sequence[Pair]],
    *,
    replay: bool,
) -> tuple[Comparison, _ComparedSteps, list[str]]:
    """Record the tensors of these operators, and of the producers of their inputs, on both sides; compare them.

    Returns the comparison, the rounds, and a sentence for each program that is not deterministic.
    """
    steps = "|".join(sorted({str(pairs[0].record.step) for pairs in operators}, key=int))
    results: list[RoundResult] = []
    dumps: list[Dump] = []
    reasons: list[str] = []
    for program, before in ((PROGRAM, first_rounds.program), (REFERENCE, first_rounds.reference)):
        assert before.dump is not None
        records = [_record_of(pairs, program) for pairs in operators]
        names = [name.op_name for name in records if name is not None]
        if not names:
            continue
        producers = producers_of(before.dump, names)
        layers = list(dict.fromkeys([*names, *producers]))
        purpose = f"records tensors of {', '.join(layers[:3])}{', …' if len(layers) > 3 else ''}"
        result = runner.record(
            program, purpose, steps=steps, data="tensor", layers=[_exact_pattern(name) for name in layers]
        )
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
            hint="compare the dumps of the first rounds with `ascend-dump compare` to see its name",
        )
    compared = compare(dumps[0], dumps[1], replay=replay)
    runner.conclude(results[1], _verdict_counts(compared))
    return compared, _ComparedSteps(steps, results[0], results[1], compared), reasons


def _record_of(pairs: Sequence[Pair], program: str) -> Optional[Record]:
    return next(
        (record for pair in pairs for record in [pair.actual if program == PROGRAM else pair.reference] if record), None
    )


def _exact_pattern(name: str) -> str:
    """Return the pattern for `layers` that matches this name only."""
    import re

    return f"re:^{re.escape(name)}$"


def _cause(compared: Comparison, operators: Sequence[Sequence[Pair]]) -> Optional[Cause]:
    """Return the first origin in execution order that is one of these operators, None if there is none."""
    names = {_name(pairs[0]): number for number, pairs in enumerate(operators)}
    origins = [origin for origin in compared.origins if f"{origin.step} {origin.op_name}" in names]
    return None if not origins else Cause.of(origins[0].pair.record, origins[0].evidence)


# Confirming the cause.


def _confirm(runner: RoundRunner, first_rounds: _ComparedSteps, result: Triage) -> str:
    """Run the program with the reference's values in place of the outputs of the cause, and count the differences.

    If the cause is a view, its input is replaced instead, because a view shares the memory of its input. Returns a
    sentence that begins with "confirmed", "not confirmed" or "not tried".
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
    replacement = f"with the reference's {io} of {cause.op_name}"
    purpose = f"runs {replacement}"
    grafted = runner.record(PROGRAM, purpose, steps=str(cause.step), graft=graft)
    if grafted.dump is None or grafted.reasons:
        runner.conclude(grafted, "could not be tried")
        # Only the first line of the reason is shown: its hint is for users who start a capture themselves.
        return f"not tried: {next(iter(grafted.reasons), 'nothing was recorded').partition(chr(10))[0]}"
    assert first_rounds.reference.dump is not None
    before = _later_differences(first_rounds.compared, cause)
    compared = compare(grafted.dump, first_rounds.reference.dump.select(step=cause.step))
    after = _later_differences(compared, cause)
    disappeared = before.keys() - after.keys()
    remaining = next((pair.record.op_name for key, pair in after.items() if key in before), "")
    count = f"{len(disappeared)} of {len(before)}"
    text = f"{replacement}, {count} later outputs that differed no longer differ"
    first_differing = {pair.op_name for pair in compared.origins} | {
        pairs[0].record.op_name for pairs in first_unequal(compared)
    }
    if not remaining:
        verdict = "confirmed"
    elif disappeared and remaining in first_differing:
        # It is a cause of its own, because it is the first difference of the run with correct values.
        verdict = "confirmed"
        text += f"; the others begin with {remaining}, a cause of its own"
    else:
        verdict = "not confirmed"
        text += f"; {remaining} still differs"
    runner.conclude(grafted, verdict)
    return f"{verdict}: {text}"


def _later_differences(compared: Comparison, cause: Cause) -> dict[tuple[str, int], Pair]:
    """Return the outputs of other operators that certainly differ in the step of the cause."""
    return {
        (pair.record.op_name, pair.record.index): pair
        for pair in compared.pairs.looked_at()
        if pair.record.step == cause.step
        and pair.record.io != "input"
        and pair.record.op_name != cause.op_name
        and pair.verdict not in ("equal", "noise", "undecided", "unreadable")
    }

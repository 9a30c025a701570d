"""Find the reason of a loss that spikes, is zero or does not fall: record the steps around the symptom.

The loss is then followed through the recorded operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.explaining.page_facts import command, operator_command
from ascend_dump.analysis.suspects.loss_flow import LossFlow, ZeroSource
from ascend_dump.analysis.triage import Cause, Triage
from ascend_dump.common.units import counted
from ascend_dump.dump_format import SYMPTOM, Cut, Outline
from ascend_dump.errors import ReadError
from ascend_dump.reading import Dump, Record
from ascend_dump.triage_runs._runner import PROGRAM, RoundResult, RoundRunner
from ascend_dump.triage_runs.input_patterns import input_patterns, zero_argument
from ascend_dump.triage_runs.loss_symptoms import (
    THRESHOLDS,
    LossSymptom,
    SettingsChange,
    changes_before,
    is_learning_rate_zero,
    is_without_gradients,
)
from ascend_dump.triage_runs.trainer_steps import trainer_step

__all__ = ["explain_symptom"]

#: Number of steps that are recorded before a symptom and after it.
_AROUND = {"spike": (2, 0), "zero": (0, 1), "stuck": (0, 1)}
#: Maximum number of optimizer operators whose arguments are compared, and relative tolerance of the factor by which an
#: argument changes.
_MOST_COMPARED, _TOLERANCE = 64, 0.05
#: Maximum number of names in a sentence.
_MOST_NAMES = 4


def explain_symptom(runner: RoundRunner, outline: Outline, symptom: LossSymptom) -> Triage:
    """Record the steps around a symptom, and return its reason. If none is found, return the facts that are known."""
    before, after = _AROUND[symptom.kind]
    begin, end = max(symptom.step - before, 0), min(symptom.step + after, max(outline.last, symptom.step))
    room = runner.room_for_tensors
    result = runner.record(
        PROGRAM,
        f"records steps {begin} to {end}" if begin < end else f"records step {end}",
        steps=f"{begin}-{end}",
        data="stats" if room is None else "full",
        max_bytes=room,
        from_start=begin == 0 and outline.updates,
        reports_all=True,
    )
    triage = _explained(result, outline, symptom)
    cause = triage.cause
    if cause is not None and cause.step is not None and result.dump is not None:
        records = result.dump.select(step=cause.step, rank=cause.rank)
        time = next((record.timestamp for record in records if record.op_name == cause.op_name), None)
        triage = replace(triage, when=trainer_step(cause.step, cause.rank, time, result.outlines))
    runner.conclude(result, symptom.what if cause is None else f"{cause.op_name} in step {cause.step}")
    return replace(triage, reasons=(*triage.reasons, *result.reasons), notes=(*triage.notes, *_facts(outline, symptom)))


def _explained(result: RoundResult, outline: Outline, symptom: LossSymptom) -> Triage:
    find = {"spike": _of_spike, "zero": _of_zero, "stuck": _of_stuck}[symptom.kind]
    triage = None if result.dump is None else find(result.dump, outline, symptom)
    if triage is not None:
        return triage
    return _not_found(result, symptom)


def _not_found(result: RoundResult, symptom: LossSymptom) -> Triage:
    looked = {
        "spike": "no setting of the optimizer changes, and no tensor on the way to the loss is ten times as large as "
        "in the step before",
        "zero": "no recorded operator makes the loss zero from other numbers",
        "stuck": "the learning rate is not 0, and no recorded operator makes a gradient zero from other numbers",
    }[symptom.kind]
    reason = f"not found: {symptom.what}; {looked}"
    return Triage(result.directory, (), None, None, symptom.what, (reason,), records=result.dump)


def _of_spike(dump: Dump, outline: Outline, symptom: LossSymptom) -> Optional[Triage]:
    change = next(changes_before(outline, symptom.step), None)
    if change is not None:
        return _triage(dump, _operator_of(dump, change), symptom, change.words, outline)
    growth = LossFlow(dump).growth_source(symptom.step, THRESHOLDS["growth"])
    if growth is None:
        return None
    record = growth.record
    sizes = f"up to {growth.after:.4g}, and up to {growth.before:.4g} in the step before"
    what = f"{record.io} {record.index} has values {sizes}"
    return _triage(dump, record, symptom, what)


def _of_zero(dump: Dump, outline: Outline, symptom: LossSymptom) -> Optional[Triage]:
    source = next(LossFlow(dump).zero_sources("loss"), None)
    return None if source is None else _of_source(dump, source, symptom, "the loss")


def _of_stuck(dump: Dump, outline: Outline, symptom: LossSymptom) -> Optional[Triage]:
    if is_learning_rate_zero(outline):
        step, _, line = outline.settings[0]
        change = SettingsChange("lr", max(step, symptom.step), 0.0, 0.0, line)
        why = "the learning rate of the optimizer is 0"
        return _triage(dump, _operator_of(dump, change), symptom, why, outline)
    flow = LossFlow(dump)
    unreached = _unreached(outline)
    if unreached:
        detached_record = flow.detached(symptom.step, outline.parameters.get("without gradient", ())[1:])
        why = f"{unreached}; the program detaches their results here" if detached_record is not None else unreached
        return _triage(dump, detached_record, symptom, why, outline)
    sources = list(flow.zero_sources("gradient"))
    sources = [source for source in sources if source.zero.step == sources[0].zero.step]
    if not sources:
        return None
    # Choose the operator that makes the largest number of gradients zero.
    names = [source.records[0].op_name for source in sources]
    source = max(sources, key=lambda one: names.count(one.records[0].op_name))
    what = f"{counted(names.count(source.records[0].op_name), 'gradient')}, such as {source.zero.parameter}"
    return _of_source(dump, source, symptom, what)


def _unreached(outline: Outline) -> str:
    """Return a sentence if no parameter of the optimizers has a gradient; "" if one has."""
    if not is_without_gradients(outline):
        return ""
    absent = outline.parameters.get("without optimizer", ())
    text = f"no parameter of the optimizer has a gradient: {_names(outline.parameters['without gradient'])}"
    return f"{text}; no optimizer has {_names(absent)}" if absent else f"{text}; the loss does not depend on them"


def _names(entry: Sequence[str]) -> str:
    count, names = int(entry[0]), entry[1 : _MOST_NAMES + 1]
    return f"{', '.join(names)}{f' and {count - len(names)} more' if count > len(names) else ''}"


def _of_source(dump: Dump, source: ZeroSource, symptom: LossSymptom, what: str) -> Optional[Triage]:
    first = source.records[0]
    constant = zero_argument(source.records)
    patterns = f"the program passes the constant {constant}" if constant else input_patterns(source.records)
    by = f", by {', '.join(reversed(source.path))}" if source.path else ""
    made = f"it makes zeros of other numbers: {patterns}" if patterns else "it makes zeros of other numbers"
    return _triage(dump, first, symptom, f"{made}; it reaches {what} in step {source.zero.step}{by}")


def _operator_of(dump: Dump, change: SettingsChange) -> Optional[Record]:
    """Return the operator of the optimizer step whose arguments change by the same factor as a setting.

    If there is none, return the first operator at the line of the optimizer step, None if no operator is recorded.
    """
    line_records = list(_at_line(dump, change.step, change.source))
    if not change.before:
        return line_records[0] if line_records else None
    earlier_records = {record.op_name: record for record in _at_line(dump, change.step - 1, change.source)}
    factor = change.after / change.before
    for record in list({record.op_name: record for record in line_records}.values())[:_MOST_COMPARED]:
        earlier = earlier_records.get(record.op_name)
        pairs = zip(_numbers(earlier), _numbers(record)) if earlier is not None else ()
        if any(a and abs(b / a / factor - 1) < _TOLERANCE for a, b in pairs):
            return record
    return line_records[0] if line_records else None


def _at_line(dump: Dump, step: int, source: str) -> Iterator[Record]:
    """Yield the records of operators that this line runs in a step, after the backward pass and outside of modules."""
    is_after = False
    for record in dump.select(step=step):
        is_after = is_after or record.phase == "backward"
        is_own = record.phase == "other" and not record.op_type.startswith(SYMPTOM)
        if is_after and is_own and record.source == source:
            yield record


def _numbers(record: Record) -> Iterator[float]:
    try:
        call = record.arguments
    except ReadError:
        return
    for value in () if call is None else call.values.values():
        several = value.values if isinstance(value, Cut) else value
        for number in several if isinstance(several, list) else [value]:
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                yield float(number)


def _triage(
    dump: Dump, record: Optional[Record], symptom: LossSymptom, why: str, outline: Optional[Outline] = None
) -> Optional[Triage]:
    """Return the triage with an operator as the cause; without a record, with the optimizer step of the outline.

    None if there is neither a record nor an outline.
    """
    evidence = (symptom.what, why)
    if record is not None:
        cause = Cause.of(record, evidence, symptom.kind)
        advice = f"its tensors are in this dump: `{operator_command('show', dump.root, record)}`"
    elif outline is not None:
        step, _, source = outline.settings[0] if outline.settings else (symptom.step, {}, "")
        line = source or None
        cause = Cause("optimizer.step()", "", step, None, None, line, "other", evidence, kind=symptom.kind)
        advice = f"the recorded steps: {command('ascend-dump', 'ls', str(dump.root))}"
    else:
        return None
    return Triage(dump.root, (), None, None, advice, cause=cause, records=dump, why=f"{why}; {symptom.what}")


def _facts(outline: Outline, symptom: LossSymptom) -> Iterator[str]:
    """Yield facts about the training that may explain a symptom."""
    if symptom.kind == "stuck":
        for kind in ("frozen", "without optimizer", "without gradient"):
            entry = outline.parameters.get(kind)
            if entry is not None:
                yield f"parameters {kind}: {_names(entry)}"
    if symptom.kind == "spike":
        steps = [step for step in sorted(outline.norms) if symptom.step - 3 <= step <= symptom.step]
        norms = ", ".join(f"{outline.norms[step]:.4g} in step {step}" for step in steps)
        if norms:
            yield f"largest norm of a gradient: {norms}"

"""Find out which token of which request is in each slot of a model's calls, and in each key of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.id_axes import set_axes_of_ids
from ascend_dump.analysis.alignment.model_calls import (
    NO_TOKEN,
    REJECTED,
    ModelCall,
    calls_of_step,
    embedding_tables,
    table_of_ids,
)
from ascend_dump.analysis.alignment.token_integers import IntegersOfCalls, TokenRun
from ascend_dump.analysis.alignment.token_requests import UNKNOWN, Requests, are_equal_ids
from ascend_dump.analysis.operators.operator import Operator

__all__ = ["CallsOfSide", "calls_of_sides", "model_calls_of", "pair_sequences"]


class CallsOfSide(NamedTuple):
    """The calls of one side. sequences: the ids of each request; rejected: number of tokens that were rejected."""

    calls: list[ModelCall]
    sequences: list[list[int]]
    rejected: int = 0


def calls_of_sides(
    steps: Sequence[Sequence[Operator]], reference_steps: Sequence[Sequence[Operator]]
) -> tuple[CallsOfSide, CallsOfSide]:
    """Return the calls of actual and of the reference, with their tokens.

    The sequences of the side with fewer calls are found first. They help to find the sequences of the other side.
    """
    of_steps = model_calls_of(steps, reference_steps, guess=True)
    set_axes_of_ids(of_steps)
    first = int(len(of_steps[1]) <= len(of_steps[0]))
    known = _with_tokens(of_steps[first], ())
    other = _with_tokens(of_steps[1 - first], known.sequences)
    return (other, known) if first else (known, other)


def model_calls_of(
    steps: Sequence[Sequence[Operator]], reference_steps: Sequence[Sequence[Operator]], *, guess: bool
) -> list[list[ModelCall]]:
    """Return the calls of actual and of the reference, without their tokens.

    A side without operators for embeddings may index a table with ids. If both sides do, the table of actual is
    guessed, and the reference has to index one like it.

    guess: True to find this table also if it is not like the table of embeddings of the other side
    """
    sides = steps, reference_steps
    of_steps = [[call for step in side for call in calls_of_step(step)] for side in sides]
    begins_with_guess = not any(of_steps)
    for number, side in enumerate(sides):
        if not of_steps[number]:
            table = table_of_ids(side, embedding_tables(of_steps[1 - number]), guess=guess or begins_with_guess)
            begins_with_guess = False
            if table:
                of_steps[number] = [call for step in side for call in calls_of_step(step, table)]
    return of_steps


def _with_tokens(calls: list[ModelCall], known: Sequence[Sequence[int]]) -> CallsOfSide:
    """Set the `slots` and `keys` of the calls, and return the calls. known: the sequences of the other side, if any"""
    if not calls:
        return CallsOfSide([], [])
    reader = IntegersOfCalls(calls, known)
    requests = Requests(known)
    row_sequences: dict[int, int] = {}
    before: Optional[ModelCall] = None
    kept_from: list[Optional[ModelCall]] = []
    for call in calls:
        call.slots = [[NO_TOKEN] * call.width for _ in range(call.rows)]
        segments = list(reader.segments(call))
        is_flat = call.rows == 1 and (len(segments) > 1 or len(row_sequences) > 1)
        goes_on = not is_flat and before is not None and before.rows == call.rows and reader.goes_on(before, call)
        if is_flat:
            row_sequences = _add_flat(call, segments, row_sequences, requests)
        else:
            continued, row_sequences = (
                row_sequences,
                _add_rows(call, segments, row_sequences if goes_on else {}, requests),
            )
            goes_on = goes_on and row_sequences.items() <= continued.items()
        kept_from.append(before if goes_on else None)
        before = call
    for call, kept in zip(calls, kept_from):
        call.keys = [[*keys, *slots] for keys, slots in zip(_kept_keys(call, kept), call.slots)]
    return CallsOfSide(calls, requests.ids, requests.rejected)


def _add_rows(
    call: ModelCall, segments: Sequence[TokenRun], before: dict[int, int], requests: Requests
) -> dict[int, int]:
    """Add the tokens of a call to their sequences, and return the sequence of each row.

    A call of several rows may continue sequences that began in calls of their own.

    before: the sequence of each row that goes on
    """
    result: dict[int, int] = {}
    for segment in segments:
        number = result.get(segment.row, before.get(segment.row))
        if call.rows == 1:
            number = requests.waiting(segment, number)
        if number is not None and requests.begins_other(number, segment):
            number = None
        if number is None and segment.cached and call.rows > 1:
            others = set(range(len(requests.ids))).difference(before.values(), result.values())
            number = requests.owner(segment, sorted(others), None)
        number = requests.begin(segment) if number is None else number
        requests.add(number, segment, call)
        result[segment.row] = number
    return result


def _kept_keys(call: ModelCall, before: Optional[ModelCall]) -> list[list[tuple[int, int]]]:
    """Return for each row the keys that a cache holds before a call. before: the call that it continues, if any"""
    if before is not None:
        return [[token for token in row if token != REJECTED] for row in before.keys]
    # If the first token of a row is not the first of its sequence, a cache has held the tokens before it.
    first = [next((token for token in row if token[0] >= 0), NO_TOKEN) for row in call.slots]
    counts = [position if sequence >= 0 else 0 for sequence, position in first]
    longest = max(counts, default=0)
    return [
        [(sequence, index) if index >= 0 else NO_TOKEN for index in range(count - longest, count)]
        for (sequence, _), count in zip(first, counts)
    ]


def _add_flat(
    call: ModelCall, segments: Sequence[TokenRun], before: dict[int, int], requests: Requests
) -> dict[int, int]:
    """Add the tokens of a flat call to their sequences, and return the sequence of each part of the call, by index.

    A flat call has a single row with the slots of several requests. before: the sequences of the call before it
    """
    others = [number for number in range(len(requests.ids)) if number not in before.values()]
    waiting = [*before.values(), *others]
    parts = [part for segment in segments for part in requests.divided(segment, waiting)]
    parts = _one_each(parts, len(before))
    result: dict[int, int] = {}
    for index, part in enumerate(parts):
        same_index = before.get(index) if len(parts) == len(before) and before.get(index) in waiting else None
        owner = requests.owner(part, waiting, same_index)
        if owner is None:
            owner = requests.begin(part)
        else:
            waiting.remove(owner)
        requests.add(owner, part, call)
        result[index] = owner
    return result


def _one_each(segments: Sequence[TokenRun], count: int) -> list[TokenRun]:
    """Divide the segments into single tokens if the call has exactly one token for each of `count` > 1 requests.

    count: the number of requests of the call before
    """
    if count < 2 or sum(len(segment.slots) for segment in segments) != count:
        return list(segments)
    return [segment.part(n, n + 1) for segment in segments for n in range(len(segment.slots))]


def pair_sequences(actual: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """Pair sequences that begin with the same ids.

    Return for a sequence of actual: the sequence of the reference, and the number of equal ids. A sequence may end
    earlier on one side. The sequences with most equal ids are paired first.
    """
    scores = []
    for a, ids_a in enumerate(actual):
        for b, ids_b in enumerate(reference):
            unequal = (n for n, pair in enumerate(zip(ids_a, ids_b)) if not are_equal_ids(*pair))
            count = next(unequal, min(len(ids_a), len(ids_b)))
            if any(UNKNOWN not in pair for pair in zip(ids_a[:count], ids_b)):
                scores.append((-count, len(ids_a) + len(ids_b) - 2 * count, abs(a - b), a, b))
    pairs: dict[int, tuple[int, int]] = {}
    taken: set[int] = set()
    for negative, _, _, a, b in sorted(scores):
        if a not in pairs and b not in taken:
            pairs[a] = (b, -negative)
            taken.add(b)
    return pairs

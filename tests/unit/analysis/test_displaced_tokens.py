"""Tokens that the other side has at other positions, and slots that were taken for padding."""

from __future__ import annotations

from typing import Any

import pytest

np: Any = pytest.importorskip("numpy")

from ascend_dump.analysis.alignment.displaced_tokens import (  # noqa: E402
    DisplacedTokens,
    PartedRequest,
    count_tokens,
    displaced_tokens,
    parted_requests,
)
from ascend_dump.analysis.alignment.model_calls import NO_TOKEN, ModelCall, Token  # noqa: E402
from ascend_dump.analysis.alignment.token_integers import TokenRun  # noqa: E402
from ascend_dump.analysis.alignment.token_requests import UNKNOWN, Requests  # noqa: E402


def call(ids: list[int], tokens: list[Token]) -> ModelCall:
    record: Any = None
    return ModelCall([], np.array([ids]), record, [tokens])


def run(ids: list[int], position: int) -> TokenRun:
    return TokenRun(0, tuple(range(len(ids))), tuple(ids), position, position)


@pytest.mark.parametrize(
    ("ids", "position", "cached"),
    [
        ([8], 3, 3),  # as recorded
        ([8], 4, 3),  # positions that are one too large
        ([7, 8, 9, 10], 0, 2),  # positions that begin at 0 behind cached tokens
        ([9, 10], 0, 0),  # too few ids
    ],
)
def test_ids_show_what_was_cached_where_positions_are_wrong(ids: list[int], position: int, cached: int) -> None:
    requests = Requests([[5, 6, 7, 8, 9, 10, 11, 12]])
    requests.begin(run(ids, position))
    assert requests.ids == [[UNKNOWN] * cached]


def test_a_part_whose_positions_begin_again_continues_a_request() -> None:
    requests = Requests([[5, 6, 7, 8, 9, 10, 11, 12], [6, 7, 1, 2]])
    prompt, chunk = run([5, 6, 7], 0), call([5, 6, 7], [NO_TOKEN] * 3)
    requests.add(requests.begin(prompt), prompt, chunk)
    assert requests.owner(run([8, 9], 0), [0], None) == 0
    assert requests.owner(run([8, 3], 0), [0], None) is None
    assert requests.owner(run([6, 7], 0), [0], None) is None


@pytest.mark.parametrize(
    ("written", "ids", "begins"),
    [
        ([5, 6, 7, 8], [1, 2], True),  # its first tokens were cached for the other request
        ([5, 6, 7, 8], [7, 1], True),
        ([5, 6, 7, 8], [7, 8, 9], False),  # the same tokens again
        ([5, 6, 3, 8], [7, 8], False),  # no request of the other side has the tokens of a rejected draft
        ([5, 6], [1, 2], False),  # it goes on
        ([5, 6, 7, 8], [4, 4], False),  # the other side has no such request
    ],
)
def test_a_request_behind_the_first_tokens_of_another_one(written: list[int], ids: list[int], begins: bool) -> None:
    requests = Requests([[5, 6, 7, 8, 9, 10], [5, 6, 1, 2], [5, 6, 7, 1]])
    first = run(written, 0)
    number = requests.begin(first)
    requests.add(number, first, call(written, [NO_TOKEN] * len(written)))
    assert requests.begins_other(number, run(ids, 2)) is begins


def test_requests_whose_tokens_are_at_other_positions() -> None:
    prompt = [5, 6, 7, 8, 9, 10, 11, 12]
    assert displaced_tokens([prompt[:4], prompt[4:]], [prompt], {0: 0}) == [DisplacedTokens(1, 4, 0, 4)]
    assert displaced_tokens([prompt], [prompt[:4], prompt[4:]], {0: 0}) == []


def test_requests_whose_ids_part() -> None:
    prompt, reference = [5, 6, 7, 8, 9, 10], [[5, 6, 1, 2, 3, 4], [4, 8, 9, 10, 11]]
    assert parted_requests([prompt], reference, {0: (0, 2)}) == [PartedRequest(0, 2, (7, 1))]
    assert parted_requests([prompt[:2]], reference, {0: (0, 2)}) == []


@pytest.mark.parametrize("behind", [[8, 9, 10, 11], [7, 8, 9, 10, 11]])
def test_a_request_that_goes_on_with_ids_of_another_one_does_not_part(behind: list[int]) -> None:
    assert parted_requests([[5, 6, *behind]], [[5, 6, 1, 2, 3], [4, 8, 9, 10, 11]], {0: (0, 2)}) == []


def test_beams_do_not_part() -> None:
    """A search goes on with one beam in place of another one, maybe several times."""
    reference = [[5, 6, 1, 2], [5, 6, 1, 3]]
    assert parted_requests([[5, 6, 7, 8], [5, 6, 9, 4]], reference, {0: (0, 2), 1: (1, 2)}) == []
    assert parted_requests([[5, 6, 7, 8]], reference, {0: (0, 2)}) == []
    assert parted_requests([[5, 6, 7, 8], [5, 6, 9, 4]], reference[:1], {0: (0, 2)}) == []
    assert parted_requests([[5, 6, 1, 8], [5, 6, 9, 4]], [[5, 6, 1, 2]], {0: (0, 3)}) == []
    assert parted_requests([[5, 6, 1, 8], [5, 3, 9, 4]], [[5, 6, 1, 2]], {0: (0, 3)}) == [PartedRequest(0, 3, (8, 2))]


def test_few_tokens_occur_in_another_request_by_chance() -> None:
    assert displaced_tokens([[7, 8, 9]], [[5, 6, 7, 8, 9]], {}) == []
    assert displaced_tokens([[1, 2, 3, 4]], [[5, 6, 7, 8, 9]], {}) == []


def test_tokens_in_slots_that_were_taken_for_padding() -> None:
    other = call([5, 6, 7, 8, 9, 10], [*[NO_TOKEN] * 4, (0, 0), (0, 1)])
    assert displaced_tokens([[5, 6, 7, 8]], [[9, 10]], {}, [other]) == [DisplacedTokens(0, 4, None, 0)]


def test_slots_with_several_ids_count_as_tokens() -> None:
    assert count_tokens([call([5, 6, 7, 8, 9], [*[NO_TOKEN] * 4, (0, 0)])]) == 5
    assert count_tokens([call([0, 0, 0, 0, 9], [*[NO_TOKEN] * 4, (0, 0)])]) == 1


def test_a_request_that_has_ended_on_the_other_side_does_not_go_on() -> None:
    """Both have three tokens, and the other side knows no fourth one of the first request."""
    requests = Requests([[5, 6, 7], [8, 9, 5, 6]])
    for ids in ([5, 6, 7], [8, 9, 5]):
        segment = run(ids, 0)
        requests.add(requests.begin(segment), segment, call(ids, [NO_TOKEN] * 3))
    assert requests.owner(run([6], 3), [0, 1], None) == 1
    assert requests.waiting(run([6], 3), 0) == 1


@pytest.mark.parametrize(("calls", "position"), [([[5, 6, 9, 9]], 2), ([[5, 6], [9], [9]], 4)])
def test_padding_is_in_the_first_call_of_a_request(calls: list[list[int]], position: int) -> None:
    """Behind it, a program may write the next token. Tokens that were generated may be the same ones by chance."""
    requests, begin = Requests([[5, 6, 7]]), 0
    number = requests.begin(run(calls[0], 0))
    for ids in calls:
        requests.add(number, run(ids, begin), call(ids, [NO_TOKEN] * len(ids)))
        begin += len(ids)
    last = call([7], [NO_TOKEN])
    requests.add(number, run([7], begin), last)
    assert last.slots == [[(number, position)]]

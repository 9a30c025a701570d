"""The step language."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_dump import ConfigError, Steps

LIMIT = 2**31 - 1

numbers = st.integers(0, 10_000)
ranges = st.tuples(numbers, st.integers(0, 50)).map(lambda pair: (pair[0], pair[0] + pair[1]))
spaces = st.sampled_from(["", " ", "  "])


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, set[int]]:
    """A valid text and the set it means."""
    parts, meant = [], set()
    for low, high in draw(st.lists(ranges, min_size=1, max_size=12)):
        meant |= set(range(low, high + 1))
        pad = draw(spaces)
        lone = low == high and draw(st.booleans())
        parts.append(f"{pad}{low}{pad}" if lone else f"{pad}{low}{pad}-{pad}{high}{pad}")
    return "|".join(parts), meant


@given(texts())
def test_membership_is_that_of_the_naive_set(case: tuple[str, set[int]]) -> None:
    text, meant = case
    steps = Steps(text)
    probes = meant | {edge for step in meant for edge in (step - 1, step + 1)}
    assert {step for step in probes if step in steps} == meant
    assert steps.last == max(meant)
    assert not steps.all


@given(texts())
def test_every_writer_is_read_back_to_the_same_steps(case: tuple[str, set[int]]) -> None:
    steps = Steps(case[0])
    for written in (str(steps), steps.to_cann(), steps.to_ge_option(), steps.to_mindspore()):
        assert Steps(written) == steps
        assert " " not in written
        # Adjacent or equal ends are refused by GE.
        assert all(int(low) < int(high) for low, high in re.findall(r"(\d+)-(\d+)", written))
    assert Steps(steps) == steps
    assert hash(Steps(str(steps))) == hash(steps)


@given(st.sets(numbers, min_size=1, max_size=30))
def test_ints_ranges_and_lists_mean_what_their_text_means(chosen: set[int]) -> None:
    text = Steps("|".join(map(str, chosen)))
    assert Steps(chosen) == text
    assert Steps(iter(sorted(chosen, reverse=True))) == text
    one = min(chosen)
    assert Steps(one) == Steps([one]) == Steps(range(one, one + 1)) == Steps(str(one))
    assert Steps(range(one, one + 5)) == Steps(f"{one}-{one + 4}")
    assert Steps(range(one, one + 9, 2)) == Steps([one, one + 2, one + 4, one + 6, one + 8])


def test_neighbours_are_written_as_one_range() -> None:
    # Fewer intervals: CANN takes at most 100.
    assert str(Steps("5|0|1|2-3|9|3-4")) == "0-5|9"
    assert str(Steps([1, 2, 4])) == "1-2|4"


@pytest.mark.parametrize("value", [None, "all", "ALL", " all ", Steps()])
def test_all(value: Any) -> None:
    steps = Steps(value)
    assert steps.all
    assert steps.last is None
    assert 0 in steps
    assert 10**12 in steps
    assert (str(steps), steps.to_cann(), steps.to_ge_option(), steps.to_mindspore()) == ("all", "", "", "all")


def test_what_is_no_step_is_in_no_selection() -> None:
    assert None not in Steps("0-3")
    assert "1" not in Steps("0-3")
    assert 1.0 not in Steps("0-3")
    assert -1 not in Steps("0-3")


WRONG = [
    "",
    " ",
    "-",
    "-1",
    "1-2-3",
    "1,2",
    "a",
    "1.5",
    "0x1",
    "+1",
    "1_0",
    "١",
    "²",
    "all",
    "\n",
    "\t1x",
    "'",
    "9" * 5000,
]
BAD_PARTS = st.one_of(
    st.sampled_from(WRONG),
    st.tuples(numbers, st.integers(1, 50)).map(lambda pair: f"{pair[0] + pair[1]}-{pair[0]}"),
)


@given(texts(), BAD_PARTS, st.sampled_from(["", "\t"]), st.data())
def test_bad_text_is_marked_where_it_is_wrong(
    good: tuple[str, set[int]], bad: str, lead: str, data: st.DataObject
) -> None:
    parts = f"{lead}{good[0]}".split("|")
    place = data.draw(st.integers(0, len(parts)))
    text = "|".join([*parts[:place], bad, *parts[place:]])
    with pytest.raises(ConfigError) as caught:
        Steps(text, name="ranks")
    assert caught.value.code == "AD102"
    assert caught.value.hint
    message, shown, pointer = caught.value.message.rsplit("\n", 2)
    assert message.endswith(" in")
    assert shown == f"ranks={text!r}"
    marked = [at for at, char in enumerate(pointer) if char == "^"]
    assert set(pointer) <= {" ", "^"}
    assert marked == list(range(marked[0], marked[-1] + 1))
    under = shown[marked[0] : marked[-1] + 1]
    assert under == (repr(bad)[1:-1] if bad else "|")


def test_empty_text_is_marked_too() -> None:
    with pytest.raises(ConfigError, match=r"an empty part in\nsteps=''\n {7}\^ "):
        Steps("")


@given(st.text(alphabet="0123456789-| \t,xa", max_size=12))
def test_any_text_is_either_steps_or_a_config_error(text: str) -> None:
    try:
        steps = Steps(text)
    except ConfigError:
        return
    assert Steps(str(steps)) == steps


@pytest.mark.parametrize(
    "value",
    [True, False, -1, [], range(0), [1, -2], [1, "2"], [True], 1.5, object, b"1", bytearray(b"1"), range(-1, 2)],
    ids=repr,
)
def test_values_of_another_kind_are_refused_with_the_accepted_ones(value: Any) -> None:
    with pytest.raises(ConfigError, match=r'steps=.*\[AD102\]\nHint: .*"0\|3-5\|10"'):
        Steps(value)


def test_what_only_one_framework_cannot_take() -> None:
    many = Steps(range(0, 402, 2))
    assert len(str(many).split("|")) == 201
    for write in (many.to_cann, many.to_ge_option):
        with pytest.raises(ConfigError, match=r"201 intervals.*at most 100") as caught:
            write()
        assert caught.value.code == "AD102"
    assert Steps(many.to_mindspore()) == many
    assert Steps(range(0, 200, 2)).to_cann().count("|") == 99
    assert Steps(LIMIT).to_ge_option() == str(LIMIT)
    with pytest.raises(ConfigError, match="int32"):
        Steps(LIMIT + 1).to_ge_option()
    assert Steps(LIMIT + 1).to_cann() == str(LIMIT + 1)


strides = st.tuples(numbers, st.one_of(st.none(), st.integers(0, 500)), st.integers(1, 60))


@given(st.lists(strides, min_size=1, max_size=5), st.lists(ranges, max_size=5))
def test_strides_and_open_ends_are_those_of_the_naive_set(
    spans: list[tuple[int, Any, int]], plain: list[tuple[int, int]]
) -> None:
    parts, meant, beyond = [], set(), 12_000
    for low, more, stride in spans:
        end = beyond if more is None else low + more
        meant |= set(range(low, end + 1, stride))
        parts.append(f"{low}-{'' if more is None else low + more}" + (f":{stride}" if stride > 1 else ""))
    for low, high in plain:
        meant |= set(range(low, high + 1))
        parts.append(f"{low}-{high}")
    steps = Steps("|".join(parts))
    assert {step for step in range(beyond + 1) if step in steps} == meant
    open_ended = any(more is None for _, more, _ in spans)
    assert (steps.last, steps.count is None) == (None if open_ended else max(meant), open_ended)
    assert steps.count is None or steps.count >= len(meant)
    again = Steps(str(steps))
    assert (again, hash(again), str(again)) == (steps, hash(steps), str(steps))
    if not open_ended:
        listed = Steps(steps.to_mindspore())
        assert {step for step in range(beyond) if step in listed} == meant


def test_what_of_strides_and_open_ends_is_written() -> None:
    assert str(Steps("0-10000:1000|4000-")) == "0-10000:1000|4000-"
    assert str(Steps("5-5:3|7-11:4")) == "5|7|11"
    assert str(Steps("2-4|3-|9")) == "2-"
    assert Steps("0-") == Steps("all")
    assert (Steps("0-9:4").count, Steps("0-9:4").last) == (3, 8)
    assert Steps("0-8:4").to_cann() == "0|4|8"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0-9:0", "a stride of 0"),
        ("5:2", "has a stride but is not a range"),
        ("0-9:", "neither a number nor a range"),
        ("0-9:x", "neither a number nor a range"),
        ("-", "neither a number nor a range"),
        ("-5", "neither a number nor a range"),
        ("0-9:2:2", "neither a number nor a range"),
        ("9-5:2", "runs backwards"),
    ],
)
def test_wrong_strides_are_marked(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Steps(f"1|{text}")
    assert "^" in str(caught.value)


@pytest.mark.parametrize("write", ["to_cann", "to_ge_option", "to_mindspore"])
def test_who_knows_no_open_ends_refuses_them_and_says_what_to_write(write: str) -> None:
    with pytest.raises(ConfigError, match="has no ranges without an end") as caught:
        getattr(Steps("4000-"), write)()
    assert "such as 4000-4999" in caught.value.hint
    with pytest.raises(ConfigError, match="stands for 1000001 steps"):
        getattr(Steps("0-10000000:10"), write)()


def test_a_dump_is_selected_by_strides(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    import ascend_dump

    with ascend_dump.capture(path=tmp_path, steps="0-4:2|7-", quiet=True) as cap:
        for number in range(10):
            if number:
                cap.step()
            torch.ones(1)
    assert {record.step for record in cap.dump()} == {0, 2, 4, 7, 8, 9}
    assert {record.step for record in cap.dump().select(step="2-:3")} == {2, 8}


@pytest.mark.parametrize(
    ("text", "last"),
    [("3", 3), ("0-2|7", 7), ("0-9:4", 8), ("5|0-8:4", 8), ("all", None), ("4-", None), ("0-:2", None)],
)
def test_no_step_is_selected_after_the_last(text: str, last: int | None) -> None:
    steps = Steps(text)
    assert steps.last == last
    assert steps.end_before(10**6) == (last is not None)
    assert last is None or (not steps.end_before(last) and steps.end_before(last + 1))


@pytest.mark.parametrize("text", ["all", "3", "2|10-12|20-:5", "0-10000:1000|7", "4000-", "5-40:7|3|41-:9"])
def test_the_first_step_from_any_on_is_found_without_trying_all(text: str) -> None:
    steps = Steps(text)
    for step in (*range(60), 999, 1000, 1001, 9000, 9001, 10001):
        expected = next((one for one in range(step, step + 4001) if one in steps), None)
        assert steps.first_from(step) == expected

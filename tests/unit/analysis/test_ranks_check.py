"""Check the results of collective calls against the inputs of all ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from host_dumps import item, put
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.ranks import CallBook, check_call
from ascend_dump.cli import main
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.writing import HostWriter

Arrays = list[np.ndarray]


def write(
    root: Path, told: list[CollectiveCall], given: list[Arrays], got: list[Arrays], *, stats: bool = False
) -> Path:
    """A dump with one call, of which each rank has the records."""
    for rank, call in enumerate(told):
        folder = root / f"worldsize{len(told)}_global_rank{rank}" / f"2026010101010{rank % 10}" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        writer = HostWriter(
            folder, metadata={}, tensors=not stats, stats=("max", "min", "mean", "l2norm") if stats else ()
        )
        writer.begin_step(0)
        for io, arrays in (("input", given[rank]), ("output", got[rank])):
            for index, array in enumerate(arrays):
                more: dict[str, Any] = {"io": io, "index": index, "op_type": "c10d::op", "collective": call, "seq": 3}
                put(writer, item("op_0", array, **more))
        writer.end_step()
        writer.close()
    return root


def findings(root: Path) -> list[tuple[Any, str]]:
    book = CallBook()
    for members in executions(ascend_dump.open(root)):
        book.look_at(members)
    book.end()
    found = []
    for parts in (parts for parts in book.calls.values() if len(parts) > 1):
        wrong, why = check_call(parts)
        found += [(one.record.rank, one.reason) for one in wrong]
        if why is not None:
            found.append((None, why))
    return found


def calls(kind: str, ranks: int, **more: Any) -> list[CollectiveCall]:
    return [CollectiveCall(kind, "g", f"0-{ranks - 1}", **more)] * ranks


def parts_of(seed: int, ranks: int, size: int, dtype: Any) -> Arrays:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return [rng.integers(0, 100, size).astype(dtype) for _ in range(ranks)]
    return [(rng.standard_normal(size) * 10.0 ** rng.integers(-3, 3)).astype(dtype) for _ in range(ranks)]


def one_after_the_other(arrays: Arrays, operation: str) -> np.ndarray:
    """In the type of the arrays, as communication libraries add."""
    made = arrays[0].copy()
    for array in arrays[1:]:
        made = {
            "max": np.maximum,
            "min": np.minimum,
            "product": np.multiply,
        }.get(operation, np.add)(made, array).astype(made.dtype)
    return (made / made.dtype.type(len(arrays))).astype(made.dtype) if operation == "avg" else made


TYPES = ["float32", "float64", "float16", "bfloat16", "int32"]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(2, 8),
    st.sampled_from(TYPES),
    st.sampled_from(["sum", "max", "min", "product", "avg"]),
    st.booleans(),
)
@example(185, 6, "float16", "product", True)  # underflows, and is multiplied afterwards
def test_right_reductions_are_right(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ranks: int, dtype: str, operation: str, told: bool
) -> None:
    if dtype == "int32" and operation == "avg":
        return
    given_ = parts_of(seed, ranks, 50, np.dtype(dtype))
    if operation == "product":
        given_ = [np.clip(array, -3, 3) for array in given_]
    made = one_after_the_other(given_, operation)
    root = write(
        tmp_path_factory.mktemp("right") / "d",
        calls("all_reduce", ranks, reduce=operation if told else ""),
        [[one] for one in given_],
        [[made]] * ranks,
    )
    assert findings(root) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 8), st.sampled_from(TYPES), st.data())
def test_a_wrong_element_of_one_rank_is_found(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ranks: int, dtype: str, data: st.DataObject
) -> None:
    given_ = parts_of(seed, ranks, 50, np.dtype(dtype))
    made = one_after_the_other(given_, "sum")
    rank, at = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, 49))
    wrong = made.copy()
    sizes = sum(np.abs(one.astype("f8")) for one in given_)
    wrong[at] = made.dtype.type(float(made[at]) + max(float(sizes[at]) * 0.2, 1))
    results = [[wrong if one == rank else made] for one in range(ranks)]
    root = write(
        tmp_path_factory.mktemp("wrong") / "d",
        calls("all_reduce", ranks, reduce="sum"),
        [[one] for one in given_],
        results,
    )
    [(found, reason)] = findings(root)
    assert found == rank
    assert f" at {at}: " in reason
    assert "(ranks 0-" in reason


@pytest.mark.parametrize("told", ["sum", ""])
@pytest.mark.parametrize("factor", [0, 2])
def test_whose_part_is_missing_or_there_twice(factor: int, told: str, tmp_path: Path) -> None:
    given_ = parts_of(1, 4, 50, "f4")
    made = one_after_the_other([one * (factor if rank == 2 else 1) for rank, one in enumerate(given_)], "sum")
    root = write(tmp_path / "d", calls("all_reduce", 4, reduce=told), [[one] for one in given_], [[made]] * 4)
    [(rank, reason)] = findings(root)
    assert rank == 2
    assert f"as if the part of rank 2 were {'in it twice' if factor else 'missing'}" in reason


def test_other_kinds(tmp_path: Path) -> None:
    a = parts_of(0, 3, 6, "f4")
    whole = np.concatenate(a)
    total = one_after_the_other(a, "sum")
    rooted = {"root": 1}
    cases = {
        "all_gather": ({}, [[one] for one in a], [[whole]] * 3),
        "broadcast": (rooted, [[one] for one in a], [[a[1]]] * 3),
        "reduce": ({**rooted, "reduce": "sum"}, [[one] for one in a], [[a[0]], [total], [a[2]]]),
        "reduce_scatter": ({"reduce": "sum"}, [[one] for one in a], [[total[2 * i : 2 * i + 2]] for i in range(3)]),
        "gather": (rooted, [[one] for one in a], [[], a, []]),
        "scatter": (rooted, [[], a, []], [[one] for one in a]),
        "all_to_all": (
            {},
            [[one] for one in a],
            [[np.concatenate([one[2 * i : 2 * i + 2] for one in a])] for i in range(3)],
        ),
    }
    for kind, (more, given_, got) in cases.items():
        assert findings(write(tmp_path / kind, calls(kind, 3, **more), given_, got)) == [], kind
        spoilt = [[one.copy() for one in arrays] for arrays in got]
        spoilt[1][0][1] += 1
        [(rank, reason)] = findings(write(tmp_path / f"{kind}_wrong", calls(kind, 3, **more), given_, spoilt))
        assert rank == 1, kind
        assert f"{kind} of group g (ranks 0-2)" in reason


def test_nan_and_inf_that_ranks_gave_are_no_fault(tmp_path: Path) -> None:
    given_ = parts_of(0, 2, 5, "f4")
    given_[0][2], given_[1][3] = np.nan, np.inf
    root = write(
        tmp_path / "d", calls("all_reduce", 2, reduce="sum"), [[one] for one in given_], [[given_[0] + given_[1]]] * 2
    )
    assert findings(root) == []
    lost = given_[0] + given_[1]
    lost[2] = 0
    root = write(tmp_path / "e", calls("all_reduce", 2, reduce="sum"), [[one] for one in given_], [[lost]] * 2)
    assert [rank for rank, _ in findings(root)] == [0]


def test_a_sum_beyond_its_type_is_inf(tmp_path: Path) -> None:
    given_ = [np.full(3, 40000, "f2")] * 2
    got = [[np.full(3, np.inf, "f2")]] * 2
    assert findings(write(tmp_path / "d", calls("all_reduce", 2, reduce="sum"), [[one] for one in given_], got)) == []


def exchanged(root: Path, outputs: list[np.ndarray], room: int = 5) -> Path:
    """An all_to_all_single of two ranks: rank 0 keeps one row and sends five, rank 1 sends four and keeps two.

    room: the number of rows that rank 1 expects of rank 0
    """
    splits, received = ([1, 5], [4, 2]), ([1, 4], [room, 2])
    for rank, output in enumerate(outputs):
        folder = root / f"worldsize2_global_rank{rank}" / f"2026010101010{rank}" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        writer = HostWriter(folder, metadata={})
        writer.begin_step(0)
        args = {"output_split_sizes": received[rank], "input_split_sizes": splits[rank]}
        more: dict[str, Any] = {"op_type": "c10d::alltoall_base_", "collective": calls("all_to_all", 2)[0], "seq": 3}
        sent = item("op_0", np.arange(24.0).reshape(6, 4) + 100 * rank, io="input", index=1, **more)
        sent.line.call = msgspec.Raw(msgspec.json.encode({"op": "c10d.alltoall_base_.default", "args": args}))
        put(writer, sent)
        put(writer, item("op_0", output, io="output", **more))
        writer.end_step()
        writer.close()
    return root


def test_an_exchange_of_unequal_parts_is_recomputed(tmp_path: Path) -> None:
    sent = [np.arange(24.0).reshape(6, 4) + 100 * rank for rank in range(2)]
    right = [np.concatenate([sent[0][:1], sent[1][:4]]), np.concatenate([sent[0][1:], sent[1][4:]])]
    assert findings(exchanged(tmp_path / "right", right)) == []
    larger = np.concatenate([sent[0][1:], np.zeros((1, 4)), sent[1][4:]])
    [(rank, reason)] = findings(exchanged(tmp_path / "room", [right[0], larger], room=6))
    assert rank == 1
    assert "of rank 1 has room for 6 rows of rank 0, which sends 5" in reason
    wrong = right[0].copy()
    wrong[1, 2] = 7
    [(rank, reason)] = findings(exchanged(tmp_path / "wrong", [wrong, right[1]]))
    assert rank == 0
    assert "differs from the input of rank 1: 1 of 20 elements differ, most at [1, 2]: 7.0 instead of 102.0" in reason


def test_statistics_alone_show_that_ranks_disagree(tmp_path: Path) -> None:
    given_ = parts_of(0, 4, 50, ml_dtypes.bfloat16)
    made = one_after_the_other(given_, "sum")
    other = made * made.dtype.type(2)
    results = [[other if rank == 3 else made] for rank in range(4)]
    root = write(tmp_path / "d", calls("all_reduce", 4, reduce="sum"), [[one] for one in given_], results, stats=True)
    (rank, reason), (nobody, why) = findings(root)
    assert rank == 3
    assert "differs from that of ranks 0-2" in reason
    assert nobody is None
    assert "statistics only" in why


@pytest.mark.parametrize(
    ("ranks", "wrong", "words"),
    [
        (2, {1}, "two ranks cannot tell which one is wrong: "),
        (4, {2, 3}, "has 2 values, ranks 0-1 against ranks 2-3"),
    ],
)
def test_ranks_that_disagree_without_a_majority(ranks: int, wrong: set[int], words: str, tmp_path: Path) -> None:
    given_ = parts_of(0, ranks, 50, "f4")
    made = one_after_the_other(given_, "sum")
    results = [[made * 2 if rank in wrong else made] for rank in range(ranks)]
    members = calls("all_reduce", ranks, reduce="sum")
    (_, reason), _ = findings(write(tmp_path / "d", members, [[one] for one in given_], results, stats=True))
    assert words in reason


def test_a_missing_rank_is_said(tmp_path: Path) -> None:
    given_ = parts_of(0, 4, 50, "f4")
    root = write(tmp_path / "d", calls("all_reduce", 5, reduce="sum")[:4], [[one] for one in given_], [given_[:1]] * 4)
    assert findings(root) == [(None, "all_reduce of group g (ranks 0-4): the part of rank 4 is not in the dump")]


def message(kind: str, peer: int, nth: int) -> CollectiveCall:
    return CollectiveCall(kind, "g", "0-1", nth, peer=peer, tag=1)


def channel(root: Path, sent: Arrays, received: Arrays) -> Path:
    for rank, arrays in enumerate((sent, received)):
        folder = root / f"worldsize2_global_rank{rank}" / f"2026010101010{rank % 10}" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        writer = HostWriter(folder, metadata={})
        writer.begin_step(0)
        for nth, array in enumerate(arrays):
            call = message("send" if rank == 0 else "recv", 1 - rank, nth)
            io = "input" if rank == 0 else "output"
            put(writer, item(f"op_{nth}", array, io=io, op_type=f"c10d::{call.kind}", collective=call, seq=nth))
        writer.end_step()
        writer.close()
    return root


def test_messages_find_each_other_although_steps_begin_elsewhere(tmp_path: Path) -> None:
    arrays = parts_of(0, 4, 20, "f4")
    assert findings(channel(tmp_path / "a", arrays, arrays)) == []
    assert findings(channel(tmp_path / "b", arrays, arrays[1:])) == []
    damaged = [*arrays[1:3], arrays[3].copy()]
    damaged[2][4] += 1
    [(rank, reason)] = findings(channel(tmp_path / "c", arrays, damaged))
    assert rank == 1
    assert "op_2.output.0 of rank 1 differs from the input of rank 0: 1 of 20 elements differ, most at [4]" in reason


def test_steps_may_begin_at_different_messages(tmp_path: Path) -> None:
    arrays = parts_of(0, 2, 20, "f4")
    [(rank, why)] = findings(channel(tmp_path / "a", arrays[:1], arrays[1:]))
    assert rank is None
    assert "the steps of the two ranks may begin at different messages" in why
    nearly = arrays[0].copy()
    nearly[0] += 1
    assert [rank for rank, _ in findings(channel(tmp_path / "b", arrays[:1], [nearly]))] == [1]


@pytest.mark.parametrize("text", ["", "x", "0-3|", "0-99999999"])
def test_a_group_of_no_ranks_is_left_alone(text: str, tmp_path: Path) -> None:
    given_ = parts_of(0, 2, 5, "f4")
    told = [msgspec.structs.replace(one, ranks=text) for one in calls("all_reduce", 2)]
    assert findings(write(tmp_path / "d", told, [[one] for one in given_], [[one] for one in given_])) == []


def test_triage_says_of_which_ranks_a_dump_has_nothing(tmp_path: Path) -> None:
    arrays = [[one] for one in parts_of(0, 3, 5, "f4")]
    root = write(tmp_path / "d", calls("all_reduce", 3), arrays, [arrays[0]] * 3)
    shutil.rmtree(root / "worldsize3_global_rank1")
    [reason] = ascend_dump.triage(root).reasons
    assert reason == "the dump has no records of rank 1: 1 collective call could not be checked as a whole"
    assert not ascend_dump.triage(ascend_dump.open(root).select(rank="0|2")).reasons
    shutil.rmtree(root / "worldsize3_global_rank2")
    [reason] = ascend_dump.triage(root).reasons
    assert reason == "the dump has no records of ranks 1-2: 1 collective call could not be checked as a whole"
    assert not ascend_dump.triage(root / "worldsize3_global_rank0").reasons


def test_a_message_lacks_nothing_of_the_rest_of_its_group(tmp_path: Path) -> None:
    told = [CollectiveCall("send", "g", "0-2", peer=1), CollectiveCall("recv", "g", "0-2", peer=0)]
    arrays = parts_of(0, 1, 5, "f4")
    root = write(tmp_path / "d", told, [arrays, []], [[], arrays])
    assert ascend_dump.triage(root).reasons == ()
    shutil.rmtree(root / "worldsize2_global_rank1")
    [reason] = ascend_dump.triage(root).reasons
    assert reason == "the dump has no records of rank 1: 1 collective call could not be checked as a whole"


@pytest.mark.parametrize(("ranks", "code"), [("0|2", 0), ("0-1", 3), ("all", 3), ("x", 3), (7, 3)])
def test_ranks_that_were_not_asked_for_are_a_note(
    ranks: Any, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = [[one] for one in parts_of(0, 3, 5, "f4")]
    root = write(tmp_path / "d", calls("all_reduce", 3), arrays, [[sum(one for [one] in arrays)]] * 3)
    shutil.rmtree(root / "worldsize3_global_rank1")
    for rank in (0, 2):
        [run] = root.glob(f"worldsize3_global_rank{rank}/2*")
        told = {"schema": "ascend-dump/host/1", "state": "complete", "request": {"ranks": ranks}}
        (run / "manifest.json").write_text(json.dumps(told))
    found = ascend_dump.triage(root)
    said = "the capture was asked to leave out rank 1: 1 collective call could not be checked as a whole"
    assert found.notes == ((said,) if code == 0 else ())
    assert len(found.reasons) == (code == 3)
    assert main(["triage", str(root)]) == code
    assert (f"note: {said}\n" in capsys.readouterr().err) == (code == 0)
    assert found.to_dict()["notes"] == list(found.notes)

"""Name the rank where a difference began, and none of the ranks that received the difference from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest
from host_dumps import item, noise

import ascend_dump
from ascend_dump.analysis.compare import Comparison, Pair
from ascend_dump.cli import main
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.writing import HostWriter

pytest.importorskip("rapidfuzz")

_RANKS = 3
_GROUP = CollectiveCall("all_reduce", "0", "0-2", reduce="sum")


class Ran(NamedTuple):
    """An operator that ran on a rank; late: how many others ran until its outputs were there.

    more: fields of its records; made: those of its outputs besides.
    """

    op_type: str
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    more: dict[str, Any]
    late: int = 0
    made: Optional[dict[str, Any]] = None


Program = list[list[Ran]]  # of each rank


def write(root: Path, steps: list[Program], *, outputs_only: bool = False) -> Path:
    for rank in range(_RANKS):
        folder = root / f"worldsize{_RANKS}_global_rank{rank}" / "20260101010101" / "0" / "Model" / "0"
        folder.mkdir(parents=True)
        with closing(HostWriter(folder, metadata={})) as writer:
            for number, program in enumerate(steps):
                writer.begin_step(number)
                for records in lines(program[rank], outputs_only=outputs_only):
                    writer.put(records, sum(one.line.nbytes for one in records))
                writer.end_step()
    return root


def lines(program: list[Ran], *, outputs_only: bool) -> Iterator[list[Any]]:
    waiting: list[tuple[int, list[Any]]] = []
    counts: dict[str, int] = {}
    for seq, ran in enumerate(program):
        short = ran.op_type.split("::")[1]
        counts[short] = counts.get(short, -1) + 1
        more = {"op_type": ran.op_type, "seq": seq, "source": f"net.py:{seq}", **ran.more}
        given, got = (
            [item(f"{short}_{counts[short]}", one, io=io, index=index, **of) for index, one in enumerate(arrays)]
            for io, arrays, of in (("input", ran.inputs, more), ("output", ran.outputs, {**more, **(ran.made or {})}))
        )
        now = [] if outputs_only else given
        if ran.late:
            waiting.append((seq + ran.late, got))
        else:
            now += got
        if now:
            yield now
        yield from (records for at, records in waiting if at == seq)


def reduced(
    step: int = 0,
    *,
    wrong: Optional[int] = None,
    call_is_wrong: bool = False,
    alone: Optional[int] = None,
    waits: bool = False,
    hidden: Optional[int] = None,
    buffered: bool = True,
) -> Program:
    """All ranks compute, sum that up and go on; `wrong`: the rank that computes wrongly, `alone`: that which runs an
    operator in between, `hidden`: that which changes what it has where nothing is recorded; `buffered`: what is summed
    up lies in other memory than what was computed."""
    ranks: Program = [[] for _ in range(_RANKS)]
    terms = []
    for rank, ran in enumerate(ranks):
        x = noise(100 * step + rank, 32)
        y = np.tanh(x) + np.float32(rank == wrong)
        ran.append(Ran("aten::tanh", [x], [y], {}, made={"storage": 0}))
        if rank == alone:
            ran.append(Ran("aten::mul", [y], [y * 3], {}))
            y = y * 3
        terms.append(y + np.float32(rank == hidden))
    total = np.sum(terms, axis=0) + np.float32(call_is_wrong)
    for ran, term in zip(ranks, terms):
        if waits:
            ran.append(Ran("_c10d_functional::all_reduce", [term], [total], {"collective": _GROUP, "storage": 7}, 1))
            ran.append(Ran("aten::relu", [noise(1, 32)], [np.maximum(noise(1, 32), 0)], {}))
            ran.append(Ran("_c10d_functional::wait_tensor", [], [total], {"storage": 7}))
        else:
            ran.append(Ran("c10d::allreduce_", [term], [total], {"collective": _GROUP, "storage": int(buffered)}))
        ran.append(Ran("aten::exp", [total], [np.exp(total)], {}))
    return ranks


def pipeline(*, wrong: Optional[int] = None, alone: Optional[int] = None) -> Program:
    """Each rank sends what it makes to the next one."""
    ranks: Program = []
    x = noise(0, 32)
    for rank in range(_RANKS):
        ran = []
        if rank:
            ran.append(Ran("c10d::recv_", [], [x], {"collective": CollectiveCall("recv", "0", "0-2", peer=rank - 1)}))
        y = np.tanh(x) + np.float32(rank == wrong)
        ran.append(Ran("aten::tanh", [x], [y], {}))
        if rank == alone:
            ran.append(Ran("aten::mul", [y], [y * 3], {}))
            y = y * 3
        if rank < _RANKS - 1:
            ran.append(Ran("c10d::send", [y], [], {"collective": CollectiveCall("send", "0", "0-2", peer=rank + 1)}))
        ranks.append(ran)
        x = y
    return ranks


def compared(tmp_path: Path, actual: list[Program], reference: list[Program], **more: Any) -> Comparison:
    a, b = write(tmp_path / "a", actual, **more), write(tmp_path / "b", reference, **more)
    return ascend_dump.compare(a, b)


def named(found: Comparison) -> list[tuple[Optional[int], Optional[int], str, str]]:
    return [(one.rank, one.step, one.op_name, one.kind) for one in found.origins]


def test_what_a_message_carries_on_is_no_origin(tmp_path: Path) -> None:
    found = compared(tmp_path, [pipeline(wrong=1)], [pipeline()])
    assert named(found) == [(1, 0, "tanh_0", "compute")]
    [got] = [pair for pair in found.pairs if pair.record.op_name == "recv__0" and pair.record.rank == 2]
    assert (got.verdict, got.explained) == ("different", True)
    assert got.reason.startswith("follows from rank 1: ")
    [origin] = found.origins
    assert "later outputs of collectives or messages on rank 2 differ too" in origin.evidence
    assert origin.explains == 2, "what rank 2 received, and what it made of that"


@pytest.mark.parametrize("swapped", [False, True])
def test_an_operator_of_one_side_whose_result_is_sent_is_the_origin(swapped: bool, tmp_path: Path) -> None:
    """No output on its own rank differs because of it."""
    programs = [[pipeline(alone=1)], [pipeline()]]
    found = compared(tmp_path, *(programs[::-1] if swapped else programs))
    assert named(found) == [(1, 0, "mul_0", "structure")]
    assert found.origins[0].explains == 2


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("fault", ["wrong", "alone", "hidden"])
def test_the_rank_is_named_that_put_something_else_into_a_sum(fault: str, waits: bool, tmp_path: Path) -> None:
    faulty: dict[str, Any] = {fault: 1}
    found = compared(tmp_path, [reduced(waits=waits, **faulty)], [reduced(waits=waits)])
    names = {"wrong": "tanh_0", "alone": "mul_0", "hidden": "all_reduce_0" if waits else "allreduce__0"}
    assert [(rank, name) for rank, _, name, _ in named(found)] == [(1, names[fault])]
    assert found.origins[0].kind != "collective"


@pytest.mark.parametrize("waits", [False, True])
def test_a_sum_that_is_wrong_for_equal_inputs_stays_the_origin(waits: bool, tmp_path: Path) -> None:
    found = compared(tmp_path, [reduced(call_is_wrong=True, waits=waits)], [reduced(waits=waits)])
    name = "all_reduce_0" if waits else "allreduce__0"
    assert named(found) == [(rank, 0, name, "collective") for rank in range(_RANKS)]


def test_without_recorded_inputs_the_rank_that_was_wrong_before_explains_a_sum(tmp_path: Path) -> None:
    found = compared(tmp_path, [reduced(wrong=2)], [reduced()], outputs_only=True)
    assert named(found)[0] == (2, 0, "tanh_0", "unknown")
    assert "collective" not in {one.kind for one in found.origins}


def test_origins_have_the_order_of_their_times(tmp_path: Path) -> None:
    """That of rank 0 is in a later step, and follows from nothing."""
    found = compared(tmp_path, [reduced(0, wrong=2), reduced(1, wrong=0)], [reduced(0), reduced(1)])
    assert [(rank, step) for rank, step, _, _ in named(found)] == [(2, 0), (0, 1)]


def test_a_buffer_that_unrecorded_copies_fill_is_no_origin_behind_one(tmp_path: Path) -> None:
    found = compared(tmp_path, [reduced(0, wrong=1), reduced(1, hidden=0)], [reduced(0), reduced(1)])
    assert named(found)[0][:3] == (1, 0, "tanh_0")
    assert len(found.origins) == 1
    [given] = [pair for pair in found.pairs if _is_put_in(pair, rank=0, step=1)]
    assert given.reason == "may follow from an earlier difference, through copies that are not recorded"


@pytest.mark.parametrize("in_place", [False, True])
def test_what_a_recorded_operator_wrote_is_no_such_buffer(in_place: bool, tmp_path: Path) -> None:
    actual = [reduced(0, wrong=1, buffered=False), reduced(1, hidden=0, buffered=False)]
    reference = [reduced(0, buffered=False), reduced(1, buffered=False)]
    for ran in (one for program in actual + reference for rank in program for one in rank if in_place):
        ran.more.setdefault("storage", 0)
    found = compared(tmp_path, actual, reference)
    assert [one[:3] for one in named(found)] == [(1, 0, "tanh_0"), (0, 1, "allreduce__0")]


def test_a_view_of_a_buffer_has_not_written_it(tmp_path: Path) -> None:
    def step(number: int, **faults: Any) -> Program:
        ranks = reduced(number, **faults)
        for ran in ranks:
            ran.insert(1, Ran("aten::view", [noise(7, 32)], [noise(7, 32)], {"storage": 1}))
        return ranks

    found = compared(tmp_path, [step(0, wrong=1), step(1, hidden=0)], [step(0), step(1)])
    assert [one[:3] for one in named(found)] == [(1, 0, "tanh_0")]


def _is_put_in(pair: Pair, *, rank: int, step: int) -> bool:
    record = pair.record
    return (record.op_name, record.io, record.rank, record.step) == ("allreduce__0", "input", rank, step)


_NOT_COMPARED = "rank 1 was not compared, so its inputs are not known"


@pytest.mark.parametrize("sides", ["a", "ab"])
def test_without_the_rank_that_was_wrong_a_sum_is_of_unknown_kind(sides: str, tmp_path: Path) -> None:
    write(tmp_path / "a", [reduced(wrong=1)])
    write(tmp_path / "b", [reduced()])
    for side in sides:
        shutil.rmtree(tmp_path / side / "worldsize3_global_rank1")
    found = ascend_dump.compare(tmp_path / "a", tmp_path / "b")
    assert named(found) == [(rank, 0, "allreduce__0", "unknown") for rank in (0, 2)]
    assert all(one.evidence[-1] == _NOT_COMPARED and one.first_seen for one in found.origins)
    assert found.to_page().sentence.startswith(
        "Step 0: allreduce__0 (c10d::allreduce_) on rank 0 is the first origin: the output differs, and not all inputs"
    )


def test_a_single_rank_does_not_tell_that_a_sum_is_wrong(tmp_path: Path) -> None:
    write(tmp_path / "a", [reduced(wrong=1)])
    write(tmp_path / "b", [reduced()])
    found = ascend_dump.compare(*(ascend_dump.open(tmp_path / side).select(rank=0) for side in "ab"))
    assert named(found) == [(0, 0, "allreduce__0", "unknown")]
    assert found.origins[0].evidence[-1] == "ranks 1-2 were not compared, so their inputs are not known"


@pytest.mark.parametrize(
    ("peer", "said"), [(1, _NOT_COMPARED), (None, "the inputs of other ranks are not known")], ids=["named", "any"]
)
def test_of_a_message_only_its_sender_has_to_be_known(peer: Optional[int], said: str, tmp_path: Path) -> None:
    message = CollectiveCall("recv", "0", "0-2", peer=peer)
    for side, sent in (("a", noise(1, 32)), ("b", noise(2, 32))):
        root = write(tmp_path / side, [[[], [], [Ran("c10d::recv_", [], [sent], {"collective": message})]]])
        shutil.rmtree(root / "worldsize3_global_rank0")
        shutil.rmtree(root / "worldsize3_global_rank1")
    found = ascend_dump.compare(tmp_path / "a", tmp_path / "b")
    assert named(found) == [(2, 0, "recv__0", "unknown")]
    assert found.origins[0].evidence[-1] == said


def test_a_collective_that_does_not_tell_its_ranks_is_of_unknown_kind(tmp_path: Path) -> None:
    actual, reference = ([[Ran("c10d::op", [noise(0, 32)], [noise(seed, 32)], {})]] * _RANKS for seed in (1, 2))
    found = compared(tmp_path, [actual], [reference])
    assert {one.kind for one in found.origins} == {"unknown"}
    assert found.origins[0].evidence[-1] == "the inputs of other ranks are not known"


def test_without_the_order_of_operators_a_collective_is_of_unknown_kind(tmp_path: Path) -> None:
    """Dumps of MindSpore tell neither the order nor the ranks of a group."""
    for side, seed in (("a", 1), ("b", 2)):
        folder = tmp_path / side / "rank_0" / "Net" / "0" / "0"
        folder.mkdir(parents=True)
        for io, array in (("input", noise(0, 32)), ("output", noise(seed, 32))):
            np.save(folder / f"HcomAllReduce.sum.0.0.1700000000000000.{io}.0.DefaultFormat.npy", array)
    [origin] = ascend_dump.compare(tmp_path / "a", tmp_path / "b").origins
    assert (origin.op_type, origin.kind) == ("HcomAllReduce", "unknown")
    assert origin.evidence[-1] == "the inputs of other ranks are not known"


@pytest.mark.parametrize("shard", ["0/tensors-00099.safetensors", "../outside"])
def test_an_input_that_another_rank_lost_leaves_the_kind_unknown(shard: str, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", [reduced(call_is_wrong=True)]), write(tmp_path / "b", [reduced()])
    lose_input_of_sum(a, shard, rank=2)
    found = ascend_dump.compare(a, b)
    assert {(one.rank, one.kind) for one in found.origins} == {(rank, "unknown") for rank in range(_RANKS)}
    assert all("the inputs of rank 2 could not be compared" in one.evidence for one in found.origins)


@pytest.mark.parametrize("shard", ["0/tensors-00099.safetensors", "../outside"])
def test_a_sum_with_an_unreadable_input_follows_from_the_rank_that_was_wrong(shard: str, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", [reduced(wrong=1)]), write(tmp_path / "b", [reduced()])
    lose_input_of_sum(a, shard, rank=2)
    found = ascend_dump.compare(a, b)
    assert named(found) == [(1, 0, "tanh_0", "compute")]


def lose_input_of_sum(root: Path, shard: str, *, rank: int) -> None:
    """Change the hashes of the inputs in the index of a rank, and name a shard that is missing or cannot be read."""
    [index] = root.glob(f"worldsize{_RANKS}_global_rank{rank}/**/index.jsonl")
    lines = [json.loads(text) for text in index.read_text().splitlines()]
    [given] = [one for one in lines if (one["op_name"], one["io"]) == ("allreduce__0", "input")]
    given.update(hash="0" * len(given["hash"]), shard=shard)
    index.write_text("".join(f"{json.dumps(one)}\n" for one in lines))


def gathered(before: int, wrong: Optional[int] = None) -> Program:
    """before: what is in memory that is overwritten; wrong: the rank that gets something else."""
    more = {"collective": CollectiveCall("all_gather", "0", "0-2")}
    total = noise(0, 24)
    parts = np.split(total, _RANKS)
    return [
        [Ran("c10d::_allgather_base_", [noise(before, 24), parts[rank]], [total + np.float32(rank == wrong)], more)]
        for rank in range(_RANKS)
    ]


def test_memory_that_a_collective_overwrites_is_not_judged(tmp_path: Path) -> None:
    found = compared(tmp_path, [gathered(50)], [gathered(60)])
    assert (found.verdict, found.origins) == ("noise", ())
    [text] = found.undefined
    assert text.startswith("input 0 of c10d::_allgather_base_: memory that the operator overwrites")


def test_a_wrong_collective_is_found_whatever_it_overwrites(tmp_path: Path) -> None:
    found = compared(tmp_path, [gathered(50, wrong=1)], [gathered(60)])
    assert named(found) == [(1, 0, "_allgather_base__0", "collective")]


def test_an_executor_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    here = compared(tmp_path, [reduced(0, wrong=2), reduced(1, alone=0)], [reduced(0), reduced(1)])
    assert len(here.origins) == 2
    with ThreadPoolExecutor(2) as executor:
        found = ascend_dump.compare(tmp_path / "a", tmp_path / "b", executor=executor)
    assert found.to_dict() == here.to_dict()
    assert found.counts == here.counts


def test_printed_origins_name_the_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path / "a", [pipeline(alone=1)]), write(tmp_path / "b", [pipeline()])
    assert main(["compare", str(a), str(b)]) == 1
    printed = capsys.readouterr().out
    assert "origin      mul_0 (aten::mul), step 0, rank 1\n" in printed
    assert "\nrank  step  tensor" in printed
    assert main(["compare", str(a), str(b), "--rank", "2"]) == 1
    assert "first seen  recv__0 (c10d::recv_), step 0, rank 2\n" in capsys.readouterr().out


def test_the_page_names_the_rank(tmp_path: Path) -> None:
    page = compared(tmp_path, [pipeline(wrong=0)], [pipeline()]).to_page()
    assert "on rank 0" in page.sentence
    assert [one.title for one in page.findings] == ["tanh_0 (aten::tanh), step 0, rank 0"]


def test_a_reduction_that_actual_lacks_is_the_origin_not_its_reader(tmp_path: Path) -> None:
    def averaging(*, reduces: bool) -> Program:
        """Each rank divides its gradient by the number of ranks, after the sum over ranks."""
        terms = [noise(rank, 32) for rank in range(_RANKS)]
        total = np.sum(terms, axis=0)
        ranks: Program = []
        for term in terms:
            ran = [Ran("aten::tanh", [np.arctanh(term / 9)], [term], {"storage": 0})]
            if reduces:
                ran.append(Ran("c10d::allreduce_", [term], [total], {"collective": _GROUP, "storage": 0}))
            result = total if reduces else term
            ran.append(Ran("aten::div", [result], [result / _RANKS], {"storage": 1}))
            ranks.append(ran)
        return ranks

    found = compared(tmp_path, [averaging(reduces=False)], [averaging(reduces=True)])
    assert named(found)[0][2:] == ("allreduce__0", "structure")


def test_a_masking_that_actual_lacks_is_the_origin_not_the_copy_of_its_result(tmp_path: Path) -> None:
    """Functions that reduce over ranks copy their input first, in a line that many places call."""

    def masked(*, masks: bool) -> Program:
        parts = [noise(rank, 32) for rank in range(_RANKS)]
        terms = [np.maximum(part, 0) if masks else part for part in parts]
        total = np.sum(terms, axis=0)
        ranks: Program = []
        for part, term in zip(parts, terms):
            ran = [Ran("aten::tanh", [np.arctanh(part / 9)], [part], {"storage": 0})]
            if masks:
                ran.append(Ran("aten::masked_fill", [part], [term], {"storage": 1}))
            ran.append(Ran("aten::clone", [term], [term], {"storage": 2}))
            ran.append(Ran("c10d::allreduce_", [term], [total], {"collective": _GROUP, "storage": 2}))
            ranks.append(ran)
        return ranks

    found = compared(tmp_path, [masked(masks=False)], [masked(masks=True)])
    assert named(found)[0][2:] == ("masked_fill_0", "structure")


@pytest.mark.parametrize("wrong", [None, 1])
def test_what_a_call_reads_of_its_own_memory_is_no_data_from_outside(wrong: Optional[int], tmp_path: Path) -> None:
    """A reduce_scatter of gloo sums up memory of its own, and copies the part of the rank out of it."""
    call = CollectiveCall("reduce_scatter", "0", "0-2", reduce="sum")

    def program(wrong: Optional[int] = None) -> Program:
        terms = [np.tanh(noise(rank, 30)) + np.float32(rank == wrong) for rank in range(_RANKS)]
        total = np.sum(terms, axis=0)
        parts = np.split(total, _RANKS)
        return [
            [
                Ran("aten::tanh", [noise(rank, 30)], [terms[rank]], {"storage": 0}),
                Ran(
                    "c10d::_reduce_scatter_base_", [terms[rank]], [part], {"collective": call, "source": "net.py:7"}, 1
                ),
                Ran("aten::split", [total], [part], {"storage": 5, "source": "net.py:7"}),
                Ran("aten::exp", [part], [np.exp(part)], {}),
            ]
            for rank, part in enumerate(parts)
        ]

    found = compared(tmp_path, [program(wrong)], [program()])
    assert named(found) == ([] if wrong is None else [(1, 0, "tanh_0", "compute")])

"""Steps that are the same on both sides: their pairs are made when they are looked at, and are those that a comparison
of single records makes."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from host_dumps import model_directory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.analysis.compare import Comparison
from ascend_dump.reading import Dump, Record

pytest.importorskip("rapidfuzz")


def line(number: int, **more: Any) -> dict[str, Any]:
    seq, index = divmod(number, 3)
    return {
        "seq": seq,
        "op_type": "aten::mul",
        "op_name": f"layers.{seq}/mul_{seq}",
        "io": "output" if index == 2 else "input",
        "index": index % 2,
        "time": 1_700_000_000_000_000 + number,
        "dtype": "float32",
        "shape": [2],
        "nbytes": 8,
        "stride": [1],
        "storage": number % 4,
        "hash": f"{number // 4:032x}",
        "shard": "0/tensors-00000.safetensors",
        "blob": [0, 8],
        **more,
    }


def write(root: Path, steps: list[list[dict[str, Any]]]) -> Path:
    place = model_directory(root)
    for number, lines in enumerate(steps):
        (place / str(number)).mkdir()
        text = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
        (place / str(number) / "index.jsonl").write_bytes(text)
    return root


def one_by_one(root: Path) -> Dump:
    """A dump that has more to say of its records makes each of them."""
    return ascend_dump.open(root).marked({"no such model": {}})


def told(comparison: Comparison) -> dict[str, Any]:
    found = comparison.to_dict()
    del found["actual"], found["reference"]
    return found


def records_alive() -> int:
    return sum(type(one) is Record for one in gc.get_objects())


def test_no_record_is_made_before_somebody_looks(tmp_path: Path) -> None:
    steps = [[line(number) for number in range(30)]] * 2
    dumps = [ascend_dump.open(write(tmp_path / side, steps)) for side in "ab"]
    gc.collect()
    before = records_alive()
    found = ascend_dump.compare(*dumps)
    assert (found.verdict, found.counts, len(found.pairs)) == ("equal", {"equal": 60}, 60)
    assert found.has_partners
    assert not found.unmatched
    assert not found.worst_pairs()
    assert records_alive() == before
    first = found.pairs[0]
    assert (first.verdict, first.how, first.confidence) == ("equal", "content", 1.0)
    assert (first.record.op_name, first.record.io, first.record.step) == ("layers.0/mul_0", "input", 0)
    assert records_alive() - before == 60, "those of the first step only, of both sides"
    assert found.pairs[0] is first


def test_the_sequence_of_pairs(tmp_path: Path) -> None:
    same = [line(number) for number in range(6)]
    changed = [*same[:5], {**same[5], "hash": "f" * 32}]
    found = ascend_dump.compare(write(tmp_path / "a", [same, changed, same]), write(tmp_path / "b", [same, same, same]))
    pairs = list(found.pairs)
    assert len(pairs) == len(found.pairs) == 18
    assert [found.pairs[place] for place in range(18)] == pairs
    assert found.pairs[-1] == pairs[-1]
    assert list(found.pairs[4:14:3]) == pairs[4:14:3]
    with pytest.raises(IndexError):
        found.pairs[18]
    assert [pair.record.step for pair in pairs] == [0] * 6 + [1] * 6 + [2] * 6
    assert sum(found.counts.values()) == 18
    assert found.verdict == pairs[11].verdict != "equal"


changes = st.fixed_dictionaries(
    {},
    optional={
        "hash": st.sampled_from(["", "ab" * 16]),
        "skipped": st.sampled_from(["too large", "uninitialised memory", "meta tensor"]),
        "seq": st.integers(0, 3),
        "op_name": st.sampled_from(["other", ""]),
        "module": st.just("blocks.0"),
        "io": st.sampled_from(["input", "output"]),
        "index": st.integers(0, 2),
        "dtype": st.sampled_from(["int32", "float16"]),
        "shape": st.sampled_from([[1, 2], [0]]),
        "stride": st.just([2]),
        "offset": st.just(4),
        "shard": st.sampled_from(["", "../../etc/passwd"]),
        "stats": st.just([2, 1, 0, 0.5, 1, 0, 0, 0, 0, 0, 0]),
        "source": st.just("train.py:1"),
    },
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[list[dict[str, Any]]], list[list[dict[str, Any]]]]:
    steps = draw(st.integers(1, 2))
    common = [[line(number) for number in range(draw(st.integers(1, 8)))] for _ in range(steps)]
    for step in common:
        for at, change in draw(st.lists(st.tuples(st.integers(0, 7), changes), max_size=2)):
            step[at % len(step)].update(change)
    other = [[dict(one) for one in step] for step in common]
    for at, change in draw(st.lists(st.tuples(st.integers(0, 7), changes), max_size=1)):
        other[-1][at % len(other[-1])].update(change)
    return common, other


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(sides=programs())
def test_they_are_what_single_records_say(tmp_path_factory: pytest.TempPathFactory, sides: Any) -> None:
    root = tmp_path_factory.mktemp("equal")
    a, b = (write(root / name, steps) for name, steps in zip("ab", sides))
    assert told(ascend_dump.compare(a, b)) == told(ascend_dump.compare(one_by_one(a), one_by_one(b)))


def test_calls_of_a_decorated_function_are_such_steps(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def dump(root: Path) -> Path:
        @ascend_dump.capture(path=root, framework="torch")
        def work(x: Any) -> Any:
            return torch.relu(x @ x + 1)

        for number in range(2):
            work(torch.ones(2, 2) * number)
        work.capture.stop()
        return root

    a, b = dump(tmp_path / "a"), dump(tmp_path / "b")
    gc.collect()
    before = records_alive()
    found = ascend_dump.compare(a, b)
    assert found.verdict == "equal"
    assert records_alive() == before
    assert told(found) == told(ascend_dump.compare(one_by_one(a), one_by_one(b)))
    assert {pair.record.step for pair in found.pairs} == {0, 1}


def test_whoever_watches_is_given_every_record_and_pair_also_within_one_step(tmp_path: Path) -> None:
    same = [line(number) for number in range(30)]
    changed = [{**one, "op_name": "other", "hash": "f" * 32} if one["seq"] > 4 else one for one in same]
    a, b = write(tmp_path / "a", [same, changed]), write(tmp_path / "b", [same, same])
    seen: list[Any] = []

    def watch(done: Iterable[Any]) -> Iterator[Any]:
        for one in done:
            seen.append(one)
            yield one

    found = ascend_dump.compare(a, b, watch=watch)
    assert len(seen) == 120 + len(found.pairs)
    assert seen[-30:] == list(found.pairs)[-30:]
    seen.clear()
    with ThreadPoolExecutor(1) as executor:
        # One rank is compared here.
        assert told(ascend_dump.compare(a, b, watch=watch, executor=executor)) == told(found)
    assert len(seen) == 120 + len(found.pairs)

"""Memory that the heap keeps while a capture holds tensors: taken when it pays, given back, never in the way."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Optional

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from ascend_dump_torch import _heap  # noqa: E402
from ascend_dump_torch._heap import Reserve  # noqa: E402

import ascend_dump  # noqa: E402


class Heap:
    """One that grows upwards; `gap` bytes lie behind the last block, and from `room` blocks on there is no more."""

    def __init__(self, gap: int = 4096, room: int = 1 << 20) -> None:
        self.gap, self.room = gap, room
        self.given: set[int] = set()
        self.most = 0
        self.times = 0
        self._end = 1 << 30

    def malloc(self, nbytes: int) -> Optional[int]:
        if len(self.given) >= self.room:
            return None
        self.times += not self.given
        self._end += nbytes + 16
        block = self._end - nbytes
        self.given.add(block)
        self.most = max(self.most, len(self.given))
        return block

    def free(self, block: Optional[int]) -> None:
        if block is not None:
            self.given.remove(block)

    def sbrk(self, nbytes: int) -> int:
        return self._end + self.gap


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Heap:
    found = Heap()
    use(monkeypatch, found)
    return found


def use(monkeypatch: pytest.MonkeyPatch, heap: Heap) -> None:
    functions = _heap._Heap(heap.malloc, heap.free, heap.sbrk)
    monkeypatch.setattr(_heap, "_heap", lambda: functions)


def test_a_block_at_the_end_keeps_what_is_below(heap: Heap) -> None:
    reserve = Reserve()
    reserve.take()
    reserve.take()
    assert len(heap.given) == 1
    assert heap.given == {max(heap.given)}
    assert heap.most * 120 > 250 << 10
    reserve.give_back()
    reserve.give_back()
    assert not heap.given
    assert heap.times == 1
    reserve.take()
    assert len(heap.given) == 1


@pytest.mark.parametrize("other", [Heap(gap=64 << 20), Heap(gap=-(1 << 29)), Heap(room=100), Heap(room=0)])
def test_nothing_is_kept_in_another_heap(monkeypatch: pytest.MonkeyPatch, other: Heap) -> None:
    """Blocks in holes, above the heap in mappings of their own, or fewer than asked for."""
    use(monkeypatch, other)
    reserve = Reserve()
    reserve.take()
    assert not other.given
    reserve.give_back()


def test_an_interrupt_leaves_nothing(heap: Heap, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(nbytes: int) -> None:
        raise KeyboardInterrupt

    reserve = Reserve()
    monkeypatch.setattr(heap, "sbrk", interrupted)
    use(monkeypatch, heap)
    with pytest.raises(KeyboardInterrupt):
        reserve.take()
    assert heap.most > 1000
    assert not heap.given


def test_nothing_is_taken_where_that_is_not_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    find = _heap._heap.__wrapped__
    with monkeypatch.context() as patched:
        patched.setattr(_heap.sys, "platform", "darwin")
        assert find() is None
    with monkeypatch.context() as patched:
        patched.setattr(resource, "getrlimit", lambda kind: (1 << 40, resource.RLIM_INFINITY))
        assert find() is None
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda self: b"2\n")
        assert find() is None
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda self: b"[always] madvise never\n")
        assert find() is None
    monkeypatch.setattr(_heap, "_heap", lambda: None)
    Reserve().take()
    Reserve().give_back()


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_it_is_taken_by_large_steps_and_given_back_after_them(tmp_path: Path, heap: Heap, data: str) -> None:
    kept = []

    def run(size: int) -> None:
        x = torch.ones(size)
        for _ in range(5):
            x = x + 1
        kept.append(len(heap.given))

    with ascend_dump.capture(path=tmp_path, steps="1-2|4", data=data) as cap:
        for number in range(6):
            run(3 << 20 if number != 4 else 30)
            cap.step()
    assert kept == [0, 1, 1, 0, 0, 0], "the fourth is small"
    assert (heap.times, heap.given) == (1, set())


def test_it_does_not_change_what_is_recorded(tmp_path: Path) -> None:
    """With the heap that there is."""
    found = []
    for size in (4 << 20, 40):
        with ascend_dump.capture(path=tmp_path / str(size), data="stats", strict=True) as cap:
            x = torch.ones(size)
            for _ in range(5):
                x = x + 1
        found.append([(one.op_name, one.io, one.statistics().max) for one in cap.dump()])
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_gives_back_its_own(tmp_path: Path, heap: Heap) -> None:
    with ascend_dump.capture(path=tmp_path, data="stats"):
        x = torch.ones(12 << 20) + 1
        assert x.sum() > 0
        assert len(heap.given) == 1
        child = os.fork()
        if child == 0:
            os._exit(len(heap.given))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(heap.given) == 1
    assert not heap.given

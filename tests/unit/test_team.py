"""Hashes and statistics on borrowed threads: the same as one after the other."""

from __future__ import annotations

import ctypes
import math
import platform
import signal
import threading
from importlib.util import find_spec
from typing import Any, Optional

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_dump.statistics import team as team_module
from ascend_dump.statistics._statistics import Statistics, statistics
from ascend_dump.statistics.team import Team

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64)
FLOATS = ["float32", "bfloat16", "float16", "float64"]


def on_three_threads(function: int, argument: int) -> None:
    # A call through ctypes lets go of the GIL, so they do run at once.
    threads = [threading.Thread(target=_CALL(function), args=(argument,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture(scope="module")
def team() -> Team:
    found = Team(on_three_threads)
    found.prepare()
    assert found.ready, "the wheel of xxhash has the function, and numba is here"
    return found


def memory(array: np.ndarray) -> tuple[int, int, Any]:
    return (array.ctypes.data, array.nbytes, array.tobytes)


def hashes(team: Team, arrays: list[np.ndarray]) -> list[bytes]:
    return team.measure([memory(one) for one in arrays], [None] * len(arrays)).digests()


def scanned(team: Team, arrays: list[np.ndarray], *, hashed: bool) -> list[Optional[Statistics]]:
    """Statistics of each; `hashed` tells whether in one pass with the hashes, which are looked at too."""
    found = team.measure([memory(one) for one in arrays], [one.dtype for one in arrays], hashes=hashed)
    if hashed:
        assert found.digests() == [xxhash.xxh3_128_digest(one.tobytes()) for one in arrays]
    return [found.statistics(i) if found.has_statistics(i) else None for i in range(len(arrays))]


def dtype_named(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def test_digests_are_those_of_xxhash(team: Team) -> None:
    sizes = (1, 3, 16, 17, 128, 129, 240, 241, 5000, 3 << 20)
    arrays = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes]
    assert hashes(team, arrays) == [xxhash.xxh3_128_digest(one.tobytes()) for one in arrays]
    assert hashes(team, []) == []


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_statistics_are_those_of_each_alone(team: Team, data: st.DataObject) -> None:
    arrays = []
    for _ in range(data.draw(st.integers(0, 6))):
        dtype = dtype_named(data.draw(st.sampled_from(FLOATS)))
        seed, size = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 3000))
        array = np.random.default_rng(seed).normal(size=size).astype(dtype)
        for value in data.draw(st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0]), max_size=4)):
            array[data.draw(st.integers(0, size - 1))] = value
        arrays.append(array)
    expected = [repr(statistics(array, threads=1)) for array in arrays]
    for hashed in (False, True):
        assert list(map(repr, scanned(team, arrays, hashed=hashed))) == expected


@pytest.mark.parametrize("name", FLOATS)
def test_a_large_tensor_is_shared_among_threads(team: Team, name: str) -> None:
    # Small integers: their sums and squares are exact in any order.
    array = np.random.default_rng(0).integers(-9, 9, 2_500_001).astype(dtype_named(name))
    array[[5, -1]] = 77, -78
    for hashed in (False, True):
        assert scanned(team, [array], hashed=hashed) == [statistics(array)]


@pytest.mark.parametrize("name", FLOATS)
def test_a_sum_does_not_depend_on_how_it_was_made(team: Team, name: str) -> None:
    """Two captures of the same numbers must not differ in a digit."""
    arrays = [
        np.random.default_rng(size).normal(size=size).astype(dtype_named(name)) for size in (7, 70_000, 1_000_003)
    ]
    assert scanned(team, arrays, hashed=True) == scanned(team, arrays, hashed=False)


def test_values_beyond_the_range_of_a_sum(team: Team) -> None:
    array = np.full(600_000, 1e300)
    for hashed in (False, True):
        (found,) = scanned(team, [array], hashed=hashed)
        assert found == statistics(array)
        assert found is not None
        assert found.mean == pytest.approx(1e300)


def test_the_memory_is_needed_only_as_it_is_measured(team: Team) -> None:
    arrays = [np.full(600_000, 1e300), np.full(9, 1e-200), np.zeros(5), np.array([1.0, math.nan]), np.arange(70_000.0)]
    expected = [repr(statistics(array)) for array in arrays]
    for hashed in (False, True):
        copies = [array.copy() for array in arrays]
        found = team.measure([memory(one) for one in copies], [one.dtype for one in copies], hashes=hashed)
        for one in copies:
            one.fill(7)
        assert [repr(found.statistics(i)) for i in range(len(copies))] == expected


@pytest.mark.parametrize("count", [0, 1, 40])
def test_something_is_done_meanwhile_once_and_here(team: Team, count: int) -> None:
    arrays = [np.arange(1000.0 + i) for i in range(count)]
    here = []
    found = team.measure(
        [memory(one) for one in arrays],
        [one.dtype for one in arrays],
        meanwhile=lambda: here.append(threading.get_ident()),
    )
    assert here == [threading.get_ident()]
    assert found.digests() == [xxhash.xxh3_128_digest(one.tobytes()) for one in arrays]


def test_it_is_done_on_a_thread_of_the_team(team: Team) -> None:
    """That of the caller works as well, as threads of OpenMP do."""
    inside = []

    def on_these_two(function: int, argument: int) -> None:
        other = threading.Thread(target=_CALL(function), args=(argument,))
        other.start()
        inside.append("begin")
        _CALL(function)(argument)
        inside.append("end")
        other.join()

    array = np.arange(1 << 20)
    found = Team(on_these_two).measure([memory(array)], [None], meanwhile=lambda: inside.append("meanwhile"))
    assert inside == ["begin", "meanwhile", "end"]
    assert found.digests() == [xxhash.xxh3_128_digest(array.tobytes())]


def test_what_is_raised_meanwhile_is_raised_when_all_is_done(team: Team) -> None:
    ended = []

    def parallel(function: int, argument: int) -> None:
        _CALL(function)(argument)
        ended.append(True)

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Team(parallel).measure([memory(np.arange(5))], [None], meanwhile=fail)
    assert ended


def test_what_a_signal_handler_raises_as_python_begins_is_not_lost(team: Team) -> None:
    numba: Any = pytest.importorskip("numba")
    send: Any = ctypes.CDLL(None)["raise"]
    send.argtypes = [ctypes.c_int]

    class Stopped(Exception):
        pass

    def stop(number: int, frame: Any) -> None:
        raise Stopped

    def parallel(function: int, argument: int) -> None:
        run = _CALL(function)

        @numba.cfunc("void(int64)")
        def signalled(argument: int) -> None:
            send(number)
            run(argument)

        signalled.ctypes(argument)

    number = int(signal.SIGUSR1)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(Stopped):
            Team(parallel).measure([memory(np.arange(5))], [None], meanwhile=lambda: None)
    finally:
        signal.signal(number, before)


def test_other_types_are_left_to_others(team: Team) -> None:
    arrays = [np.arange(5), np.array([True]), np.ones(2, ml_dtypes.float8_e4m3fn), np.empty(0, np.float32)]
    packed = np.frombuffer(b"x" + np.ones(3, np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    arrays += [packed, np.ones(3, ">f4")]
    for hashed in (False, True):
        assert scanned(team, arrays, hashed=hashed) == [None] * 6


def test_it_is_not_ready_where_the_pieces_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_module, "_proven", None)
    found = Team(on_three_threads)
    assert not found.ready
    with monkeypatch.context() as patched:
        patched.setattr(xxhash, "xxh3_128_digest", lambda data: b"another version's digest")
        found.prepare()
        assert not found.ready
    with monkeypatch.context() as patched:
        patched.setattr(team_module, "statistics", lambda array: None)
        found.prepare()
        assert not found.ready
    with monkeypatch.context() as patched:
        patched.setattr(platform, "machine", lambda: "s390x")
        found.prepare()
        assert not found.ready
    with monkeypatch.context() as patched:
        patched.delitem(vars(xxhash), "_xxhash")
        found.prepare()
        assert not found.ready
    found.prepare()
    assert found.ready
    assert Team(on_three_threads).ready, "the next one finds it done"

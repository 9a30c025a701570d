"""Payloads that are finished where they are made, since nothing of them has to be written."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from host_dumps import in_memory, line, lines_of, model_directory, noise, open_shards, put, read, write_step

from ascend_dump.statistics import STATISTIC_NAMES, statistics, warm_up
from ascend_dump.writing import HostWriter, Item, Payload

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return model_directory(tmp_path)


def sealed(array: np.ndarray) -> Payload:
    found = Payload(array, array.ctypes.data, array.nbytes, str(array.dtype), array.shape)
    found.seal()
    return found


@needs_numba
def test_statistics_are_those_of_the_moment(directory: Path) -> None:
    warm_up(["float32"])
    writer = HostWriter(directory, metadata={}, tensors=False, stats=STATISTIC_NAMES)
    array = noise(0, 5000)
    expected = statistics(array, threads=1)
    writer.begin_step(0)
    payload = sealed(array)
    assert writer.complete(payload)
    assert payload.owner is None  # so that the program's memory is its own again
    array[:] = 7.0
    put(writer, Item(line("a", array), payload), Item(line("b", array), payload))
    writer.close()
    assert writer.failure is None
    for found in lines_of(directory):
        assert found["stats"] == json.loads(json.dumps(list(expected)[:11]))
    assert len(lines_of(directory)) == 2


@needs_numba
@pytest.mark.parametrize("stats", [("max",), STATISTIC_NAMES])
def test_until_sees_what_was_completed(directory: Path, stats: tuple[str, ...]) -> None:
    warm_up(["float32"])
    writer = HostWriter(directory, metadata={}, tensors=False, stats=stats, until="nonfinite")
    array = noise(0, 50)
    array[3] = np.nan
    writer.begin_step(4)
    payload = sealed(array)
    assert writer.complete(payload)
    put(writer, Item(line("wrong", array), payload))
    writer.close()
    assert writer.ended is not None
    assert (writer.ended.step, writer.ended.operator) == (4, "wrong.output.0")


def test_known_tensors_are_read_from_where_they_are(directory: Path) -> None:
    writer = HostWriter(directory, metadata={})
    array, other = noise(0, 5000), noise(1, 5000)
    again = sealed(array.copy())
    writer.begin_step(0)
    assert not writer.complete(sealed(array))  # nothing is stored yet
    put(writer, in_memory("first", array), in_memory("other", other))
    writer.flush()
    assert writer.complete(again)
    put(writer, Item(line("again", array), again))
    writer.close()
    assert writer.failure is None
    assert sum(len(one) for one in open_shards(directory).values()) == 2
    found = read(directory)
    assert found[0, "again", "output", 0] == found[0, "first", "output", 0] == array.tobytes()


def test_what_changed_while_it_was_stored_is_not_taken_for_known(directory: Path) -> None:
    writer = HostWriter(directory, metadata={})
    array = noise(0, 50_000)
    before = array.copy()
    payload = sealed(array)
    writer.begin_step(0)
    array[:] = 1.0  # unseen
    put(writer, Item(line("changed", array), payload))
    writer.flush()
    assert payload.changed
    for content in (before, array):
        assert not writer.complete(sealed(content.copy()))
    writer.close()


def test_with_keep_every_tensor_is_queued(directory: Path) -> None:
    writer = HostWriter(directory, metadata={}, keep=1)
    array = noise(0, 50)
    write_step(writer, 0, in_memory("first", array))
    writer.flush()
    assert not writer.complete(sealed(array))
    writer.close()


@needs_numba
@pytest.mark.parametrize("how", ["strided", "float64", "not aligned"])
def test_what_takes_more_than_one_look_is_queued(directory: Path, how: str) -> None:
    warm_up(["float32", "float64"])
    writer = HostWriter(directory, metadata={}, tensors=False, stats=STATISTIC_NAMES)
    array = np.zeros(16, dtype="float64" if how == "float64" else "float32")
    payload = Payload(array, array.ctypes.data, 40, str(array.dtype), (40 // array.itemsize,))
    if how == "strided":
        # Equal bytes in a row are known, which says nothing of these elements.
        payload.seal()
        assert writer.complete(payload)
        payload = Payload(array, array.ctypes.data, 40, "float32", (10,), strided=((5,), (8,)))
    elif how == "not aligned":
        payload.address += 1
    payload.seal()
    assert not writer.complete(payload)
    writer.close()

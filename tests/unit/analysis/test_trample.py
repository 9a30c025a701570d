"""The verb `watch`: looks of the watcher at outputs, as the device writes them."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_dump.analysis.overwritten_outputs import watch_outputs
from ascend_dump.cli import Exit, main
from ascend_dump.native.cann.dump_file import tensor_of, write
from ascend_dump.native.cann.names import DumpLevels, DumpName, build_levels, build_name, watch_name

STAMP = 1_700_000_000_000_000


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def tree(tmp_path):
    """A dump of model m, and a function that writes the output of an operator into it."""

    class Tree:
        root = tmp_path / "dump"
        count = 0

        def look(self, array, *, name="c", layer=None, step=0, op_type="MatMul"):
            self.count += 1
            directory = self.root.joinpath(
                *build_levels(DumpLevels(run="20261121101112", device=0, model="m", model_id=1, data_index=step))
            )
            directory.mkdir(parents=True, exist_ok=True)
            full = name if layer is None else watch_name(layer, name)
            file = build_name(DumpName("device", op_type, full, STAMP + self.count, self.count, 0))
            arrays = array if isinstance(array, list) else [array]
            tensors = [tensor_of("output", index, np.asarray(one)) for index, one in enumerate(arrays)]
            write(directory / file, tensors, op_name=full, dump_time=STAMP + self.count)
            return directory / file

    return Tree()


def test_the_operator_that_overwrote_is_named_once(run, tree):
    clean = np.arange(24, dtype=np.float32).reshape(4, 6)
    hit = clean.copy()
    hit[2, 3:5] = [-1, 7]
    own = tree.look(clean)
    tree.look(clean, layer="a")
    bad = tree.look(hit, layer="b")
    tree.look(hit, layer="d")
    code, out, err = run("watch", tree.root, "--json")
    document = json.loads(out)
    assert (code, err, document["schema"]) == (Exit.DIFFERENT, "", "ascend-dump/watch/1")
    assert (document["pairs"], document["compared"]) == (3, 3)
    [found] = document["tramples"]
    changed = sum(x != y for x, y in zip(clean.tobytes(), hit.tobytes()))
    expected = {
        "layer": "b",
        "watched": "c",
        "first": [2, 3],
        "before": 15.0,
        "after": -1.0,
        "elements": 2,
        "changed_bytes": changed,
        "since": "a",
        "step": 0,
        "index": 0,
        "path": str(bad),
        "nbytes": 96,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["base"] != str(own)


def test_the_table_names_both_operators_and_the_place(run, tree):
    tree.look([np.zeros(3, np.int32), np.ones(2, np.float16)])
    tree.look([np.zeros(3, np.int32), np.array([1, 5], np.float16)], layer="a")
    code, out, err = run("watch", tree.root)
    heading, row = out.splitlines()
    assert (code, err) == (Exit.DIFFERENT, "")
    assert heading.split()[:6] == ["step", "overwritten", "by", "output", "of", "index"]
    assert row.split() == ["0", "a", "c", "1", "float16", "[2]", "[1]", "1.0", "5.0", "1", "1", "after", "c"]


def test_an_output_that_stays_is_no_finding(run, tree):
    # By bytes: a NaN equals itself.
    value = np.array([np.nan, 1], np.float32)
    for step in (0, 1):
        tree.look(value + step, step=step)
        tree.look(value + step, layer="a", step=step)
    code, out, err = run("watch", tree.root)
    assert (code, out) == (Exit.OK, "")
    assert err == "no watched output was overwritten; 2 snapshots compared\n"


def test_a_zero_that_loses_its_sign_is_a_finding(run, tree):
    tree.look(np.float32(0))
    tree.look(np.float32(-0.0), layer="a")
    code, out, _ = run("watch", tree.root, "--json")
    [found] = json.loads(out)["tramples"]
    assert (code, found["first"], found["changed_bytes"]) == (Exit.DIFFERENT, [], 1)


def test_a_second_run_of_the_watched_operator_is_a_new_beginning(run, tree):
    tree.look(np.zeros(4, np.int8))
    tree.look(np.zeros(4, np.int8), layer="a")
    tree.look(np.ones(4, np.int8))
    tree.look(np.ones(4, np.int8), layer="a")
    assert run("watch", tree.root)[0] == Exit.OK


def test_steps_are_told_apart(run, tree):
    for step, after in ((0, 3), (1, 4)):
        tree.look(np.array([3], np.int8), step=step)
        tree.look(np.array([after], np.int8), layer="a", step=step)
    assert run("watch", tree.root, "--step", "0")[0] == Exit.OK
    code, out, _ = run("watch", tree.root, "--json")
    assert (code, [one["step"] for one in json.loads(out)["tramples"]]) == (Exit.DIFFERENT, [1])


def test_a_look_before_the_operator_ran_is_told(run, tree):
    tree.look(np.zeros(4, np.int8), layer="a")
    tree.look(np.ones(4, np.int8))
    code, out, err = run("watch", tree.root)
    assert (code, out) == (Exit.UNREADABLE, "")
    assert err.startswith("1 snapshot left out: no earlier output")


def test_a_dump_without_watcher_files_says_how_to_make_them(run, tree):
    tree.look(np.zeros(4, np.int8))
    code, out, err = run("watch", tree.root)
    assert (code, out) == (Exit.UNREADABLE, "")
    assert err.startswith("nothing was compared")
    assert "scene='watch'" in err


def test_a_look_that_is_cut_off_is_unreadable(run, tree):
    tree.look(np.zeros(64, np.float32))
    cut = tree.look(np.zeros(64, np.float32), layer="a")
    cut.write_bytes(cut.read_bytes()[:-100])
    code, out, err = run("watch", tree.root)
    assert (code, out) == (Exit.UNREADABLE, "")
    assert err.startswith("1 record cannot be read:")
    assert cut.name in err


def test_looks_of_another_shape_are_not_compared(run, tree):
    tree.look(np.zeros(4, np.float32))
    other = tree.look(np.zeros(2, np.float32), layer="a")
    code, _, err = run("watch", tree.root)
    assert code == Exit.UNREADABLE
    assert f"{other}: it is float32[2], but float32[4]" in err


def test_a_large_output_is_compared_in_parts(run, tree, monkeypatch):
    monkeypatch.setattr("ascend_dump.analysis.overwritten_outputs._CHUNK", 64)
    clean = np.arange(1000, dtype=np.float64)
    hit = clean.copy()
    hit[[501, 999]] += 1
    tree.look(clean)
    tree.look(hit, layer="a")
    [found] = json.loads(run("watch", tree.root, "--json")[1])["tramples"]
    assert (found["first"], found["elements"]) == ([501], 2)


@given(
    data=st.binary(min_size=1, max_size=96),
    at=st.integers(0, 95),
    flip=st.integers(1, 255),
    dtype=st.sampled_from(["uint8", "float16", "float32", "complex64", "bfloat16", "bool"]),
    chunk=st.sampled_from([1, 7, 64, 1 << 20]),
)
def test_any_changed_byte_is_found_where_it_is(data, at, flip, dtype, chunk):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    clean = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
    if not clean.size:
        return
    hit = clean.copy()
    at %= clean.nbytes
    hit.view(np.uint8)[at] ^= flip
    records = [_Look(clean), _Look(hit, "a"), _Look(hit, "b")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ascend_dump.analysis.overwritten_outputs._CHUNK", chunk)
        first, second = watch_outputs(records)
    change = first.trample
    assert (change.first, change.elements, change.changed_bytes) == ((at // kind.itemsize,), 1, 1)
    assert (first.layer, first.watched, second.trample) == ("a", "c", None)


class _Look:
    """The fields of a record that `watch_outputs` reads."""

    io, op_type, op_name, index = "output", "Relu", "c", 0
    run = rank = device = model = model_id = step = None

    def __init__(self, array, layer=None):
        self._array = array
        self.attrs = {} if layer is None else {"watch": {"layer": layer, "watched": "c"}}

    def numpy(self):
        return self._array


def test_a_missing_directory_is_unreadable(run, tmp_path):
    assert run("watch", tmp_path / "none")[0] == Exit.UNREADABLE

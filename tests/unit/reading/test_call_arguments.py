"""What an operator was called with: from a line of the index to `record.arguments`, damaged lines included."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from host_dumps import item, lines_of, model_directory, noise, write_step
from hypothesis import given
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.dump_format import KINDS_OF_VALUES, Arguments, Cut, Named, TensorOf, plain_text, read_call, text_of
from ascend_dump.writing import HostWriter

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=20),
    st.builds(Named, st.sampled_from(KINDS_OF_VALUES), st.text(max_size=10)),
    st.builds(TensorOf, st.sampled_from(["input", "output"]), st.integers(0, 2**31 - 1)),
    st.builds(Cut, st.lists(st.integers(-9, 9), max_size=3), st.integers(0, 2**40)),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def is_same(a: Any, b: Any) -> bool:
    """Equal in type, sign of zero and being no number too."""
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, complex) and isinstance(b, complex):
        return is_same(a.real, b.real) and is_same(a.imag, b.imag)
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and bool(a == b)


@given(VALUES.filter(lambda value: text_of(value).count("[[[[[[[") == 0))
def test_values_come_back_as_they_were(value: Any) -> None:
    text = f'{{"op":"aten.op.default","args":{{"x":{text_of(value)}}}}}'
    assert json.loads(text)["op"] == "aten.op.default"
    call = read_call(text.encode())
    assert is_same(call.values["x"], value)
    assert isinstance(str(call), str)


def test_long_lists_and_texts_are_cut_and_say_so() -> None:
    call = read_call(f'{{"op":"o","args":{{"a":{text_of([7] * 5000)},"b":{text_of("x" * 9000)}}}}}'.encode())
    assert call.values == {"a": Cut([7] * 4096, 5000), "b": Cut("x" * 4096, 9000)}
    assert str(call.values["a"]).endswith("5000 in all")


def test_a_row_of_tensors_is_short_in_the_file_and_for_people() -> None:
    call = read_call(b'{"op":"o","args":{"tensors":{"inputs":[2,3]}}}')
    assert call.values["tensors"] == [TensorOf("input", 2), TensorOf("input", 3), TensorOf("input", 4)]
    assert plain_text(call.values["tensors"]) == "inputs 2-4"


@given(st.one_of(st.binary(max_size=60), st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["op", "args", "generator", "input", "inputs", "cut", "length", "float", "int", "dtype", "x"]),
        inner, max_size=3), max_leaves=10).map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_whatever_is_no_call_is_a_value_error(text: bytes) -> None:
    try:
        found = read_call(text)
    except ValueError:
        return
    assert isinstance(found, Arguments)
    assert isinstance(found.operator, str)


@pytest.mark.parametrize(
    "text",
    [
        b'{"op":"o","args":{"x":{"inputs":[0,99999999999]}}}',
        b'{"op":"o","args":{"x":[' + b",".join([b'{"inputs":[0,60000]}'] * 9000) + b"]}}",
        b'{"op":"o","args":{"x":{"input":-1}}}',
        b'{"op":"o","args":{"x":{"pickle":"cos"}}}',
        b'{"op":"o","args":{"x":' + b"[" * 50 + b"]" * 50 + b"}}",
        b'{"op":"o","args":{"x":{"int":"' + b"9" * 5000 + b'"}}}',
        b'{"op":"o","args":{},"generator":{"device":1}}',
        b'{"op":3,"args":{}}',
    ],
)
def test_values_that_no_operator_takes_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"argument|tensors|nested|generator|expected"):
        read_call(text)


def dump_with(root: Path, call: bytes) -> Path:
    writer = HostWriter(model_directory(root), metadata={})
    first, second = item("a_0", noise(1, 8)), item("a_0", noise(2, 8), index=1)
    first.line.call = msgspec.Raw(call)
    write_step(writer, 0, first, second, item("b_0", noise(3, 8), seq=1))
    writer.close()
    return root


CALL = b'{"op":"aten.add.Tensor","args":{"self":{"input":0},"alpha":1}}'


def test_all_records_of_an_operator_have_its_arguments_and_those_of_others_none(tmp_path: Path) -> None:
    dump = ascend_dump.open(dump_with(tmp_path, CALL))
    found = {record.label: record.arguments for record in dump}
    assert found["a_0.output.0"] == found["a_0.output.1"] == read_call(CALL)
    assert found["b_0.output.0"] is None
    assert [("call" in line) for line in lines_of(tmp_path)] == [True, False, False]


def test_damaged_arguments_leave_the_tensors_readable(tmp_path: Path) -> None:
    for number, call in enumerate([b"5", b'{"op":"o"}', b'{"op":"o","args":{"x":{"what":1}}}']):
        for record in ascend_dump.open(dump_with(tmp_path / str(number), call)).select(op="a_0"):
            with pytest.raises(ascend_dump.CorruptDump, match=r"a_0.*arguments"):
                _ = record.arguments
            assert record.numpy().size == 8


def test_the_command_line_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump_with(tmp_path, CALL)
    assert main(["show", str(tmp_path), "--op", "a_0"]) == 0
    assert capsys.readouterr().out.count("aten.add.Tensor(self=input 0, alpha=1)") == 2
    assert main(["show", str(tmp_path), "--op", "a_0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"][0]["arguments"] == json.loads(CALL)
    dump_with(tmp_path / "damaged", b"5")
    assert main(["show", str(tmp_path / "damaged"), "--op", "a_0"]) == 3
    assert "arguments cannot be read" in capsys.readouterr().err


def test_a_catalog_of_such_a_dump_is_read_in_columns(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    frame = ascend_dump.open(dump_with(tmp_path, CALL)).catalog().collect()
    assert frame["op_name"].to_list() == ["a_0", "a_0", "b_0"]
    assert np.isfinite(frame["nbytes"].to_numpy()).all()


def test_rows_of_a_catalog_and_lines_of_later_blocks_have_them_too(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    writer = HostWriter(model_directory(tmp_path), metadata={})
    items = [item(f"op_{seq}", noise(seq, 4), index=index, seq=seq) for seq in range(4) for index in range(200)]
    for number in (0, 400, 600):
        items[number].line.call = msgspec.Raw(CALL.replace(b"alpha", f"x{number}".encode()))
    write_step(writer, 0, *items)
    writer.close()
    dump = ascend_dump.open(tmp_path)

    def names(some: Any) -> list[list[str]]:
        return [[] if record.arguments is None else list(record.arguments.values)[1:] for record in some]

    expected = [["x0"]] * 200 + [[]] * 200 + [["x400"]] * 200 + [["x600"]] * 200
    assert names(dump) == expected
    assert names(dump.select(op="op_2")) == [["x400"]] * 200
    assert (
        names(dump.where(polars.col("index") >= 190)) == [["x0"]] * 10 + [[]] * 10 + [["x400"]] * 10 + [["x600"]] * 10
    )
    [shard] = tmp_path.rglob("tensors-00000.safetensors")
    assert names(ascend_dump.open(shard)) == expected

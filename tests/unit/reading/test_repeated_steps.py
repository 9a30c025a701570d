"""Steps that repeat an earlier one are read by a compiled function, with the same rows as by decoding each line."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Callable

import msgspec
import pytest
from host_dumps import model_directory
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.dump_format import Line

polars = pytest.importorskip("polars")
pytest.importorskip("numba")

LINES = 40
DECODER = msgspec.json.Decoder
CALL = {"op": "aten.add.Tensor", "args": {"self": {"input": 0}, "other": {"input": 1}, "alpha": 0.5, "dim": 3}}
GENERATOR = {"device": "cpu", "hash": "0" * 32, "seed": 7}


def line(number: int, step: int, **more: Any) -> bytes:
    """Return a line of an operator with two inputs and an output, as ascend_dump writes it."""
    seq, index = divmod(number, 3)
    fields: dict[str, Any] = {"phase": "forward", "module": f"layers.{seq}", "source": "a.py:1", "stride": (2, 1)}
    fields.update(storage=number, address=2**46 + 64 * number * step, storage_nbytes=8, version=step)
    fields.update(hash=f"{number + 1000 * step:032x}", stats=(4, 1.5 + step / 3, -2.5e-07 / (step + 1), None, 3, 0, 0))
    if index == 0:
        fields["call"] = msgspec.Raw(msgspec.json.encode({**CALL, "generator": GENERATOR}))
    fields.update(more)
    io = "output" if index == 2 else "input"
    start = Line(
        seq, "aten::add", f"layers.{seq}/add_0", io, index % 2, 10**15 + step * 10**6 + seq, "float32", (2, 2), 16
    )
    for name, value in fields.items():
        setattr(start, name, value)
    return msgspec.json.encode(start) + b"\n"


def step_of(step: int, change: Callable[[int], dict[str, Any]] = lambda number: {}) -> bytes:
    return b"".join(line(number, step, **change(number)) for number in range(LINES))


def stored_in(step: int, number: int) -> dict[str, Any]:
    """The fields of a tensor in a shard, of each second tensor in that of the first step."""
    return {
        "shard": f"{step if number % 2 else 0}/tensors-00000.safetensors",
        "offset": 900 + 16 * number,
        "blob": (900 + 16 * number, 16),
    }


def write(root: Path, steps: list[bytes], *, packed: bool = False) -> Path:
    model = model_directory(root)
    for number, text in enumerate(steps):
        directory = model / str(number)
        directory.mkdir()
        if packed:
            (directory / "index.jsonl.gz").write_bytes(gzip.compress(text))
        else:
            (directory / "index.jsonl").write_bytes(text)
    return root


def rows(root: Path) -> list[str]:
    # As text, because NaN differs from itself, and 0.0 equals -0.0.
    return list(map(repr, ascend_dump.open(root).catalog().collect().rows()))


@pytest.fixture(scope="module", autouse=True)
def of_small_dumps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ascend_dump.reading.catalog._MANY", 0)
        patch.setattr("ascend_dump.reading.dialects.host._repeated_steps._HEAD", 3)
        yield


class CountingDecoder:
    """A decoder of msgspec that counts the lines which it decodes together."""

    count = 0

    def __init__(self, kind: Any) -> None:
        decoder = DECODER(kind)
        self.decode = decoder.decode
        self._decode_lines = decoder.decode_lines

    def decode_lines(self, text: bytes) -> list[Any]:
        lines: list[Any] = self._decode_lines(text)
        CountingDecoder.count += len(lines)
        return lines


def decoded_lines(root: Path) -> int:
    """Assert that the rows are those of decoded lines, and return the number of lines that are decoded."""
    with pytest.MonkeyPatch.context() as patch:
        # The rows do not show whether a line was decoded.
        patch.setattr(msgspec.json, "Decoder", CountingDecoder)
        patch.setattr(CountingDecoder, "count", 0)
        found = rows(root)
        count = CountingDecoder.count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ascend_dump.reading.catalog._MANY", 10**9)
        assert found == rows(root)
    return count


@pytest.mark.parametrize("packed", [False, True])
def test_only_the_first_step_is_decoded(tmp_path: Path, packed: bool) -> None:
    assert decoded_lines(write(tmp_path, list(map(step_of, range(6))), packed=packed)) == LINES


def test_tensors_in_shards_of_each_step(tmp_path: Path) -> None:
    steps = [step_of(step, partial(stored_in, step)) for step in range(4)]
    assert decoded_lines(write(tmp_path, steps)) == LINES


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", 7, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, None])
def test_statistics_of_all_kinds(tmp_path: Path, value: Any) -> None:
    def change(number: int) -> dict[str, Any]:
        return {"stats": (4, value, 1.0, 2.0, 3.0, 0 if number % 2 else None, 10**17)}

    decoded = decoded_lines(write(tmp_path, [step_of(0), step_of(1, change), step_of(2)]))
    if value not in (5e-324, 1.7976931348623157e308):  # beyond what is read without a decoder
        assert decoded == LINES


def test_arguments_that_are_numbers_may_change(tmp_path: Path) -> None:
    def change(number: int) -> dict[str, Any]:
        generator = {**GENERATOR, "hash": "f" * 32, "seed": 8}
        call = {**CALL, "args": {**CALL["args"], "alpha": -1e-9}, "generator": generator}  # type: ignore[dict-item]
        return {"call": msgspec.Raw(msgspec.json.encode(call))} if number % 3 == 0 else {}

    assert decoded_lines(write(tmp_path, [step_of(0), step_of(1, change)])) == LINES


@pytest.mark.parametrize(
    "more",
    [
        {"shape": (1, 4)},
        {"origin": True},
        {"hash": "ab"},
        {"hash": ""},
        {"stats": (4, "x", 1.0, 2.0, 3.0)},
        {"stats": (4, 1.0, 1.0, 2.0, 3.0, 0, 2**70)},
        {"parameter": "fc.weight"},
        {"call": msgspec.Raw(b'{"op":"aten.add.Tensor","args":{"other":{"input":0},"self":{"input":1}}}')},
        {"call": msgspec.Raw(b'{"op":"aten.add.Tensor","args":{"self":{"input":0},"alpha":1e999}}')},
        {"time": 5},
        {"version": 2**62},
        {"address": -5},
        {"address": 2**64 - 1},
    ],
)
def test_a_line_that_differs_is_decoded(tmp_path: Path, more: dict[str, Any]) -> None:
    """Only its operator is decoded, and the arguments of its other lines are those of the operator."""
    changed = step_of(1, lambda number: more if number == 12 else {})
    assert decoded_lines(write(tmp_path, [step_of(0), changed, step_of(2)])) == LINES + 3


def test_arguments_that_cannot_be_read_in_the_first_step(tmp_path: Path) -> None:
    call = msgspec.Raw(b'{"op":"aten.add.Tensor","args":{"self":{"input":0},"alpha":1e999}}')
    readable = msgspec.Raw(b'{"op":"aten.add.Tensor","args":{"self":{"input":0},"alpha":1e9}}')
    steps = [
        step_of(step, partial(lambda text, number: {"call": text} if number == 12 else {}, text))
        for step, text in enumerate((call, readable))
    ]
    assert decoded_lines(write(tmp_path, steps)) == LINES + 3


def test_operators_that_only_one_kind_of_step_has(tmp_path: Path) -> None:
    """Each kind is decoded once: the second one from where it differs from the first."""
    training = [step_of(step) for step in range(5)]
    evaluation = [b"".join(text.splitlines(True)[:20]) + line(300, 1) + line(301, 1) * 6 for text in training]
    steps = [training[0], evaluation[1], training[2], evaluation[3], training[4]]
    assert LINES < decoded_lines(write(tmp_path, steps)) < 2 * LINES


def test_an_operator_with_more_lines_than_are_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.reading.dialects.host._repeated_steps._BLOCK", 1000)
    assert decoded_lines(write(tmp_path, list(map(step_of, range(3))))) == LINES


def test_a_template_takes_a_bounded_part_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.reading.dialects.host._repeated_steps._MOST_TEXT", 1000)
    assert decoded_lines(write(tmp_path, list(map(step_of, range(3))))) == 3 * LINES


def test_without_numba_all_lines_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ascend_dump.reading.dialects.host._line_kernel", None)
    assert decoded_lines(write(tmp_path, list(map(step_of, range(3))))) == 3 * LINES


#: Numbers and texts that a value may become.
values = st.one_of(
    st.floats().map(lambda value: repr(value) if value - value == 0 else '"nan"'),
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(
        ["null", '"inf"', "-0", "-0.0", "01", "1.", "1e5", "1E+2", "0e9", "1e400", '"x"', "true", "[]", ""]
    ),
    st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{1,25})?([eE][-+]?[0-9]{1,3})?", fullmatch=True),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a step with other values, and some bytes changed."""
    text = step_of(draw(st.integers(0, 3)))
    for _ in range(draw(st.integers(0, 3))):
        value = draw(values).encode()
        ends = [at for at in range(len(text)) if text[at] in b",]}"]
        end = draw(st.sampled_from(ends))
        begin = max(text.rfind(character, 0, end) for character in (b",", b"[", b":")) + 1
        text = text[:begin] + value + text[end:]
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text) - 1))
        text = text[:at] + draw(st.binary(max_size=3)) + text[at + draw(st.integers(0, 3)) :]
    return text[: draw(st.sampled_from([None, None, None, -1, -200]))]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@example(steps=[step_of(0), step_of(1).replace(b'"time"', b'"t\\u0069me"'), step_of(2)], packed=False)
@example(steps=[step_of(0), step_of(1).replace(b"}\n", b',"time":5}\n'), step_of(2)], packed=False)
@example(steps=[step_of(0), step_of(1)[:-300] + b"\0" * 300, step_of(2)], packed=True)
@given(steps=st.lists(damaged(), min_size=2, max_size=4), packed=st.booleans())
def test_damaged_steps(tmp_path_factory: pytest.TempPathFactory, steps: list[bytes], packed: bool) -> None:
    decoded_lines(write(tmp_path_factory.mktemp("dump"), [step_of(0), *steps], packed=packed))

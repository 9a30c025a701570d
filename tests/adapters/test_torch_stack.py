"""`options={"stack": True}`: the functions of the program that led to an operator."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")


def inner(x: Any) -> Any:
    return x.exp()  # called by both


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        first = inner(self.fc(x))  # the first call
        return inner(first)  # the second call


def line_of(function: Any, comment: str) -> str:
    lines, first = inspect.getsourcelines(function)
    offset = next(i for i, line in enumerate(lines) if comment in line)
    return f"{inspect.getsourcefile(function)}:{first + offset} in {function.__name__}"


def captured(path: Path, **settings: Any) -> Any:
    model = Model()
    with ascend_dump.capture(model, path=path, strict=True, **settings) as cap:
        model(torch.ones(2, 4)).sum().backward()
    return cap.dump()


def test_all_functions_from_the_innermost_outwards(tmp_path: Path) -> None:
    dump = captured(tmp_path, options={"stack": True})
    forward = [one for one in dump.select(op_type="aten::exp", io="output") if one.phase == "forward"]
    for record, comment in zip(forward, ("the first call", "the second call")):
        assert record.stack[:2] == (line_of(inner, "called by both"), line_of(Model.forward, comment))
        assert record.stack[0].startswith(f"{record.source} in ")
        assert any(line.endswith(" in captured") for line in record.stack)
        assert not any(torch.__path__[0] in line for line in record.stack)
    assert len(forward) == 2
    # An input has the stack of its operator too, and a backward operator that of the forward one.
    assert dump.select(op_type="aten::exp", io="input")[0].stack == forward[0].stack
    backward = [one for one in dump if one.phase == "backward" and one.module == "fc" and one.op_type == "aten::mm"]
    assert backward
    assert all(line_of(Model.forward, "the first call") in one.stack for one in backward)


def test_a_catalog_that_is_kept_has_it_too(tmp_path: Path) -> None:
    captured(tmp_path, options={"stack": True}).catalog()
    again = ascend_dump.open(tmp_path)
    assert all(record.stack for record in again)


def test_show_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ascend_dump.cli import main

    captured(tmp_path / "d", options={"stack": True})
    assert main(["show", str(tmp_path / "d"), "--op", "exp_1", "--io", "output"]) == 0
    out = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(out) if line.split()[:1] == ["stack"])
    assert line_of(inner, "called by both") in out[at]
    assert line_of(Model.forward, "the second call") in out[at + 1]
    assert main(["show", str(tmp_path / "d"), "--op", "exp_1", "--io", "output", "--json"]) == 0
    [record] = json.loads(capsys.readouterr().out)["records"]
    assert record["stack"][0] == line_of(inner, "called by both")


def test_arguments_are_the_same_with_it(tmp_path: Path) -> None:
    plain, told = captured(tmp_path / "a"), captured(tmp_path / "b", options={"stack": True})
    assert [one.arguments for one in plain] == [one.arguments for one in told]
    assert not any(one.stack for one in plain)


def test_in_the_overflow_scene(tmp_path: Path) -> None:
    torch.manual_seed(0)  # of other weights all outputs may be finite
    model = Model()
    settings: dict[str, Any] = {"scene": "overflow", "options": {"stack": True}, "strict": True}
    with ascend_dump.capture(model, path=tmp_path, **settings) as cap:
        model(torch.full((2, 4), 1e30))
    found = [one for one in cap.dump().select(io="output") if one.attrs.get("origin")]
    assert found
    assert found[0].stack[0] == line_of(inner, "called by both")


def test_modules_have_none(tmp_path: Path) -> None:
    with pytest.raises(ascend_dump.AscendDumpError, match="stack"):
        captured(tmp_path, level="module", options={"stack": True})


@pytest.mark.parametrize("text", [b'{"op":"x","args":{},"stack":3}', b'{"op":"x","args":{},"stack":[3]}'])
def test_a_damaged_stack_is_said_to_be_damaged(tmp_path: Path, text: bytes) -> None:
    captured(tmp_path, options={"stack": True})
    [index] = tmp_path.rglob("index.jsonl")
    lines = index.read_bytes().splitlines(keepends=True)
    start = lines[0].index(b'"call":') + len(b'"call":')
    lines[0] = lines[0][:start] + text + b"}\n"
    index.write_bytes(b"".join(lines))
    record = ascend_dump.open(tmp_path)[0]
    with pytest.raises(ascend_dump.CorruptDump, match="call stack"):
        _ = record.stack
    assert record.numpy().size

"""Recorded operators run again: a wrong one is named without a reference, and nothing healthy is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from host_dumps import item, line, model_directory, write_step

import ascend_dump
from ascend_dump.analysis.replay import REASONS
from ascend_dump.cli import main
from ascend_dump.writing import HostWriter, Item

torch = pytest.importorskip("torch")
nn = torch.nn


def dump(path: Path, program: Callable[[], Any], **settings: Any) -> Path:
    decorated = ascend_dump.capture(path=path, **settings)(program)
    decorated()
    decorated.capture.stop()
    assert len(decorated.capture.dump()) > 0
    return path


def model() -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, activation="gelu")
    return nn.Sequential(
        nn.Embedding(20, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 20)
    )


def train(net: Any, dtype: Any, **optimizer: Any) -> Callable[[], None]:
    net.to(dtype)
    x, y = torch.randint(0, 20, (3, 6)), torch.randint(0, 20, (18,))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3, **optimizer)

    def step() -> None:
        adam.zero_grad()
        nn.functional.cross_entropy(net(x).flatten(0, 1).float(), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()

    step()
    return step


@contextmanager
def broken_gelu() -> Iterator[None]:
    """The kernel of gelu is another function; it stands below what records operators."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that a kernel is replaced
            library.impl("gelu", lambda x, approximate="none": x * torch.sigmoid(1.702 * x), "CPU")
        yield
    finally:
        library._destroy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_nothing_in_a_healthy_training_step_is_different(dtype: str, optimizer: dict[str, Any], tmp_path: Path) -> None:
    step = train(model(), getattr(torch, dtype), **optimizer)
    found = ascend_dump.replay(dump(tmp_path, step))
    assert found.wrong == ()
    assert found.verdict in ("equal", "noise")
    # What is left: dropout draws, memory to draw into, numbers that the program reads out of tensors.
    allowed = {
        ("random", "aten::bernoulli_"),
        ("uninitialised", "aten::empty_like"),
        ("outputs", "aten::_local_scalar_dense"),
    }
    assert {(one.reason, one.op_type) for one in found.refused} <= allowed
    ran = {one.record.op_type for one in found.pairs}
    assert {"aten::addmm", "aten::gelu", "aten::native_layer_norm_backward", "aten::embedding"} <= ran


def test_an_operator_that_computes_wrongly_is_different_and_its_consumers_are_right(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    step = train(model(), torch.float32)
    with broken_gelu():
        dump(tmp_path, step)
    found = ascend_dump.replay(tmp_path)
    assert {one.record.op_type for one in found.wrong} == {"aten::gelu"}
    assert {one.verdict for one in found.wrong} == {"different"}
    assert len(found.wrong) == 2
    capfd.readouterr()
    assert main(["replay", str(tmp_path), "--op", "*gelu*"]) == 1
    out = capfd.readouterr().out
    assert "different: " in out
    assert "test_replay.py" in out or "transformer.py" in out
    assert main(["replay", str(tmp_path), "--op", "*addmm*"]) == 0
    assert main(["replay", str(tmp_path), "--json", "--op", "*gelu_0*"]) == 1
    document = json.loads(capfd.readouterr().out.split("\n", 1)[1])
    assert document["verdict"] == "different"
    assert document["pairs"][0]["measure"]["unequal"] > 0


def test_operators_in_place_are_judged_by_what_they_made_of_their_inputs_before(tmp_path: Path) -> None:
    x = torch.randn(3, 4)

    def program() -> None:
        y = x.clone()
        y.add_(x, alpha=2).mul_(y)
        y[0] = 7.0
        out = torch.empty(3, 4)
        torch.add(x, y, out=out)
        torch.empty(5).zero_()
        running = torch.zeros(4)
        nn.functional.batch_norm(y, running, torch.ones(4), training=True)
        y.index_put_((torch.tensor([1]), torch.tensor([2])), torch.tensor([5.0]), accumulate=True)
        torch._foreach_mul_([y, out], 0.5)

    found = ascend_dump.replay(dump(tmp_path, program))
    assert found.verdict in ("equal", "noise")
    ran = {one.record.op_type for one in found.pairs}
    assert {"aten::add_", "aten::mul_", "aten::zero_", "aten::index_put_", "aten::_foreach_mul_"} <= ran
    # What batch norm writes to and does not return is judged too.
    assert any(one.record.attrs.get("argument") == "running_mean" for one in found.pairs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64", "int64", "bool"])
def test_every_type_can_be_run_again(dtype: str, tmp_path: Path) -> None:
    x = torch.tensor([[1, 0, 3], [0, 5, 6]]).to(getattr(torch, dtype))

    def program() -> None:
        y = x.t().contiguous().view(-1)
        torch.cat([y, y]).flip(0)
        x.to(torch.complex128)
        if dtype != "bool":
            (x * x + 1).sum(0)

    found = ascend_dump.replay(dump(tmp_path, program))
    assert found.verdict in ("equal", "noise")
    assert found.refused == ()


def test_what_overflows_in_its_type_does_so_again(tmp_path: Path) -> None:
    x = torch.full((4,), 60000.0, dtype=torch.float16)
    assert ascend_dump.replay(dump(tmp_path, lambda: x * x)).verdict == "equal"


def test_the_mean_of_what_has_none_is_rounding_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 256)
    x -= x.mean(1, keepdim=True)
    found = ascend_dump.replay(dump(tmp_path, lambda: nn.functional.layer_norm(x, (256,))))
    assert found.verdict in ("equal", "noise")


def reasons(path: Path) -> dict[str, str]:
    return {one.op_type: one.reason for one in ascend_dump.replay(path).refused}


def test_what_cannot_be_run_again_says_why(tmp_path: Path) -> None:
    x = torch.randn(8)

    def program() -> None:
        torch.rand(3)
        torch.empty(3)
        x.as_strided((2,), (3,))
        x.clone().resize_(2)
        float(x[0])

    assert reasons(dump(tmp_path / "1", program)) == {
        "aten::rand": "random",
        "aten::empty": "uninitialised",
        "aten::as_strided": "outside",
        "aten::resize_": "uninitialised",
        "aten::_local_scalar_dense": "outputs",
    }
    assert reasons(dump(tmp_path / "2", lambda: x * 2, mode="output")) == {"aten::mul": "inputs"}
    assert reasons(dump(tmp_path / "3", lambda: x * 2, data="stats")) == {"aten::mul": "inputs"}
    assert set(REASONS) >= {"library", "collective", "arguments", "kernel", "size"}


def written(root: Path, call: bytes, array: np.ndarray) -> Path:
    """One operator with this call; its one input is its output too."""
    writer = HostWriter(model_directory(root), metadata={})
    first, second = item("a_0", array, io="input"), item("a_0", array)
    first.line.call = msgspec.Raw(call)
    write_step(writer, 0, first, second)
    writer.close()
    return root


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        ("mine.gelu.default", "library"),
        ("_c10d_functional.all_reduce.default", "collective"),
        ("aten.no_such_operator.default", "kernel"),
        ("aten.from_file.default", "effects"),
        ("aten.__class__.__init__", "library"),
        ("aten.gelu.__call__", "kernel"),
        ("os.system", "library"),
    ],
)
def test_only_operators_of_pytorch_are_run(tmp_path: Path, operator: str, reason: str) -> None:
    call = f'{{"op":"{operator}","args":{{"self":{{"input":0}}}}}}'.encode()
    assert reasons(written(tmp_path, call, np.ones(3, np.float32))) == {"aten::op": reason}


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (b'{"op":"aten.gelu.default","args":{"self":{"input":7}}}', "inputs"),
        (b'{"op":"aten.gelu.default","args":{"self":{"cut":[1],"length":9}}}', "cut"),
        (b'{"op":"aten.gelu.default","args":{"other":{"input":0}}}', "kernel"),
        (b'{"op":"aten.gelu.default","args":{"self":{"object":"thing"}}}', "type"),
        (b'{"op":"aten.zeros.default","args":{"size":[1099511627776]}}', "size"),
        (b'{"op":"aten.repeat.default","args":{"self":{"input":0},"repeats":[1099511627776]}}', "size"),
        (b'{"op":"aten.gelu.default","args":5}', "arguments"),
    ],
)
def test_hostile_arguments_are_refused(tmp_path: Path, call: bytes, reason: str) -> None:
    assert reasons(written(tmp_path, call, np.ones(3, np.float32))) == {"aten::op": reason}


def test_nothing_that_could_be_run_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, b"{}", np.ones(3, np.float32))
    assert ascend_dump.replay(path).verdict == "unmatched"
    assert main(["replay", str(path)]) == 1
    out = capsys.readouterr().out
    assert "nothing is known" in out
    assert REASONS["arguments"] in out


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_shard_that_is_missing_or_cut_off_is_unreadable(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dump(tmp_path, lambda: torch.ones(300).neg())
    assert main(["replay", str(path)]) == 0
    for shard in path.rglob("*.safetensors"):
        shard.unlink() if damage == "missing" else os.truncate(shard, 100)
    capsys.readouterr()
    assert main(["replay", str(path), "--op", "*neg*"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("unreadable: 1 unreadable")
    assert "Hint" not in out
    assert "an input cannot be read" in out


def test_an_output_without_values_is_not_checked_and_the_others_are(tmp_path: Path) -> None:
    writer = HostWriter(model_directory(tmp_path), metadata={})
    array = np.array([3.0, 1.0, 2.0], np.float32)
    call = b'{"op":"aten.sort.default","args":{"self":{"input":0},"dim":0,"descending":false}}'
    items = [item("a_0", array, io="input"), item("a_0", np.sort(array))]
    items[0].line.call = msgspec.Raw(call)
    items.append(Item(line("a_0", np.array([1, 2, 0]), index=1, skipped="too large"), None))
    write_step(writer, 0, *items)
    writer.close()
    found = ascend_dump.replay(tmp_path)
    assert [(one.record.index, one.verdict) for one in found.pairs] == [(0, "equal")]


def test_a_record_of_other_shape_or_values_is_named(tmp_path: Path) -> None:
    call = b'{"op":"aten.neg.default","args":{"self":{"input":0}}}'
    [pair] = ascend_dump.replay(written(tmp_path / "a", call, np.ones(3, np.float32))).pairs
    assert (pair.verdict, pair.record.op_name) == ("different", "a_0")
    call = b'{"op":"aten.sum.default","args":{"self":{"input":0}}}'
    [pair] = ascend_dump.replay(written(tmp_path / "b", call, np.ones(3, np.float32))).pairs
    assert pair.verdict == "structure"


def test_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ascend_dump.ConfigError, match="float64"):
        ascend_dump.replay(tmp_path, dtype="float16")


@pytest.mark.parametrize("wrong", ["actual", "the reference"])
def test_a_comparison_says_which_side_computes_wrongly(wrong: str, tmp_path: Path) -> None:
    x = torch.randn(6, 8)

    def program() -> None:
        nn.functional.gelu(x).exp()

    right = dump(tmp_path / "right", program)
    with broken_gelu():
        broken = dump(tmp_path / "broken", program)
    pair = (broken, right) if wrong == "actual" else (right, broken)
    [plain] = ascend_dump.compare(*pair).origins
    assert not any("run again" in text for text in plain.evidence)
    [origin] = ascend_dump.compare(*pair, replay=True).origins
    assert origin.op_type == "aten::gelu"
    other = "the reference" if wrong == "actual" else "actual"
    assert any(text.startswith(f"replay: the output of {wrong} is wrong for its inputs") for text in origin.evidence)
    assert f"replay: the output of {other} is right for its inputs" in origin.evidence


def test_what_is_right_on_both_sides_is_noise_in_a_comparison_that_runs_it_again(tmp_path: Path) -> None:
    x = np.linspace(1, 2, 1000, dtype=np.float32)
    paths = []
    for sign in (-1, 1):
        y = -x
        y[500] *= 1 + sign * 1.2e-5  # each is within the envelope of the true value, and not of the other one
        writer = HostWriter(model_directory(tmp_path / str(sign)), metadata={})
        first, second = item("neg_0", x, io="input"), item("neg_0", y)
        first.line.call = msgspec.Raw(b'{"op":"aten.neg.default","args":{"self":{"input":0}}}')
        write_step(writer, 0, first, second)
        writer.close()
        paths.append(tmp_path / str(sign))
    assert ascend_dump.compare(*paths).verdict == "different"
    found = ascend_dump.compare(*paths, replay=True)
    assert (found.verdict, found.origins) == ("noise", ())
    assert any("both outputs are within rounding" in pair.reason for pair in found.pairs)
    assert main(["compare", *map(str, paths)]) == 1
    assert main(["compare", *map(str, paths), "--replay"]) == 0


def test_an_element_wise_operator_is_run_again_without_the_compiler_of_pytorch(tmp_path: Path) -> None:
    """Its meta kernel is written in Python, and would load the compiler, which takes seconds."""
    x, y = torch.arange(6.0), torch.arange(1.0, 7.0)
    dump(tmp_path / "dump", lambda: x / y)
    program = (
        "import sys, ascend_dump\n"
        f"counts = ascend_dump.replay({str(tmp_path / 'dump')!r}).counts\n"
        "print(counts.get('equal', 0) > 0, 'torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900, check=True)
    assert done.stdout.split() == ["True", "False"]

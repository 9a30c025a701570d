"""What ATen operators were called with beside tensors is recorded with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

torch = pytest.importorskip("torch")

import ascend_dump  # noqa: E402
from ascend_dump.dump_format import Arguments, Cut, Named, TensorOf  # noqa: E402


def calls(tmp_path: Path, program: Callable[[], Any], **settings: Any) -> dict[str, Arguments]:
    """The arguments of each operator that a program runs, by its name with its overload; of several the last."""
    decorated = ascend_dump.capture(path=tmp_path, **settings)(program)
    decorated()
    found: dict[str, Arguments] = {}
    for record in decorated.capture.dump():
        assert record.error is None
        assert record.arguments is not None
        found[record.arguments.operator] = record.arguments
    decorated.capture.stop()
    return found


def test_scalars_lists_and_defaults_are_there_by_name(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 4)

    def program() -> None:
        torch.nn.functional.layer_norm(x, (4,), torch.ones(4), torch.zeros(4), eps=1e-6)
        x.sum((0, -1), keepdim=True)
        x.to(torch.bfloat16)
        torch.full((2,), float("-inf"))
        x.clone(memory_format=torch.contiguous_format)
        torch.add(x, x, alpha=-0.0)
        torch.add(x, x, alpha=0)
        x.mul(1j)
        torch.nn.functional.gelu(x, approximate="tanh")

    found = calls(tmp_path, program)
    norm = found["aten.native_layer_norm.default"].values
    assert norm["eps"] == 1e-6
    assert norm["normalized_shape"] == [4]
    assert [norm[name] for name in ("input", "weight", "bias")] == [TensorOf("input", i) for i in range(3)]
    assert found["aten.sum.dim_IntList"].values == {"self": TensorOf("input", 0), "dim": [0, -1], "keepdim": True}
    assert found["aten._to_copy.default"].values["dtype"] == Named("dtype", "bfloat16")
    assert found["aten.full.default"].values["fill_value"] == -math.inf
    assert found["aten.clone.default"].values["memory_format"] == Named("memory_format", "contiguous_format")
    assert found["aten.add.Tensor"].values["alpha"] == 0
    assert type(found["aten.add.Tensor"].values["alpha"]) is int
    assert found["aten.gelu.default"].values["approximate"] == "tanh"


def test_equal_values_of_other_types_are_told_apart(tmp_path: Path) -> None:
    x = torch.ones(2)
    seen = []
    for value in (1, 1.0, True, 0.0, -0.0, math.nan, math.inf, 2, 2.0):
        call = calls(tmp_path, lambda value=value: torch.ops.aten.mul.Scalar(x, value))["aten.mul.Scalar"]
        seen.append(call.values["other"])
    assert list(map(repr, seen)) == ["1", "1.0", "True", "0.0", "-0.0", "nan", "inf", "2", "2.0"]


def test_one_capture_tells_values_apart_that_follow_each_other(tmp_path: Path) -> None:
    x = torch.ones(3, 4)

    @ascend_dump.capture(path=tmp_path)
    def program() -> None:
        for value in (1, 1.0, 0.0, -0.0, 1, math.nan):
            torch.ops.aten.mul.Scalar(x, value)
        x.transpose(0, 1)
        x.transpose(1, 0)

    program()
    program.capture.stop()
    records = [record for record in program.capture.dump() if record.io == "output"]
    values = [list(record.arguments.values.values())[1:] for record in records if record.arguments is not None]
    assert list(map(repr, values[:6])) == ["[1]", "[1.0]", "[0.0]", "[-0.0]", "[1]", "[nan]"]
    assert values[6:] == [[0, 1], [1, 0]]


def test_tensors_are_references_to_records(tmp_path: Path) -> None:
    a, b = torch.ones(3), torch.full((3,), 2.0)

    @ascend_dump.capture(path=tmp_path)
    def program() -> None:
        out = torch.zeros(3)
        torch.add(a, b, out=out)
        torch._foreach_add_([a, b], [b, b])
        out[torch.tensor([0, 2])] = 5.0

    program()
    program.capture.stop()
    dump = list(program.capture.dump())
    by_place = {(one.attrs["seq"], one.io, one.index): one for one in dump}

    def value(seq: int, of: TensorOf) -> list[float]:
        found: list[float] = by_place[seq, of.io, of.index].numpy().reshape(-1).tolist()
        return found

    add = next(one for one in dump if one.arguments is not None and one.arguments.operator == "aten.add.out")
    assert add.arguments is not None
    assert {name: value(add.attrs["seq"], add.arguments.values[name]) for name in ("self", "other", "out")} == {
        "self": [1.0] * 3,
        "other": [2.0] * 3,
        "out": [3.0] * 3,
    }
    each = next(one for one in dump if one.op_type == "aten::_foreach_add_")
    assert each.arguments is not None
    assert each.arguments.values["other"] == [TensorOf("input", 2), TensorOf("input", 3)]
    put = next(one for one in dump if one.op_type == "aten::index_put_")
    assert put.arguments is not None
    assert value(put.attrs["seq"], put.arguments.values["indices"][0]) == [0, 2]


def test_random_operators_say_what_their_generator_was(tmp_path: Path) -> None:
    x = torch.ones(100)
    own = torch.Generator().manual_seed(7)

    def state(seed: int, generator: Optional[Any] = None) -> Any:
        def program() -> None:
            torch.empty(4).uniform_(generator=generator)

        torch.manual_seed(seed)
        return calls(tmp_path, program)["aten.uniform_.default"].generator

    first, again, other, passed = state(1), state(1), state(2), state(1, own)
    assert first == again
    assert first.device == "cpu"
    assert (first.seed, other.seed, passed.seed) == (1, 2, 7)
    assert len({first.hash, other.hash, passed.hash}) == 3
    torch.manual_seed(3)
    before = torch.get_rng_state()
    found = calls(tmp_path, lambda: (x * 2, torch.nn.functional.dropout(x, 0.0)))
    assert torch.equal(torch.get_rng_state(), before)
    assert found["aten.mul.Tensor"].generator is None


def test_recording_a_random_operator_draws_nothing(tmp_path: Path) -> None:
    torch.manual_seed(5)
    plain = torch.rand(3)
    torch.manual_seed(5)
    program = ascend_dump.capture(path=tmp_path)(lambda: torch.rand(3))
    assert torch.equal(program(), plain)
    program.capture.stop()


def test_long_lists_are_cut(tmp_path: Path) -> None:
    x = [torch.ones(1)] * 5000
    values = [float(i) for i in range(5000)]
    found = calls(tmp_path, lambda: torch._foreach_mul(x, values))["aten._foreach_mul.ScalarList"].values
    assert isinstance(found["scalars"], Cut)
    assert found["scalars"].length == 5000
    assert found["scalars"].values[:3] == [0.0, 1.0, 2.0]
    assert len(found["self"]) == 5000


@pytest.mark.parametrize("settings", [{"mode": "output"}, {"data": "stats"}, {"layers": "*mul*"}])
def test_every_kind_of_dump_has_them(tmp_path: Path, settings: dict[str, Any]) -> None:
    x = torch.ones(3)
    found = calls(tmp_path, lambda: x * 3, **settings)
    assert found["aten.mul.Tensor"].values["other"] in (3, TensorOf("input", 1))


def test_a_compare_names_the_argument(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    paths = []
    for number, eps in enumerate((1e-5, 1e-1)):
        program = ascend_dump.capture(path=tmp_path / str(number))(
            lambda eps=eps: torch.nn.functional.layer_norm(x, (8,), eps=eps).exp()
        )
        program()
        program.capture.stop()
        assert len(program.capture.dump()) > 0
        paths.append(tmp_path / str(number))
    [origin] = ascend_dump.compare(paths[1], paths[0]).origins
    assert origin.kind == "structure"
    assert origin.op_type == "aten::native_layer_norm"
    assert "eps: 0.1 here, 1e-05 in the reference" in origin.evidence


def test_a_compare_says_that_a_generator_was_elsewhere_already(tmp_path: Path) -> None:
    x = torch.ones(64)
    for number in range(3):
        torch.manual_seed(0 if number < 2 else 1)
        program = ascend_dump.capture(path=tmp_path / str(number))(lambda: x * torch.rand(64))
        program()
        program.capture.stop()
        assert len(program.capture.dump()) > 0
    assert ascend_dump.compare(tmp_path / "0", tmp_path / "1").origins == ()
    [origin] = ascend_dump.compare(tmp_path / "2", tmp_path / "0").origins
    assert origin.kind == "random"
    assert any("the generator state differs already" in text for text in origin.evidence)

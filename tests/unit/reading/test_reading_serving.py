"""Files of SGLang's dumper and of Transformer Engine, written here as their sources say; no real dumps were at hand."""

from __future__ import annotations

import collections
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import CorruptDump, NotSupported
from ascend_dump.cli import Exit, main

torch = pytest.importorskip("torch")


def tensor(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dumped(place: Path, value: Any, *, step: int, index: int, name: str, rank: int = 0, **others: Any) -> Path:
    """As `_dump_single` of SGLang's dumper does."""
    tags = {"step": step, "rank": rank, "dump_index": index, "name": name, **others}
    path = place / "dump_1" / ("___".join(f"{key}={item}" for key, item in tags.items()) + ".pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = {**tags, "world_rank": rank, "world_size": 2, "sglang_parallel_info": {"tp_rank": rank, "tp_size": 2}}
    torch.save({"value": value, "meta": meta}, path)
    return path


def test_values_that_a_program_dumped(tmp_path: Path) -> None:
    x = tensor(3, 4)
    dumped(tmp_path, x.bfloat16(), step=2, index=7, name="hidden", recompute_status="disabled", layer_id=3)
    dumped(tmp_path, x, step=2, index=5, name="hidden", recompute_status="disabled", layer_id=0)
    dumped(tmp_path, x * 2, step=2, index=9, name="grad__hidden", layer_id=3)
    records = list(ascend_dump.open(tmp_path))
    assert [(one.label, one.step, one.rank, one.phase) for one in records] == [
        ("hidden[layer_id=0].output.0", 2, 0, None),
        ("hidden[layer_id=3].output.0", 2, 0, None),
        ("grad__hidden[layer_id=3].output.0", 2, 0, "backward"),
    ]
    assert np.array_equal(records[0].numpy(), x.numpy())
    assert records[1].dtype == "bfloat16"
    assert records[1].attrs["dump_index"] == 7


def test_modules_have_inputs_and_outputs_and_may_run_again(tmp_path: Path) -> None:
    prefix = "non_intrusive__model.layers.0.mlp"
    for turn in range(2):
        dumped(tmp_path, tensor(2), step=0, index=10 * turn + 1, name=f"{prefix}.inputs.0", rank=1)
        dumped(tmp_path, tensor(2), step=0, index=10 * turn + 2, name=f"{prefix}.inputs.1.key", rank=1)
        dumped(tmp_path, tensor(3), step=0, index=10 * turn + 3, name=f"{prefix}.output", rank=1)
    dumped(tmp_path, tensor(3), step=0, index=90, name="non_intrusive__output", rank=1)
    records = list(ascend_dump.open(tmp_path))
    assert [(one.op_name, one.io, one.index) for one in records] == [
        *[("model.layers.0.mlp", io, index) for io, index in [("input", 0), ("input", 1), ("output", 0)]] * 2,
        ("model", "output", 0),
    ]
    assert {one.rank for one in records} == {1}
    assert len({one.execution for one in records[:6]}) == 2
    assert records[0].module == "model.layers.0.mlp"


def test_values_that_are_no_tensors_are_listed(tmp_path: Path) -> None:
    dumped(tmp_path, [tensor(1), 5, tensor(2)], step=0, index=1, name="list")
    dumped(tmp_path, {"a": None, "b": tensor(2)}, step=0, index=2, name="dict")
    dumped(tmp_path, torch.device("cpu"), step=0, index=3, name="object")
    found = {(one.op_name, one.attrs.get("argument", "")): one for one in ascend_dump.open(tmp_path)}
    assert found["list", "2"].shape == (2,)
    assert found["list", "1"].attrs["value"] == 5
    assert found["dict", "b"].numpy().shape == (2,)
    with pytest.raises(NotSupported, match="not a tensor but NoneType"):
        found["dict", "a"].numpy()
    with pytest.raises(NotSupported, match=r"torch\.device"):
        found["object", ""].numpy()


def test_older_files_are_the_tensor_itself(tmp_path: Path) -> None:
    path = dumped(tmp_path, tensor(2), step=0, index=1, name="x")
    torch.save(tensor(4), path)
    [record] = ascend_dump.open(tmp_path)
    assert (record.op_name, record.shape) == ("x", (4,))


def test_passes_of_the_forward_hook(tmp_path: Path) -> None:
    place = tmp_path / "TP1_PP0_Rank3_pid77"
    place.mkdir()
    layers = {"model.embed": tensor(2, 2), "model.layers.0.attn": [tensor(3), tensor(4)]}
    torch.save(layers, place / "Pass00002.pt")
    torch.save(collections.OrderedDict(layers), place / "Pass00003.pt")
    records = list(ascend_dump.open(tmp_path))
    assert [(one.step, one.rank, one.label) for one in records] == [
        (step, 3, label)
        for step in (2, 3)
        for label in ("model.embed.output.0", "model.layers.0.attn.output.0", "model.layers.0.attn.output.1")
    ]
    assert records[0].attrs == {"tp_rank": 1, "pp_rank": 0}
    assert records[2].numpy().shape == (4,)


def test_two_ranks_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("polars")
    for side in ("a", "b"):
        for number in range(3):
            wrong = side == "b" and number == 1
            dumped(
                tmp_path / side, tensor(8, seed=number) * (1.5 if wrong else 1), step=0, index=number, name=f"x{number}"
            )
    found = ascend_dump.compare(tmp_path / "b", tmp_path / "a")
    assert found.verdict == "different"
    assert [origin.op_name for origin in found.origins] == ["x1"]
    assert [origin.kind for origin in found.origins] == ["unknown"], "the dump has no inputs"
    broken = next((tmp_path / "b").rglob("*name=x2.pt"))
    broken.write_bytes(broken.read_bytes()[:100])
    assert main(["compare", str(tmp_path / "b"), str(tmp_path / "a")]) == Exit.UNREADABLE
    out = capsys.readouterr().out
    assert "\nfirst seen  x1, step 0\n" in out
    assert "unreadable" in out
    assert "Hint" not in out, "a table shows one line of a reason"


def test_transformer_engine(tmp_path: Path) -> None:
    place = tmp_path / "tensor_dumps" / "rank_2"
    place.mkdir(parents=True)
    for name in ("activation", "weight", "output", "gradient", "dgrad", "wgrad"):
        torch.save({"high_precision": tensor(2, 3)}, place / f"decoder_layers_0_fc1_{name}_iter_000005.pt")
    records = list(ascend_dump.open(tmp_path))
    assert [(one.label, one.phase) for one in records] == [
        ("decoder_layers_0_fc1.input.0", "forward"),
        ("decoder_layers_0_fc1.input.1", "forward"),
        ("decoder_layers_0_fc1.output.0", "forward"),
        ("decoder_layers_0_fc1/backward.input.0", "backward"),
        ("decoder_layers_0_fc1/backward.output.0", "backward"),
        ("decoder_layers_0_fc1/backward.output.1", "backward"),
    ]
    assert {(one.step, one.rank, one.attrs["form"]) for one in records} == {(5, 2, "high_precision")}
    assert np.array_equal(records[0].numpy(), tensor(2, 3).numpy())


class Quantized:
    """Stands for a pickled QuantizedTensor."""

    def __reduce__(self) -> Any:
        return Quantized, (), {"data": torch.zeros(2)}


def test_a_quantised_tensor_is_listed_and_not_unpickled(tmp_path: Path) -> None:
    place = tmp_path / "rank_0"
    place.mkdir()
    both = {"high_precision": tensor(2), "quantized": Quantized()}
    torch.save(both, place / "fc_weight_iter_000001.pt")
    plain, quantised = ascend_dump.open(tmp_path)
    assert plain.numpy().shape == (2,)
    with pytest.raises(NotSupported, match=r"Quantized, which is not unpickled"):
        quantised.numpy()


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("it ran",)


def test_nothing_in_a_file_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumped(tmp_path, {"a": Harmful(), "b": tensor(1)}, step=0, index=1, name="x")
    first, second = ascend_dump.open(tmp_path)
    with pytest.raises(NotSupported):
        first.numpy()
    assert second.numpy().shape == (1,)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("keep", [0, 10, 200, -60])
def test_a_file_that_is_cut_off_is_one_error(keep: int, tmp_path: Path) -> None:
    path = dumped(tmp_path, tensor(5), step=0, index=1, name="x")
    dumped(tmp_path, tensor(5), step=0, index=2, name="y")
    path.write_bytes(path.read_bytes()[:keep])
    broken, sound = ascend_dump.open(tmp_path)
    assert isinstance(broken.error, CorruptDump)
    assert broken.op_name == "x"
    assert sound.numpy().shape == (5,)


def with_pickle(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", data)


def test_a_short_pickle_that_says_very_much_is_an_error(tmp_path: Path) -> None:
    path = dumped(tmp_path, tensor(1), step=0, index=1, name="x")
    inner: list[Any] = [0] * 50
    for _ in range(20):
        inner = [inner] * 50
    with_pickle(path, pickle.dumps({"value": inner}, protocol=2))
    *_, last = ascend_dump.open(tmp_path)
    assert "more than 100000 values" in str(last.error)


@given(data=st.binary(max_size=200) | st.lists(st.sampled_from(pickle.dumps({"a": [1, (2, "b")]}, 2))).map(bytes))
def test_damaged_pickles_raise_nothing_else(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.getbasetemp() / "damaged_sglang"
    place.mkdir(exist_ok=True)
    with_pickle(place / "step=0___rank=0___dump_index=1___name=x.pt", data)
    for record in ascend_dump.open(place):
        record.to_dict()


nested = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(value=nested)
def test_any_document_is_read_as_torch_reads_it(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.getbasetemp() / "any_sglang"
    dumped(place, value, step=0, index=1, name="x")

    def leaves(inner: Any, path: str = "") -> list[tuple[str, Any]]:
        if isinstance(inner, (list, dict)):
            items = inner.items() if isinstance(inner, dict) else enumerate(inner)
            return [leaf for key, item in items for leaf in leaves(item, f"{path}.{key}")]
        return [(path[1:], inner)]

    found = [(one.attrs.get("argument", ""), one.attrs["value"]) for one in ascend_dump.open(place)]
    assert repr(found) == repr(leaves(value))

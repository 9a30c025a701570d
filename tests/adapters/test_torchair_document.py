"""The program of torchair's document on data dump, with each of its options by itself and with all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torchair_helpers import make_input, make_mlp

import ascend_dump
from ascend_dump import fakes
from ascend_dump.fakes.device.npu import Npu

torch = pytest.importorskip("torch")

#: The suite of the real torchair runs this file, too.
TORCHAIR = os.environ.get("ASCEND_DUMP_TEST_TORCHAIR", "torchair")


class Left(NamedTuple):
    """What a run left: (operator, side, step) of everything dumped, suffixes of files, and GE's options."""

    records: frozenset[tuple[str, str, int]]
    suffixes: frozenset[str]
    options: dict[str, str]

    def only(self, **wanted: Any) -> frozenset[tuple[str, str, int]]:
        fields = ("names", "sides", "steps")
        return frozenset(
            record for record in self.records if all(record[fields.index(name)] in wanted[name] for name in wanted)
        )


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    with fakes.install(TORCHAIR, environ={}) as device:
        yield device
    torch._dynamo.reset()


def run(where: str, **options: Any) -> Left:
    """The document's program in a fresh torchair. where: the dump path, made here."""
    import torchair
    from torchair._ge_concrete_graph import fx2ge_converter
    from torchair.core import _backend

    _backend.finalize_graph_engine()
    _backend._GLOBAL_COMPILE_OPTION = None
    fx2ge_converter.g_cached_dump_root = None
    Path(where).mkdir(exist_ok=True)
    config = torchair.CompilerConfig()
    for name, value in options.items():
        setattr(config.dump_config, name, value)
    npu_backend = torchair.get_npu_backend(compiler_config=config)
    opt_model = torch.compile(make_mlp(), backend=npu_backend)
    with torch.no_grad():
        for _ in range(3):
            opt_model(make_input())
    files = [path for path in Path(where).rglob("*") if path.is_file()]
    dump = ascend_dump.open(where) if files else []
    records = frozenset(
        (record.op_name, record.io, record.step) for record in dump if record.op_type not in ("Data", "Const")
    )
    return Left(records, frozenset(path.suffix for path in files), dict(_backend._GLOBAL_COMPILE_OPTION))


@pytest.fixture
def everything(npu: Npu) -> Left:
    return run("all", enable_dump=True, dump_path="all")


def test_without_the_switch_nothing_is_dumped(npu: Npu) -> None:
    left = run("d", dump_path="d", dump_mode="input", dump_step="0")
    assert left.records == frozenset()
    assert not [key for key in left.options if "ump" in key]


def test_the_switch_dumps_inputs_and_outputs_of_every_operator_at_every_step(everything: Left) -> None:
    names = {"Transpose", "MatMulV2", "Mul", "Add", "Relu", "Transpose_1", "MatMulV2_1", "Mul_1", "Add_1"}
    assert everything.records == {
        (name, side, step) for name in names for side in ("input", "output") for step in (0, 1, 2)
    }


@pytest.mark.parametrize("mode", ["input", "output", "all"])
def test_dump_mode(everything: Left, mode: str) -> None:
    wanted = ("input", "output") if mode == "all" else (mode,)
    assert run("d", enable_dump=True, dump_path="d", dump_mode=mode).records == everything.only(sides=wanted)


def test_dump_path_has_the_levels_of_the_document(npu: Npu) -> None:
    run("d", enable_dump=True, dump_path="d", dump_step="1")
    (place,) = {path.parent.relative_to("d") for path in Path("d").rglob("Relu.*")}
    rank, moment, device, model, model_id, step = place.parts
    assert (rank, device, step) == ("worldsize1_global_rank0", "0", "1")
    assert model.startswith("graph_")
    assert len(moment) == 14
    assert moment.isdigit()
    assert model_id.isdigit()


@pytest.mark.parametrize("quant", [True, False])
def test_quant_dumpable(everything: Left, quant: bool) -> None:
    left = run("d", enable_dump=True, dump_path="d", quant_dumpable=quant)
    assert left.records == everything.records
    assert left.options["ge.quant_dumpable"] == ("1" if quant else "0")


@pytest.mark.parametrize(("steps", "wanted"), [("0|1", (0, 1)), ("0|1-2", (0, 1, 2)), ("2", (2,)), ("", (0, 1, 2))])
def test_dump_step(everything: Left, steps: str, wanted: tuple[int, ...]) -> None:
    assert run("d", enable_dump=True, dump_path="d", dump_step=steps).records == everything.only(steps=wanted)


def test_dump_layer(everything: Left) -> None:
    left = run("d", enable_dump=True, dump_path="d", dump_layer="Add_1 Mul_1 Add2")
    assert left.records == everything.only(names=("Add_1", "Mul_1"))
    # As the document prints it, without the blank.
    assert run("e", enable_dump=True, dump_path="e", dump_layer="Add_1Mul_1 Add2").records == frozenset()


def test_dump_data(everything: Left) -> None:
    left = run("d", enable_dump=True, dump_path="d", dump_data="stats")
    assert left.suffixes == {".csv"}
    assert {(name, step) for name, _, step in left.records} == {(name, step) for name, _, step in everything.records}


def test_dump_config_path_without_any_other(everything: Left, tmp_path: Path) -> None:
    settings = {"dump_path": str(tmp_path / "d"), "dump_list": [{"layer": ["Relu"]}], "dump_mode": "output"}
    Path("acl.json").write_text(json.dumps({"dump": settings}))
    left = run("d", dump_config_path="acl.json")
    assert left.records == everything.only(names=("Relu",), sides=("output",))
    assert left.options["ge_dump_with_acl_config"] == "acl.json"


def test_with_all_of_them_the_options_win_over_the_file(everything: Left, tmp_path: Path) -> None:
    settings = {"dump_path": str(tmp_path / "file"), "dump_list": [{}], "dump_mode": "input"}
    Path("acl.json").write_text(json.dumps({"dump": settings}))
    Path("file").mkdir()
    left = run(
        "d",
        enable_dump=True,
        dump_mode="all",
        dump_path="d",
        quant_dumpable=True,
        dump_step="0|1",
        dump_layer="Add_1 Mul_1 Add2",
        dump_data="stats",
        dump_config_path="acl.json",
    )
    assert {(name, step) for name, _, step in left.records} == {(n, s) for n in ("Add_1", "Mul_1") for s in (0, 1)}
    assert left.suffixes == {".csv"}
    assert list(Path("file").iterdir()) == []


def test_in_a_torchair_that_generates_no_json_the_file_wins(npu: Npu, tmp_path: Path) -> None:
    from torchair._ge_concrete_graph import fx2ge_converter

    del fx2ge_converter._set_dump_options_json
    settings = {"dump_path": str(tmp_path / "file"), "dump_list": [{"layer": ["Relu"]}], "dump_mode": "input"}
    Path("acl.json").write_text(json.dumps({"dump": settings}))
    Path("file").mkdir()
    assert run("d", enable_dump=True, dump_path="d", dump_config_path="acl.json").records == frozenset()
    assert {record.op_name for record in ascend_dump.open("file")} == {"Relu"}
    # By themselves the options reach GE there, too.
    assert len(run("e", enable_dump=True, dump_path="e", dump_step="0").records) == 18


def test_an_older_torchair_is_captured_as_well(npu: Npu) -> None:
    import sys

    converter, native = (
        sys.modules[f"torchair.{name}"] for name in ("_ge_concrete_graph.fx2ge_converter", "core._torchair")
    )
    del converter._set_dump_options_json, converter.g_cached_dump_root, native.AclmdlSetDump
    for steps, options in (("0", {}), ("1", {"json": True})):
        model = make_mlp()
        settings = {"path": "dumps", "steps": steps, "options": options}
        with ascend_dump.capture(model, framework="torchair", **settings) as cap, torch.no_grad():
            model(make_input())
            model(make_input())
        assert cap.dump().known_values("step") == {int(steps)}
        assert len(cap.dump().select(op="Relu", io="output")) == 1
    assert not Path("ge_dump_data_json").exists()

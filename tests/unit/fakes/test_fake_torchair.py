"""The fake torchair: graphs run as PyTorch runs them, and the simulated device sees GE's operators."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from preloaded import run_preloaded
from torchair_helpers import simulated_torchair

import ascend_dump
from ascend_dump.fakes.device.npu import Npu

torch = pytest.importorskip("torch")


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    monkeypatch.chdir(tmp_path)
    with simulated_torchair() as device:
        yield device


@pytest.fixture
def torchair(npu: Npu) -> Any:
    import torchair

    return torchair


def make_mlp() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def compiled(torchair: Any, model: Any, config: Any = None, **given: Any) -> Any:
    return torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), **given)


def dump_config(torchair: Any, path: str, **options: Any) -> Any:
    Path(path).mkdir(exist_ok=True)
    config = torchair.CompilerConfig()
    for option, value in {"enable_dump": True, "dump_path": path, **options}.items():
        setattr(config.dump_config, option, value)
    return config


def test_a_graph_computes_what_pytorch_computes_and_names_what_torchair_names(npu: Npu, torchair: Any) -> None:
    model, x = make_mlp(), torch.randn(5, 8)
    with torch.no_grad():
        found = compiled(torchair, model)(x)
    assert torch.equal(found, model(x))
    names = [(run.op_type, run.name) for run in npu.executed]
    assert names == [
        ("Transpose", "Transpose"),
        ("MatMulV2", "MatMulV2"),
        ("Mul", "Mul"),
        ("Add", "Add"),
        ("Relu", "Relu"),
        ("Transpose", "Transpose_1"),
        ("MatMulV2", "MatMulV2_1"),
        ("Mul", "Mul_1"),
        ("Add", "Add_1"),
    ]


def test_training_runs_a_forward_and_a_backward_graph(npu: Npu, torchair: Any) -> None:
    model, x = make_mlp(), torch.randn(5, 8)
    reference = make_mlp()
    reference(x).square().sum().backward()
    compiled(torchair, model)(x).square().sum().backward()
    for one, other in zip(model.parameters(), reference.parameters()):
        assert torch.equal(one.grad, other.grad)
    assert len(npu.models) == 2
    assert {run.model_id for run in npu.executed} == set(npu.models)


def test_the_dump_holds_what_was_computed_step_by_step(npu: Npu, torchair: Any) -> None:
    model = make_mlp()
    config = dump_config(torchair, "d1", dump_step="0|2")
    run, inputs = compiled(torchair, model, config), [torch.randn(5, 8) for _ in range(3)]
    with torch.no_grad():
        for x in inputs:
            run(x)
    dump = ascend_dump.open("d1")
    assert dump.known_values("step") == {0, 2}
    (first,) = dump.select(op="Add", step=2, io="output")
    np.testing.assert_array_equal(first.numpy(), model[0](inputs[2]).detach().numpy())
    (product,) = dump.select(op="MatMulV2_1", step=0, io="output")
    np.testing.assert_allclose(
        product.numpy(), (model[1](model[0](inputs[0])) @ model[2].weight.t()).detach().numpy(), rtol=1e-5, atol=1e-6
    )


def test_options_are_read_at_the_first_call(npu: Npu, torchair: Any) -> None:
    config = torchair.CompilerConfig()
    run = compiled(torchair, make_mlp(), config)
    Path("late").mkdir()
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = "late"
    run(torch.randn(5, 8))
    assert list(Path("late").rglob("Add.Add.*"))
    config.dump_config.dump_step = "7"
    count = len(npu.files)
    run(torch.randn(5, 8))
    assert len(npu.files) > count


def test_a_second_graph_with_other_options_is_refused(npu: Npu, torchair: Any) -> None:
    compiled(torchair, make_mlp())(torch.randn(5, 8))
    with pytest.raises(Exception, match="Unsupport twice initialtion with different options, new option key ge"):
        compiled(torchair, make_mlp(), dump_config(torchair, "d2"))(torch.randn(5, 8))
    # The directory is there all the same.
    assert (Path("d2") / "worldsize1_global_rank0").is_dir()


def test_the_generated_json_grows_and_lists_the_scope_by_type(npu: Npu, torchair: Any) -> None:
    class Scoped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.layers[0](x))
            with torchair.scope.data_dump():
                return torch.relu(self.layers[1](x))

    config = dump_config(torchair, "d1", dump_layer="Add_1")
    with torch.no_grad():
        compiled(torchair, Scoped(), config)(torch.randn(3, 8))
        compiled(torchair, make_mlp(), config)(torch.randn(5, 8))
    (file,) = Path("ge_dump_data_json").iterdir()
    dump = json.loads(file.read_text())["dump"]
    assert dump["dump_path"] == "d1/worldsize1_global_rank0"
    assert [entry["model_name"] for entry in dump["dump_list"]] == ["graph_1", "graph_2"]
    assert set(dump["dump_list"][0]["layer"]) == {"Const", "Transpose", "MatMulV2", "Mul", "Add", "Relu", "Add_1"}
    # MatMulV2_1 is the one in the scope; by its type the first one of the graph is dumped.
    assert {record.op_name for record in ascend_dump.open("d1").select(op="MatMul*")} == {"MatMulV2"}


def test_the_scope_does_nothing_outside_of_a_graph(tmp_path: Path) -> None:
    """Before the first backend of a process, and after it."""
    program = tmp_path / "program.py"
    program.write_text("""
import torch
from ascend_dump import fakes

with fakes.install("torchair", environ={}) as npu:
    import torchair

    for _ in range(2):
        with torchair.scope.data_dump():
            print(torch.relu(torch.tensor(-1.0)).item())
        torchair.get_npu_backend()
    print(npu.executed)
""")
    assert run_preloaded(program, check=True).stdout.split() == ["0.0", "0.0", "[]"]


def test_the_device_is_armed_anew_after_the_engine_was_closed(npu: Npu, torchair: Any) -> None:
    from torchair._ge_concrete_graph import fx2ge_converter
    from torchair.core import _backend

    run = compiled(torchair, make_mlp())
    run(torch.randn(5, 8))
    _backend.finalize_graph_engine()
    _backend._GLOBAL_COMPILE_OPTION = None
    fx2ge_converter.g_cached_dump_root = None
    with torch.no_grad():
        compiled(torchair, make_mlp(), dump_config(torchair, "d1"))(torch.randn(5, 8))
    assert ascend_dump.open("d1")


def test_a_json_of_ones_own_arms_the_device(npu: Npu, torchair: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    settings = {"dump_path": str(tmp_path / "out"), "dump_list": [{"layer": ["Relu"]}], "dump_mode": "output"}
    Path("acl.json").write_text(json.dumps({"dump": settings}))
    config = torchair.CompilerConfig()
    config.dump_config.dump_config_path = "acl.json"
    with torch.no_grad():
        compiled(torchair, make_mlp(), config)(torch.randn(5, 8))
    assert [(record.op_name, record.io) for record in ascend_dump.open("out")] == [("Relu", "output")]
    assert not Path("ge_dump_data_json").exists()


def test_the_eager_dumper_writes_npy_by_fx_node(npu: Npu, torchair: Any) -> None:
    config = torchair.CompilerConfig()
    config.debug.data_dump.type = "npy"
    config.debug.data_dump.path = "eager"
    config.debug.data_dump.filter = lambda node: node if "relu" in node.name else None
    run = compiled(torchair, make_mlp(), config)
    with torch.no_grad():
        run(torch.randn(5, 8))
        run(torch.randn(5, 8))
    folder = Path("eager/worldsize1_global_rank0/graph_1")
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]
    names = sorted(path.name.rsplit(".", 2)[0] for path in (folder / "1").iterdir())
    assert names == ["relu-aten.relu.default.INPUT.0", "relu-aten.relu.default.OUTPUT.0"]
    assert npu.executed == []


@pytest.mark.filterwarnings("ignore:The .reduce-overhead. mode", "ignore:The following torchair config")
@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_the_aclgraph_modes_save_inputs_and_outputs_of_nodes(npu: Npu, torchair: Any, mode: str) -> None:
    config = dump_config(torchair, "d1", dump_step="1", dump_mode="input")
    config.mode = mode
    model, x = make_mlp(), torch.randn(5, 8)
    run = compiled(torchair, model, config)
    with torch.no_grad():
        run(x)
        run(x)
    folder = Path("d1/worldsize1_global_rank0")
    assert {"relu_0.pt", "relu_1.pt"} <= {path.name for path in folder.iterdir()}
    assert torch.equal(torch.load(folder / "relu_1.pt", weights_only=True), model[1](model[0](x)))


def test_a_wrong_option_of_torch_compile_is_refused(npu: Npu, torchair: Any) -> None:
    with pytest.raises(Exception, match="Invalid option 'nope', allowed options"):
        compiled(torchair, make_mlp(), options={"nope": 1})(torch.randn(5, 8))

"""The adapter `torchair` on the simulated device: its roads, what each option changes on disk, what it restores."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from findings import findings
from torchair_helpers import make_input, make_mlp, options_of, simulated_torchair

import ascend_dump
from ascend_dump.adapter import load
from ascend_dump.cli import Exit, main
from ascend_dump.fakes.device.npu import Npu
from ascend_dump.testing import launch

torch = pytest.importorskip("torch")

OPS = {"Transpose", "MatMulV2", "Mul", "Add", "Relu", "Transpose_1", "MatMulV2_1", "Mul_1", "Add_1"}


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    monkeypatch.chdir(tmp_path)
    with simulated_torchair() as device:
        yield device


@pytest.fixture
def torchair(npu: Npu) -> Any:
    import torchair

    return torchair


def captured(calls: int = 3, model: Any = None, **settings: Any) -> ascend_dump.Capture:
    """Run a few inference steps of the network under capture."""
    model = make_mlp() if model is None else model
    with ascend_dump.capture(model, framework="torchair", path="dumps", **settings) as cap, torch.no_grad():
        for _ in range(calls):
            model(make_input())
    return cap


def operators(dump: Any) -> set[str]:
    return {record.op_name for record in dump if record.op_type not in ("Data", "Const")}


class TestEachOption:
    """As in the documents' table: what it changes, and that it changes nothing else."""

    def test_without_any_every_operator_of_every_step_is_dumped_whole(self, npu: Npu) -> None:
        dump = captured().dump()
        assert operators(dump) == OPS
        assert dump.known_values("step") == {0, 1, 2}
        assert {record.io for record in dump} == {"input", "output"}
        assert {record.rank for record in dump} == {0}
        assert not list(Path("dumps").rglob("*.csv"))

    @pytest.mark.parametrize("mode", ["input", "output"])
    def test_mode_takes_one_side(self, npu: Npu, mode: str) -> None:
        dump = captured(mode=mode).dump()
        assert {record.io for record in dump} == {mode}
        assert operators(dump) == OPS

    def test_steps_take_executions(self, npu: Npu) -> None:
        dump = captured(5, steps="0|2-3").dump()
        assert dump.known_values("step") == {0, 2, 3}
        assert operators(dump) == OPS

    def test_layers_take_operators_by_their_names(self, npu: Npu) -> None:
        dump = captured(layers=["Add_1", "Relu"]).dump()
        assert operators(dump) == {"Add_1", "Relu"}
        assert dump.known_values("step") == {0, 1, 2}

    def test_stats_write_a_table_and_no_tensor(self, npu: Npu) -> None:
        cap = captured(data="stats", steps="0")
        assert {path.suffix for path in cap.path.rglob("*") if path.is_file()} == {".csv"}
        model = make_mlp()
        (record,) = cap.dump().select(op="Add_1", io="output")
        expected = model(make_input()).detach().numpy()
        assert record.statistics().max == pytest.approx(float(expected.max()), rel=1e-5)

    def test_quant_reaches_the_engine(self, npu: Npu) -> None:
        from torchair.core import _backend

        seen = {}
        for quant in (True, False):
            model = make_mlp()
            with ascend_dump.capture(model, framework="torchair", path="dumps", quant=quant, steps="0"):
                model(make_input())
                seen[quant] = _backend._GLOBAL_COMPILE_OPTION["ge.quant_dumpable"]
        assert seen == {True: "1", False: "0"}

    def test_path_is_where_the_files_are(self, npu: Npu, tmp_path: Path) -> None:
        cap = captured(1, steps="0")
        assert cap.path.is_relative_to(tmp_path / "dumps")
        assert {path.parents[5].name for path in npu.files} == {"worldsize1_global_rank0"}
        assert all(path.is_relative_to(cap.path) for path in npu.files)
        assert stat.S_IMODE(cap.path.stat().st_mode) == 0o700

    def test_all_of_them_together(self, npu: Npu) -> None:
        cap = captured(4, mode="output", steps="1|3", layers=["Add_1", "Mul"], data="stats", quant=True)
        dump = cap.dump()
        assert {(record.op_name, record.io, record.step) for record in dump} >= {
            (name, "output", step) for name in ("Add_1", "Mul") for step in (1, 3)
        }
        assert operators(dump) == {"Add_1", "Mul"}
        assert dump.known_values("step") == {1, 3}
        assert {record.io for record in dump} == {"output"}

    def test_the_tensors_are_what_was_computed(self, npu: Npu) -> None:
        dump, model = captured(1, steps="0").dump(), make_mlp()
        (first,) = dump.select(op="Add", io="output")
        (hidden,) = dump.select(op="Relu", io="output")
        np.testing.assert_array_equal(first.numpy(), model[0](make_input()).detach().numpy())
        np.testing.assert_array_equal(hidden.numpy(), np.maximum(first.numpy(), 0))


class TestAJson:
    """Settings that only the dump JSON has, passed by dump_config_path."""

    def test_it_is_taken_by_itself_where_options_are_not_enough(self, npu: Npu) -> None:
        cap = captured(2, models=["graph_1"], steps="0", layers=["Relu"])
        assert operators(cap.dump()) == {"Relu"}
        (file,) = cap.path.parent.glob("torchair-*.json")
        assert json.loads(file.read_text())["dump"]["dump_list"] == [{"model_name": "graph_1", "layer": ["Relu"]}]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert not Path("ge_dump_data_json").exists()

    def test_a_name_that_options_cannot_say_is_said_by_it(self, npu: Npu) -> None:
        cap = captured(1, layers=["Relu", "a:b,c-d"], steps="0")
        assert operators(cap.dump()) == {"Relu"}

    def test_chosen_statistics(self, npu: Npu) -> None:
        cap = captured(1, data="stats", stats=["max", "min"], layers=["Relu"], steps="0")
        (file,) = cap.path.rglob("*.csv")
        assert "Max Value" in file.read_text().splitlines()[0]
        assert "Avg Value" not in file.read_text().splitlines()[0]

    def test_overflow_is_found_and_only_its_operator_is_written(self, npu: Npu) -> None:
        npu.overflow("Add_1")
        cap = captured(1, scene="overflow")
        assert operators(cap.dump()) == {"Add_1", "Node_OpDebug"}
        assert len(list(cap.path.rglob("Opdebug.*"))) == 1

    def test_no_overflow_is_a_good_result(self, npu: Npu) -> None:
        cap = captured(1, scene="overflow", strict=True)
        assert len(cap.dump()) == 0
        for path in (cap.path, cap.request.path):
            assert main(["overflow", str(path)]) == Exit.OK

    def test_watched_outputs_are_written_after_every_suspect(self, npu: Npu) -> None:
        npu.trample("Add_1", "Relu", offset=0, data=b"\xff" * 4)
        cap = captured(1, scene="watch", watch=["Relu"], layers=["Mul_1", "Add_1"], steps="0")
        first, *later = sorted(cap.dump().select(op="*Relu*"), key=lambda record: record.timestamp or 0)
        assert len(later) == 2
        same = [np.array_equal(first.numpy(), record.numpy(), equal_nan=True) for record in later]
        assert same == [True, False]

    @pytest.mark.parametrize(
        "settings", [{"scene": "overflow"}, {"scene": "watch", "watch": "Relu", "layers": "Add_1"}]
    )
    def test_it_is_what_config_writes(self, npu: Npu, settings: dict[str, str]) -> None:
        cap = captured(1, **settings)
        (file,) = cap.path.parent.glob("torchair-*.json")
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        main(["config", "--for", "torchair", "--path", str(cap.path), *options, "-o", "dump.json"])
        assert json.loads(Path("dump.json").read_text()) == json.loads(file.read_text())

    def test_the_exception_scene_needs_no_step(self, npu: Npu) -> None:
        npu.fail("Relu")
        model = make_mlp()
        with ascend_dump.capture(model, framework="torchair", path="dumps", scene="exception"):  # noqa: SIM117
            with pytest.raises(RuntimeError, match="Relu"):
                model(make_input())
        assert any("Relu" in path.name for path in Path("dumps").rglob("*") if path.is_file())

    def test_quant_is_refused_with_it(self, npu: Npu) -> None:
        with pytest.raises(ascend_dump.AscendDumpError, match="the dump JSON has no such setting"):
            captured(1, quant=True, models=["graph_1"])

    def test_what_was_compiled_behind_the_block_is_not_dumped(self, npu: Npu, torchair: Any) -> None:
        captured(1, steps="0", options={"json": True})
        count = len(npu.files)
        torch.compile(make_mlp(), backend=torchair.get_npu_backend())(make_input())
        assert len(npu.files) == count


class TestModes:
    @pytest.mark.filterwarnings("ignore:The .reduce-overhead. mode", "ignore:The following torchair config")
    @pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
    def test_aclgraph_modes_save_tensors_at_every_step(self, npu: Npu, torchair: Any, mode: str) -> None:
        config = torchair.CompilerConfig()
        config.mode = mode
        options = {"compiler_config": config, "data_dump_stage": "original"}
        cap = captured(2, steps="0", mode="output", options=options)
        (name,) = {problem.where for problem in cap.problems if problem.code == "AD249"}
        assert name == "steps"
        assert {"relu_0.pt", "relu_1.pt"} <= {path.name for path in cap.path.rglob("*.pt")}
        (saved,) = cap.path.rglob("relu_1.pt")
        assert torch.equal(torch.load(saved, weights_only=True), make_mlp()[:2](make_input()))
        assert {record.io for record in cap.dump()} == {"output"}
        assert npu.executed == []
        assert options_of(config) == options_of(_like(torchair, mode=mode))

    def test_each_setting_they_ignore_is_told(self, npu: Npu, torchair: Any) -> None:
        config = torchair.CompilerConfig()
        config.mode = "npugraph_ex"
        settings = {"steps": "0", "mode": "input", "layers": ["Add"], "data": "stats", "quant": True, "models": ["m"]}
        problems = findings("torchair", ascend_dump.DumpRequest(**settings), config)
        told = {problem.where for problem in problems if (problem.code, problem.severity) == ("AD249", "silent")}
        assert told == set(settings)
        with pytest.raises(ascend_dump.ConfigError, match="has no scene='overflow'"):
            captured(1, scene="overflow", options={"compiler_config": config})

    def test_the_eager_dumper_saves_aten_operators(self, npu: Npu) -> None:
        cap = captured(2, layers=["relu"], options={"eager": True})
        names = {path.name.rsplit(".", 2)[0] for path in cap.path.rglob("*.npy")}
        assert names == {"relu-aten.relu.default.INPUT.0", "relu-aten.relu.default.OUTPUT.0"}
        (record,) = cap.dump().select(op="relu", io="output", step=1)
        np.testing.assert_array_equal(record.numpy(), make_mlp()[:2](make_input()).detach().numpy())
        (folder,) = cap.path.rglob("graph_*")
        assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]

    def test_the_eager_dumper_takes_a_filter_of_ones_own(self, npu: Npu) -> None:
        cap = captured(1, options={"eager": True, "filter": lambda node: node if node.name == "t" else None})
        assert {path.name.split("-")[0] for path in cap.path.rglob("*.npy")} == {"t"}
        with pytest.raises(ascend_dump.ConfigError, match="expected a function"):
            captured(1, options={"eager": True, "filter": "relu"})

    def test_each_setting_the_eager_dumper_ignores_is_told(self, npu: Npu) -> None:
        settings = {"steps": "0", "mode": "input", "data": "stats", "quant": True, "models": ["m"], "stats": ["max"]}
        request = ascend_dump.DumpRequest(**settings, options={"eager": True})
        problems = findings("torchair", request, make_mlp())
        assert {problem.where for problem in problems if problem.code == "AD251"} == set(settings)

    def test_the_graph_is_written_beside_the_dump(self, npu: Npu) -> None:
        cap = captured(1, steps="0", options={"graph_dump": "py"})
        (file,) = cap.path.glob("dynamo_optimized_graph_*.py")
        assert "Add_1_0 = ge.Add(Mul_1_0, " in file.read_text()

    def test_patterns_are_expanded_with_the_graph_of_an_earlier_capture(self, npu: Npu) -> None:
        cap = captured(1, steps="0", data="stats", options={"graph_dump": "py"})
        (graph,) = cap.path.glob("dynamo_optimized_graph_*.py")
        again = captured(1, steps="0", layers=["*_1", "Relu"], options={"graph": graph})
        assert operators(again.dump()) == {"Transpose_1", "MatMulV2_1", "Mul_1", "Add_1", "Relu"}
        with pytest.raises(ascend_dump.ConfigError, match="matches no operator of the graph"):
            captured(1, layers=["conv*"], options={"graph": graph})
        with pytest.raises(ascend_dump.ConfigError, match="expected the path of a file"):
            captured(1, layers=["conv*"], options={"graph": 3})

    def test_graphs_alone_are_no_dump(self, npu: Npu) -> None:
        with pytest.raises(ascend_dump.CaptureError, match="wrote graphs but no operator"):
            captured(1, steps="9", options={"graph_dump": "py"}, strict=True)


class TestAConfig:
    def test_it_is_filled_for_the_block_and_restored(self, npu: Npu, torchair: Any) -> None:
        config = torchair.CompilerConfig()
        config.dump_config.dump_mode = "input"
        Path("own").mkdir()
        config.dump_config.dump_path = "own"
        before = _read(config)
        run = torch.compile(make_mlp(), backend=torchair.get_npu_backend(compiler_config=config))
        with ascend_dump.capture(config, path="dumps", steps="0", mode="output") as cap:
            assert config.dump_config.dump_mode.value == "output"
            run(make_input())
        assert _read(config) == before
        assert {record.io for record in cap.dump()} == {"output"}
        count = len(npu.files)
        run(make_input())
        assert len(npu.files) == count

    def test_the_backward_graph_is_dumped_too(self, npu: Npu, torchair: Any) -> None:
        config = torchair.CompilerConfig()
        run = torch.compile(make_mlp(), backend=torchair.get_npu_backend(compiler_config=config))
        with ascend_dump.capture(config, path="dumps", steps="1") as cap:
            for _ in range(3):
                run(make_input()).sum().backward()
        assert cap.dump().known_values("model") == {"graph_1", "graph_2"}
        assert cap.dump().known_values("step") == {1}
        assert operators(cap.dump().select(op_type="ReluGrad"))

    def test_configure_fills_it_for_good(self, npu: Npu, torchair: Any, tmp_path: Path) -> None:
        from ascend_dump_torchair import configure

        config = torchair.CompilerConfig()
        request = ascend_dump.DumpRequest(path="made", steps="0|3-5", layers=["Add", "Mul_1"], data="stats")
        assert [problem.severity for problem in configure(config, request)] == []
        values = {name: option.value for name, option in vars(config.dump_config).items() if name != "_fixed_attrs"}
        assert values == {
            "enable_dump": "1",
            "dump_path": str(tmp_path / "made"),
            "dump_mode": "all",
            "quant_dumpable": "0",
            "dump_step": "0|3-5",
            "dump_layer": "Add Mul_1",
            "dump_data": "stats",
            "dump_config_path": None,
            "data_dump_stage": "optimized",
        }

    def test_configure_anew_replaces_the_json_of_before(self, npu: Npu, torchair: Any) -> None:
        from ascend_dump_torchair import configure

        config = torchair.CompilerConfig()
        for steps in ("0", "5"):
            configure(config, ascend_dump.DumpRequest(path="made", steps=steps, models=["graph_1"]))
            file = Path(config.dump_config.dump_config_path.value)
            assert json.loads(file.read_text())["dump"]["dump_step"] == steps

    def test_configure_refuses_without_setting_anything(self, npu: Npu, torchair: Any) -> None:
        from ascend_dump_torchair import configure

        config = torchair.CompilerConfig()
        with pytest.raises(ascend_dump.ConfigError, match="not both at once"):
            configure(config, ascend_dump.DumpRequest(data="full"))
        with pytest.raises(ascend_dump.ConfigError, match="is no torchair"):
            configure(object(), ascend_dump.DumpRequest())
        assert options_of(config) == options_of(torchair.CompilerConfig())
        assert os.listdir() == []

    def test_without_a_target_every_backend_made_in_the_block_is_captured(self, npu: Npu, torchair: Any) -> None:
        original = torchair.get_npu_backend
        with ascend_dump.capture(framework="torchair", path="dumps", steps="0") as cap, torch.no_grad():
            torch.compile(make_mlp(), backend=torchair.get_npu_backend())(make_input())
            config = torchair.CompilerConfig()
            torch.compile(make_mlp(), backend=torchair.get_npu_backend(compiler_config=config))(make_input())
        assert torchair.get_npu_backend is original
        assert options_of(config) == options_of(torchair.CompilerConfig())
        assert cap.dump().known_values("model") == {"graph_1", "graph_2"}


class TestAModule:
    def test_its_own_compilation_settings_are_kept(self, npu: Npu, torchair: Any) -> None:
        config = torchair.CompilerConfig()
        config.ge_config.oo_level = "O1"
        model = make_mlp()
        options = {"dynamic": True, "fullgraph": True, "compiler_config": config}
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0|1", options=options) as cap:
            from torchair.core import _backend

            with torch.no_grad():
                model(torch.ones(5, 8))
                model(torch.ones(7, 8))
            assert _backend._GLOBAL_COMPILE_OPTION["ge.oo.level"] == "O1"
        assert options_of(config) == options_of(_like(torchair, oo_level="O1"))
        # One graph of any batch size: two executions of it.
        assert cap.dump().known_values("model") == {"graph_1"}
        assert cap.dump().known_values("step") == {0, 1}

    def test_a_graph_break_with_fullgraph_is_the_programs_own_error(self, npu: Npu) -> None:
        class Breaks(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                x = torch.relu(x)
                torch._dynamo.graph_break()
                return torch.relu(x)

        assert captured(1, Breaks(), steps="0").dump().known_values("model") == {"graph_1", "graph_2"}
        with pytest.raises(torch._dynamo.exc.Unsupported):
            captured(1, Breaks(), steps="0", options={"fullgraph": True, "reset": True})

    def test_a_model_that_cannot_be_compiled_goes_on_eagerly(
        self, npu: Npu, torchair: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError("torch.ops.aten.relu.default ge_converter is not implemented!")

        monkeypatch.setattr(torchair, "get_npu_backend", lambda **_: refuse)
        model = make_mlp()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0"):
            assert torch.equal(model(make_input()), make_mlp()(make_input()))
            assert torch.equal(model(make_input()), make_mlp()(make_input()))
        assert caplog.text.count("ge_converter is not implemented!") == 1
        with pytest.raises(ascend_dump.errors.AdapterError, match="could not compile the model"):
            captured(1, steps="0", strict=True)

    def test_what_ran_before_a_graph_that_cannot_be_compiled_does_not_run_again(
        self, npu: Npu, torchair: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _refuse_operator(monkeypatch, torchair, "i0")
        model = _Broken()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0") as cap, torch.no_grad():
            result = model(make_input())
        expected = _Broken()
        assert torch.equal(result, expected(make_input()))
        assert model.norm.num_batches_tracked == expected.norm.num_batches_tracked == 1
        assert torch.equal(model.norm.running_mean, expected.norm.running_mean)
        assert caplog.text.count("no converter for i0") == 1
        # The graph before it is dumped all the same.
        assert cap.dump().known_values("model") == {"graph_1"}

    def test_a_backward_graph_that_cannot_be_compiled_does_not_end_the_training(
        self, npu: Npu, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ascend_dump.fakes.torchair import module as fake

        original = fake._compile_graph

        def refuse(engine: Any, config: Any, module: Any, example_inputs: Any) -> Any:
            if any("threshold_backward" in str(node.target) for node in module.graph.nodes):
                raise NotImplementedError("no converter for threshold_backward")
            return original(engine, config, module, example_inputs)

        monkeypatch.setattr(fake, "_compile_graph", refuse)
        model, expected = make_mlp(), make_mlp()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0"):
            model(make_input()).sum().backward()
        expected(make_input()).sum().backward()
        assert torch.equal(model[0].weight.grad, expected[0].weight.grad)
        assert "no converter for threshold_backward" in caplog.text

    def test_dynamic_shapes_are_dumped_at_every_size(self, npu: Npu, caplog: pytest.LogCaptureFixture) -> None:
        # PyTorch's analysis begins anew there, by an exception that passes through the backend.
        model = torch.nn.LayerNorm(9)
        settings: Any = {"steps": "0-2", "options": {"dynamic": True}}
        with ascend_dump.capture(model, framework="torchair", path="dumps", **settings) as cap, torch.no_grad():
            for batch in (3, 6, 7):
                model(torch.ones(batch, 9))
        assert "could not compile" not in caplog.text
        dump = cap.dump()
        assert dump.known_values("model") == {"graph_1"}
        assert {(record.step, record.shape[0]) for record in dump.select(op_type="Data")} >= {(0, 3), (1, 6), (2, 7)}

    @pytest.mark.parametrize("kind", ["TensorifyScalarRestartAnalysis", "SkipFrame"])
    def test_what_steers_the_analysis_passes_through(
        self, npu: Npu, torchair: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
    ) -> None:
        from torch._dynamo import exc

        steering, seen = getattr(exc, kind), []

        def wrap(backend: Any) -> Any:
            def once(*args: Any, **kwargs: Any) -> Any:
                seen.append(args)
                if len(seen) == 1:
                    raise steering
                return backend(*args, **kwargs)

            return once

        _wrap_backend(monkeypatch, torchair, wrap)
        model = make_mlp()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0"):
            assert torch.allclose(model(make_input()), make_mlp()(make_input()), rtol=0, atol=1e-5)
        # A skipped frame is run by PyTorch itself, and what begins anew comes back.
        assert len(seen) > 1 or kind == "SkipFrame"
        assert "could not compile" not in caplog.text

    def test_another_model_that_ran_first_inside_the_block_is_told(
        self, npu: Npu, torchair: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = make_mlp()
        cap = ascend_dump.capture(model, framework="torchair", path="dumps", steps="0", strict=True).start()
        torch.compile(make_mlp(), backend=torchair.get_npu_backend())(make_input())
        assert torch.equal(model(make_input()), make_mlp()(make_input()))
        with pytest.raises(ascend_dump.CaptureError, match="by another graph inside the block"):
            cap.stop()

    def test_a_copy_and_a_saved_module_are_eager_ones(self, npu: Npu) -> None:
        import copy

        model = make_mlp()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0"):
            model(make_input())
            copied = copy.deepcopy(model)
            count = len(npu.executed)
            copied(make_input())
            assert len(npu.executed) == count
            assert "_compiled_call_impl" not in copied.__dict__

    def test_a_forked_child_leaves_the_engine_alone(self, npu: Npu) -> None:
        from torchair.core import _backend

        model = make_mlp()
        read, write = os.pipe()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0|1") as cap, torch.no_grad():
            model(make_input())
            child = os.fork()
            if child == 0:
                try:
                    cap.stop()
                    eager = "_compiled_call_impl" not in model.__dict__
                    os.write(write, b"ok" if eager and _backend._GLOBAL_COMPILE_OPTION is not None else b"no")
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            assert os.read(read, 2) == b"ok"
            assert list(Path("ge_dump_data_json").iterdir())
            model(make_input())
        assert cap.dump().known_values("step") == {0, 1}

    def test_what_stands_beside_the_generated_json_is_left_alone(self, npu: Npu) -> None:
        """Whatever has the name of one and is none: a pipe without a writer, and lists nested too deep for Python."""
        Path("ge_dump_data_json").mkdir()
        os.mkfifo(f"ge_dump_data_json/dump_options_1_pid{os.getpid()}.json")
        nested = Path(f"ge_dump_data_json/dump_options_2_pid{os.getpid()}.json")
        nested.write_text("[" * 100_000)
        assert operators(captured(1, steps="0", layers="Add_1", options={"json": True}).dump()) == {"Add_1"}
        assert nested.exists()

    def test_a_link_in_place_of_the_generated_json_is_not_followed(self, npu: Npu) -> None:
        model = make_mlp()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0"), torch.no_grad():
            model(make_input())
            Path("ge_dump_data_json").rename("victim")
            Path("ge_dump_data_json").symlink_to("victim", target_is_directory=True)
        assert len(list(Path("victim").iterdir())) == 1

    def test_ranks_that_are_not_asked_for_run_eagerly(self, npu: Npu) -> None:
        captured(1, steps="0", ranks="1")
        assert npu.executed == []


def test_the_launcher_fills_every_config(npu: Npu, torchair: Any) -> None:
    road = launch(load("torchair"), ascend_dump.DumpRequest(path="launched", steps="0"))
    with torch.no_grad():
        for _ in range(2):
            torch.compile(make_mlp(), backend=torchair.get_npu_backend())(make_input())
    road.end()
    dump = ascend_dump.open("launched")
    assert dump.known_values("model") == {"graph_1", "graph_2"}
    assert operators(dump) == OPS


def test_the_launcher_tells_what_is_refused_and_lets_the_program_run(
    npu: Npu, torchair: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    road = launch(load("torchair"), ascend_dump.DumpRequest(path="launched", data="full"))
    torch.compile(make_mlp(), backend=torchair.get_npu_backend())(make_input())
    torch.compile(make_mlp(), backend=torchair.get_npu_backend())(make_input())
    road.end()
    assert capsys.readouterr().err.count("nothing is dumped by the adapter 'torchair'") == 1
    assert not Path("launched").exists()


class _Broken(torch.nn.Module):  # type: ignore[misc,name-defined]  # torch is imported by pytest
    """Two graphs, of which the first changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        torch._dynamo.graph_break()
        return torch.special.i0(x)


def _refuse_operator(monkeypatch: pytest.MonkeyPatch, torchair: Any, name: str) -> None:
    """Let the backend refuse graphs with an operator, as a torchair without a converter for it."""

    def wrap(backend: Any) -> Any:
        def refuse(module: Any, *args: Any, **kwargs: Any) -> Any:
            if any(name in str(node.target) for node in module.graph.nodes):
                raise NotImplementedError(f"no converter for {name}")
            return backend(module, *args, **kwargs)

        return refuse

    _wrap_backend(monkeypatch, torchair, wrap)


def _wrap_backend(monkeypatch: pytest.MonkeyPatch, torchair: Any, wrap: Any) -> None:
    """Let `wrap` replace every backend that is made."""
    original = torchair.get_npu_backend
    monkeypatch.setattr(torchair, "get_npu_backend", lambda **given: wrap(original(**given)))


def _read(config: Any) -> dict[str, Any]:
    return {name: option._value for name, option in vars(config.dump_config).items() if name != "_fixed_attrs"}


def _like(torchair: Any, *, mode: str = "max-autotune", oo_level: str = "O3") -> Any:
    config = torchair.CompilerConfig()
    config.mode = mode
    config.ge_config.oo_level = oo_level
    return config

"""Every trap of torchair's dump options is told before the run, or refused with the way that works."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ascend_dump_torchair import check_options
from findings import findings
from hypothesis import given
from hypothesis import strategies as st
from torchair_helpers import make_input, make_mlp, options_of, simulated_torchair

import ascend_dump
from ascend_dump import fakes

# Private: the fake is asked without an installation, and acl's process behind it.
from ascend_dump.fakes.acl.process import process_of
from ascend_dump.fakes.device.npu import Npu
from ascend_dump.fakes.torchair._config import CompilerConfig
from ascend_dump.native.torchair.config import check_file

VALUES: dict[str, list[Any]] = {
    "enable_dump": [True, False, 0, 1, 2, "1", "True", None],
    "dump_path": [".", "here", "nowhere", "", None, "file.json"],
    "dump_mode": ["input", "output", "all", "ALL", "", None, 1],
    "quant_dumpable": [True, False, 1, "yes", None],
    "dump_step": [
        "",
        "0",
        "0|3-5|10",
        "1|",
        "|1",
        "a",
        "1-",
        "-1",
        "||",
        "1-2-3",
        "1-23-4",
        "1 2",
        None,
        3,
        "5-2",
        "1\n",
    ],
    "dump_layer": ["", "Add_1 Mul", "a/b.c\\d", '"q"', "a-b", "a,b", "a:b", "é", "a\n", "a\n\n", "\n", "a\nb", None, 1],
    "dump_data": ["tensor", "stats", "full", None],
    "dump_config_path": [None, "", "file.json", "no.json", "file.txt", "here", 3],
    "data_dump_stage": ["original", "optimized", "last", None],
    "bogus": [1],
}
PAIRS = [(name, value) for name, values in VALUES.items() for value in values]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    for name in ("file.json", "file.txt"):
        Path(name).write_text('{"dump": {"dump_path": "here", "dump_list": [{}]}}')
    return tmp_path


def codes(problems: list[Any]) -> set[str]:
    return {problem.code for problem in problems}


def find(problems: list[Any], code: str) -> Any:
    (found,) = [problem for problem in problems if problem.code == code]
    assert found.hint, found
    return found


class TestOptions:
    """Problems of options alone, without torchair."""

    @pytest.mark.parametrize(("name", "value"), PAIRS, ids=repr)
    def test_a_value_is_refused_exactly_where_torchair_refuses_it(self, place: Path, name: str, value: Any) -> None:
        config = CompilerConfig()
        try:
            setattr(config.dump_config, name, value)
            accepted = True
        except (ValueError, TypeError, FileNotFoundError, AttributeError):
            accepted = False
        refused = [problem for problem in check_options({name: value}) if problem.code in ("AD243", "AD245")]
        assert accepted == (not [problem for problem in refused if problem.severity == "error"]), refused

    @given(st.text(alphabet="01|-x", max_size=8))
    def test_steps_too(self, text: str) -> None:
        config = CompilerConfig()
        try:
            config.dump_config.dump_step = text
            accepted = True
        except ValueError:
            accepted = False
        assert accepted == (not [one for one in check_options({"dump_step": text}) if one.code == "AD243"])

    def test_steps_on_which_torchair_hangs_are_told(self) -> None:
        problem = find(check_options({"enable_dump": True, "dump_step": "1" * 10_000 + "x"}), "AD244")
        assert "ten times longer for two more digits" in problem.message

    @pytest.mark.parametrize("steps", ["5-2", "3-3", "|".join("0" for _ in range(101)), "1-23-4", str(2**31)])
    def test_steps_that_torchair_takes_and_ge_refuses(self, place: Path, steps: str) -> None:
        problem = find(check_options({"enable_dump": True, "dump_step": steps}), "AD244")
        assert (problem.severity, problem.where) == ("error", "dump_step")
        assert "GE refuses it when the first graph is built" in problem.message

    def test_the_sample_of_the_documents_has_lost_a_blank(self, place: Path) -> None:
        problem = find(check_options({"enable_dump": True, "dump_layer": "Add_1Mul_1 Add2"}), "AD245")
        assert "'Add_1Mul_1' looks like two names" in problem.message

    def test_names_with_other_characters_need_a_json(self, place: Path) -> None:
        problem = find(check_options({"enable_dump": True, "dump_layer": "a:b,c"}), "AD245")
        assert "dump JSON" in problem.hint
        assert "','" in problem.message

    def test_none_for_every_step_is_refused_although_documented(self, place: Path) -> None:
        assert "None is refused, although documented" in find(check_options({"dump_step": None}), "AD243").hint

    def test_options_do_nothing_while_the_dump_is_off(self, place: Path) -> None:
        problems = check_options({"dump_step": "0", "dump_mode": "input", "dump_path": "here"})
        assert {problem.where for problem in problems if problem.code == "AD252"} == {
            "dump_step",
            "dump_mode",
            "dump_path",
        }

    def test_options_and_a_json_exclude_each_other(self, place: Path) -> None:
        problem = find(check_options({"enable_dump": True, "dump_config_path": "file.json"}), "AD242")
        assert problem.severity == "silent"
        assert "older ones the file" in problem.message

    def test_the_json_is_checked_with_it(self, place: Path) -> None:
        Path("file.json").write_text('{"dump": {"dump_path": "nowhere", "dump_list": [{}]}}')
        assert "AD110" in codes(check_options({"dump_config_path": "file.json"}))

    def test_all_errors_of_the_json_are_listed(self, place: Path) -> None:
        Path("file.json").write_text('{"dump": {"dump_path": 3, "dump_mode": "some", "dump_level": "none"}}')
        errors = [one for one in check_options({"dump_config_path": "file.json"}) if one.severity == "error"]
        assert len(errors) == len([one for one in check_file(Path("file.json"), all=True) if one.severity == "error"])
        assert len(errors) > 1

    @pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
    def test_aclgraph_modes_ignore_most_options(self, place: Path, mode: str) -> None:
        options = {"dump_mode": "input", "dump_step": "0", "dump_layer": "a", "dump_data": "stats", "quant_dumpable": 1}
        problems = check_options({"enable_dump": True, **options, "data_dump_stage": "original"}, mode=mode)
        assert {problem.where for problem in problems if problem.code == "AD249"} == set(options)

    def test_a_stage_is_ignored_by_the_other_mode(self, place: Path) -> None:
        problem = find(check_options({"enable_dump": True, "data_dump_stage": "original"}), "AD249")
        assert problem.where == "data_dump_stage"

    def test_the_json_in_the_working_directory_is_told(self, place: Path) -> None:
        problem = find(check_options({"enable_dump": True}), "AD246")
        assert problem.severity == "warning"
        assert "ge_dump_data_json/" in problem.message

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_working_directory_that_cannot_be_written_is_an_error(self, place: Path) -> None:
        place.chmod(0o500)
        try:
            assert find(check_options({"enable_dump": True, "dump_path": "here"}), "AD246").severity == "error"
        finally:
            place.chmod(0o700)

    def test_a_file_of_options_or_the_json_it_names_can_be_checked(self, place: Path) -> None:
        assert codes(check_file({"enable_dump": True, "mode": "npugraph_ex", "dump_step": "0"})) == {"AD249"}
        assert codes(check_file({"mode": "fast"})) == {"AD243"}
        assert codes(check_file(Path("file.json"))) <= {"AD111", "AD112", "AD113", "AD114", "AD115"}
        assert codes(check_file(b"[1]")) == {"AD110"}


torch = pytest.importorskip("torch")


@pytest.fixture
def npu(place: Path) -> Iterator[Npu]:
    with simulated_torchair() as device:
        yield device


@pytest.fixture
def torchair(npu: Npu) -> Any:
    import torchair

    return torchair


def check(target: Any, **settings: Any) -> list[Any]:
    return findings("torchair", ascend_dump.DumpRequest(**{"path": "dumps", "steps": "0", **settings}), target)


def run(torchair: Any, config: Any = None, model: Any = None) -> Any:
    backend = torchair.get_npu_backend(compiler_config=config)
    return torch.compile(make_mlp() if model is None else model, backend=backend)(make_input())


class TestTooLate:
    def test_a_graph_that_was_built_before_decides_for_the_process(self, npu: Npu, torchair: Any) -> None:
        run(torchair)
        for target in (make_mlp(), torchair.CompilerConfig(), None):
            problem = find(check(target), "AD240")
            assert problem.severity == "error"
            assert "reset" in problem.hint
        with pytest.raises(ascend_dump.ConfigError, match="AD240"):
            ascend_dump.capture(make_mlp(), framework="torchair", path="dumps").start()
        assert not Path("dumps").exists()

    def test_closing_the_engine_makes_it_possible(self, npu: Npu, torchair: Any) -> None:
        run(torchair)
        model = make_mlp()
        settings = {"steps": "0", "path": "dumps", "options": {"reset": True}}
        with ascend_dump.capture(model, framework="torchair", **settings) as cap:
            model(make_input())
        assert len(cap.dump()) > 0

    def test_a_torchair_that_cannot_close_it_says_so(self, npu: Npu, torchair: Any) -> None:
        run(torchair)
        del sys.modules["torchair.core._backend"].finalize_graph_engine
        problem = find(check(make_mlp(), options={"reset": True}), "AD240")
        assert "cannot close GE" in problem.message

    def test_a_config_that_is_changed_behind_the_first_call_changes_nothing(self, npu: Npu, torchair: Any) -> None:
        config = torchair.CompilerConfig()
        compiled = torch.compile(make_mlp(), backend=torchair.get_npu_backend(compiler_config=config))
        compiled(make_input())
        with pytest.raises(ascend_dump.ConfigError, match="GE is initialised already"):
            ascend_dump.capture(config, path="dumps").start()
        assert options_of(config) == options_of(torchair.CompilerConfig())

    def test_a_dump_ends_with_its_block_although_torchair_itself_keeps_it_on(self, npu: Npu, torchair: Any) -> None:
        with ascend_dump.capture(framework="torchair", path="dumps", steps="0"):
            run(torchair)
        count = len(npu.files)
        run(torchair)
        assert len(npu.files) == count

    @pytest.mark.parametrize("options", [{}, {"json": True}], ids=["options", "json"])
    def test_two_captures_with_other_options_follow_each_other(self, npu: Npu, options: dict[str, Any]) -> None:
        seen = []
        for steps, mode in (("0", "input"), ("1", "output")):
            model = make_mlp()
            settings = {"steps": steps, "mode": mode, "path": "dumps", "options": options}
            with ascend_dump.capture(model, framework="torchair", **settings) as cap:
                model(make_input())
                model(make_input())
            seen.append({(record.step, record.io) for record in cap.dump()})
        assert seen == [{(0, "input")}, {(1, "output")}]


class TestRanks:
    def test_a_rank_that_is_not_known_yet_is_told(
        self, npu: Npu, torchair: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        problem = find(check(make_mlp()), "AD241")
        assert "worldsize1_global_rank0" in problem.message
        model = make_mlp()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0") as cap:
            model(make_input())
        # The directory of the capture tells the rank all the same.
        assert {record.rank for record in cap.dump()} == {1}

    def test_an_initialised_group_is_used_by_torchair_too(
        self, npu: Npu, torchair: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        distributed = torch.distributed
        for name, value in {"is_initialized": True, "get_rank": 1, "get_world_size": 2}.items():
            monkeypatch.setattr(distributed, name, lambda value=value: value)
        model = make_mlp()
        assert "AD241" not in codes(check(model))
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0") as cap:
            model(make_input())
        assert list(cap.path.glob("worldsize2_global_rank1"))
        assert {record.rank for record in cap.dump()} == {1}


class TestConfigs:
    def test_a_second_class_of_the_same_name_is_refused(self, npu: Npu, torchair: Any) -> None:
        second = type("CompilerConfig", (CompilerConfig,), {"__module__": "torch_npu.dynamo.torchair.configs"})
        for target, options in ((second(), {}), (make_mlp(), {"compiler_config": second()})):
            problem = find(check(target, options=options), "AD248")
            assert "a second copy of torchair" in problem.message

    def test_a_proxy_that_is_not_initialised_is_refused(self, npu: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
        class Proxy(ModuleType):
            def __getattr__(self, name: str) -> Any:
                raise AttributeError(f"Try to get torchair's attr `{name}` before torchair is initialized.\n[ERROR]")

        with monkeypatch.context() as patched:  # undone before the fake goes, which would come back else
            patched.setitem(sys.modules, "torchair", Proxy("torchair"))
            problem = find(check(make_mlp()), "AD248")
        assert problem.message.endswith("before torchair is initialized.")

    def test_something_else_as_a_config_is_refused(self, npu: Npu) -> None:
        assert (
            "a dict, not a CompilerConfig" in find(check(make_mlp(), options={"compiler_config": {}}), "AD248").message
        )

    def test_an_option_this_torchair_lacks_is_told(self, npu: Npu, torchair: Any) -> None:
        config = torchair.CompilerConfig()
        for name in ("dump_data", "dump_config_path"):
            del vars(config.dump_config)[name]
            config.dump_config._fixed_attrs.remove(name)
        assert [one for one in check(config) if one.severity == "error"] == []
        for settings in ({"data": "stats"}, {"models": ["graph_1"]}):
            (problem,) = [one for one in check(config, **settings) if one.severity == "error"]
            assert (problem.code, "has no option config.dump_config" in problem.message) == ("AD203", True)

    def test_what_the_config_says_itself_is_put_aside_and_told(self, npu: Npu, torchair: Any) -> None:
        config = torchair.CompilerConfig()
        config.dump_config.dump_config_path = "file.json"
        assert "is put aside" in find(check(config), "AD242").message
        config = torchair.CompilerConfig()
        config.dump_config.enable_dump = True
        assert "own enable_dump is put aside" in find(check(config, options={"json": True}), "AD242").message
        assert "AD242" not in codes(check(config))

    @pytest.mark.parametrize(
        ("target", "options", "told"),
        [
            ("module", {"data_dump_stage": "original"}, ["data_dump_stage"]),
            ("module", {"filter": print}, ["filter"]),
            ("module", {"filter": print, "eager": True, "dynamic": True, "fullgraph": False}, []),
            ("module", {"json": True, "eager": True, "graph": None}, ["json"]),
            ("module", {"json": True, "reset": False}, []),
            ("config", {"dynamic": True, "fullgraph": True}, ["dynamic", "fullgraph"]),
            ("config", {"compiler_config": "another"}, ["compiler_config"]),
            ("config", {"compiler_config": "the same"}, []),
            ("nothing", {"dynamic": True}, ["dynamic"]),
        ],
        ids=repr,
    )
    def test_an_option_that_changes_nothing_is_told(
        self, npu: Npu, torchair: Any, target: str, options: dict[str, Any], told: list[str]
    ) -> None:
        config = torchair.CompilerConfig()
        if "compiler_config" in options:
            known = {"another": torchair.CompilerConfig(), "the same": config}
            options = {"compiler_config": known[options["compiler_config"]]}
        targets = {"module": make_mlp(), "config": config, "nothing": None}
        found = [one for one in check(targets[target], options=options) if one.code == "AD255"]
        assert sorted(one.message.split("'")[1] for one in found) == told
        assert all(one.severity == "silent" and one.hint for one in found)

    def test_unknown_options_and_wrong_switches_are_refused(self, npu: Npu) -> None:
        assert "'bogus' is unknown" in find(check(make_mlp(), options={"bogus": 1}), "AD101").message
        assert "expected True or False" in find(check(make_mlp(), options={"eager": 1}), "AD101").message

    def test_patterns_need_the_graph(self, npu: Npu) -> None:
        (problem,) = [one for one in check(make_mlp(), layers=["Add*"]) if one.severity == "error"]
        assert "the operators of the graph are not known here" in problem.message

    def test_a_path_that_cannot_be_made_is_an_error(self, npu: Npu) -> None:
        Path("taken").write_text("")
        with pytest.raises(ascend_dump.errors.WriteError, match="is not a directory"):
            ascend_dump.capture(make_mlp(), framework="torchair", path="taken").start()

    def test_torch_npu_keeps_an_exception_dump_on_by_itself(self, npu: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
        without = codes(check(make_mlp(), scene="exception"))
        monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
        told = [one for one in check(make_mlp(), scene="exception") if one.code not in without]
        assert [one.severity for one in told] == ["silent"]


class TestModels:
    @pytest.mark.filterwarnings("ignore:.torch.jit")
    def test_a_compiled_module_is_refused(self, npu: Npu, torchair: Any) -> None:
        backend = torchair.get_npu_backend()
        inner = torch.nn.Sequential(make_mlp())
        inner[0].compile(backend=backend)
        for model in (torch.compile(make_mlp(), backend=backend), inner):
            problem = find(check(model), "AD253")
            assert "compiled already" in problem.message
        assert "cannot be compiled in place" in find(check(_Script()), "AD253").message

    def test_the_scope_that_lists_types_is_told(self, npu: Npu, torchair: Any) -> None:
        class Scoped(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                with torchair.scope.data_dump():
                    return torch.relu(x)

        model = torch.nn.Sequential(make_mlp(), Scoped(), Scoped())
        problem = find(check(model), "AD250")
        assert problem.severity == "silent"
        assert "Scoped.forward" in problem.message
        assert "types of its operators where GE expects names" in problem.message
        for options in ({"json": True}, {"eager": True}):
            assert "only the options of the mode" in find(check(model, options=options), "AD250").message
        converter, native = (sys.modules[f"torchair.{name}"] for name in _GENERATING)
        del converter._set_dump_options_json, native.AclmdlSetDump
        assert "does not pass on" in find(check(model), "AD250").message

    def test_the_scope_of_a_program_that_captures_its_config_is_told_behind_the_block(
        self, npu: Npu, torchair: Any
    ) -> None:
        class Scoped(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                with torchair.scope.data_dump():
                    return torch.relu(x)

        config = torchair.CompilerConfig()
        cap = ascend_dump.capture(config, path="dumps", steps="0", layers=["Add"], strict=True).start()
        run(torchair, config, torch.nn.Sequential(make_mlp(), Scoped()))
        with pytest.raises(ascend_dump.CaptureError, match=r"lists the types of its operators .*Relu") as caught:
            cap.stop()
        assert caught.value.code == "AD250"
        with ascend_dump.capture(config, path="dumps", steps="0", layers=["Add"], strict=True):
            run(torchair, config)

    def test_what_keeps_the_aclgraph_modes_from_dumping_by_steps_is_told(self, npu: Npu, torchair: Any) -> None:
        config = torchair.CompilerConfig()
        config.mode = "npugraph_ex"
        settings = {"steps": None, "mode": "output"}
        assert "in all graphs together" in find(check(config, **settings), "AD249").message
        config.experimental_config.aclgraph._super_kernel_optimize = True
        first, _ = [one for one in check(config, **settings) if one.code == "AD249"]
        assert (first.severity, "switches the dump of optimized graphs off" in first.message) == ("silent", True)
        find(check(config, **settings, options={"data_dump_stage": "original"}), "AD249")

    def test_a_model_of_cache_compile_is_told(self, npu: Npu) -> None:
        model = make_mlp()
        cached = type("LazyCompiledModel", (), {"__module__": "torchair.inference._cache_compiler"})
        model.prompt = cached()
        problem = find(check(model), "AD247")
        assert "including the path" in problem.message

    def test_an_overflow_dump_needs_no_conversion_by_atc(self, npu: Npu) -> None:
        assert check(make_mlp(), steps=None, scene="overflow") == []

    def test_the_eager_dumper_has_no_steps(self, npu: Npu) -> None:
        problem = find(check(make_mlp(), options={"eager": True}), "AD251")
        assert (problem.severity, problem.where) == ("silent", "steps")

    def test_settings_that_nobody_has_are_told(self, npu: Npu) -> None:
        assert find(check(make_mlp(), max_bytes="1GB"), "AD211").severity == "silent"
        assert find(check(make_mlp(), steps=None), "AD115").severity == "warning"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_working_directory_that_cannot_be_written_is_told(self, npu: Npu, place: Path) -> None:
        place.chmod(0o500)
        try:
            assert find(check(make_mlp(), path=str(place / "here")), "AD246").severity == "error"
        finally:
            place.chmod(0o700)

    def test_a_path_that_ge_ignores_is_told_before_it_exists(self, npu: Npu) -> None:
        problem = find(check(make_mlp(), path="not here/dumps", options={"json": True}), "AD111")
        assert (problem.severity, problem.where) == ("silent", "dump.dump_path")
        assert "characters that GE refuses" in problem.message
        Path("not here/dumps").mkdir(parents=True)
        find(check(make_mlp(), path="not here/dumps", options={"json": True}), "AD111")


class TestTheDumpInterfaceOfAcl:
    """It can be begun once in a process; torch_npu has functions for it, too."""

    def test_one_that_is_begun_already_keeps_torchair_from_it(self, npu: Npu, caplog: pytest.LogCaptureFixture) -> None:
        process = process_of(npu)
        process.initialised = True
        assert process.init_dump() == 0
        model = make_mlp()
        cap = ascend_dump.capture(
            model, framework="torchair", path="dumps", steps="0", options={"json": True}, strict=True
        ).start()
        assert torch.equal(model(make_input()), make_mlp()(make_input()))
        with pytest.raises(ascend_dump.CaptureError, match="another user of acl's dump interface is active") as caught:
            cap.stop()
        assert caught.value.code == "AD254"
        assert process.finalize_dump() == 0

    def test_one_that_is_ended_under_torchair_is_told(self, npu: Npu) -> None:
        model = make_mlp()
        cap = ascend_dump.capture(model, framework="torchair", path="dumps", steps="0", strict=True).start()
        model(make_input())
        assert process_of(npu).finalize_dump() == 0
        with pytest.raises(ascend_dump.CaptureError, match="could not end the dump") as caught:
            cap.stop()
        assert caught.value.code == "AD254"
        # Everything is as before all the same.
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0") as again:
            model(make_input())
        assert len(again.dump()) > 0

    def test_one_that_is_ended_before_a_reset_is_told(self, npu: Npu, torchair: Any) -> None:
        config = torchair.CompilerConfig()
        config.dump_config.enable_dump = True
        run(torchair, config)
        assert process_of(npu).finalize_dump() == 0
        (generated,) = Path("ge_dump_data_json").iterdir()
        capture = ascend_dump.capture(make_mlp(), framework="torchair", path="dumps", options={"reset": True})
        with pytest.raises(ascend_dump.CaptureError, match="could not end the dump"):
            capture.start()
        # What the program's own dump wrote is its own.
        assert generated.exists()

    def test_torch_npu_gets_it_neither_inside_the_block_nor_around_it(self, place: Path) -> None:
        with fakes.install("torch_npu", "torchair"):
            model = make_mlp()
            graphs = {"framework": "torchair", "path": "dumps", "steps": "0"}
            for outer, inner in (({**graphs}, {"framework": "torch_npu"}), ({"framework": "torch_npu"}, {**graphs})):
                with ascend_dump.capture(make_mlp() if outer == graphs else None, **outer):
                    second = ascend_dump.capture(model if inner == graphs else None, **inner)
                    with pytest.raises(ascend_dump.CaptureError, match="is dumping through acl") as caught:
                        second.start()
                    assert caught.value.code == "AD302"
                    assert torch.equal(model(make_input()), make_mlp()(make_input()))
            # The eager dumper does not need it.
            with ascend_dump.capture(framework="torch_npu"):
                with ascend_dump.capture(model, **graphs, options={"eager": True}) as cap:
                    model(make_input())
                assert len(cap.dump()) > 0

    def test_a_second_session_of_ge_beside_torch_npu_is_told(self, place: Path) -> None:
        with fakes.install("torch_npu", "torchair"):
            for told in (False, True):
                model = make_mlp()
                assert ("AD240" in codes(check(model))) is told
                with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0"):
                    model(make_input())

    def test_it_is_free_behind_the_block(self, npu: Npu) -> None:
        for options in ({}, {"json": True}):
            model = make_mlp()
            settings = {"path": "dumps", "steps": "0", "options": options}
            with ascend_dump.capture(model, framework="torchair", **settings):
                model(make_input())
            assert process_of(npu).init_dump() == 0
            assert process_of(npu).finalize_dump() == 0


class TestEmptyDumps:
    @pytest.mark.parametrize(
        ("settings", "calls", "reason"),
        [
            ({}, 0, "no graph was built from the captured config"),
            ({"steps": "7"}, 1, "no graph was executed for a step in steps=7"),
            ({"layers": ["add_1"], "steps": "0"}, 1, "GE compares exact names"),
            ({"models": ["net"], "steps": "0"}, 1, "GE compares exact names"),
        ],
    )
    def test_the_likely_reason_is_said(self, npu: Npu, settings: dict[str, Any], calls: int, reason: str) -> None:
        model = make_mlp()
        cap = ascend_dump.capture(model, framework="torchair", path="dumps", strict=True, **settings).start()
        for _ in range(calls):
            model(make_input())
        with pytest.raises(ascend_dump.CaptureError, match=reason):
            cap.stop()

    def test_a_full_disk_is_among_the_reasons(self, npu: Npu) -> None:
        model = make_mlp()
        npu.fill_disk(10)
        cap = ascend_dump.capture(model, framework="torchair", path="dumps", strict=True, steps="0").start()
        assert torch.equal(model(make_input()), make_mlp()(make_input()))
        with pytest.raises(ascend_dump.CaptureError, match="on a full disk"):
            cap.stop()

    def test_a_device_that_refuses_what_torchair_generates_is_found_out(
        self, npu: Npu, torchair: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = make_mlp()
        cap = ascend_dump.capture(model, framework="torchair", path="dumps", strict=True, steps="0").start()
        original = json.dumps

        def spoilt(value: Any, **kwargs: Any) -> str:
            return original(value, **kwargs).replace('"dump_mode": "all"', '"dump_mode": "none"')

        monkeypatch.setattr(json, "dumps", spoilt)
        # The session's own options still dump; on a device of such a torchair the JSON would have replaced them.
        npu.fill_disk(0)
        model(make_input())
        monkeypatch.undo()
        with pytest.raises(ascend_dump.CaptureError, match="refuses the settings that torchair generates"):
            cap.stop()


_GENERATING = ("_ge_concrete_graph.fx2ge_converter", "core._torchair")


def _Script() -> Any:  # noqa: N802  (stands for a class)
    return torch.jit.trace(make_mlp(), make_input())


def test_every_code_of_this_adapter_is_tried_here() -> None:
    text = Path(__file__).read_text()
    assert [code for code in (f"AD{number}" for number in range(240, 256)) if code not in text] == []

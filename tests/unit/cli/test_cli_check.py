"""`ascend-dump check` and `ascend-dump config`."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest
from places import DATA

from ascend_dump.cli import Exit, main
from ascend_dump.native.cann.config import check_acl_config, check_ge_options


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ASCEND_DUMP", "ASCEND_DUMP_PATH", "ASCEND_WORK_PATH", "NPU_COLLECT_PATH", "ASCEND_DUMP_SCENE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ascend_dump.native.cann.config.situation.in_container", lambda: False)


def _file(tmp_path, name="acl.json", **dump):
    file = tmp_path / name
    steps = {"dump_step": "0"} if "dump_list" in dump else {}
    file.write_text(json.dumps({"dump": {"dump_path": str(tmp_path), **steps, **dump}}))
    return str(file)


def test_a_good_file(tmp_path, capsys):
    file = _file(tmp_path, dump_list=[{}])
    assert main(["check", file]) == Exit.OK
    assert capsys.readouterr().out == f"{file}: accepted, nothing in it is ignored\n"


def test_warnings_alone_are_no_failure(tmp_path, capsys):
    file = _file(tmp_path, dump_debug="on")
    assert main(["check", file]) == Exit.OK
    assert f"{file}: warning: dump.dump_debug: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ({"dump": {"dump_path": ".", "dump_list": [{}]}}, "dump.dump_step"),
        ({"ge.exec.enableDump": "1", "ge.exec.dumpPath": "."}, "ge.exec.dumpStep"),
        ({"enable_dump": True, "dump_path": ".", "use_off_line": True}, "dump_step"),
        ({"enable_dump": True, "dump_path": ".", "quant_dumpable": False}, "dump_step"),
    ],
    ids=["acl", "ge", "tensorflow", "torchair"],
)
def test_a_file_without_steps_is_advised_to_limit_them(content, where, tmp_path, capsys):
    (tmp_path / "settings.json").write_text(json.dumps(content))
    assert main(["check", "settings.json", "--json"]) == Exit.OK
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert ("AD115", "warning", where) in [(one["code"], one["severity"], one["where"]) for one in problems]


def test_a_container_is_told_beside_other_errors_and_not_of_torchair(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ascend_dump.native.cann.config.situation.in_container", lambda: True)
    file = _file(tmp_path, dump_list=[{}], dump_mode="ALL")
    assert main(["check", file]) == Exit.USAGE
    assert "inside a container" in capsys.readouterr().out
    for dump in ({"dump_list": [{}]}, {"dump_debug": "on"}):
        file = _file(tmp_path, **dump)
        assert main(["check", file, "--against", "torchair"]) == Exit.OK
        assert capsys.readouterr().out == f"{file}: accepted, nothing in it is ignored\n"
        options = tmp_path / "options.json"
        options.write_text(json.dumps({"dump_config_path": file}))
        assert main(["check", str(options)]) == Exit.OK
        assert "nothing in it is ignored" in capsys.readouterr().out


def test_what_is_ignored_is_printed_as_compilers_do(tmp_path, capsys):
    file = _file(tmp_path, dump_list=[{"layer": ["a", "*b*"]}], dump_steps="1")
    assert main(["check", file]) == Exit.DIFFERENT
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: silent: dump.dump_steps: 'dump_steps' is not a key of this object and is ignored [AD113]",
        "  hint: did you mean 'dump_step'?",
        f"{file}: silent: dump.dump_list[0].layer[1]: '*b*' matches nothing: CANN compares exact names [AD113]",
        "  hint: list the names",
        "2 silently ignored settings",
    ]


def test_every_refusal_is_printed_with_its_native_code(tmp_path, capsys):
    file = _file(tmp_path, dump_list=[{}], dump_mode="ALL", dump_step="5-3", extra=1)
    assert main(["check", file]) == Exit.USAGE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{file}: error: dump.dump_mode: 'ALL' is not allowed [AD110] (EP0002)"
    assert lines[1] == "  hint: write one of all, input, output"
    assert lines[2].startswith(f"{file}: error: dump.dump_step[0]: '5-3': ")
    assert lines[-1] == "2 errors, 1 silently ignored setting"


def test_one_document_for_programs(tmp_path, capsys):
    file = _file(tmp_path, dump_list=[{}], dump_mode="ALL", extra=1)
    assert main(["check", file, "--json"]) == Exit.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "ascend-dump/check/1"
    assert (document["file"], document["against"], document["accepted"]) == (file, "acl", False)
    found = [(one["severity"], one["where"], one["native"], one["code"]) for one in document["problems"]]
    assert found == [("error", "dump.dump_mode", "EP0002", "AD110"), ("silent", "dump.extra", "", "AD113")]


@pytest.mark.parametrize(
    ("text", "native"), [("{", "EP0004"), ("[" * 11, "100006"), ("", ""), ('{"dump": []}', "EP0001")]
)
def test_files_of_any_content(text, native, tmp_path, capsys):
    file = tmp_path / "x.json"
    file.write_text(text)
    assert main(["check", str(file), "--json"]) == (Exit.USAGE if native else Exit.DIFFERENT)
    assert [one["native"] for one in json.loads(capsys.readouterr().out)["problems"]] == [native]


@pytest.mark.parametrize("name", ["missing.json", ".", "{braces}.json"])
def test_files_that_cannot_be_read(name, capsys):
    assert main(["check", name]) == Exit.USAGE
    assert "(100003)" in capsys.readouterr().out


def test_standard_input(tmp_path, monkeypatch, capsys):
    text = Path(_file(tmp_path, dump_list=[{}])).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["check", "-"]) == Exit.OK
    assert capsys.readouterr().out.startswith("-: accepted")


def test_the_environment_of_the_shell_counts(tmp_path, monkeypatch, capsys):
    file = _file(tmp_path, dump_list=[{}])
    monkeypatch.setenv("NPU_COLLECT_PATH", str(tmp_path))
    assert main(["check", file]) == Exit.DIFFERENT
    assert "(E10056)" in capsys.readouterr().out


def test_names_cannot_drive_the_terminal(tmp_path, capsys):
    file = _file(tmp_path, dump_list=[{"layer": ["\x1b[2J*"]}])
    assert main(["check", file]) == Exit.DIFFERENT
    assert "\x1b" not in capsys.readouterr().out


def test_the_format_is_guessed_from_the_content(tmp_path, capsys):
    file = tmp_path / "x.json"
    for content, expected, code in (
        ({"dump": {}}, "acl", Exit.DIFFERENT),
        ({"ge.exec.enableDump": "yes"}, "ge", Exit.USAGE),
        ({"anything": 1}, "acl", Exit.DIFFERENT),
        ({"dump": {}, "common_dump_settings": {}}, "acl", Exit.DIFFERENT),
    ):
        file.write_text(json.dumps(content))
        assert main(["check", str(file), "--json"]) == code
        assert json.loads(capsys.readouterr().out)["against"] == expected


def test_the_format_given_outranks_the_guess(tmp_path, capsys):
    file = _file(tmp_path, dump_list=[{}])
    assert main(["check", file, "--against", "ge", "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["against"] == "ge"
    for content in ("{", "[]"):
        Path(file).write_text(content)
        assert main(["check", file, "--against", "ge"]) == Exit.USAGE


def test_keys_of_tensorflow_are_recognised(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"enable_dump": True, "enable_dump_debug": True, "dump_path": ".", "dump_step": "0"}))
    assert main(["check", str(file), "--json"]) == Exit.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["against"] == "tensorflow"
    assert [problem["code"] for problem in document["problems"]] == ["AD291"]


def test_keys_of_tensorflow_are_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["--path", "dumps", "--steps", "0|5", "--layers", "a;b", "--data", "stats"]
    assert main(["config", "--for", "tensorflow", *given]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == {
        "enable_dump": True,
        "dump_path": str(tmp_path / "dumps"),
        "dump_step": "0|5",
        "dump_mode": "all",
        "dump_data": "stats",
        "dump_layer": "a b",
        "use_off_line": True,
    }


def test_a_mindspore_file_is_recognised(tmp_path, capsys):
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"common_dump_settings": {}}))
    assert main(["check", str(file), "--json"]) == Exit.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["against"] == "mindspore"
    assert document["problems"][0]["message"] == "Check dump json failed, dump_mode not found"


def test_options_of_torchair_are_recognised(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"enable_dump": True, "dump_step": "5-2"}))
    assert main(["check", str(file), "--json"]) == Exit.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["against"] == "torchair"
    assert [problem["code"] for problem in document["problems"]] == ["AD244", "AD246"]


def test_options_of_torchair_are_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["config", "--for", "torchair", "--path", "dumps", "--steps", "0|1", "-o", "options.json"]) == Exit.OK
    written = json.loads(Path("options.json").read_text())
    assert written["enable_dump"] is True
    assert (written["dump_step"], written["dump_layer"]) == ("0-1", "")
    assert main(["check", "options.json"]) == Exit.OK


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--scene", "overflow"], {"dump_debug": "on"}),
        (
            ["--scene", "watch", "--watch", "Relu", "--layers", "Add_1"],
            {"dump_scene": "watcher", "dump_list": [{"layer": ["Add_1"], "watcher_nodes": ["Relu"]}]},
        ),
        (["--models", "graph_1"], {"dump_list": [{"model_name": "graph_1"}]}),
        (["--options", "json=true"], {"dump_mode": "all"}),
    ],
)
def test_what_options_of_torchair_cannot_say_is_written_as_the_dump_json(
    options, expected, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["config", "--for", "torchair", "--path", "dumps", *options, "-o", "dump.json"]) == Exit.OK
    assert "set config.dump_config.dump_config_path to this dump JSON (dump.json)" in capsys.readouterr().err
    written = json.loads(Path("dump.json").read_text())["dump"]
    assert expected.items() <= written.items()
    Path("options.json").write_text(json.dumps({"dump_config_path": "dump.json"}))
    assert main(["check", "options.json", "--against", "torchair"]) == Exit.OK


# --- config --------------------------------------------------------------------------------


def test_a_configuration_is_printed(tmp_path, capsys):
    assert main(["config", "--for", "acl", "--path", "dumps", "--steps", "0|3-5", "--layers", "a;b"]) == Exit.OK
    printed = capsys.readouterr()
    config = json.loads(printed.out)
    assert config["dump"]["dump_path"] == str(tmp_path / "dumps")
    assert config["dump"]["dump_step"] == "0|3-5"
    assert config["dump"]["dump_list"] == [{"layer": ["a", "b"]}]
    assert printed.err == ""
    assert check_acl_config(config) == []
    assert stat.S_IMODE((tmp_path / "dumps").stat().st_mode) == 0o700


def test_a_configuration_is_written_privately(tmp_path, capsys):
    file = tmp_path / "acl.json"
    assert main(["config", "--for", "acl", "-o", str(file)]) == Exit.OK
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert check_acl_config(file) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["acl.json", "dumps"]
    assert capsys.readouterr().out == ""


def test_what_stands_beside_the_dump_is_kept(tmp_path):
    file = tmp_path / "acl.json"
    file.write_text('{"profiler": {"switch": "on"}}')
    assert main(["config", "--for", "acl", "-o", str(file)]) == Exit.OK
    found = json.loads(file.read_text())
    assert found["profiler"] == {"switch": "on"}
    assert found["dump"]["dump_path"] == str(tmp_path / "dumps")


def test_an_empty_file_is_filled(tmp_path):
    file = tmp_path / "acl.json"
    file.touch()
    assert main(["config", "--for", "acl", "-o", str(file)]) == Exit.OK
    assert "dump" in json.loads(file.read_text())


@pytest.mark.parametrize("content", ["notes", "[]", "{"])
def test_a_foreign_file_is_left_alone(content, tmp_path, capsys):
    file = tmp_path / "notes.txt"
    file.write_text(content)
    assert main(["config", "--for", "acl", "-o", str(file)]) == Exit.USAGE
    assert file.read_text() == content
    assert "is no file of acl" in capsys.readouterr().err


def test_nothing_is_written_that_would_be_refused(tmp_path, capsys):
    file = tmp_path / "acl.json"
    command = ["config", "--for", "acl", "--steps", "0", "--stats", "max", "-o", str(file)]
    assert main(command) == Exit.USAGE
    assert not file.exists()
    assert "(EP0005)" in capsys.readouterr().err
    assert main([*command, "--json"]) == Exit.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["written"] is None
    assert [one["native"] for one in document["problems"]] == ["EP0005"]


def test_what_is_ignored_is_written_and_told(tmp_path, capsys):
    odd = tmp_path / "a b"
    assert main(["config", "--for", "acl", "--path", str(odd), "-o", "acl.json"]) == Exit.DIFFERENT
    assert (tmp_path / "acl.json").exists()
    assert "(E19999)" in capsys.readouterr().err


def test_a_file_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    assert main(["config", "--for", "ge", "-o", "taken"]) == Exit.USAGE
    assert "taken" in capsys.readouterr().err
    assert main(["config", "--for", "ge", "-o", "no/such/file.json"]) == Exit.USAGE
    assert "[AD501]" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dumps", "taken"]


def test_session_options(tmp_path, capsys):
    assert main(["config", "--for", "ge", "--quant", "--data", "stats"]) == Exit.OK
    options = json.loads(capsys.readouterr().out)
    assert options["ge.quant_dumpable"] == "1"
    assert options["ge.exec.dumpData"] == "stats"
    assert check_ge_options(options) == []


def test_one_document_of_what_was_written(tmp_path, capsys):
    assert main(["config", "--for", "acl", "--steps", "0", "-o", "acl.json", "--json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["for"]) == ("ascend-dump/config/1", "acl")
    assert (document["written"], document["problems"]) == ("acl.json", [])
    assert document["config"] == json.loads((tmp_path / "acl.json").read_text())


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--for", "acl", "--ranks", "0"], Exit.UNAVAILABLE, "ranks"),
        (["--for", "acl", "--max-bytes", "1GB"], Exit.UNAVAILABLE, "size of a dump"),
        (["--for", "acl", "--keep", "3"], Exit.UNAVAILABLE, "configuration files do not have it"),
        (["--for", "mindspore", "--until", "nonfinite"], Exit.UNAVAILABLE, "configuration files do not have it"),
        (["--for", "acl", "--layers", "conv*"], Exit.UNAVAILABLE, "exact names"),
        (["--for", "acl", "--data", "full"], Exit.UNAVAILABLE, "not both"),
        (["--for", "ge", "--models", "m"], Exit.UNAVAILABLE, "models"),
        (["--for", "torchair", "--scene", "overflow", "--quant"], Exit.UNAVAILABLE, "has no such setting"),
        (["--for", "torchair", "--scene", "overflow", "-o", "dump.cfg"], Exit.USAGE, "ends in .json"),
        (["--for", "acl", "--options", "typo=1"], Exit.USAGE, "typo"),
        (["--for", "acl", "--steps", "5-3"], Exit.USAGE, "backwards"),
        ([], Exit.USAGE, "--for"),
    ],
)
def test_what_cannot_be_configured(options, code, words, tmp_path, capsys):
    assert main(["config", *options]) == code
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def graph(tmp_path):
    operators = [("x", "Data"), ("conv1", "Conv2D"), ("conv2", "Conv2D"), ("shape", "Reshape")]
    text = "".join(f'  op {{\n    name: "{name}"\n    type: "{kind}"\n  }}\n' for name, kind in operators)
    file = tmp_path / "ge_proto_00000001_Build.txt"
    file.write_text(f'graph {{\n  name: "online_0"\n{text}}}\n')
    return str(file)


def test_names_are_held_against_a_graph(graph, tmp_path, capsys):
    file = _file(tmp_path, dump_list=[{"layer": ["conv1", "conv3", "shape"]}])
    assert main(["check", file]) == Exit.OK
    capsys.readouterr()
    assert main(["check", file, "--graph", graph, "--json"]) == Exit.DIFFERENT
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [one["where"] for one in problems] == ["dump.dump_list[0].layer[1]", "dump.dump_list[0].layer[2]"]


def test_patterns_become_names_of_a_graph(graph, tmp_path, capsys):
    assert main(["config", "--for", "acl", "--layers", "conv*", "--graph", graph]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["dump"]["dump_list"] == [{"layer": ["conv1", "conv2"]}]
    assert main(["config", "--for", "ge", "--layers", "re:2$", "--graph", graph]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["ge.exec.dumpLayer"] == "conv2"
    assert main(["config", "--for", "acl", "--layers", "pool*", "--graph", graph]) == Exit.USAGE


def test_a_graph_that_cannot_be_read(tmp_path, capsys):
    assert main(["check", _file(tmp_path), "--graph", "missing.txt"]) == Exit.UNREADABLE
    assert "missing.txt" in capsys.readouterr().err


# --- MindSpore -----------------------------------------------------------------------------

MINDSPORE_GRAPH = DATA / "mindspore/conv_iter_0_2/rank_0/graphs/ms_output_trace_code_graph_0.ir"


@pytest.mark.parametrize("on", ["ascend", "ascend-o2", "gpu", "cpu"])
def test_the_file_written_for_mindspore_is_one_without_findings(on, tmp_path, capsys):
    file = tmp_path / "dump.json"
    asked = ["config", "--for", "mindspore", "--path", "/dumps", "--steps", "0|5-8", "--options", f"on={on}"]
    assert main([*asked, "-o", str(file)]) == Exit.OK
    assert main(["check", str(file), "--on", on, "--json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert (document["against"], document["problems"]) == ("mindspore", [])


def test_what_the_device_has_not_is_refused_before_a_file_is_written(tmp_path, capsys):
    file = tmp_path / "dump.json"
    asked = ["config", "--for", "mindspore", "--path", "/dumps", "--data", "stats", "-o", str(file)]
    assert main([*asked, "--options", "on=cpu"]) == Exit.USAGE
    assert not file.exists()
    assert main([*asked, "--options", "on=gpu"]) == Exit.OK
    assert main(["check", str(file), "--on", "cpu"]) == Exit.USAGE
    assert "only supported on GPU and Ascend" in capsys.readouterr().out


def test_mindspore_takes_no_other_suffix(tmp_path, capsys):
    assert main(["config", "--for", "mindspore", "-o", str(tmp_path / "dump.cfg")]) == Exit.USAGE
    assert ".json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_jit_level_o2_dumps_nothing_since_2_6(tmp_path, capsys):
    asked = ["config", "--for", "mindspore", "--path", "/dumps", "--options", "on=ascend-ge", "--json"]
    assert main(asked) == Exit.DIFFERENT
    assert json.loads(capsys.readouterr().out)["problems"][0]["code"] == "AD274"


def test_names_are_held_against_a_graph_of_mindspore(tmp_path, capsys):
    file = tmp_path / "dump.json"
    asked = ["config", "--for", "mindspore", "--path", "/dumps", "-o", str(file)]
    for number, code in (("op0", Exit.OK), ("op9", Exit.DIFFERENT)):
        assert main([*asked, "--overwrite", "--layers", f"Default/fc-Dense/MatMul-{number}"]) == Exit.OK
        assert main(["check", str(file), "--graph", str(MINDSPORE_GRAPH)]) == code
    assert "matches none of the" in capsys.readouterr().out
    empty = tmp_path / "empty.ir"
    for wrong in (empty, tmp_path / "missing.ir"):
        empty.touch()
        assert main(["check", str(file), "--graph", str(wrong)]) == Exit.UNREADABLE


@pytest.mark.parametrize(("case", "expected"), [("conv_iter_0_2", []), ("pynative_jit", ["AD272"])])
def test_a_dump_tells_the_check_of_a_second_graph(case, expected, tmp_path, capsys):
    file = tmp_path / "dump.json"
    assert main(["config", "--for", "mindspore", "--path", "/dumps", "--steps", "3", "-o", str(file)]) == Exit.OK
    graph = MINDSPORE_GRAPH.parents[3] / case / "rank_0/graphs/ms_output_trace_code_graph_0.ir"
    capsys.readouterr()
    assert main(["check", str(file), "--graph", str(graph), "--json"]) == Exit.OK
    assert [problem["code"] for problem in json.loads(capsys.readouterr().out)["problems"]] == expected


def test_complex_tensors_in_a_graph_of_mindspore_are_refused(tmp_path, capsys):
    file, graph = tmp_path / "dump.json", tmp_path / "graph.ir"
    assert main(["config", "--for", "mindspore", "--path", "/dumps", "-o", str(file)]) == Exit.OK
    graph.write_text(MINDSPORE_GRAPH.read_text().replace("Tensor[Float32]", "Tensor[Complex64]", 1))
    assert main(["check", str(file), "--graph", str(graph)]) == Exit.USAGE
    assert "Unexpected type Complex" in capsys.readouterr().out


def test_where_mindspore_runs_is_for_mindspore_only(tmp_path, capsys):
    assert main(["check", _file(tmp_path), "--on", "cpu"]) == Exit.USAGE
    assert "--on cpu has no meaning for acl" in capsys.readouterr().err

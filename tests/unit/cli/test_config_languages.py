"""Configuration languages: one registry, by which files are recognised, checked and written."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Optional, Union

import pytest

from ascend_dump import DumpRequest
from ascend_dump.adapter import Problem
from ascend_dump.cli import Exit, main
from ascend_dump.native.languages import CERTAIN, ConfigLanguage, Surroundings, languages, recognise

NAMES = ["acl", "ascend-dump", "ge", "mindspore", "tensorflow", "torchair"]
#: What some language writes in another way than the plain dump: the requests that each takes.
REQUESTS = (
    DumpRequest(path="/dumps"),
    DumpRequest(path="/dumps", steps="0|5", mode="input", layers=["Default/a"], data="stats"),
    DumpRequest(path="/dumps", quant=True),
    DumpRequest(path="/dumps", scene="overflow"),
    DumpRequest(path="/dumps", scene="exception"),
)
FOUND = {
    "acl": [0, 1, 3, 4],
    "ascend-dump": [0, 1, 2, 3, 4],
    "ge": [0, 1, 2, 3, 4],
    "mindspore": [0, 1, 3, 4],
    "tensorflow": [0, 1, 2, 3, 4],
    "torchair": [0, 1, 2],
}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASCEND_DUMP", raising=False)
    monkeypatch.setattr("ascend_dump.native.cann.config.situation.in_container", lambda: False)


def test_every_language_is_registered() -> None:
    assert sorted(languages()) == NAMES
    assert all(language.name == name for name, language in languages().items())


@pytest.mark.parametrize(("name", "number"), [(name, number) for name in NAMES for number in FOUND[name]])
def test_what_is_written_is_recognised(name: str, number: int) -> None:
    known = languages()
    built = json.loads(json.dumps(known[name].build(REQUESTS[number])))
    assert recognise(known.values(), built)[0].name == name


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_config_wrote_is_checked_as_what_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "k.json"
    code = main(["config", "--for", name, "--path", str(tmp_path / "d"), "--steps", "0|1", "-o", str(file)])
    capsys.readouterr()
    assert main(["check", str(file), "--json"]) == code == Exit.OK
    assert json.loads(capsys.readouterr().out)["against"] == name


def test_keys_that_two_languages_have_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.json"
    file.write_text(json.dumps({"enable_dump": True, "dump_path": str(tmp_path)}))
    assert main(["check", str(file)]) == Exit.OK
    assert "checked as a file of torchair; for another format, give --against tensorflow" in capsys.readouterr().err
    assert main(["check", str(file), "--against", "tensorflow"]) == Exit.OK
    assert capsys.readouterr().err == ""


class TestOwnSettings:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("s.json", '{"path": "dumps", "steps": "0|1"}'),
            ("s.json", '{"ascend_dump": {"dump_path": "dumps"}}'),
            ("s.json", '{"steps": 1, "ranks": "0", "max_bytes": "1GB"}'),
        ],
    )
    def test_they_are_accepted(self, name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
        Path(name).write_text(text)
        assert main(["check", name]) == Exit.OK
        assert capsys.readouterr().out == f"{name}: accepted, nothing in it is ignored\n"

    def test_toml(self, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
        Path("s.toml").write_text('steps = "0|1"\n')
        assert main(["check", "s.toml"]) == Exit.OK
        Path("s.toml").write_text('steps = "1-0"\n')
        assert main(["check", "s.toml"]) == Exit.USAGE
        assert "s.toml: error: the range runs backwards in steps='1-0' [AD102]" in capsys.readouterr().out

    @pytest.mark.parametrize("text", ['{"path": "d", "stpes": "0"}', '{"mode": "inputs"}', '{"ascend_dump": []}'])
    def test_what_is_wrong_in_them_is_told(self, text: str, capsys: pytest.CaptureFixture[str]) -> None:
        Path("s.json").write_text(text)
        assert main(["check", "s.json", "--json"]) == Exit.USAGE
        document = json.loads(capsys.readouterr().out)
        assert document["against"] == "ascend-dump"
        assert [problem["severity"] for problem in document["problems"]] == ["error"]

    def test_ranks_can_be_written(self, capsys: pytest.CaptureFixture[str]) -> None:
        asked = ["--ranks", "0|2", "--max-bytes", "1000", "--keep", "3", "--until", "nonfinite"]
        assert main(["config", "--for", "ascend-dump", *asked]) == Exit.OK
        written = json.loads(capsys.readouterr().out)
        assert (written["ranks"], written["max_bytes"]) == ("0|2", 1000)
        assert (written["keep"], written["until"]) == (3, "nonfinite")


class TestSurroundings:
    WATCH = ("--scene", "watch", "--watch", "a", "--layers", "b")

    def test_dynamic_shapes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        asked = ["config", "--for", "acl", "--mode", "output", *self.WATCH, "-o", "acl.json"]
        assert main([*asked, "--dynamic-shape"]) == Exit.DIFFERENT
        assert "dynamic shapes: nothing is watched" in capsys.readouterr().err
        assert main(["check", "acl.json"]) == Exit.OK
        assert main(["check", "acl.json", "--dynamic-shape"]) == Exit.DIFFERENT
        assert "dynamic shapes: nothing is watched" in capsys.readouterr().out

    def test_a_container(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr("ascend_dump.native.cann.config.situation.in_container", lambda: True)
        assert main(["config", "--for", "acl", "-o", "acl.json"]) == Exit.OK
        assert "not supported inside a container" in capsys.readouterr().err
        assert main(["check", "acl.json"]) == Exit.OK
        assert "not supported inside a container" in capsys.readouterr().out


class TestExistingFiles:
    @pytest.mark.parametrize("name", NAMES)
    def test_they_are_replaced_only_when_asked(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        file = Path("given.json")
        asked = ["config", "--for", name, "--path", "d", "--steps", "0|1", "-o", str(file)]
        for content in ("my notes", '{"dump": {"dump_path": "mine"}, "common_dump_settings": {}, "ge.x": "1"}'):
            file.write_text(content)
            assert main(asked) == Exit.USAGE
            assert file.read_text() == content
            assert "exists" in capsys.readouterr().err
            assert not Path("d").exists()
        file.chmod(0o640)
        assert main([*asked, "--overwrite"]) == Exit.OK
        written = json.loads(file.read_text())
        assert written != json.loads(content)
        # Other users who may read it still may; what is gone is named.
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        gone = [key for key in json.loads(content) if key not in written]
        said = capsys.readouterr().err
        assert all(f"'{key}'" in said for key in gone)
        assert ("replaced" in said) == (name != "acl")

    @pytest.mark.parametrize("name", NAMES)
    def test_the_same_again_and_an_empty_file_are_no_loss(self, name: str) -> None:
        file = Path("given.json")
        asked = ["config", "--for", name, "--path", "d", "--steps", "0|1", "-o", str(file)]
        file.touch()
        assert main(asked) == Exit.OK
        written = file.read_text()
        assert main(asked) == Exit.OK
        assert file.read_text() == written != ""

    def test_beside_the_dump_an_acl_json_is_kept_when_it_is_replaced(self) -> None:
        file = Path("acl.json")
        file.write_text('{"profiler": {"switch": "on"}, "dump": {"dump_path": "old"}}')
        assert main(["config", "--for", "acl", "-o", str(file), "--overwrite"]) == Exit.OK
        found = json.loads(file.read_text())
        assert found["profiler"] == {"switch": "on"}
        assert found["dump"]["dump_path"] != "old"


class ToyLanguage(ConfigLanguage):
    name = "toy"

    def recognise(self, value: Any, suffix: str) -> int:
        return CERTAIN if isinstance(value, dict) and "toy" in value else 0

    def check(self, source: Union[Path, bytes], around: Surroundings) -> list[Problem]:
        value = json.loads(source if isinstance(source, bytes) else source.read_bytes())
        return [] if value["toy"] else [Problem("AD113", "silent", "it is off", "switch it on", "toy")]

    def build(self, request: DumpRequest, names: Optional[Iterable[str]] = None) -> Mapping[str, Any]:
        return {"toy": str(request.steps)}


TOY = ToyLanguage()


def test_another_distribution_brings_a_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    info = tmp_path / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[ascend_dump.languages]\ntoy = {__name__}:TOY\nbroken = no_such_module:LANGUAGE\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = languages()
    assert sorted(found) == sorted([*NAMES, "toy"])
    assert recognise(found.values(), {"toy": 1}) == [TOY]
    assert "broken" in caplog.text


# TensorFlow 1.15 on Python 3.7: lines to paste, and a module that needs no package.


def lines_of(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    command = ["config", "--for", "tensorflow", "--path", "d", "--steps", "0|5|10", "--mode", "all", *options]
    assert main([*command, "--format", "python"]) == Exit.OK
    return capsys.readouterr().out


def test_the_lines_for_a_session_are_those_of_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines_of(capsys, "--layers", "nodename1", "--layers", "nodename2").splitlines()
    assert found[3:6] == [
        "session_config = tf.ConfigProto(allow_soft_placement=True)",
        "custom_op = session_config.graph_options.rewrite_options.custom_optimizers.add()",
        'custom_op.name = "NpuOptimizer"',
    ]
    assert 'custom_op.parameter_map["enable_dump"].b = True' in found
    assert f'custom_op.parameter_map["dump_path"].s = tf.compat.as_bytes("{tmp_path / "d"}")' in found
    assert 'custom_op.parameter_map["dump_step"].s = tf.compat.as_bytes("0|5|10")' in found
    assert 'custom_op.parameter_map["dump_layer"].s = tf.compat.as_bytes("nodename1 nodename2")' in found
    assert lines_of(capsys, "--style", "keras").endswith("set_keras_session_npu_config(config=session_config)\n")


def test_the_lines_for_an_estimator_dump_on_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines_of(capsys, "--style", "estimator", "--ranks", "7|1-3")
    assert 'rank = int(os.getenv("RANK_ID", "0"))\ndump_flag = 1 <= rank <= 3 or rank == 7\n' in found
    path = tmp_path / "d"
    assert f'DumpConfig(enable_dump=dump_flag, dump_path="{path}", dump_step="0|5|10", dump_mode="all")' in found
    compile(found, "lines.py", "exec")
    assert main(["config", "--for", "tensorflow", "--ranks", "7"]) == Exit.UNAVAILABLE
    assert "or --format python" in capsys.readouterr().err


def test_lines_are_written_into_a_file_that_is_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(capsys, "-o", "lines.py") == ""
    expected = lines_of(capsys)
    assert (tmp_path / "lines.py").read_text() == expected
    command = ["config", "--for", "tensorflow", "--format", "python", "-o"]
    assert main([*command, "lines.py"]) == Exit.USAGE
    assert main([*command, "lines.json"]) == Exit.USAGE
    assert main([*command, "lines.py", "--overwrite"]) == Exit.OK
    assert main([*command, "lines.py", "--overwrite", "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["python"] == (tmp_path / "lines.py").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--for", "acl", "--format", "python"], "acl reads a file"),
        (["--for", "acl", "--standalone", "x.py"], "acl needs no module"),
        (["--for", "tensorflow", "--style", "keras"], "--style keras is for --format python"),
        (["--for", "tensorflow", "--format", "python", "--style", "jax"], "there is no such style"),
        (["--for", "tensorflow", "--standalone", "x.py", "--steps", "3"], "--steps has no effect"),
        (["--for", "tensorflow", "--standalone", "x.py", "--format", "python"], "--format has no effect"),
    ],
    ids=str,
)
def test_what_has_no_effect_is_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *options]) == Exit.USAGE
    assert message in capsys.readouterr().err


def test_the_module_is_copied_beside_the_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["config", "--for", "tensorflow", "--standalone", "tf1_dump.py"]
    assert main(command) == Exit.OK
    assert list(tmp_path.iterdir()) == [tmp_path / "tf1_dump.py"]
    assert main([*command, "--steps", "0", "-o", "dump.json"]) == Exit.OK
    assert json.loads((tmp_path / "dump.json").read_text())["dump_step"] == "0"
    (tmp_path / "tf1_dump.py").write_text("# mine\n")
    assert main(command) == Exit.USAGE
    assert main([*command, "--overwrite"]) == Exit.OK


def test_the_module_runs_on_python_3_5() -> None:
    pytest.importorskip("vermin")
    file = languages()["tensorflow"].standalone
    command = [
        sys.executable,
        "-c",
        "from vermin import main; main()",
        "-t=3.5-",
        "--violations",
        "--no-tips",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout
    assert "3.5" in done.stdout

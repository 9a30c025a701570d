"""`ascend-dump run` and `ascend-dump doctor`, in this process and as users start them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from interpreters import HOOK_FILES, STARTUP, Interpreter
from places import REPOSITORY

import ascend_dump
from ascend_dump.adapter import registered
from ascend_dump.cli import Exit, main

#: Those of CANN, torchair and TensorFlow.
OTHER_SPELLINGS = [
    *("dump_path", "dump_step", "dump_mode", "dump_layer", "dump_data", "dump_stats", "dump_level", "dump_scene"),
    *("layer", "model_name", "watcher_nodes", "quant_dumpable"),
]
SITE = str(STARTUP / "site")
NETWORK = """
import sys
import numpy as np
import toyframe

print(toyframe.Network(first=np.sqrt)(np.arange(3.0)).tolist(), *sys.argv[1:])
sys.exit(37)
"""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The command that `run` would have replaced this process by."""
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *args: calls.append(args))
    for name in ("ASCEND_DUMP", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    return calls


def request_of(launched: list[Any]) -> ascend_dump.DumpRequest:
    [(_, _, environment)] = launched
    return ascend_dump.DumpRequest.from_text(environment["ASCEND_DUMP"])


class TestRun:
    def test_every_setting_and_every_spelling_is_an_option(self, capsys: pytest.CaptureFixture[str]) -> None:
        from ascend_dump.cli.run import run

        options = {spelling for option in run.params for spelling in option.opts}
        names = [field.name for field in dataclasses.fields(ascend_dump.DumpRequest)]
        expected = [*names, *OTHER_SPELLINGS]
        assert {f"--{name}" for name in expected} | {f"--{name.replace('_', '-')}" for name in expected} <= options
        assert main(["run", "--help"]) == Exit.OK
        shown = capsys.readouterr().out
        assert "--dump-path" not in shown
        assert all(f"--{name.replace('_', '-')}" in shown for name in names)

    def test_options_become_the_request(self, launched: list[Any], tmp_path: Path) -> None:
        args = ["run", "--path", str(tmp_path / "d"), "--dump_step", "0|2-5", "--dump-mode", "output", "--quant"]
        args += ["--layers", "*conv*;re:fc[12]", "--layers", "head", "--max-bytes", "2GB", "--options", "rehash=true"]
        main([*args, "--", "env", "--version"])
        assert request_of(launched) == ascend_dump.DumpRequest(
            path=tmp_path / "d",
            steps="0|2-5",
            mode="output",
            quant=True,
            layers=["*conv*", "re:fc[12]", "head"],
            max_bytes=2_000_000_000,
            options={"rehash": True},
        )
        [(program, command, environment)] = launched
        assert (program, command) == (shutil.which("env"), ("env", "--version"))
        assert environment["PYTHONPATH"] == SITE
        assert environment["ASCEND_DUMP_RUN"] == str(os.getpid())
        assert not (tmp_path / "d").exists()

    def test_a_relative_path_is_meant_from_here(
        self, launched: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        main(["run", "env"])
        assert request_of(launched).path == tmp_path / "dumps"

    def test_options_win_over_the_file_and_the_environment(
        self, launched: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ASCEND_DUMP", f"steps=1,mode=input,path={tmp_path}")
        main(["run", "--steps", "2", "env"])
        assert request_of(launched) == ascend_dump.DumpRequest(steps=2, mode="input", path=tmp_path)
        launched.clear()
        file = tmp_path / "dump.json"
        file.write_text(json.dumps({"dump_step": "3", "dump_path": str(tmp_path), "data": "stats"}))
        main(["run", "--data", "full", "--config", str(file), "env"])
        assert request_of(launched) == ascend_dump.DumpRequest(steps=3, data="full", path=tmp_path)

    def test_switched_off_in_the_environment_it_is_on_by_the_command(
        self, launched: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ASCEND_DUMP", "0")
        main(["run", "--path", str(tmp_path), "env"])
        assert request_of(launched) == ascend_dump.DumpRequest(path=tmp_path)

    def test_pythonpath_keeps_what_it_had(
        self, launched: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        # An empty entry is the current directory; ours, from an outer launch, stays once.
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/a", "", SITE, "/b"]))
        main(["run", "env"])
        assert launched[0][2]["PYTHONPATH"] == os.pathsep.join([SITE, "/a", "", "/b"])

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            (["--steps", "5-3"], "the range runs backwards"),
            (["--mode", "some"], "'some' is not one of"),
            (["--stepz", "3"], "No such option"),
            (["--path", "x", "--dump_path", "y"], "the same setting"),
            (["--options", "rehash"], "is not NAME=VALUE"),
            (["--config", "no/such.json"], "cannot be read"),
            (["--max-bytes", "many"], "a positive number of bytes"),
        ],
    )
    def test_a_wrong_option_launches_nothing(
        self, launched: list[Any], args: list[str], said: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["run", *args, "--", "env"]) == Exit.USAGE
        assert said in capfd.readouterr().err
        assert launched == []

    def test_a_wrong_value_in_the_environment_launches_nothing(
        self, launched: list[Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ASCEND_DUMP", "steps=x")
        assert main(["run", "--", "env"]) == Exit.USAGE
        assert "'x' is neither a number nor a range" in capfd.readouterr().err
        assert launched == []

    def test_no_command(self, launched: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
        assert main(["run", "--steps", "0"]) == Exit.USAGE
        assert "COMMAND" in capfd.readouterr().err

    @pytest.mark.parametrize(
        ("name", "mode", "said"),
        [
            ("train.py", 0o644, "python train.py"),
            ("tool", 0o644, "it is not executable"),
            ("tool", 0o755, "write ./tool"),
            ("folder/", 0, "it is a directory"),
            ("no-such-tool", 0, "no such program on PATH"),
            ("--steps", 0, "looks like an option"),
        ],
    )
    def test_a_command_that_cannot_run(
        self,
        launched: list[Any],
        name: str,
        mode: int,
        said: str,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "folder").mkdir()
        if mode:
            (tmp_path / name).write_text("")
            (tmp_path / name).chmod(mode)
        assert main(["run", "--", name]) == Exit.USAGE
        told = capfd.readouterr().err
        assert said in told
        assert "[AD104]" in told
        assert launched == []

    def test_a_file_that_is_no_program_at_all(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        tool = tmp_path / "tool"
        tool.write_text("no interpreter is named here\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        assert main(["run", "--path", str(tmp_path / "d"), "--", str(tool)]) == Exit.USAGE
        assert "`#!` line" in capfd.readouterr().err

    def test_a_path_that_cannot_be_written(
        self, launched: list[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").write_text("")
        assert main(["run", "--path", str(tmp_path / "file" / "d"), "--", "env"]) == Exit.USAGE
        assert f"{tmp_path / 'file'} is not a directory" in capfd.readouterr().err
        assert launched == []

    def test_a_request_that_every_adapter_refuses(
        self, launched: list[Any], toy: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ASCEND_DUMP_DISABLED_ADAPTERS", ",".join(name for name in registered() if name != "toy"))
        assert main(["run", "--scene", "overflow", "--", "env"]) == Exit.USAGE
        assert capfd.readouterr().err.count("toyframe knows no scene 'overflow'") == 1
        assert launched == []

    def test_without_a_usable_adapter_it_says_so_and_goes_on(
        self, launched: list[Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ASCEND_DUMP_DISABLED_ADAPTERS", "*")
        main(["run", "--", "env"])
        assert "no adapter is usable in this environment" in capfd.readouterr().err
        assert len(launched) == 1

    def test_dry_run_launches_nothing_and_tells_it_for_programs(
        self, launched: list[Any], capfd: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        args = ["run", "--path", str(tmp_path), "--steps", "1", "--dry-run"]
        assert main([*args, "--json", "--", "env", "A B"]) == Exit.OK
        assert json.loads(capfd.readouterr().out) == {
            "schema": "ascend-dump/run/1",
            "environment": {"ASCEND_DUMP": f"path={tmp_path},steps=1", "PYTHONPATH": SITE},
            "command": ["env", "A B"],
        }
        assert main([*args, "--", "env", "A B"]) == Exit.OK
        line = ["env", f"ASCEND_DUMP=path={tmp_path},steps=1", f"PYTHONPATH={SITE}", "env", "A B"]
        assert shlex.split(capfd.readouterr().out) == line
        assert launched == []


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "network.py"
    path.write_text(NETWORK)
    return path


class TestLaunched:
    def run(self, made: Interpreter, network: Path, *options: str, **environment: Any) -> None:
        """Launch the network below `ascend-dump run` and read its dump."""
        path = network.parent / "dumps"
        command = [str(made.python), str(network), "--steps", "a b"]
        done = made.run(
            "-m", "ascend_dump", "run", "--quiet", "--path", str(path), *options, "--", *command, **environment
        )
        assert (done.returncode, done.stderr) == (37, "")
        assert done.stdout == "[0.0, 1.0, 1.4142135623730951] --steps a b\n"
        assert {record.op_name for record in ascend_dump.open(path)} == {"first"}

    def test_with_the_hook_installed(self, interpreter: Interpreter, network: Path) -> None:
        self.run(interpreter, network)

    def test_where_no_pth_is_processed(self, bare_interpreter: Interpreter, network: Path) -> None:
        self.run(bare_interpreter, network, "--steps", "0")

    def test_launched_twice_over(self, bare_interpreter: Interpreter, network: Path) -> None:
        path = network.parent / "dumps"
        inner = [str(bare_interpreter.python), "-m", "ascend_dump", "run", "--quiet", "--mode", "output", "--"]
        command = [str(bare_interpreter.python), str(network)]
        done = bare_interpreter.run("-m", "ascend_dump", "run", "--path", str(path), "--", *inner, *command)
        assert (done.returncode, done.stderr) == (37, "")
        assert [record.io for record in ascend_dump.open(path)] == ["output"]

    @pytest.mark.parametrize("strict", [False, True])
    def test_a_run_without_a_framework_says_that_nothing_was_dumped(
        self, strict: bool, interpreter: Interpreter, tmp_path: Path
    ) -> None:
        command = [str(interpreter.python), "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])"]
        environment = {"ASCEND_DUMP_STRICT": "1"} if strict else {}
        options = ["-m", "ascend_dump", "run", "--path", str(tmp_path / "dumps"), "--"]
        done = interpreter.run(*options, *command, **environment)
        assert done.returncode == (Exit.EMPTY if strict else 0)
        assert done.stderr.count("nothing was dumped") == 1

    def test_a_strict_run_that_recorded_nothing_says_it_in_its_last_line(
        self, interpreter: Interpreter, network: Path
    ) -> None:
        options = ["-m", "ascend_dump", "run", "--strict", "--path", str(network.parent / "dumps")]
        command = ["--", str(interpreter.python), str(network)]
        done = interpreter.run(*options, "--steps", "100", *command)
        assert done.returncode == Exit.EMPTY
        last = "ascend-dump: nothing was recorded: exit code 5, because the settings are strict"
        assert done.stderr.splitlines()[-1] == last
        assert interpreter.run(*options, *command).returncode == 37

    def test_strict_is_not_for_a_run_whose_child_recorded(self, interpreter: Interpreter, network: Path) -> None:
        child = f"import toyframe, subprocess, sys; subprocess.call([sys.executable, {str(network)!r}])"
        options = ["-m", "ascend_dump", "run", "--strict", "--quiet", "--path", str(network.parent / "dumps")]
        done = interpreter.run(*options, "--", str(interpreter.python), "-c", child)
        assert done.returncode == 0, done.stderr

    def test_a_run_whose_child_dumps_says_nothing(self, interpreter: Interpreter, network: Path) -> None:
        child = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, {str(network)!r}]))"
        path = network.parent / "dumps"
        path.mkdir()
        os.utime(path, (0, 0))
        command = [
            "-m",
            "ascend_dump",
            "run",
            "--quiet",
            "--path",
            str(path),
            "--",
            str(interpreter.python),
            "-c",
            child,
        ]
        for _ in range(2):  # the second time the directory of the rank is there
            done = interpreter.run(*command)
            assert (done.returncode, done.stderr) == (37, "")

    def test_a_signal_ends_it_as_it_would_without_us(self, bare_interpreter: Interpreter, tmp_path: Path) -> None:
        command = ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
        done = bare_interpreter.run(
            "-m", "ascend_dump", "run", "--path", str(tmp_path), "--", str(bare_interpreter.python), *command
        )
        assert done.returncode == -9


def doctor(made: Interpreter, **environment: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and text, which agree about the exit code."""
    # Each starts a dozen interpreters, and many tests ask the same. A variable may name what a test has made.
    if environment:
        return _ask_doctor(made, **environment)
    if made not in _SAID:
        _SAID[made] = _ask_doctor(made)
    code, document, text = _SAID[made]
    return code, json.loads(json.dumps(document)), text


_SAID: dict[Interpreter, tuple[int, dict[str, Any], str]] = {}


def _ask_doctor(made: Interpreter, **environment: Any) -> tuple[int, dict[str, Any], str]:
    told = made.run("-m", "ascend_dump", "doctor", **environment)
    document = made.run("-m", "ascend_dump", "doctor", "--json", **environment)
    assert told.returncode == document.returncode
    assert told.stderr == document.stderr
    return told.returncode, json.loads(document.stdout), told.stdout


class TestDoctor:
    def test_both_roads(self, interpreter: Interpreter) -> None:
        code, found, text = doctor(interpreter)
        assert (code, found["schema"], found["ok"]) == (0, "ascend-dump/doctor/1", True)
        assert found["activation"]["hook"] == str(interpreter.site / HOOK_FILES[0])
        reaches = {"python": True, "python -E": True, "python -I": True, "python -S": False}
        assert found["activation"]["hook_reaches"] == reaches
        assert found["activation"]["hook_problem"] is None
        reaches = {"python": True, "python -E": True, "python -I": True, "python -S": False}
        assert found["activation"]["run_reaches"] == reaches
        assert "start-up hook    active in python, python -E, python -I; not in python -S" in text

    def test_without_the_hook(self, bare_interpreter: Interpreter) -> None:
        code, found, text = doctor(bare_interpreter)
        assert code == 0
        assert not any(found["activation"]["hook_reaches"].values())
        assert found["activation"]["hook_problem"].startswith("ascend_dump_startup.pth is not installed")
        assert found["activation"]["run_reaches"]["python"]
        assert not found["activation"]["run_reaches"]["python -I"]
        assert "NOT active: ascend_dump_startup.pth is not installed" in text
        assert "use `ascend-dump run`" in text

    def test_installed_where_python_reads_no_pth(self, bare_interpreter: Interpreter, tmp_path: Path) -> None:
        for name in HOOK_FILES:
            shutil.copy(STARTUP / name, tmp_path)
        code, found, text = doctor(bare_interpreter, PYTHONPATH=tmp_path)
        assert code == 0
        assert f"{tmp_path} is only on PYTHONPATH (pip install --target)" in found["activation"]["hook_problem"]
        assert "pip install --target" in text

    def test_adapters(self, interpreter: Interpreter) -> None:
        _, found, text = doctor(interpreter)
        [toy] = [info for info in found["adapters"] if info["name"] == "toy"]
        assert (toy["distribution"], toy["version"], toy["usable"]) == ("ascend-dump-toy", "1.2.3", True)
        assert "usable: toyframe is installed, not imported yet [ascend-dump-toy 1.2.3]" in text

    def test_no_usable_adapter(self, interpreter: Interpreter) -> None:
        code, found, text = doctor(interpreter, ASCEND_DUMP_DISABLED_ADAPTERS="*")
        assert (code, found["ok"], found["adapters"]) == (Exit.UNAVAILABLE, False, [])
        assert "none is registered" in text

    def test_a_framework_that_is_missing(self, interpreter: Interpreter, tmp_path: Path) -> None:
        info = tmp_path / "far-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: far\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text("[ascend_dump.adapters]\nfar = far_adapter:Far\n")
        source = (REPOSITORY / "tests/data/third_party_adapter/ascend_dump_toy.py").read_text()
        source = source.replace('framework = "toyframe"', 'framework = "farframe"').replace("ToyAdapter", "Far")
        (tmp_path / "far_adapter.py").write_text(source)
        code, found, _ = doctor(interpreter, PYTHONPATH=tmp_path)
        [far] = [one for one in found["adapters"] if one["name"] == "far"]
        assert (code, far["usable"], far["reason"]) == (0, False, "farframe is not installed")

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (None, "ASCEND_DUMP      not set"),
            ("off", "ASCEND_DUMP      'off': off"),
            ("steps=0", "ASCEND_DUMP      'steps=0': on"),
        ],
    )
    def test_the_variable(self, interpreter: Interpreter, value: Any, said: str) -> None:
        _, found, text = doctor(interpreter, ASCEND_DUMP=value)
        assert found["activation"]["variable"] == value
        assert said in text

    def test_a_wrong_variable(self, interpreter: Interpreter) -> None:
        done = interpreter.run("-m", "ascend_dump", "doctor", ASCEND_DUMP="steps=5-3")
        assert done.returncode == 0
        assert "'steps=5-3' is WRONG: the range runs backwards" in done.stdout

    def test_where_a_dump_would_go(self, interpreter: Interpreter, tmp_path: Path) -> None:
        _, found, text = doctor(interpreter, ASCEND_DUMP=f"path={tmp_path / 'a' / 'b'}")
        assert found["path"]["path"] == str(tmp_path / "a" / "b")
        assert found["path"]["writable"]
        assert found["path"]["free_bytes"] > 0
        (tmp_path / "a").write_text("")
        _, found, text = doctor(interpreter, ASCEND_DUMP=f"path={tmp_path / 'a' / 'b'}")
        assert not found["path"]["writable"]
        assert "NOT writable" in text

    def test_versions(self, interpreter: Interpreter) -> None:
        import numpy

        _, found, text = doctor(interpreter)
        assert found["packages"]["needed"]["numpy"] == numpy.__version__
        assert f"numpy {numpy.__version__}" in text
        project = (REPOSITORY / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("]")[0]
        assert set(re.findall(r'"([\w-]+)', project)) == set(found["packages"]["needed"])

    def test_versions_that_do_not_fit(self, interpreter: Interpreter, tmp_path: Path) -> None:
        pytest.importorskip("pip")
        import numpy

        assert doctor(interpreter)[1]["conflicts"] == []
        info = tmp_path / "mindspore-2.10.0.dist-info"
        info.mkdir()
        requires = "Requires-Dist: NumPy<1.27,>=1.20\nRequires-Dist: click<1; extra == 'x'\nRequires-Dist: ??\n"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mindspore\nVersion: 2.10.0\n{requires}")
        (info / "top_level.txt").write_text("")
        _, found, text = doctor(interpreter, PYTHONPATH=tmp_path)
        if numpy.__version__.startswith("1."):
            assert found["conflicts"] == []
        else:
            [line] = found["conflicts"]
            wanted = f"mindspore 2.10.0 needs NumPy<1.27,>=1.20, but NumPy {numpy.__version__} is installed"
            assert line == wanted
            assert f"CONFLICT     {line}" in text

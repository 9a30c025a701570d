"""Exit codes, errors, help and completion of the command line as a whole."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import click
import pytest

import ascend_dump
from ascend_dump.cli import Exit, main

#: Every error class, by its public name.
ERRORS: dict[str, Any] = {
    name: found
    for name in ascend_dump.__all__
    for found in (getattr(ascend_dump, name),)
    if isinstance(found, type) and issubclass(found, ascend_dump.AscendDumpError)
}
ROOT = Path(ascend_dump.__file__).parents[1]
CLI = ROOT / "ascend_dump" / "cli"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No logging when a test begins, and none left over when it ends."""
    monkeypatch.delenv("ASCEND_DUMP_LOG", raising=False)
    log = logging.getLogger("ascend_dump")
    handlers, level = list(log.handlers), log.level
    yield
    log.handlers[:] = handlers
    log.setLevel(level)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a function in the place of the verb `explain`."""

    def put(body: Any) -> None:
        module = types.ModuleType("ascend_dump.cli.explain")
        module.__spec__ = ModuleSpec("ascend_dump.cli.explain", None)
        command = click.Command("explain", callback=body, params=[click.Option(["--json", "as_json"], is_flag=True)])
        module.explain = command  # type: ignore[attr-defined]  # a module made here
        monkeypatch.setitem(sys.modules, "ascend_dump.cli.explain", module)

    return put


def raising(error: BaseException) -> Any:
    def body(as_json: bool) -> None:
        raise error

    return body


EXPECTED = {
    "AscendDumpError": 70,
    "ConfigError": 2,
    "AdapterError": 4,
    "AdapterNotFound": 4,
    "FrameworkMissing": 4,
    "NotSupported": 4,
    "CaptureError": 2,
    "ReadError": 3,
    "CorruptDump": 3,
    "UnknownFormat": 3,
    "DumpNotFound": 3,
    "StorageError": 3,
    "WorkerLost": 4,
    "WriteError": 2,
}


def test_every_error_has_an_exit_code() -> None:
    assert EXPECTED.keys() == set(ERRORS)
    assert {int(code) for code in Exit} == {0, 1, 2, 3, 4, 5, 70, 130, 141}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_told_without_a_traceback(
    verb: Any, capsys: pytest.CaptureFixture[str], name: str, as_json: bool
) -> None:
    error = ERRORS[name]("steps are wrong", hint="write 0|1")
    verb(raising(error))
    code = main(["explain", "--json"] if as_json else ["explain"])
    out, err = capsys.readouterr()
    assert code == EXPECTED[name]
    assert "Traceback" not in err
    assert "steps are wrong" in err
    assert "Hint: " in err
    if as_json:
        document = json.loads(out)
        assert document["schema"] == "ascend-dump/error/1"
        assert document["exit"] == code
        assert document["error"]["type"] == name
        assert document["error"]["hint"] == "write 0|1"
        assert document["error"]["code"] == error.code
    else:
        assert out == ""


def test_a_fault_of_ours_says_how_to_report_it(verb: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(ZeroDivisionError("division by zero")))
    assert main(["explain", "--json"]) == Exit.INTERNAL
    out, err = capsys.readouterr()
    assert "internal error: ZeroDivisionError: division by zero" in err
    assert ascend_dump.__version__ in err
    assert "ascend-dump --debug" in err
    assert "Traceback" not in err
    assert json.loads(out)["error"] == {"type": "ZeroDivisionError", "message": "division by zero"}


@pytest.mark.parametrize("arguments", [["doctor"], ["check", "FILE"]])
def test_a_working_directory_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    file = tmp_path / "acl.json"
    file.write_text('{"dump": {"dump_path": "d", "dump_mode": "all"}}')
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main([str(file) if one == "FILE" else one for one in arguments]) == Exit.USAGE
    err = capsys.readouterr().err
    assert "the working directory of this shell was removed" in err
    assert "internal error" not in err


def test_a_missing_dependency_is_named(verb: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(ModuleNotFoundError("No module named 'msgspec.json'", name="msgspec.json")))
    assert main(["explain"]) == Exit.UNAVAILABLE
    _, err = capsys.readouterr()
    assert "the package msgspec is not installed in the environment of " in err
    assert "Hint: install ascend-dump anew" in err
    assert "internal error" not in err

    verb(raising(ModuleNotFoundError("No module named 'ascend_dump.gone'", name="ascend_dump.gone")))
    assert main(["explain"]) == Exit.INTERNAL


@pytest.mark.parametrize("road", ["--debug", "environment"])
def test_debugging_shows_the_traceback(
    verb: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, road: str
) -> None:
    verb(raising(ascend_dump.ConfigError("steps are wrong")))
    if road == "environment":
        monkeypatch.setenv("ASCEND_DUMP_LOG", "debug")
    assert main(["--debug", "explain"] if road == "--debug" else ["explain"]) == Exit.USAGE
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.rstrip().endswith("error: steps are wrong [AD101]")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lss"], "no verb 'lss'; did you mean `ls`?"),
        (["zzzzz"], "no verb 'zzzzz'; verbs: "),
        (["--nonsense"], "--nonsense"),
        (["ls", "--nonsense"], "--nonsense"),
        (["show", "--limit", "-1"], "--limit"),
        (["stats", "--sort", "colour"], "colour"),
        (["ls", "one", "two"], "two"),
        (["explain", "AD101", "AD102"], "AD102"),
        (["compare", "one", "two", "--local", "--align", "tokens"], "--local takes no --align"),
        (["triage", "one", "two", "--quantised", "--workers", "2"], "--quantised takes no --workers"),
        (["triage", "one", "two", "--quantised", "--ignore", "exp"], "--quantised takes no --ignore"),
    ],
    ids=" ".join,
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    assert main(arguments) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert main([*arguments, "--json"]) == Exit.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["exit"] == 2
    assert text in document["error"]["message"]


def test_json_after_the_separator_belongs_to_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lss", "--", "--json"]) == Exit.USAGE
    assert capsys.readouterr().out == ""


def test_no_verb_is_wrong_usage_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: ascend-dump ")


@pytest.mark.parametrize("option", ["-v", "--version"])
def test_version(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert main([option]) == Exit.OK
    assert capsys.readouterr().out == f"ascend-dump {ascend_dump.__version__}\n"


#: By their files; `compare_weights.py` is the verb `compare-weights`.
VERB_NAMES = sorted(path.stem.replace("_", "-") for path in CLI.glob("*.py") if not path.stem.startswith("_"))


def test_help_lists_the_verbs_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == Exit.OK
    out = capsys.readouterr().out
    present = set(VERB_NAMES)
    assert {"ls", "show", "stats", "explain", "completion"} <= present
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if re.match(r"  [a-z]", line)}
    assert present <= rows.keys(), "a new verb belongs into one of the groups of --help"
    assert all(rows[name] for name in present), "each with a line on what it does"
    for code in Exit:
        assert f"\n  {int(code)} " in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("name", VERB_NAMES)
def test_every_verb_has_help_and_speaks_json(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main([name, "-h"]) == Exit.OK
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: ascend-dump {name} ")
    assert "--json" in out or name == "completion"


# A verb that cannot be loaded


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the import of one verb fail."""

    def put(name: str, error: Exception) -> None:
        class Broken(Loader):
            def exec_module(self, module: types.ModuleType) -> None:
                raise error

        class Finder(MetaPathFinder):
            def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
                return ModuleSpec(fullname, Broken()) if fullname == f"ascend_dump.cli.{name}" else None

        monkeypatch.delitem(sys.modules, f"ascend_dump.cli.{name}", raising=False)
        monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])

    return put


def test_a_verb_that_cannot_be_loaded_does_not_hide_the_others(broken: Any, capsys: pytest.CaptureFixture[str]) -> None:
    broken("stats", ModuleNotFoundError("No module named 'polars'", name="polars"))
    assert main(["--help"]) == Exit.OK
    out = capsys.readouterr().out
    assert "(not available: needs polars)" in out
    assert "List the operators" in out
    assert main(["stats", "some", "--op", "x"]) == Exit.UNAVAILABLE
    err = capsys.readouterr().err
    assert "`ascend-dump stats` cannot be loaded: needs polars" in err
    assert "pip install 'ascend-dump[all]'" in err
    assert main(["stats", "--help"]) == Exit.OK
    assert "Not available here: needs polars." in capsys.readouterr().out


def test_a_verb_with_a_fault_does_not_hide_the_others(broken: Any, capsys: pytest.CaptureFixture[str]) -> None:
    broken("stats", NameError("name 'x' is not defined"))
    assert main(["--help"]) == Exit.OK
    assert "(not available: NameError" in capsys.readouterr().out
    assert main(["stats"]) == Exit.INTERNAL
    assert "name 'x' is not defined" in capsys.readouterr().err


# What a shell does to a process


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ascend_dump", *arguments]


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND_DUMP", "_ASCEND"))}
    return {**clean, "PYTHONPATH": str(ROOT), **more}


def test_ctrl_c(verb: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for error in (KeyboardInterrupt(), click.Abort()):
        verb(raising(error))
        assert main(["explain"]) == Exit.INTERRUPTED
        out, err = capsys.readouterr()
        assert (out, err.strip()) == ("", "")


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="pipes close differently there")
@pytest.mark.parametrize("verb", ["", "run", "ls"])
def test_help_texts_need_no_docstrings(verb: str, tmp_path: Path) -> None:
    texts = []
    for switch in ("-OO", "-B"):
        words = [sys.executable, switch, "-m", "ascend_dump", *verb.split(), "--help"]
        done = subprocess.run(words, capture_output=True, text=True, env=environment(), cwd=tmp_path, check=True)
        texts.append(done.stdout)
    assert texts[0] == texts[1]


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    """The reader is gone before the first byte, so writing fails for certain."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command("explain"), stdout=write, stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (Exit.PIPE_CLOSED, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no file is always full there")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("--version", Exit.USAGE, ""),
        ("explain", Exit.USAGE, ""),
        ("explain --json", Exit.USAGE, ""),
        ("explain --json --debug", Exit.USAGE, ""),
        ("ls missing --json", Exit.UNREADABLE, "no such file or directory [AD403]"),
        ("lss --json", Exit.USAGE, "no verb 'lss'"),
    ],
)
def test_a_stdout_that_is_full_is_told(arguments: str, code: int, told: str, unbuffered: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(*arguments.split()),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(PYTHONUNBUFFERED=unbuffered),
            cwd=tmp_path,
        )
    assert done.returncode == code
    assert told in done.stderr
    assert done.stderr.count("error: the output cannot be written: No space left on device [AD501]\n") == 1
    assert ("Traceback" in done.stderr) is ("--debug" in arguments)
    assert "internal error" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_closed_pipe_leaves_the_output_of_a_caller_alone(verb: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(BrokenPipeError(32, "Broken pipe")))
    assert main(["explain"]) == Exit.PIPE_CLOSED
    print("still there")
    assert capsys.readouterr().out == "still there\n"


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
@pytest.mark.parametrize(("closing", "arguments", "code"), [(">&-", "explain", 0), ("2>&-", "ls missing", 3)])
def test_closed_streams_change_nothing(tmp_path: Path, closing: str, arguments: str, code: int) -> None:
    line = f'"{sys.executable}" -m ascend_dump {arguments} {closing}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    done = subprocess.run(
        command("ls", "größe"), capture_output=True, env=environment(PYTHONIOENCODING="ascii"), cwd=tmp_path
    )
    assert done.returncode == Exit.UNREADABLE
    assert rb"gr\xf6\xdfe: no such file or directory [AD403]" in done.stderr


def test_completion_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == Exit.USAGE
    assert "csh" in capsys.readouterr().err
    for shell, mark in (("zsh", "#compdef ascend-dump"), ("fish", "complete --no-files --command ascend-dump")):
        assert main(["completion", shell]) == Exit.OK
        out = capsys.readouterr().out
        assert mark in out
        assert "_ASCEND_DUMP_COMPLETE" in out


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_accepts_the_completion_script(tmp_path: Path) -> None:
    script = subprocess.run(command("completion", "bash"), capture_output=True, text=True, env=environment())
    assert script.returncode == 0
    checked = subprocess.run(["bash", "-n"], input=script.stdout, text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "complete -o nosort -F" in script.stdout


@pytest.mark.parametrize(
    ("words", "place", "expected"),
    [
        ("ascend-dump s", 1, {"selftest", "serve", "show", "stats"}),
        ("ascend-dump ls --op-", 2, {"--op-type"}),
        ("ascend-dump explain ad40", 2, {"AD400", "AD401", "AD402", "AD403", "AD404", "AD405", "AD406"}),
        ("ascend-dump stats --sort l2", 3, {"l2norm"}),
    ],
)
def test_shells_complete_verbs_options_and_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, place: int, expected: set[str]
) -> None:
    for name, value in {"_ASCEND_DUMP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": place}.items():
        monkeypatch.setenv(name, str(value))
    assert main([]) == Exit.OK
    found = {line.partition(",")[2] for line in capsys.readouterr().out.splitlines()}
    assert found == expected


def test_debug_logs_to_stderr() -> None:
    code = (
        "import logging, sys; from ascend_dump.cli import main; code = main(['--debug', 'explain', 'AD101'])\n"
        "logging.getLogger('ascend_dump').debug('detail 7'); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 0
    assert "detail 7" in done.stderr
    assert "detail" not in done.stdout

"""ASCEND_DUMP in real interpreters: every road, every kind of child, every way to get it wrong."""

from __future__ import annotations

import ast
import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from interpreters import HOOK_FILES, STARTUP, Interpreter, make_interpreter
from places import REPOSITORY

import ascend_dump

SITE = STARTUP / "site"

#: Imports the framework in the function, so that the parent need not have it.
PROGRAM = """
import multiprocessing, os, subprocess, sys

def work():
    import numpy as np
    import toyframe

    def double(value):
        return value * 2

    network = toyframe.Network(first=double, second=np.sqrt)
    for _ in range(2):
        result = network(np.arange(4, dtype=np.float32))
    print(result.tolist(), flush=True)

def in_multiprocessing(method):
    child = multiprocessing.get_context(method).Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)

def in_os_fork():
    child = os.fork()
    if not child:
        work()
        sys.exit(0)
    sys.exit(os.waitpid(child, 0)[1])

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "imported first":
        import toyframe
        how = "fork"
    if how == "main":
        work()
    elif how == "os.fork":
        in_os_fork()
    elif how == "subprocess":
        sys.exit(subprocess.call([sys.executable, __file__, "main"]))
    else:
        in_multiprocessing(how)
"""
RESULT = "[0.0, 1.4142135381698608, 2.0, 2.4494898319244385]\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def ops(path: Path) -> list[tuple[int, str]]:
    """(step, operator) of the outputs, over all processes."""
    return sorted((record.step or 0, record.op_name) for record in ascend_dump.open(path).select(io="output"))


def states(path: Path) -> list[str]:
    """What the manifests of processes that ran the network say about their end."""
    manifests = {parent / "manifest.json" for record in ascend_dump.open(path) for parent in record.path.parents}
    return [json.loads(manifest.read_text())["state"] for manifest in manifests if manifest.exists()]


BOTH_STEPS = [(0, "first"), (0, "second"), (1, "first"), (1, "second")]


def say(interpreter: Interpreter, code: str, *flags: str, **environment: Any) -> str:
    """What a piece of code prints, which must not fail or complain."""
    done = interpreter.run(*flags, "-c", textwrap.dedent(code), **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class TestUnset:
    @pytest.mark.parametrize("value", [None, ""])
    def test_not_one_module_more_is_loaded(
        self, interpreter: Interpreter, bare_interpreter: Interpreter, value: Any
    ) -> None:
        code = "import sys; print(sorted(sys.modules))"
        assert say(interpreter, code, ASCEND_DUMP=value) == say(bare_interpreter, code)

    @pytest.mark.parametrize("value", ["0", "off", "OFF", " false ", "no"])
    def test_switched_off_it_loads_no_adapter_and_no_hook_library(self, interpreter: Interpreter, value: str) -> None:
        code = """
        import sys
        heavy = {"ascend_dump.adapter._contract", "ascend_dump.request", "wrapt", "importlib.metadata"}
        print(sorted(heavy & {*sys.modules}))
        """
        assert say(interpreter, code, ASCEND_DUMP=value) == "[]\n"

    def test_the_leaf_module_imports_only_os(self, interpreter: Interpreter, bare_interpreter: Interpreter) -> None:
        # From Python 3.15 on the .start entry is resolved even when ASCEND_DUMP is unset.
        entry = (STARTUP / "ascend_dump_startup.start").read_text()
        code = """
        import os, pkgutil, sys
        pkgutil.resolve_name("os:getcwd")  # imports re where that is done on first use
        before = set(sys.modules)
        pkgutil.resolve_name({entry!r}.strip())()
        print(sorted(set(sys.modules) - before))
        """
        assert say(interpreter, code.format(entry=entry)) == "['_ascend_dump_startup']\n"


def test_the_hook_line_is_pinned() -> None:
    # Scanners flag .pth files with code; a change of this line must be deliberate.
    line = b'import os; os.environ.get("ASCEND_DUMP") and __import__("_ascend_dump_startup").start()\n'
    assert (STARTUP / "ascend_dump_startup.pth").read_bytes() == line
    assert (STARTUP / "ascend_dump_startup.start").read_bytes() == b"_ascend_dump_startup:start\n"


def test_what_may_run_in_foreign_interpreters_keeps_to_old_syntax() -> None:
    source = (SITE / "sitecustomize.py").read_text()
    assert ast.parse(source, feature_version=(3, 6)).body


class TestProcesses:
    @pytest.mark.parametrize("how", ["main", "subprocess", "fork", "imported first", "os.fork", "spawn", "forkserver"])
    @pytest.mark.parametrize("road", ["hook", "run"])
    def test_each_dumps(
        self,
        interpreter: Interpreter,
        bare_interpreter: Interpreter,
        program: Path,
        tmp_path: Path,
        how: str,
        road: str,
    ) -> None:
        path = tmp_path / "dumps"
        if road == "hook":
            done = interpreter.run(str(program), how, ASCEND_DUMP=f"path={path},quiet=1")
        else:
            done = bare_interpreter.run(str(program), how, ASCEND_DUMP=f"path={path},quiet=1", PYTHONPATH=SITE)
        assert (done.returncode, done.stdout, done.stderr) == (0, RESULT, "")
        assert ops(path) == BOTH_STEPS
        assert states(path) == ["complete"]

    def test_the_request_is_honoured(self, interpreter: Interpreter, program: Path, tmp_path: Path) -> None:
        path = tmp_path / "dumps"
        settings = tmp_path / "dump.json"
        settings.write_text(f'{{"dump_path": "{path}", "dump_step": "1", "dump_mode": "output", "quiet": true}}')
        done = interpreter.run(str(program), "main", ASCEND_DUMP=settings)
        assert (done.stdout, done.stderr) == (RESULT, "")
        assert {(record.step, record.io) for record in ascend_dump.open(path)} == {(1, "output")}

    def test_one_means_the_defaults(self, interpreter: Interpreter, program: Path, tmp_path: Path) -> None:
        code = f"import os, runpy, sys; os.chdir({str(tmp_path)!r}); sys.argv = ['', 'main']"
        code += f"; runpy.run_path({str(program)!r}, run_name='__main__')"
        assert say(interpreter, code, ASCEND_DUMP="quiet=1") == RESULT
        assert ops(tmp_path / "dumps") == BOTH_STEPS

    def test_both_roads_together_dump_once(self, interpreter: Interpreter, program: Path, tmp_path: Path) -> None:
        path = tmp_path / "dumps"
        code = "import _ascend_dump_startup as hook, runpy, sys; hook.start(); sys.argv = ['', 'main']"
        code += f"; runpy.run_path({str(program)!r}, run_name='__main__'); hook.start()"
        assert say(interpreter, code, ASCEND_DUMP=f"path={path},quiet=1", PYTHONPATH=SITE) == RESULT
        assert ops(path) == BOTH_STEPS

    @pytest.mark.parametrize(("flag", "reached"), [("-E", True), ("-I", True), ("-S", False)])
    def test_flags_of_the_interpreter(
        self, interpreter: Interpreter, program: Path, tmp_path: Path, flag: str, reached: bool
    ) -> None:
        path = tmp_path / "dumps"
        code = "import sys; print('ascend_dump.startup.activation' in sys.modules)"
        assert say(interpreter, code, flag, ASCEND_DUMP=f"path={path},quiet=1") == f"{reached}\n"

    def test_a_framework_that_was_imported_before_is_armed_at_once(
        self, bare_interpreter: Interpreter, program: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "dumps"
        code = "import toyframe, runpy, sys; from ascend_dump.startup import activation; activation.start()"
        code += f"; sys.argv = ['', 'main']; runpy.run_path({str(program)!r}, run_name='__main__')"
        assert say(bare_interpreter, code, ASCEND_DUMP=f"path={path},quiet=1") == RESULT
        assert ops(path) == BOTH_STEPS


class TestSiteDirectories:
    def test_packages_of_a_later_site_directory_are_found(
        self, third_party: Path, dependencies: Path, program: Path, tmp_path: Path
    ) -> None:
        # A virtual environment over system packages: wrapt and the adapter come onto the path
        # after our .pth was processed.
        made = make_interpreter(tmp_path / "venv")
        made.add_paths("_paths.pth", REPOSITORY)
        made.add_paths("zz_later.pth", third_party, dependencies)
        for name in HOOK_FILES:
            shutil.copy(STARTUP / name, made.site)
        path = tmp_path / "dumps"
        done = made.run(str(program), "main", ASCEND_DUMP=f"path={path},quiet=1")
        assert (done.returncode, done.stdout, done.stderr) == (0, RESULT, "")
        assert ops(path) == BOTH_STEPS

    def test_the_users_sitecustomize_runs_after_the_hook(
        self, interpreter: Interpreter, program: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text("print('mine')")
        path = tmp_path / "dumps"
        done = interpreter.run(str(program), "main", ASCEND_DUMP=f"path={path},quiet=1", PYTHONPATH=tmp_path)
        assert (done.stdout, done.stderr) == ("mine\n" + RESULT, "")
        assert ops(path) == BOTH_STEPS

    def test_a_site_directory_added_by_the_program(
        self, bare_interpreter: Interpreter, program: Path, tmp_path: Path
    ) -> None:
        added = tmp_path / "added"
        added.mkdir()
        for name in HOOK_FILES:
            shutil.copy(STARTUP / name, added)
        path = tmp_path / "dumps"
        code = f"import site, runpy, sys; site.addsitedir({str(added)!r}); sys.argv = ['', 'main']"
        code += f"; runpy.run_path({str(program)!r}, run_name='__main__')"
        assert say(bare_interpreter, code, ASCEND_DUMP=f"path={path},quiet=1") == RESULT
        assert ops(path) == BOTH_STEPS

    def test_the_finder_that_waits_for_the_end_of_site_is_gone(self, interpreter: Interpreter, tmp_path: Path) -> None:
        code = "import sys; print([type(one).__name__ for one in sys.meta_path if 'AfterSite' in type(one).__name__])"
        assert say(interpreter, code, ASCEND_DUMP=f"path={tmp_path}") == "[]\n"


WRONG = {
    "the range runs backwards": "steps=5-3",
    "unknown setting 'stepz'": "stepz=3",
    "cannot be read": "/nowhere/dump.json",
    "is not name=value": "steps=0,rubbish",
}


class TestWrong:
    """One line on stderr and the program goes on; exit code 2 where strictness is asked for."""

    @pytest.mark.parametrize("reason", WRONG)
    def test_a_wrong_value(self, interpreter: Interpreter, program: Path, reason: str) -> None:
        done = interpreter.run(str(program), "main", ASCEND_DUMP=WRONG[reason])
        assert (done.returncode, done.stdout) == (0, RESULT)
        assert one_line(done.stderr).startswith(f"ascend-dump: ASCEND_DUMP={WRONG[reason]!r} is ignored: ")
        assert reason in done.stderr
        assert "^" not in done.stderr
        strict = interpreter.run(str(program), "main", ASCEND_DUMP=WRONG[reason], ASCEND_DUMP_STRICT="1")
        assert (strict.returncode, strict.stdout, strict.stderr) == (2, "", done.stderr)

    @pytest.mark.parametrize("road", ["hook", "run"])
    def test_strict_by_either_road(
        self, interpreter: Interpreter, bare_interpreter: Interpreter, program: Path, road: str
    ) -> None:
        made, path = (interpreter, None) if road == "hook" else (bare_interpreter, SITE)
        done = made.run(str(program), "main", ASCEND_DUMP="steps=x", ASCEND_DUMP_STRICT="1", PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (2, "")

    def test_every_adapter_is_disabled(self, interpreter: Interpreter, program: Path) -> None:
        done = interpreter.run(str(program), "main", ASCEND_DUMP="1", ASCEND_DUMP_DISABLED_ADAPTERS="*")
        assert (done.returncode, done.stdout) == (0, RESULT)
        assert "no registered adapter can dump a whole process" in one_line(done.stderr)

    def test_a_disabled_adapter_does_not_dump(self, interpreter: Interpreter, program: Path, tmp_path: Path) -> None:
        path = tmp_path / "dumps"
        disabled = " toy , other"
        done = interpreter.run(
            str(program), "main", ASCEND_DUMP=f"path={path},quiet=1", ASCEND_DUMP_DISABLED_ADAPTERS=disabled
        )
        assert (done.returncode, done.stdout) == (0, RESULT)
        assert not path.exists()

    def test_a_failing_adapter_does_not_fail_the_import(
        self, interpreter: Interpreter, program: Path, tmp_path: Path
    ) -> None:
        place = tmp_path / "file"
        place.write_text("")
        setting = f"path={place}"
        done = interpreter.run(str(program), "main", ASCEND_DUMP=setting)
        assert (done.returncode, done.stdout) == (0, RESULT)
        assert one_line(done.stderr).startswith("ascend-dump: nothing is dumped by the adapter 'toy': ")
        strict = interpreter.run(str(program), "main", ASCEND_DUMP=setting, ASCEND_DUMP_STRICT="1")
        assert (strict.returncode, strict.stdout) == (2, "")
        talking = "print('before')\nimport toyframe\nprint('after')"
        strict = interpreter.run("-c", talking, ASCEND_DUMP=setting, ASCEND_DUMP_STRICT="1")
        assert (strict.returncode, strict.stdout) == (2, "before\n")

    def test_a_broken_package_does_not_keep_the_others_from_dumping(
        self, interpreter: Interpreter, program: Path, tmp_path: Path
    ) -> None:
        info = tmp_path / "broken-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[ascend_dump.adapters]\nbroken = no_such_module:Adapter\n")
        path = tmp_path / "dumps"
        done = interpreter.run(str(program), "main", ASCEND_DUMP=f"path={path},quiet=1", PYTHONPATH=tmp_path)
        assert (done.returncode, done.stdout) == (0, RESULT)
        assert "the adapter 'broken' is left out" in one_line(done.stderr)
        assert ops(path) == BOTH_STEPS

    def test_without_wrapt(self, third_party: Path, dependencies: Path, program: Path, tmp_path: Path) -> None:
        (tmp_path / "wrapt.py").write_text("raise ImportError('no wrapt here')")
        made = make_interpreter(tmp_path / "venv")
        made.add_paths("_paths.pth", tmp_path, REPOSITORY, third_party, dependencies)
        for name in HOOK_FILES:
            shutil.copy(STARTUP / name, made.site)
        done = made.run(str(program), "main", ASCEND_DUMP="1")
        assert (done.returncode, done.stdout) == (0, RESULT)
        assert "no wrapt here" in one_line(done.stderr)

    def test_the_package_is_gone_and_its_hook_left_behind(self, tmp_path: Path) -> None:
        made = make_interpreter(tmp_path / "venv")
        for name in HOOK_FILES:
            shutil.copy(STARTUP / name, made.site)
        assert say(made, "print('fine')") == "fine\n"
        done = made.run("-c", "print('fine')", ASCEND_DUMP="1")
        assert (done.returncode, done.stdout) == (0, "fine\n")
        assert "the package cannot be imported" in one_line(done.stderr)
        (made.site / "_ascend_dump_startup.py").unlink()
        assert say(made, "print('fine')") == "fine\n"
        done = made.run("-c", "print('fine')", ASCEND_DUMP="1")
        assert (done.returncode, done.stdout) == (0, "fine\n")

    def test_stderr_is_closed(self, interpreter: Interpreter) -> None:
        code = "import os, sys; os.close(2); os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])"
        done = interpreter.run("-c", code, ASCEND_DUMP="steps=x")
        assert (done.returncode, done.stdout) == (0, "1\n")


class TestSitecustomize:
    """The road of `ascend-dump run`."""

    def test_the_users_sitecustomize_is_imported_as_if_ours_were_not_there(
        self, bare_interpreter: Interpreter, program: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text("import sys\nmarker = 'mine'\nsys.path.append('/added')")
        code = "import sys, sitecustomize; print(sitecustomize.marker, sys.path[-1])"
        path = f"{SITE}:{tmp_path}"
        assert say(bare_interpreter, code, PYTHONPATH=path) == "mine /added\n"
        # Two nested launches, one of them of another installation.
        other = tmp_path / "other"
        shutil.copytree(SITE, other)
        assert say(bare_interpreter, code, PYTHONPATH=f"{SITE}:{SITE}:{other}:{tmp_path}") == "mine /added\n"
        done = bare_interpreter.run(
            str(program), "main", ASCEND_DUMP=f"path={tmp_path / 'dumps'},quiet=1", PYTHONPATH=path
        )
        assert (done.stdout, done.stderr) == (RESULT, "")
        assert ops(tmp_path / "dumps") == BOTH_STEPS

    def test_without_one_of_the_user_ours_stays(self, bare_interpreter: Interpreter) -> None:
        code = "import sys, sitecustomize; print(sitecustomize.__file__)"
        assert say(bare_interpreter, code, PYTHONPATH=SITE) == f"{SITE / 'sitecustomize.py'}\n"

    def test_a_broken_one_of_the_user_is_told_as_ever_and_the_dump_goes_on(
        self, bare_interpreter: Interpreter, program: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text("raise ValueError('the mistake of the user')")
        path = tmp_path / "dumps"
        plain = bare_interpreter.run("-c", "", PYTHONPATH=tmp_path)
        done = bare_interpreter.run(
            str(program), "main", ASCEND_DUMP=f"path={path},quiet=1", PYTHONPATH=f"{SITE}:{tmp_path}"
        )
        assert "the mistake of the user" in plain.stderr
        assert (done.returncode, done.stdout, done.stderr) == (0, RESULT, plain.stderr)
        assert ops(path) == BOTH_STEPS

    def test_children_of_a_launcher_that_hands_on_sys_path(
        self, bare_interpreter: Interpreter, program: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "dumps"
        code = f"""
        import os, subprocess, sys
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        sys.exit(subprocess.call([sys.executable, {str(program)!r}, "main"], env=environment))
        """
        assert say(bare_interpreter, code, ASCEND_DUMP=f"path={path},quiet=1", PYTHONPATH=SITE) == RESULT
        assert ops(path) == BOTH_STEPS

    def test_an_interpreter_without_the_package_goes_on(self, tmp_path: Path) -> None:
        made = make_interpreter(tmp_path / "venv")
        assert say(made, "print('fine')", PYTHONPATH=SITE) == "fine\n"
        done = made.run("-c", "print('fine')", PYTHONPATH=SITE, ASCEND_DUMP="1")
        assert (done.returncode, done.stdout) == (0, "fine\n")
        assert str(made.python) in one_line(done.stderr)


def one_line(text: str) -> str:
    assert text.count("\n") == 1, text
    assert text.endswith("\n"), text
    return text


@pytest.mark.skipif(sys.version_info < (3, 15), reason="PEP 829 begins with Python 3.15")
def test_the_start_file_alone_arms(bare_interpreter: Interpreter, program: Path, tmp_path: Path) -> None:
    made = make_interpreter(tmp_path / "venv")
    shutil.copy(bare_interpreter.site / "paths.pth", made.site)
    for name in HOOK_FILES[1:]:
        shutil.copy(STARTUP / name, made.site)
    path = tmp_path / "dumps"
    done = made.run(str(program), "main", ASCEND_DUMP=f"path={path},quiet=1")
    assert (done.stdout, done.stderr) == (RESULT, "")
    assert ops(path) == BOTH_STEPS

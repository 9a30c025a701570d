"""The distributions that a user gets: built here without a network, installed by pip into fresh interpreters."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from interpreters import HOOK_FILES, THIRD_PARTY, Interpreter, make_interpreter
from places import REPOSITORY

import ascend_dump

_MISSING = [name for name in ("hatchling", "editables", "pip") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=f"needs {', '.join(_MISSING)}: see the dependency group test")

NETWORK = "import numpy as np, toyframe; print(toyframe.Network(first=np.sqrt)(np.arange(2.0)).tolist())"
RESULT = "[0.0, 1.0]\n"


class Built(NamedTuple):
    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


def build(source: Path, out: Path, target: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [made] = out.iterdir()
    return made


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("built")
    wheel, sdist = build(REPOSITORY, out / "wheel", "wheel"), build(REPOSITORY, out / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(out / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [source] = (out / "unpacked").iterdir()
    return Built(wheel, sdist, build(source, out / "again", "wheel"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def pip(made: Interpreter, *args: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(made.python), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def install(made: Interpreter, *what: str) -> None:
    pip(made, "install", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile", *what)


@pytest.fixture
def fresh(tmp_path: Path, dependencies: Path) -> Interpreter:
    """An interpreter that finds what we depend on, and pip and hatchling, but not ascend_dump."""
    made = make_interpreter(tmp_path / "venv")
    made.add_paths("zz_dependencies.pth", dependencies)
    return made


class TestFiles:
    def test_the_wheel_is_the_same_from_the_tree_and_from_the_sdist(self, built: Built) -> None:
        assert names(built.wheel) == names(built.wheel_of_sdist)

    def test_what_stands_at_the_root_of_site_packages(self, built: Built) -> None:
        adapters = {path.name for path in (REPOSITORY / "adapters").iterdir() if path.name.startswith("ascend_dump_")}
        found = {name.partition("/")[0] for name in names(built.wheel)}
        info = f"ascend_dump-{ascend_dump.__version__}.dist-info"
        assert found == {"ascend_dump", info, info.replace(".dist-info", ".data"), *HOOK_FILES, *adapters}

    def test_the_examples_that_a_page_for_authors_names_are_in_the_wheel(self, built: Built) -> None:
        page = (REPOSITORY / "ascend_dump" / "pages" / "topics" / "extend.md").read_text()
        examples = set(re.findall(r"`(examples/\w+)`", page))
        assert len(examples) == 2
        expected = {
            f"ascend_dump-{ascend_dump.__version__}.data/data/share/ascend-dump/{path.relative_to(REPOSITORY).as_posix()}"
            for example in examples
            for path in (REPOSITORY / example).iterdir()
            if path.name != "__pycache__"
        }
        assert {name for name in names(built.wheel) if ".data/" in name} == expected

    def test_every_file_of_the_packages_is_in_the_wheel(self, built: Built) -> None:
        expected = set()
        for root in (REPOSITORY / "ascend_dump", *(REPOSITORY / "adapters").glob("ascend_dump_*")):
            expected |= {
                path.relative_to(root.parent).as_posix()
                for path in root.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts
            }
        # The hook stands at the root of site-packages instead.
        assert expected - names(built.wheel) == {f"ascend_dump/startup/{name}" for name in HOOK_FILES}

    def test_the_readme_of_an_index_needs_nothing_beside_it(self, built: Built) -> None:
        with zipfile.ZipFile(built.wheel) as archive:
            text = archive.read(f"ascend_dump-{ascend_dump.__version__}.dist-info/METADATA").decode()
        assert "\n## Six tasks\n" in text
        assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")] == []

    def test_the_sdist_can_be_tested(self, built: Built) -> None:
        with tarfile.open(built.sdist) as archive:
            found = {name.partition("/")[2] for name in archive.getnames()}
        assert {"Makefile", "README.md", "LICENSE", "tests/conftest.py", "pyproject.toml"} <= found


def test_a_wheel_is_whole(built: Built, fresh: Interpreter, third_party: Path, tmp_path: Path) -> None:
    install(fresh, str(built.wheel))
    done = fresh.run("-c", "import ascend_dump; print(ascend_dump.__file__)")
    assert done.stdout == f"{fresh.site / 'ascend_dump' / '__init__.py'}\n"
    script = fresh.python.parent / "ascend-dump"
    assert fresh.run(str(script), "--help").returncode == 0
    assert "usable" in fresh.run(str(script), "doctor").stdout
    assert fresh.run(str(script), "explain", "AD101").stdout.startswith("# AD101")
    # The hook is there, dumps, and goes with the package.
    fresh.add_paths("zz_toy.pth", third_party)
    path = tmp_path / "dumps"
    done = fresh.run("-c", NETWORK, ASCEND_DUMP=f"path={path},quiet=1")
    assert (done.returncode, done.stdout, done.stderr) == (0, RESULT, "")
    assert len(ascend_dump.open(path)) == 2
    pip(fresh, "uninstall", "--yes", "ascend-dump")
    assert [name for name in HOOK_FILES if (fresh.site / name).exists()] == []
    done = fresh.run("-c", "print(1)", ASCEND_DUMP="1")
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_an_editable_installation_dumps_too(fresh: Interpreter, third_party: Path, tmp_path: Path) -> None:
    install(fresh, "--editable", str(REPOSITORY))
    done = fresh.run(
        "-c", "import ascend_dump, ascend_dump_torch as torch; print(ascend_dump.__file__, torch.__file__)"
    )
    roots = (REPOSITORY / "ascend_dump", REPOSITORY / "adapters" / "ascend_dump_torch")
    assert done.stdout.split() == [str(root / "__init__.py") for root in roots]
    assert [name for name in HOOK_FILES if not (fresh.site / name).is_file()] == []
    fresh.add_paths("zz_toy.pth", third_party)
    path = tmp_path / "dumps"
    done = fresh.run("-c", NETWORK, ASCEND_DUMP=f"path={path},quiet=1")
    assert (done.returncode, done.stdout, done.stderr) == (0, RESULT, "")
    assert len(ascend_dump.open(path)) == 2


def test_pip_install_target_is_reached_by_run(
    built: Built, fresh: Interpreter, third_party: Path, tmp_path: Path
) -> None:
    target, path = tmp_path / "target", tmp_path / "dumps"
    install(fresh, "--target", str(target), str(built.wheel))
    fresh.add_paths("zz_toy.pth", third_party)
    done = fresh.run("-c", NETWORK, ASCEND_DUMP=f"path={path},quiet=1", PYTHONPATH=target)
    assert (done.stdout, done.stderr, path.exists()) == (RESULT, "", False)
    assert "use `ascend-dump run`" in fresh.run("-m", "ascend_dump", "doctor", PYTHONPATH=target).stdout
    launch = ["-m", "ascend_dump", "run", "--quiet", "--path", str(path), "--"]
    done = fresh.run(*launch, str(fresh.python), "-c", NETWORK, PYTHONPATH=target)
    assert (done.returncode, done.stdout, done.stderr) == (0, RESULT, "")
    assert len(ascend_dump.open(path)) == 2


def test_a_third_party_adapter_needs_no_more_than_pip(built: Built, fresh: Interpreter, tmp_path: Path) -> None:
    install(fresh, str(built.wheel), str(THIRD_PARTY))
    told = fresh.run("-m", "ascend_dump", "doctor").stdout
    assert "usable: toyframe is installed, not imported yet [ascend-dump-toy 1.2.3]" in told
    path = tmp_path / "dumps"
    code = f"""
import ascend_dump, numpy, toyframe
network = toyframe.Network(first=numpy.sqrt)
with ascend_dump.capture(network, path={str(path)!r}, quiet=True) as cap:
    network(numpy.arange(2.0))
print(len(cap.dump()))
"""
    done = fresh.run("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")

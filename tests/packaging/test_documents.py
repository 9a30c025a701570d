"""Statements of documents about the tree, and the pages of `make docs`. Sphinx finds broken links."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import consoles
import pytest
from places import REPOSITORY

import ascend_dump
from ascend_dump.cli.shared.help_texts import explanations, topics

DOCS = REPOSITORY / ".ci" / "docs"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def lay_out() -> ModuleType:
    return _load("lay_out")


@pytest.mark.parametrize("module", [consoles, _load("docstrings"), _load("lay_out")])
def test_what_is_said_of_functions_holds(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_every_page_and_public_name_is_in_the_reference(lay_out: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("typing_extensions", reason="types of settings are made with it")
    lay_out.main(tmp_path)
    for page in explanations():
        assert f"\n{page.code}\n" in (tmp_path / "errors.md").read_text()
    index = (tmp_path / "index.md").read_text()
    for topic in topics():
        assert f"\ntopics/{topic.code}\n" in index
    described = (tmp_path / "api" / "ascend_dump.md").read_text()
    for name in set(ascend_dump.__all__) - {"__version__"}:
        assert re.search(rf"^\.\. auto(class|function):: ascend_dump\.{name}$", described, re.MULTILINE), name


def test_the_chinese_readme_has_the_headings_commands_and_topics_of_the_english_one() -> None:
    english, chinese = ((REPOSITORY / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
    for pattern in (r"^#+(?= )", r"^```.*?^```", r"^    [^\n]*$", r"^\| (`[a-z][^\n]*?) \|"):
        found = [re.findall(pattern, text, re.DOTALL | re.MULTILINE) for text in (english, chinese)]
        assert found[0] == found[1], pattern
    named = [set(re.findall(r"ascend-dump help ([a-z]+)", text)) for text in (english, chinese)]
    assert named[0] == named[1]


def test_readme_names_topics_that_exist() -> None:
    text = (REPOSITORY / "README.md").read_text()
    codes = {topic.code for topic in topics()}
    assert set(re.findall(r"`ascend-dump help ([a-z]+)`", text)) <= codes
    table = text.partition("| topic | |\n")[2]
    assert set(re.findall(r"`([a-z]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))) == {
        code for code in codes if not code.startswith("recipe-")
    }, "the recipes are listed in their own index"


def test_readme_links_to_nothing_beside_it() -> None:
    """On a package index there is nothing beside it; the picture is left out there."""
    links = re.findall(r"(?<!!)\[[^\]]*\]\(([^)]*)\)", (REPOSITORY / "README.md").read_text())
    assert [link for link in links if not link.startswith(("#", "https://"))] == []


def test_the_commands_of_examples_are_those_of_readme() -> None:
    """Commands that are run, in tests/examples/test_readme.py."""
    readme = (REPOSITORY / "README.md").read_text()
    found = 0
    for file in (REPOSITORY / "examples").glob("*/README.md"):
        for block in re.findall(r"^```console\n.*?^```", file.read_text(), re.DOTALL | re.MULTILINE):
            assert block in readme, file
            found += 1
    assert found


class TestVersions:
    """The page of versions says what the Makefile and the suites install."""

    PAGE = (REPOSITORY / "ascend_dump" / "pages" / "topics" / "versions.md").read_text()

    def row(self, what: str) -> str:
        (found,) = [line for line in self.PAGE.splitlines() if line.startswith(f"| {what}")]
        return found

    def test_python(self) -> None:
        makefile = (REPOSITORY / "Makefile").read_text()
        (oldest,), (newest,) = (
            re.findall(rf"^{name} := (.*)", makefile, re.MULTILINE) for name in ("OLDEST", "NEWEST")
        )
        (usual,) = re.findall(r"for python in python([\d.]+) python3", makefile)
        assert f"| {oldest}, {usual}, {newest} |" in self.row("Python")

    def test_pytorch(self) -> None:
        makefile = (REPOSITORY / "Makefile").read_text()
        (version,) = set(re.findall(r"torch==([\d.]+)", makefile))
        assert f"| {version} |" in self.row("PyTorch")

    @pytest.mark.parametrize(
        ("what", "suite", "package"),
        [
            ("PyTorch", "torch", "torch"),
            ("transformers", "torch", "transformers"),
            ("MindSpore", "mindspore", "mindspore"),
            ("TensorFlow", "tensorflow", "tensorflow"),
        ],
    )
    def test_of_suites(self, what: str, suite: str, package: str) -> None:
        pins = (REPOSITORY / "tests" / "real" / suite / "requirements.txt").read_text()
        (version,) = re.findall(rf"^{package}==(.*)$", pins, re.MULTILINE)
        assert re.search(rf"[| ]{re.escape(version)}[, ]", self.row(what))
        assert f"`make test-real-{suite}`" in self.row(what)

    @pytest.mark.parametrize(
        ("what", "file"), [("torchair", "torchair/conftest.py"), ("protobuf", "protobuf/test_versions.py")]
    )
    def test_that_suites_fetch(self, what: str, file: str) -> None:
        (line,) = re.findall(r"^VERSIONS = (.*)", (REPOSITORY / "tests" / "real" / file).read_text(), re.MULTILINE)
        versions = [
            version for version in re.findall(r'"([\d.]+|newest)"', line) if "." in version or version == "newest"
        ]
        assert f"| {', '.join(versions)} |" in self.row(what)

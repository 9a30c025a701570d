"""The exception tree, its codes and the pages that explain them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ascend_dump
from ascend_dump import AscendDumpError, ConfigError, CorruptDump, ReadError
from ascend_dump.cli.shared.help_texts import explanation, explanations

ROOT = Path(ascend_dump.__file__).parents[1]
CLASSES = [
    found
    for name in ascend_dump.__all__
    for found in (getattr(ascend_dump, name),)
    if isinstance(found, type) and issubclass(found, AscendDumpError)
]
BUILTINS = {
    "ConfigError": ValueError,
    "AdapterNotFound": LookupError,
    "FrameworkMissing": ImportError,
    "NotSupported": NotImplementedError,
    "CaptureError": RuntimeError,
    "CorruptDump": ValueError,
    "UnknownFormat": ValueError,
    "DumpNotFound": FileNotFoundError,
    "WriteError": OSError,
    "StorageError": OSError,
    "WorkerLost": RuntimeError,
}
CODE = re.compile(r"AD\d{3}")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_says_what_where_and_what_to_do(kind: type[AscendDumpError]) -> None:
    error = kind("steps='x' is wrong", hint="write 0|1")
    assert str(error) == f"steps='x' is wrong [{kind.default_code}]\nHint: write 0|1"
    assert CODE.fullmatch(error.code)
    assert (error.message, error.hint) == ("steps='x' is wrong", "write 0|1")
    assert isinstance(error, AscendDumpError)
    assert str(kind("bare")) == f"bare [{kind.default_code}]"
    assert kind("other", code="AD999").code == "AD999"


@pytest.mark.parametrize(("name", "builtin"), BUILTINS.items(), ids=BUILTINS)
def test_a_user_may_catch_the_builtin_instead(name: str, builtin: type[Exception]) -> None:
    kind = getattr(ascend_dump, name)
    with pytest.raises(builtin, match="gone wrong") as caught:
        raise kind("gone wrong", hint="mend it")
    assert "Hint: mend it" in str(caught.value)


def test_no_two_classes_share_a_code() -> None:
    codes = [kind.default_code for kind in CLASSES]
    assert len(set(codes)) == len(codes)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"── (\w+)(?: \((\w+)\))? +AD(\w{3})", sys.modules[AscendDumpError.__module__].__doc__ or "")
    assert {name for name, _, _ in drawn} == {kind.__name__ for kind in CLASSES} - {"AscendDumpError"}
    for name, builtin, digits in drawn:
        kind = getattr(ascend_dump, name)
        assert not builtin or BUILTINS[name].__name__ == builtin
        assert re.fullmatch(f"AD{digits.replace('x', '.')}", kind.default_code)


def test_read_errors_say_the_place(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    assert str(ReadError("cut off", path=file)).startswith(f"{file}: cut off")
    error = CorruptDump("cut off", path=file, offset=12)
    assert str(error).startswith(f"{file} at byte 12: cut off")
    assert (error.path, error.offset) == (file, 12)


def sources() -> Iterator[Path]:
    yield from (ROOT / "ascend_dump").rglob("*.py")
    yield from (ROOT / "adapters").rglob("*.py")


def codes_in_sources() -> dict[str, str]:
    """Each code that stands alone as text in the code, and one place where it does."""
    found = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                found[node.value] = f"{path.relative_to(ROOT)}:{node.lineno}"
    return found


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    used = codes_in_sources()
    pages = {one.code for one in explanations()}
    assert {code: where for code, where in used.items() if code not in pages} == {}, "codes without a page"
    assert pages - used.keys() == set(), "pages of codes that nothing uses"


@pytest.mark.parametrize("one", explanations(), ids=lambda one: one.code)
def test_a_page_has_a_title_symptom_cause_and_fix(one: object) -> None:
    code, title, text = one  # type: ignore[misc]  # a Page, which parametrize hides
    lines = text.splitlines()
    assert lines[0] == f"# {code}: {title}"
    assert len(title) > 5
    assert [line for line in lines if line.startswith("## ")] == ["## Symptom", "## Cause", "## Fix"]
    assert 10 <= len(lines) <= 25


def test_a_page_is_found_in_any_case_and_a_wrong_code_gets_the_nearest() -> None:
    assert explanation("ad102").code == "AD102"
    with pytest.raises(ConfigError, match="AD10"):
        explanation("AD10")
    for hostile in ("", "../__init__", "AD101.md", "AD101/../AD102", "\0"):
        with pytest.raises(ConfigError, match="no error has the code"):
            explanation(hostile)

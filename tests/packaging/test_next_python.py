"""Nothing is used that Python 3.14 removed, deprecates or warns of: there is no such interpreter to test with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from places import REPOSITORY

FILES = sorted(
    file for folder in ("ascend_dump", "adapters") for file in (REPOSITORY / folder).rglob("*.py") if file.is_file()
)
#: From "What's new in Python 3.14": removed, deprecated, or to be removed.
GONE = {
    *("ast.Num", "ast.Str", "ast.Bytes", "ast.NameConstant", "ast.Ellipsis"),
    *("asyncio.AbstractChildWatcher", "asyncio.get_event_loop_policy", "asyncio.set_event_loop_policy"),
    *("asyncio.iscoroutinefunction", "codecs.open", "collections.abc.ByteString", "typing.ByteString"),
    *("importlib.abc.ResourceReader", "importlib.abc.Traversable", "importlib.abc.TraversableResources"),
    *("importlib.abc.ResourceLoader", "locale.getdefaultlocale", "pkgutil.find_loader", "pkgutil.get_loader"),
    *("pty.master_open", "pty.slave_open", "sqlite3.version", "sqlite3.version_info", "urllib.parse.Quoter"),
    *(
        "symtable.Class",
        "functools.reduce.function",
        "typing.no_type_check_decorator",
        "sysconfig.expand_makefile_vars",
    ),
    *("importlib.machinery.DEBUG_BYTECODE_SUFFIXES", "importlib.machinery.OPTIMIZED_BYTECODE_SUFFIXES"),
}


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a program imports or reads, but for those of type checkers."""
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return
    if isinstance(tree, ast.ImportFrom) and tree.module:
        yield from (f"{tree.module}.{alias.name}" for alias in tree.names)
    elif isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.Attribute):
        yield ast.unparse(tree)
    for child in ast.iter_child_nodes(tree):
        yield from names(child)


def leaves_finally(tree: ast.AST, inside: bool = False) -> Iterator[int]:
    """Yield the lines of return, break and continue that leave a `finally`, of which Python 3.14 warns."""
    if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        inside = False
    if inside and isinstance(tree, (ast.Return, ast.Break, ast.Continue)):
        yield tree.lineno
    for field, children in ast.iter_fields(tree):
        for child in children if isinstance(children, list) else [children]:
            if isinstance(child, ast.AST):
                is_loop = isinstance(child, (ast.For, ast.While))
                yield from leaves_finally(child, (inside or field == "finalbody") and not is_loop)


@pytest.mark.parametrize("folder", ["ascend_dump", "adapters"])
def test_nothing_removed_is_used(folder: str) -> None:
    found = {}
    for file in FILES:
        if file.is_relative_to(REPOSITORY / folder):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            used = [*(GONE & set(names(tree))), *leaves_finally(tree)]
            if used:
                found[str(file.relative_to(REPOSITORY))] = used
    assert found == {}


SAMPLE = """
def g():
    try:
        pass
    finally:
        codecs.open
        def f():
            return
        for x in y:
            break
        if codecs:
            return
"""


def test_what_is_looked_for_is_found() -> None:
    tree = ast.parse(SAMPLE)
    assert GONE & set(names(tree)) == {"codecs.open"}
    assert list(leaves_finally(tree)) == [len(SAMPLE.splitlines())]

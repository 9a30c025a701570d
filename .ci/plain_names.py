"""Vague names and docstrings of clauses: plain_names.py ROOT... fails if a folder exceeds the limits.

The meaning of a vague name (`found`, `one`, `given`) has to be read from the code. A docstring begins with a verb or a
noun, and few of its words introduce clauses (`what`, `which`, `whose`, `whether`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

VAGUE = frozenset(
    (
        *("one", "other", "found", "given", "own", "told", "known", "made", "asked", "there", "here", "some", "more"),
        *("left", "wanted", "seen", "kept", "said", "held", "both", "others", "ones", "rest", "place", "places", "at"),
        "every",
    )
)
CLAUSES = frozenset(("what", "which", "whose", "whether"))
BEGINNINGS = CLAUSES | {"those", "how", "of"}

#: Shares of all names, and of all words in docstrings.
MOST_VAGUE, MOST_CLAUSES = 0.03, 0.01


class Folder(NamedTuple):
    """The counts of the names and the words of docstrings in the modules of a folder."""

    names: int
    vague: list[str]
    words: int
    clauses: int
    beginnings: list[str]

    def complaints(self) -> Iterator[str]:
        if len(self.vague) > MOST_VAGUE * self.names:
            yield f"{len(self.vague) / self.names:.1%} of its names are vague, such as {', '.join(self.vague[:5])}"
        if self.clauses > MOST_CLAUSES * self.words:
            yield f"{self.clauses / self.words:.1%} of the words in docstrings are what, which, whose or whether"
        yield from (
            f"the docstring at {where} begins with a clause: begin with a verb or a noun" for where in self.beginnings
        )


def measure(folder: Path) -> Folder:
    counted = Folder(0, [], 0, 0, [])
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = list(bound_names(tree))
        texts = list(docstrings(tree))
        words = [word for text, _ in texts for word in re.findall(r"[a-z]+", text.lower())]
        counted = Folder(
            counted.names + len(names),
            counted.vague + [f"{name} ({path}:{line})" for name, line in names if name.strip("_") in VAGUE],
            counted.words + len(words),
            counted.clauses + sum(word in CLAUSES for word in words),
            counted.beginnings
            + [f"{path}:{line}" for text, line in texts if re.split(r"\W", text, maxsplit=1)[0].lower() in BEGINNINGS],
        )
    return counted


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def docstrings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text, getattr(node, "lineno", 1)


def main(roots: list[str]) -> int:
    folders = sorted({path.parent for root in roots for path in Path(root).rglob("*.py")})
    complaints = [f"{folder}: {complaint}" for folder in folders for complaint in measure(folder).complaints()]
    print("\n".join(complaints) or f"names and docstrings are plain in {len(folders)} folders")
    return 1 if complaints or not folders else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Names and docstrings that say little: plain_names.py ROOT... fails if a folder has more of them than it may.

A vague name (`found`, `one`, `given`) sends a reader to the code to learn what it is bound to. A docstring is to begin
with a verb or a noun, and few of its words introduce clauses (`what`, `which`, `whose`, `whether`).
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


#: Folders that are still to be rewritten. A folder leaves the list once it is plain, and stays plain.
NOT_YET = frozenset(
    (
        "ascend_dump/cli/demo_program",
        "ascend_dump/fakes",
        "ascend_dump/fakes/acl",
        "ascend_dump/fakes/device",
        "ascend_dump/fakes/kernels",
        "ascend_dump/fakes/mindspore",
        "ascend_dump/fakes/npu_bridge",
        "ascend_dump/fakes/npu_device",
        "ascend_dump/fakes/tensorflow",
        "ascend_dump/fakes/torch_npu",
        "ascend_dump/fakes/torchair",
        "ascend_dump/native",
        "ascend_dump/native/cann/config",
        "ascend_dump/native/mindspore/config",
        "ascend_dump/native/tensorflow",
        "ascend_dump/native/tensorflow/config",
        "ascend_dump/native/torchair",
        "ascend_dump/native/torchair/config",
        "ascend_dump/report",
        "ascend_dump/report/page",
        "ascend_dump/selftest",
        "ascend_dump/selftest/programs",
    )
)


class Folder(NamedTuple):
    """What is counted in the modules of a folder."""

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


def first_word(text: str) -> str:
    return re.split(r"\W", text, maxsplit=1)[0].lower()


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
    complaints = []
    for folder in sorted({path.parent for root in roots for path in Path(root).rglob("*.py")}):
        of_folder = [f"{folder}: {complaint}" for complaint in measure(folder).complaints()]
        if str(folder) not in NOT_YET:
            complaints += of_folder
        elif not of_folder:
            complaints.append(f"{folder}: it is plain now: take it out of NOT_YET")
    print("\n".join(complaints) or f"names and docstrings are plain, but for {len(NOT_YET)} folders in NOT_YET")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

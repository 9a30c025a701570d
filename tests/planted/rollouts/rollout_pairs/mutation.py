"""Copies of source files with one planted fault, loaded as modules beside the original."""

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

#: The end of a line that has the fault.
MARK = "# planted"

_numbers = itertools.count()


def mutate(module: str, changes: Sequence[tuple[str, str]], folder: Path) -> ModuleType:
    """Return a copy of a module in which each old text, which occurs once, is replaced.

    An old text may begin with "Class:: " to stand behind the line that defines this class or function.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"{module} has no source")
    text = Path(spec.origin).read_text(encoding="utf-8")
    for old, new in changes:
        scope, has_scope, rest = old.partition(":: ")
        start = 0
        if has_scope:
            old = rest
            start = min(p for p in (text.find(f"class {scope}("), text.find(f"def {scope}(")) if p >= 0)
        elif text.count(old) != 1:
            raise ValueError(f"{module} has {text.count(old)} times {old!r}")
        place = text.find(old, start)
        if place < 0:
            raise ValueError(f"{module} lacks {old!r}")
        text = text[:place] + new + text[place + len(old) :]
    package, _, name = module.rpartition(".")
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    # A number in the name: a module of another case stays as it was.
    copy = importlib.util.spec_from_file_location(f"{package}.{name}_{next(_numbers)}", path)
    assert copy is not None
    assert copy.loader is not None
    loaded = importlib.util.module_from_spec(copy)
    sys.modules[copy.name] = loaded
    copy.loader.exec_module(loaded)
    return loaded

"""Import modules of a fake only when the program imports them: a function then fills each module."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Callable, Optional

__all__ = ["MARK", "Fill", "Importer", "leave_empty"]

#: The attribute that marks a module as fake.
MARK = "__ascend_dump_fake__"

#: A function that adds the content to a new, empty module.
Fill = Callable[[ModuleType], None]


def leave_empty(module: ModuleType) -> None:
    """Add nothing to the module: a package that contains only submodules."""


class Importer:
    """A finder and loader of fake modules. fills: the function that fills each module, by the name of the module.

    `insert` adds it to `sys.meta_path` directly before Python's finder of files. So it is behind the finders of import
    hooks, and hooks for the import of a framework also run for its fake.
    """

    def __init__(self, fills: Mapping[str, Fill]) -> None:
        self._fills = fills

    def insert(self) -> None:
        finders = sys.meta_path
        # Before the importers of outer installations: the newest installation takes precedence.
        later = (index for index, finder in enumerate(finders) if finder is PathFinder or isinstance(finder, Importer))
        finders.insert(next(later, len(finders)), self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name not in self._fills:
            return None
        packages = {module_name.rpartition(".")[0] for module_name in self._fills}
        return ModuleSpec(name, self, is_package=name in packages)  # type: ignore[arg-type]  # it has a loader's methods

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        return None

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, MARK, True)
        self._fills[module.__name__](module)

"""Modules of a fake that are filled at the import, as modules of a real framework run at the import."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Callable, Optional

__all__ = ["MARK", "Fill", "Importer", "leave_empty"]

#: The attribute of fake modules.
MARK = "__ascend_dump_fake__"

#: Fills a new module.
Fill = Callable[[ModuleType], None]


def leave_empty(module: ModuleType) -> None:
    """Fill a package that contains only submodules."""


class Importer:
    """A finder and loader: name -> the function that fills the module.

    `insert` adds it directly before the finder of files and after the finders of import hooks, so that hooks of a
    framework's import run for its fake too.
    """

    def __init__(self, fills: Mapping[str, Fill]) -> None:
        self._fills = fills

    def insert(self) -> None:
        finders = sys.meta_path
        # Before those of the installations around this one.
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
        return ModuleSpec(name, self, is_package=name in packages)  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        return None

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, MARK, True)
        self._fills[module.__name__](module)

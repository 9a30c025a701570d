"""Modules of a fake that are filled when the program imports them, as those of a real framework run then."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Callable, Optional

__all__ = ["MARK", "Fill", "Importer"]

#: The attribute that tells a fake module from a real one.
MARK = "__ascend_dump_fake__"

#: Gives a new module its content.
Fill = Callable[[ModuleType], None]


class Importer:
    """A finder and loader: name -> the function that fills the module.

    It is placed directly before the finder of files, after those that watch imports, so that hooks
    which wait for a framework's import are called for its fake too.
    """

    def __init__(self, fills: Mapping[str, Fill]) -> None:
        self._fills = fills

    def insert(self) -> None:
        place = next((at for at, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path))
        sys.meta_path.insert(place, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name not in self._fills:
            return None
        packages = {known.rpartition(".")[0] for known in self._fills}
        return ModuleSpec(name, self, is_package=name in packages)  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        return None

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, MARK, True)
        self._fills[module.__name__](module)

"""Find conflicts between the versions of installed distributions and their requirements."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib import metadata
from typing import Any, Callable, Optional

__all__ = ["conflicts"]


def conflicts(distributions: Iterable[str]) -> Optional[list[str]]:
    """Return one line for each requirement of these distributions that another of them does not meet.

    None if no library to parse requirements is installed; pip contains such a library.
    """
    parse = _parser()
    if parse is None:
        return None
    installed = {
        name: distribution for name in distributions for distribution in [_find(name)] if distribution is not None
    }
    versions = {_normal(name): distribution.version for name, distribution in installed.items()}
    lines = []
    for name, distribution in installed.items():
        for text in distribution.requires or ():
            try:
                requirement = parse(text)
            except ValueError:  # an old distribution, whose requirement does not follow the current syntax
                continue
            version = versions.get(_normal(requirement.name))
            is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if version is not None and is_needed and not requirement.specifier.contains(version, prereleases=True):
                needs = f"{requirement.name}{requirement.specifier}"
                lines.append(
                    f"{name} {distribution.version} needs {needs}, but {requirement.name} {version} is installed"
                )
    return lines


def _parser() -> Optional[Callable[[str], Any]]:
    for module in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            parse: Callable[[str], Any] = importlib.import_module(module).Requirement
        except ImportError:
            continue
        return parse
    return None


def _find(name: str) -> Optional[metadata.Distribution]:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")

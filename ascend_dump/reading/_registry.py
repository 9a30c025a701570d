"""The registered dialects: first the dialects of this package, then the dialects of other packages."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import NamedTuple

from ascend_dump.common.entry_points import distribution_of, entry_points_of
from ascend_dump.reading._dialect import Dialect
from ascend_dump.reading._third_party import ThirdPartyDialect
from ascend_dump.reading.dialects import BUILT_IN

__all__ = ["DialectInfo", "dialects", "registered_dialects"]

GROUP = "ascend_dump.dialects"

log = logging.getLogger("ascend_dump")


class DialectInfo(NamedTuple):
    """The name of a dialect, and the installed package that registers it; "" for the dialects of ascend_dump."""

    name: str
    distribution: str = ""
    version: str = ""


def registered_dialects() -> list[DialectInfo]:
    """Return all dialects in order of priority. Imports none of them."""
    infos = [DialectInfo(name) for name in BUILT_IN]
    for name, entry in sorted(entry_points_of(GROUP).items()):
        origin = distribution_of(entry)
        infos.append(DialectInfo(name, origin.metadata["Name"], origin.version) if origin else DialectInfo(name, "?"))
    return infos


def dialects() -> list[Dialect]:
    """Import all dialects and return them in order of priority. A dialect that fails is left out with a warning."""
    loaded: list[Dialect] = [import_module(f"ascend_dump.reading.dialects.{name}").DIALECT for name in BUILT_IN]
    for name, entry in sorted(entry_points_of(GROUP).items()):
        try:
            loaded.append(ThirdPartyDialect(name, entry.load()))
        except (Exception, SystemExit) as error:  # importing a module of another package may raise anything
            log.warning("the dialect %s (%s) cannot be loaded, its files are not read: %r", name, entry.value, error)
    return loaded

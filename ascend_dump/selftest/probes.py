"""Every probe by its name, and running them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Callable

from ascend_dump.errors import AscendDumpError
from ascend_dump.selftest import (
    probes_captured,
    probes_engine,
    probes_exceptions,
    probes_files,
    probes_frameworks,
    probes_interface,
    probes_offline,
    probes_overflow,
)
from ascend_dump.selftest.assumptions import Outcome

if TYPE_CHECKING:
    from ascend_dump.selftest.evidence import Evidence

__all__ = ["PROBES", "run_probes"]

_MODULES = (
    *(probes_files, probes_overflow, probes_interface, probes_frameworks),
    *(probes_offline, probes_engine, probes_exceptions, probes_captured),
)
#: Each probe uses the evidence only, so it can be run again on evidence that a user has sent.
PROBES: Mapping[str, Callable[[Evidence], Outcome]] = MappingProxyType(
    {name: getattr(module, name) for module in _MODULES for name in module.__all__}
)


def run_probes(evidence: Evidence) -> dict[str, Outcome]:
    """The outcome of each probe. If a file cannot be read, the outcome is unknown, not refuted."""
    found = {}
    for name, probe in PROBES.items():
        try:
            found[name] = probe(evidence)
        except (AscendDumpError, OSError) as error:
            found[name] = Outcome("unknown", f"{type(error).__name__}: {error}")
    return found

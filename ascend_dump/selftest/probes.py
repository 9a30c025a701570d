"""All probes by name, collected from the modules `probes_*`, and a function that runs them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ascend_dump.errors import AscendDumpError
from ascend_dump.selftest import (
    probes_captured,
    probes_eager,
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
    from ascend_dump.selftest.evidence import Evidence, Probe

__all__ = ["PROBES", "run_probes"]

_MODULES = (
    *(probes_files, probes_overflow, probes_interface, probes_frameworks),
    *(probes_offline, probes_engine, probes_exceptions, probes_captured, probes_eager),
)
#: Probes read nothing but the evidence. So they can be run again on the evidence that a user has sent.
PROBES: Mapping[str, Probe] = MappingProxyType(
    {name: probe for module in _MODULES for name, probe in module.PROBES.items()}
)


def run_probes(evidence: Evidence) -> dict[str, Outcome]:
    """Return the outcome of each probe by its name. If a probe cannot read a file, its outcome is "unknown"."""
    outcomes = {}
    for name, probe in PROBES.items():
        try:
            outcomes[name] = probe(evidence)
        except (AscendDumpError, OSError) as error:
            outcomes[name] = Outcome("unknown", f"{type(error).__name__}: {error}")
    return outcomes

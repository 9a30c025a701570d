"""Probes of GE's session options, from the notes of a program that opened GE with one set of options after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import judge_fact

if TYPE_CHECKING:
    from ascend_dump.selftest.evidence import Evidence

__all__ = [
    "acl_outranks_options",
    "data_unchecked",
    "debug_without_mode",
    "overflow_modes",
    "step_range",
    "steps_on_the_device",
    "symlink",
    "watch_collective",
    "watch_static",
]

#: Beginnings of the names of devices with one mode of overflow detection.
_ONE_MODE = ("Ascend910B", "Ascend910_93")
#: The steps, of five, that a device reads from texts which GE's own check refuses.
_READ_LOOSELY = {"3-1": ["1", "2", "3"], "1||3": ["1", "3"], " 2 ": ["2"]}


def data_unchecked(evidence: Evidence) -> Outcome:
    """The suffixes of the files where the kind of data was "statistics"."""
    return judge_fact(evidence, "data_unchecked", [""])


def debug_without_mode(evidence: Evidence) -> Outcome:
    """The records of an overflow without a mode, where the mode all has some; -1 where that is refused."""
    found = evidence.facts.get("detected")
    if found is None:
        return judge_fact(evidence, "detected", found)
    return Outcome("refuted" if found[""] else "confirmed", f"records by mode: {found}")


def overflow_modes(evidence: Evidence) -> Outcome:
    """The records of an overflow with the other modes, on a device that has none but all."""
    found, soc = evidence.facts.get("detected"), evidence.facts.get("soc")
    if found is None:
        return judge_fact(evidence, "detected", found)
    if not str(soc).startswith(_ONE_MODE):
        return Outcome("unknown", f"the device is {soc or 'not known'}, which may have other modes")
    others = {mode: number for mode, number in found.items() if mode not in ("all", "")}
    worked = any(number > 0 for number in others.values())
    return Outcome("refuted" if worked else "confirmed", f"{soc}, records by mode: {others}")


def acl_outranks_options(evidence: Evidence) -> Outcome:
    """Which directory got files: that of the dump JSON, or that of the options."""
    return judge_fact(evidence, "acl_outranks_options", {"acl": True, "options": False})


def watch_static(evidence: Evidence) -> Outcome:
    """Whether the watcher wrote something of a graph with static shapes, and of one with dynamic shapes."""
    return judge_fact(evidence, "watch_static", {"static": True, "dynamic": False})


def watch_collective(evidence: Evidence) -> Outcome:
    """The operators after which the watcher wrote something, in a graph with a collective operator."""
    found = evidence.facts.get("watch_collective")
    if found is None:
        return judge_fact(evidence, "watch_collective", found)
    if not found["others"]:
        return Outcome("unknown", "the watcher wrote nothing after other operators either")
    return Outcome("refuted" if found["collective"] else "confirmed", f"after {found}")


def symlink(evidence: Evidence) -> Outcome:
    """Whether GE accepted a directory, and a link to it."""
    return judge_fact(evidence, "symlink", {"directory": True, "link": False})


def step_range(evidence: Evidence) -> Outcome:
    """Whether GE accepted a range of two steps, and a range of one step."""
    return judge_fact(evidence, "step_range", {"4-5": True, "5-5": False})


def steps_on_the_device(evidence: Evidence) -> Outcome:
    """The steps that were dumped with texts that GE accepted."""
    found = evidence.facts.get("steps_on_the_device")
    wanted = found and {text: _READ_LOOSELY[text] for text in found}
    return judge_fact(evidence, "steps_on_the_device", wanted)

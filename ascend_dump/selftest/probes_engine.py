"""Probes of the session options of GE, CANN's graph engine. The facts come from `programs/engine_options.py`."""

from __future__ import annotations

from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, judge_fact, outcome, probes

__all__ = ["PROBES"]

#: Name prefixes of the devices that have only the mode "all" of overflow detection.
_ONE_MODE = ("Ascend910B", "Ascend910_93")
#: The status bit in an overflow record that stands for a conversion to float16.
_CONVERSION_BIT = 0x100
#: Irregular `dump_step` texts, and the steps of a run of five steps that a device would dump for each.
_READ_LOOSELY = {"3-1": ["1", "2", "3"], "1||3": ["1", "3"], " 2 ": ["2"]}


def debug_without_mode(evidence: Evidence) -> Outcome:
    """Judge overflow detection without a mode: it writes no record.

    The fact "detected" has the number of records by mode, with "" for no mode and -1 for a mode that GE refuses.
    """
    records = fact(evidence, "detected")
    return outcome(not records[""], f"records by mode: {records}")


def overflow_modes(evidence: Evidence) -> Outcome:
    """Judge the modes other than "all", on a device that has only this mode: they are refused, or write no record."""
    records, soc = fact(evidence, "detected"), evidence.facts.get("soc")
    if not str(soc).startswith(_ONE_MODE):
        return Outcome("unknown", f"the device is {soc or 'not known'}, which may have other modes")
    other_modes = {mode: number for mode, number in records.items() if mode not in ("all", "")}
    return outcome(all(number <= 0 for number in other_modes.values()), f"{soc}, records by mode: {other_modes}")


def watch_collective(evidence: Evidence) -> Outcome:
    """Judge the watcher in a graph with a collective operator: it writes nothing after that operator.

    The watcher writes the output of a chosen operator again after later operators. The fact has the names of these
    later operators, collective ones and others separately.
    """
    layers = fact(evidence, "watch_collective")
    if not layers["others"]:
        return Outcome("unknown", "the watcher wrote nothing after other operators either")
    return outcome(not layers["collective"], f"after {layers}")


def steps_on_the_device(evidence: Evidence) -> Outcome:
    """Judge the dumped steps for the irregular texts that GE accepted."""
    expected = {text: _READ_LOOSELY[text] for text in fact(evidence, "steps_on_the_device")}
    return judge_fact(evidence, "steps_on_the_device", expected)


def overflow_of_conversion(evidence: Evidence) -> Outcome:
    """Judge the status of the overflow of a conversion to float16: a record has `_CONVERSION_BIT` set."""
    words = fact(evidence, "conversion_status")
    if not words:
        return Outcome("unknown", "no overflow of a conversion was recorded")
    return outcome(any(word & _CONVERSION_BIT for word in words), f"status {', '.join(f'{word:#x}' for word in words)}")


PROBES = probes(
    debug_without_mode,
    overflow_modes,
    overflow_of_conversion,
    steps_on_the_device,
    watch_collective,
    # A dump JSON for acl and GE's options name different directories: True for the one that has files.
    acl_outranks_options={"acl": True, "options": False},
    # The kind of data is misspelt as "statistics": GE accepts it and writes tensors, whose files have no suffix.
    data_unchecked=[""],
    # True if GE accepts the range of steps.
    step_range={"4-5": True, "5-5": False},
    # True if GE accepts the dump path: a directory, and a symbolic link to it.
    symlink={"directory": True, "link": False},
    # True if the watcher wrote files: in a graph with static shapes, and in one with dynamic shapes.
    watch_static={"static": True, "dynamic": False},
)

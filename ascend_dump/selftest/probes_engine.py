"""Probes of GE's session options, from the facts of `programs/engine_options.py`."""

from __future__ import annotations

from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, judge_fact, outcome, probes

__all__ = ["PROBES"]

#: Beginnings of the names of devices with one mode of overflow detection.
_ONE_MODE = ("Ascend910B", "Ascend910_93")
#: The status bit of an overflow of a conversion to float16.
_CONVERSION_BIT = 0x100
#: The steps, of five, that a device reads from texts that GE's own check refuses.
_READ_LOOSELY = {"3-1": ["1", "2", "3"], "1||3": ["1", "3"], " 2 ": ["2"]}


def debug_without_mode(evidence: Evidence) -> Outcome:
    """Judge the records of an overflow without a mode, by those with mode all; -1 if GE refuses the mode."""
    records = fact(evidence, "detected")
    return outcome(not records[""], f"records by mode: {records}")


def overflow_modes(evidence: Evidence) -> Outcome:
    """Judge the records of an overflow in modes besides all, on a device that only has that mode."""
    records, soc = fact(evidence, "detected"), evidence.facts.get("soc")
    if not str(soc).startswith(_ONE_MODE):
        return Outcome("unknown", f"the device is {soc or 'not known'}, which may have other modes")
    others = {mode: number for mode, number in records.items() if mode not in ("all", "")}
    return outcome(all(number <= 0 for number in others.values()), f"{soc}, records by mode: {others}")


def watch_collective(evidence: Evidence) -> Outcome:
    """Judge the files of the watcher in a graph with a collective operator, by the operator before each."""
    layers = fact(evidence, "watch_collective")
    if not layers["others"]:
        return Outcome("unknown", "the watcher wrote nothing after other operators either")
    return outcome(not layers["collective"], f"after {layers}")


def steps_on_the_device(evidence: Evidence) -> Outcome:
    """Judge the dumped steps of the texts that GE accepted."""
    expected = {text: _READ_LOOSELY[text] for text in fact(evidence, "steps_on_the_device")}
    return judge_fact(evidence, "steps_on_the_device", expected)


def overflow_of_conversion(evidence: Evidence) -> Outcome:
    """Judge the status bits of a conversion to float16 that overflowed."""
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
    # The directories that got files: of the dump JSON, of the options.
    acl_outranks_options={"acl": True, "options": False},
    # The suffixes of files if the kind of data is "statistics".
    data_unchecked=[""],
    # GE accepted a range of two steps, and a range of one step.
    step_range={"4-5": True, "5-5": False},
    # GE accepted a directory, and a link to it.
    symlink={"directory": True, "link": False},
    # The watcher wrote files of a graph with static shapes, and of a graph with dynamic shapes.
    watch_static={"static": True, "dynamic": False},
)

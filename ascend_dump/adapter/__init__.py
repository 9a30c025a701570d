"""The interface for authors of adapters: the contract, the registry, and shared parts.

An adapter is a class that derives from `Adapter` and is registered under the entry point group `ascend_dump.adapters`.
Its method `start` returns a `Session`. If the adapter sees each operator, the session can be a `Recorder`: the adapter
passes the tensors of each operator to `Recorder.record`. A recorder consists of a `HostRun` and a `HostWriter`, which
write the dump format. An adapter may use these two directly, to avoid copies. An adapter raises the errors of
`ascend_dump`. `ascend_dump.testing.contract` is a test suite for adapters.

Entry points are loaded in any process, so importing this package imports nothing else: the module of a name is imported
when the name is first used. `Recorder`, `HostWriter` and their parts import numpy, so import them inside functions.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ascend_dump.adapter._contract import (
        Adapter,
        AdapterInfo,
        Begin,
        Repeats,
        adapters,
        choose,
        fresh_adapters,
        load,
        registered,
    )
    from ascend_dump.adapter._exit import at_exit
    from ascend_dump.adapter._limits import size_is_unlimited, steps_are_no_directories
    from ascend_dump.adapter._recorder import Recorder
    from ascend_dump.adapter._session import Session, tell_of_empty
    from ascend_dump.common.counters import Tally
    from ascend_dump.common.ignored import IgnoredOperators
    from ascend_dump.common.paths import (
        PRIVATE_FILE,
        RunDirectory,
        add_private_directory,
        located,
        make_private_directory,
        move,
        open_directory,
        open_private,
        remove_directory,
        remove_file,
        remove_tree,
    )
    from ascend_dump.common.patterns import text_matcher
    from ascend_dump.common.problem import SEVERITIES, Problem, worst_first
    from ascend_dump.common.rank import Rank, current_rank
    from ascend_dump.common.suggest import did_you_mean
    from ascend_dump.request import DumpRequest
    from ascend_dump.statistics import STATISTIC_NAMES
    from ascend_dump.steps import Steps
    from ascend_dump.storage.files import read_small
    from ascend_dump.writing import CHANGED, HostRun, HostWriter, Item, Line, Payload, copy_memory, sample_of

__all__ = [
    "CHANGED",
    "PRIVATE_FILE",
    "SEVERITIES",
    "STATISTIC_NAMES",
    "Adapter",
    "AdapterInfo",
    "Begin",
    "DumpRequest",
    "HostRun",
    "HostWriter",
    "IgnoredOperators",
    "Item",
    "Line",
    "Payload",
    "Problem",
    "Rank",
    "Recorder",
    "Repeats",
    "RunDirectory",
    "Session",
    "Steps",
    "Tally",
    "adapters",
    "add_private_directory",
    "at_exit",
    "choose",
    "copy_memory",
    "current_rank",
    "did_you_mean",
    "fresh_adapters",
    "load",
    "located",
    "make_private_directory",
    "move",
    "open_directory",
    "open_private",
    "read_small",
    "registered",
    "remove_directory",
    "remove_file",
    "remove_tree",
    "sample_of",
    "size_is_unlimited",
    "steps_are_no_directories",
    "tell_of_empty",
    "text_matcher",
    "worst_first",
]

#: The module of each name.
_HOMES: dict[str, str] = {
    name: module
    for module, names in {
        "storage.files": ("read_small",),
        "common.suggest": ("did_you_mean",),
        "common.paths": (
            "PRIVATE_FILE",
            "RunDirectory",
            "add_private_directory",
            "located",
            "make_private_directory",
            "move",
            "open_directory",
            "open_private",
            "remove_directory",
            "remove_file",
            "remove_tree",
        ),
        "common.ignored": ("IgnoredOperators",),
        "common.patterns": ("text_matcher",),
        "common.problem": ("SEVERITIES", "Problem", "worst_first"),
        "common.rank": ("Rank", "current_rank"),
        "request": ("DumpRequest",),
        "steps": ("Steps",),
        "common.counters": ("Tally",),
        "adapter._contract": (
            *("Adapter", "AdapterInfo", "Begin", "Repeats"),
            *("adapters", "choose", "fresh_adapters", "load", "registered"),
        ),
        "adapter._exit": ("at_exit",),
        "adapter._limits": ("size_is_unlimited", "steps_are_no_directories"),
        "adapter._recorder": ("Recorder",),
        "adapter._session": ("Session", "tell_of_empty"),
        "statistics": ("STATISTIC_NAMES",),
        "writing": ("CHANGED", "HostWriter", "Item", "Line", "Payload", "HostRun", "copy_memory", "sample_of"),
    }.items()
    for name in names
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"ascend_dump.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

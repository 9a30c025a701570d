"""Probes of what frameworks make of settings and graphs: what a program noted that used one without a capture."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import judge_fact

if TYPE_CHECKING:
    from ascend_dump.selftest.evidence import Evidence

__all__ = [
    "batch_statistics",
    "device_statistics",
    "fed_names",
    "first_graph",
    "graph_engine",
    "graph_names",
    "graph_texts",
    "init_keys",
    "json_and_options",
    "last_entry",
    "loop",
    "max_pool_mask",
    "older_layout",
    "options_once",
    "overflowed",
    "paused",
    "refusal_dropped",
    "renamed",
    "sampled",
    "saved_names",
    "scope_selects",
    "signatures",
    "steps_of_calls",
    "stored_types",
    "times_of_sessions",
    "tree",
    "variable_values",
    "without_e2e",
]

_GRAPH = re.compile(r"ge_default_\d{14}_(\d+)", re.ASCII)
#: Step, time, device, model, its id, and the iteration.
_OLDER_PLACE = re.compile(r"\d+/\d{14}/\d+/[^/]+/\d+/\d+", re.ASCII)
#: The name of the node, and the number of the file.
_SAVED_ON_NPU = re.compile(r"(\w+)_device_\d+_(\d+)\.pt", re.ASCII)
_SAVED_ON_CPU = re.compile(r"(\w+?)_(\d+)\.pt", re.ASCII)


# npu_bridge.


def last_entry(evidence: Evidence) -> Outcome:
    """Whether a session dumped whose last entry switched the dump on, and one whose last entry switched it off."""
    return judge_fact(evidence, "last_entry", {"on": True, "off": False})


def init_keys(evidence: Evidence) -> Outcome:
    """Whether the keys of init_resource let another session dump."""
    return judge_fact(evidence, "init_keys", False)


def graph_names(evidence: Evidence) -> Outcome:
    """Three sessions of one graph each have names that count on."""
    sessions = evidence.facts.get("graph_names")
    if sessions is None:
        return judge_fact(evidence, "graph_names", sessions)
    found = [_GRAPH.fullmatch(name) for names in sessions for name in names]
    numbers = [int(one[1]) for one in found if one is not None]
    counted = len(found) == 3 and numbers == list(range(numbers[0], numbers[0] + 3)) if numbers else False
    return Outcome("confirmed" if counted else "refuted", f"models {sessions}")


def signatures(evidence: Evidence) -> Outcome:
    """The steps of two sets of fetches of which one ran twice, the other between."""
    return judge_fact(evidence, "signatures", [["0"], ["0", "1"]])


def fed_names(evidence: Evidence) -> Outcome:
    """The names of operators of type Data, where a placeholder of the name x was fed."""
    return judge_fact(evidence, "fed_names", ["x"])


def variable_values(evidence: Evidence) -> Outcome:
    """What a variable of ones was for the product that reads it, and for the operator that then added to it."""
    return judge_fact(evidence, "variable_values", {"product": [1.0], "added": [1.0]})


def times_of_sessions(evidence: Evidence) -> Outcome:
    """How many directories of a time two sessions made below one path, begun in different seconds."""
    return judge_fact(evidence, "times_of_sessions", 2)


def graph_texts(evidence: Evidence) -> Outcome:
    """Whether a session with a dump wrote the text of its graph, where one without a dump wrote none."""
    return judge_fact(evidence, "graph_texts", True)


def loop(evidence: Evidence) -> Outcome:
    """The steps of two runs of a session that loops twice in each."""
    return judge_fact(evidence, "loop", ["0", "1"])


# npu_device.


def steps_of_calls(evidence: Evidence) -> Outcome:
    """The steps in the dump of step 1 where a function was called three times."""
    return judge_fact(evidence, "steps_of_calls", ["1"])


def options_once(evidence: Evidence) -> Outcome:
    """Which directory got files: that of the path when the device was opened, or that of a later one."""
    return judge_fact(evidence, "options_once", {"first": True, "second": False})


# torchair.


def first_graph(evidence: Evidence) -> Outcome:
    """The steps in the dump of a graph that asked for step 1 where the first one of the process had asked for 0."""
    return judge_fact(evidence, "first_graph", ["0"])


def json_and_options(evidence: Evidence) -> Outcome:
    """The sides in the dump where the options ask for outputs and the JSON for inputs."""
    return judge_fact(evidence, "json_and_options", ["input"])


def refusal_dropped(evidence: Evidence) -> Outcome:
    """What a program was told whose JSON had a mode that does not exist."""
    return judge_fact(evidence, "refusal_dropped", "")


def scope_selects(evidence: Evidence) -> Outcome:
    """Of two products, the second in the scope, the one was dumped whose name is the type of both."""
    found = evidence.facts.get("scope_selects")
    return judge_fact(evidence, "scope_selects", found and {"types": found["types"], "names": found["types"]})


def renamed(evidence: Evidence) -> Outcome:
    """The dumped operators that are not in torchair's graph."""
    return judge_fact(evidence, "renamed", [])


def batch_statistics(evidence: Evidence) -> Outcome:
    """Whether outputs 1 and 2 of BatchNormV3 were what the host computes."""
    return judge_fact(evidence, "batch_statistics", {"mean": True, "variance": True})


def max_pool_mask(evidence: Evidence) -> Outcome:
    """The type of output 1 of MaxPoolWithArgmaxV1, and whether it is PyTorch's indices."""
    return judge_fact(evidence, "max_pool_mask", {"type": "uint16", "indices": False})


def saved_names(evidence: Evidence) -> Outcome:
    """The names of what two graphs saved in four runs."""
    found = evidence.facts.get("saved_names")
    if found is None:
        return judge_fact(evidence, "saved_names", found)
    # On a CPU, which the simulated device is for PyTorch, the name has no device.
    pattern = _SAVED_ON_NPU if found["device"] == "npu" else _SAVED_ON_CPU
    numbers: dict[str, list[int]] = {}
    for name in found["names"]:
        match = pattern.fullmatch(name)
        if match is None:
            return Outcome("refuted", name)
        numbers.setdefault(match[1], []).append(int(match[2]))
    wrong = next((name for name, counted in numbers.items() if sorted(counted) != [0, 1, 2, 3]), None)
    seen = ", ".join(found["names"][:4])
    return Outcome("confirmed", seen) if wrong is None else Outcome("refuted", f"{wrong} has {sorted(numbers[wrong])}")


# MindSpore.

#: Without parameters the levels of two iterations of the first graph.
_TREE = {"rank": ["Net", "graphs"], "tensors": ["rank_0/Net/0/0", "rank_0/Net/0/1"], "parameters": 0}
_NO_TENSOR = Outcome("unknown", "the configuration that dumps tensors dumped none either")


def tree(evidence: Evidence) -> Outcome:
    """The directories of a dump of two iterations."""
    return judge_fact(evidence, "tree", _TREE)


def stored_types(evidence: Evidence) -> Outcome:
    """The types in the names of files, and those of the arrays in them."""
    return judge_fact(evidence, "stored_types", {"bfloat16": ["float32"], "float32": ["float32"]})


def sampled(evidence: Evidence) -> Outcome:
    """What was left of tensors of which eight elements were asked."""
    return judge_fact(evidence, "sampled", {"shape": [8], "first": True})


def paused(evidence: Evidence) -> Outcome:
    """Whether an iteration that is not selected left nothing, between selected ones."""
    return judge_fact(evidence, "paused", True)


def overflowed(evidence: Evidence) -> Outcome:
    """Whether only the product was dumped that made infinities, not the operators that go on with them."""
    return judge_fact(evidence, "overflowed", ["Mul"])


def without_e2e(evidence: Evidence) -> Outcome:
    """Whether a configuration without its second block dumped."""
    return _nothing_where_others_dump(evidence, "without_e2e")


def graph_engine(evidence: Evidence) -> Outcome:
    """Whether jit_level O2 dumped."""
    return _nothing_where_others_dump(evidence, "graph_engine")


def device_statistics(evidence: Evidence) -> Outcome:
    """Which categories have a column in statistics of the device."""
    return judge_fact(evidence, "device_statistics", {"max": True, "md5": False, "l2norm": True, "nan count": False})


def older_layout(evidence: Evidence) -> Outcome:
    """The directories of what jit_level O2 dumped, before version 2.6."""
    found = evidence.facts.get("older_layout")
    if found is None:
        return judge_fact(evidence, "older_layout", found)
    wrong = next((place for place in found if not _OLDER_PLACE.fullmatch(place)), None)
    return Outcome("confirmed", found[0]) if wrong is None else Outcome("refuted", wrong)


def _nothing_where_others_dump(evidence: Evidence, name: str) -> Outcome:
    found = judge_fact(evidence, name, False)
    return _NO_TENSOR if found.state == "confirmed" and "tree" not in evidence.facts else found

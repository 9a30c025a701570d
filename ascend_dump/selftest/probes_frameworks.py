"""Probes of settings and graphs of frameworks, from the facts of programs without a capture."""

from __future__ import annotations

import re

from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, judge_fact, outcome, probes

__all__ = ["PROBES"]

_GRAPH = re.compile(r"ge_default_\d{14}_(\d+)", re.ASCII)
#: Step, time, device, model, its id, and the iteration.
_OLDER_PATH = re.compile(r"\d+/\d{14}/\d+/[^/]+/\d+/\d+", re.ASCII)
#: The name of the node, and the number of the file.
_SAVED_ON_NPU = re.compile(r"(\w+)_device_\d+_(\d+)\.pt", re.ASCII)
_SAVED_ON_CPU = re.compile(r"(\w+?)_(\d+)\.pt", re.ASCII)
_NO_TENSOR = Outcome("unknown", "the configuration that dumps tensors dumped none either")


def graph_names(evidence: Evidence) -> Outcome:
    """Judge the model names of three sessions of one graph each: their numbers are consecutive."""
    sessions = fact(evidence, "graph_names")
    matches = [_GRAPH.fullmatch(name) for names in sessions for name in names]
    numbers = [int(match[1]) for match in matches if match is not None]
    good = len(matches) == 3 and bool(numbers) and numbers == list(range(numbers[0], numbers[0] + 3))
    return outcome(good, f"models {sessions}")


def scope_selects(evidence: Evidence) -> Outcome:
    """Judge the dumped operators of two products, the second in the scope: the name of the first is their type."""
    types = fact(evidence, "scope_selects")["types"]
    return judge_fact(evidence, "scope_selects", {"types": types, "names": types})


def saved_names(evidence: Evidence) -> Outcome:
    """Judge the names of the files that two graphs saved in four runs."""
    saved = fact(evidence, "saved_names")
    # The simulated device is a CPU for PyTorch: the name has no device.
    pattern = _SAVED_ON_NPU if saved["device"] == "npu" else _SAVED_ON_CPU
    numbers: dict[str, list[int]] = {}
    for name in saved["names"]:
        match = pattern.fullmatch(name)
        if match is None:
            return Outcome("refuted", name)
        numbers.setdefault(match[1], []).append(int(match[2]))
    wrong = [f"{node} has {sorted(counted)}" for node, counted in numbers.items() if sorted(counted) != [0, 1, 2, 3]]
    return outcome(not wrong, wrong[0] if wrong else ", ".join(saved["names"][:4]))


def older_layout(evidence: Evidence) -> Outcome:
    """Judge the directories of a dump with jit_level O2, before version 2.6."""
    paths = fact(evidence, "older_layout")
    wrong = [path for path in paths if not _OLDER_PATH.fullmatch(path)]
    return outcome(not wrong, (wrong or paths)[0])


def without_e2e(evidence: Evidence) -> Outcome:
    """Judge a configuration without e2e_dump_settings: it dumps nothing."""
    return _dumps_nothing(evidence, "without_e2e")


def graph_engine(evidence: Evidence) -> Outcome:
    """Judge jit_level O2: it dumps nothing."""
    return _dumps_nothing(evidence, "graph_engine")


def _dumps_nothing(evidence: Evidence, name: str) -> Outcome:
    result = judge_fact(evidence, name, False)
    return _NO_TENSOR if result.state == "confirmed" and "tree" not in evidence.facts else result


_NPU_BRIDGE = probes(
    graph_names,
    # The operators of type Data, for a placeholder named x that is fed.
    fed_names=["x"],
    # A session with a dump wrote the text of its graph.
    graph_texts=True,
    # A session dumped by the keys of init_resource.
    init_keys=False,
    # A session dumped whose last entry enables the dump, and a session whose last entry disables it.
    last_entry={"on": True, "off": False},
    # The steps of two runs of a session with two iterations in each.
    loop=["0", "1"],
    # The steps of two sets of fetches: the first ran twice, the second between the two runs.
    signatures=[["0"], ["0", "1"]],
    # The time directories of two sessions with the same path, started in different seconds.
    times_of_sessions=2,
    # A variable of ones as input of the product that reads it, and of the operator that then adds to it.
    variable_values={"product": [1.0], "added": [1.0]},
)
_NPU_DEVICE = probes(
    # The directories with files: the path when the device was opened, and a path that was set later.
    options_once={"first": True, "second": False},
    # The steps in the dump of step 1, for a function that was called three times.
    steps_of_calls=["1"],
)
_TORCHAIR = probes(
    saved_names,
    scope_selects,
    # Outputs 1 and 2 of BatchNormV3 equal the results on the host.
    batch_statistics={"mean": True, "variance": True},
    # The steps of a graph that requests step 1, after the first graph of the process requested step 0.
    first_graph=["0"],
    # The sides in the dump if the options request outputs and the JSON requests inputs.
    json_and_options=["input"],
    # The type of output 1 of MaxPoolWithArgmaxV1, and its equality with PyTorch's indices.
    max_pool_mask={"type": "uint16", "indices": False},
    # The error of a program with a JSON with a mode that does not exist.
    refusal_dropped="",
    # The dumped operators that are not in torchair's graph.
    renamed=[],
)
_MINDSPORE = probes(
    graph_engine,
    older_layout,
    without_e2e,
    # The categories with a column in statistics of the device.
    device_statistics={"max": True, "md5": False, "l2norm": True, "nan count": False},
    # The dumped operators: the product that made infinities, not those that propagate them.
    overflowed=["Mul"],
    # An iteration that is not selected wrote nothing, between selected ones.
    paused=True,
    # Tensors with a sample of eight elements: their shape, and the first elements.
    sampled={"shape": [8], "first": True},
    # The types of arrays by the type in their file name.
    stored_types={"bfloat16": ["float32"], "float32": ["float32"]},
    # The directories of a dump of two iterations of the first graph, and the number of parameters.
    tree={"rank": ["Net", "graphs"], "tensors": ["rank_0/Net/0/0", "rank_0/Net/0/1"], "parameters": 0},
)
PROBES = {**_NPU_BRIDGE, **_NPU_DEVICE, **_TORCHAIR, **_MINDSPORE}

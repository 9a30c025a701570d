"""Probes of the settings and graphs of npu_bridge, npu_device, torchair and MindSpore.

The facts come from programs that set the native dump options of these frameworks, without a capture of ascend_dump.
The comment above each keyword of `probes()` says what the fact contains; the keyword's value is the expected one.
"""

from __future__ import annotations

import re

from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence, fact, judge_fact, outcome, probes

__all__ = ["PROBES"]

_GRAPH = re.compile(r"ge_default_\d{14}_(\d+)", re.ASCII)
#: Directories: step, time, device, model, model id, and iteration.
_OLDER_PATH = re.compile(r"\d+/\d{14}/\d+/[^/]+/\d+/\d+", re.ASCII)
#: File names with the name of the node (group 1) and the number of the file (group 2).
_SAVED_ON_NPU = re.compile(r"(\w+)_device_\d+_(\d+)\.pt", re.ASCII)
_SAVED_ON_CPU = re.compile(r"(\w+?)_(\d+)\.pt", re.ASCII)
_NO_TENSOR = Outcome("unknown", "the configuration that dumps tensors dumped none either")


def graph_names(evidence: Evidence) -> Outcome:
    """Judge the model names of three sessions with one graph each: the numbers in the names are consecutive."""
    sessions = fact(evidence, "graph_names")
    matches = [_GRAPH.fullmatch(name) for names in sessions for name in names]
    numbers = [int(match[1]) for match in matches if match is not None]
    good = len(matches) == 3 and bool(numbers) and numbers == list(range(numbers[0], numbers[0] + 3))
    return outcome(good, f"models {sessions}")


def scope_selects(evidence: Evidence) -> Outcome:
    """Judge a graph of two matrix products, of which only the second is in the scope of `data_dump`.

    torchair writes the type of the second one as layer, and this type is also the name of the first. So the dump has
    exactly the operators whose name equals their type.
    """
    types = fact(evidence, "scope_selects")["types"]
    return judge_fact(evidence, "scope_selects", {"types": types, "names": types})


def saved_names(evidence: Evidence) -> Outcome:
    """Judge the names of the files that two graphs saved in two runs each: each name is numbered from 0 to 3."""
    saved = fact(evidence, "saved_names")
    # For PyTorch the simulated device is a CPU, and then the file name does not contain a device.
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
    """Judge the directories of a dump with jit_level O2 by MindSpore before 2.6: they match `_OLDER_PATH`."""
    paths = fact(evidence, "older_layout")
    wrong = [path for path in paths if not _OLDER_PATH.fullmatch(path)]
    return outcome(not wrong, (wrong or paths)[0])


def without_e2e(evidence: Evidence) -> Outcome:
    """Judge a MindSpore configuration without the block e2e_dump_settings: it dumps nothing."""
    return _dumps_nothing(evidence, "without_e2e")


def graph_engine(evidence: Evidence) -> Outcome:
    """Judge jit_level O2 of MindSpore: nothing is dumped."""
    return _dumps_nothing(evidence, "graph_engine")


def _dumps_nothing(evidence: Evidence, name: str) -> Outcome:
    """Judge a fact that is True if a configuration dumped something. Unknown if no configuration dumped a tensor."""
    result = judge_fact(evidence, name, False)
    return _NO_TENSOR if result.state == "confirmed" and "tree" not in evidence.facts else result


_NPU_BRIDGE = probes(
    graph_names,
    # Names of the dumped operators of type Data: the placeholder `x`, which is fed.
    fed_names=["x"],
    # True if a session with a dump wrote the text of its graph.
    graph_texts=True,
    # True if a session dumped because of the configuration of init_resource, having no dump keys of its own.
    init_keys=False,
    # True if a session with two contradictory entries dumped: the last one enables the dump ("on"), or disables it.
    last_entry={"on": True, "off": False},
    # Dumped steps of a session that runs twice, with two iterations in each run.
    loop=["0", "1"],
    # Dumped steps of each graph of a session: one set of fetches ran once, the other twice.
    signatures=[["0"], ["0", "1"]],
    # Number of time directories of two sessions with the same path that started in different seconds.
    times_of_sessions=2,
    # Dumped values of a variable of ones, as input of an operator that reads it, and of one that then adds to it.
    variable_values={"product": [1.0], "added": [1.0]},
)
_NPU_DEVICE = probes(
    # True if a directory has files: "first" is the path when the device was opened, "second" was set later.
    options_once={"first": True, "second": False},
    # Dumped steps of a function that was called three times, with step 1 selected.
    steps_of_calls=["1"],
)
_TORCHAIR = probes(
    saved_names,
    scope_selects,
    # True if output 1 of BatchNormV3 is the batch's mean as computed on the host, and output 2 its variance.
    batch_statistics={"mean": True, "variance": True},
    # Dumped steps of a graph that requests step 1, after the first graph of the process requested step 0.
    first_graph=["0"],
    # Dumped sides if the options request outputs and the dump JSON requests inputs.
    json_and_options=["input"],
    # The type of output 1 of MaxPoolWithArgmaxV1, and True if its values are PyTorch's indices.
    max_pool_mask={"type": "uint16", "indices": False},
    # The error that a program gets if the dump JSON has an invalid mode: none.
    refusal_dropped="",
    # Names of dumped operators that are not in torchair's graph: none.
    renamed=[],
)
_MINDSPORE = probes(
    graph_engine,
    older_layout,
    without_e2e,
    # True if the statistics that the device computes have a column for the category.
    device_statistics={"max": True, "md5": False, "l2norm": True, "nan count": False},
    # Types of the dumped operators: only the product that produced Inf, not the operators that propagate it.
    overflowed=["Mul"],
    # True if an iteration that is not selected, between two selected ones, wrote nothing.
    paused=True,
    # A sample of eight elements of each tensor: its shape, and True if it has the first eight elements.
    sampled={"shape": [8], "first": True},
    # Types of the arrays in the files, by the type in the file name.
    stored_types={"bfloat16": ["float32"], "float32": ["float32"]},
    # Names in the directory of the rank, directories with tensors for two iterations, and number of dumped parameters.
    tree={"rank": ["Net", "graphs"], "tensors": ["rank_0/Net/0/0", "rank_0/Net/0/1"], "parameters": 0},
)
PROBES = {**_NPU_BRIDGE, **_NPU_DEVICE, **_TORCHAIR, **_MINDSPORE}

"""Find settings of a request that the host capture of TensorFlow does not support, or that have no effect."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ascend_dump.adapter import DumpRequest, Problem, did_you_mean
from ascend_dump.native.tensorflow.options import OPTIONS
from ascend_dump_tensorflow._bridge import kind_of
from ascend_dump_tensorflow._runs import can_replace_runs

__all__ = ["check"]


def check(request: DumpRequest, target: Any) -> Iterator[Problem]:
    """Yield the problems of a request for a capture on the host."""
    for name, value in request.options.items():
        if name not in OPTIONS and name != "debug_mode":
            options = ", ".join(OPTIONS)
            hint = f"{did_you_mean(name, OPTIONS)}known: {options}; `ascend-dump help options` explains them"
            yield Problem("AD210", "error", f"the tensorflow adapter has no option {name!r}", hint, name)
        if name == "buffer_bytes" and not (type(value) is int and value > 0):
            yield Problem("AD210", "error", f"options['buffer_bytes'] is {value!r}", "give a positive number", name)
        if name == "optimize" and not isinstance(value, bool):
            yield Problem("AD210", "error", f"options['optimize'] is {value!r}", "give True or False", name)
    if request.scene is not None:
        yield Problem(
            "AD203",
            "error",
            f"scene={request.scene!r} is a service of the NPU, and no npu_bridge is imported",
            "import npu_bridge or npu_device before the capture, or capture everything",
            "scene",
        )
    if request.level == "module":
        yield Problem(
            "AD203",
            "error",
            "level='module' records modules of PyTorch; TensorFlow on the host has operators only",
            "leave it out; layers= selects operators by name",
            "level",
        )
    changes_nothing = {
        "level": (request.level not in ("all", "module"), "the host has one level"),
        "quant": (request.quant, "the host records what it runs"),
        "models": (bool(request.models), "each signature of a run is a model of its own"),
    }
    for name, (is_set, why) in changes_nothing.items():
        if is_set:
            yield Problem("AD211", "silent", f"{name}= changes nothing: {why}", "leave it out", name)
    if request.stats and request.data == "tensor":
        yield Problem(
            "AD211", "silent", "stats= changes nothing with data='tensor'", "use data='stats' or data='full'", "stats"
        )
    yield from _of_optimizers(request, target)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and not can_replace_runs():
        yield Problem(
            "AD203",
            "error",
            "sessions of the imported TensorFlow lack a method that a capture on the host replaces",
            "use TensorFlow 1.15 or later; if the program runs on the NPU, import npu_bridge before the capture",
            "framework",
        )
    if target is None and tensorflow is not None and tensorflow.executing_eagerly():
        yield Problem(
            "AD297",
            "warning",
            "functions of tf.function run eagerly in recorded steps: last bits may differ, and with tf.random.set_seed "
            "random operators give other numbers",
            "compare results with the run outside the block if the difference matters",
            "target",
        )


def _of_optimizers(request: DumpRequest, target: Any) -> Iterator[Problem]:
    tensorflow = sys.modules.get("tensorflow")
    runs_graphs = target is not None or (tensorflow is not None and not tensorflow.executing_eagerly())
    if kind_of(target) == "session":
        yield Problem(
            "AD296",
            "warning",
            "the session exists already: operators that Grappler has fused or folded in it keep their new names",
            "create the session inside the block to get the names of the program",
            "target",
        )
    elif not request.options.get("optimize", False) and runs_graphs:
        yield Problem(
            "AD296",
            "warning",
            "Grappler is off in sessions created in the block, so that operators keep their names; last bits may "
            "differ",
            "options={'optimize': True} leaves it on",
            "options.optimize",
        )
    if runs_graphs and not request.options.get("optimize", False) and _merges_operators():
        yield Problem(
            "AD299",
            "warning",
            "oneDNN is on in this process: it merges operators such as Conv2D and BiasAdd into one operator, which has "
            "the name of the last of them; the outputs of the others are not recorded",
            "set TF_ENABLE_ONEDNN_OPTS=0 before TensorFlow is imported; last bits may differ",
            "options.optimize",
        )


def _merges_operators() -> bool:
    """Return True if oneDNN rewrites the graphs of all sessions, the default on CPUs with AVX-512 VNNI or AMX."""
    try:
        from tensorflow.python.util import _pywrap_util_port as port

        return bool(port.IsMklEnabled())
    except (ImportError, AttributeError):
        return False

"""A fake of `npu_bridge` and `hccl`, on a real TensorFlow (1.x API) or on the fake of TensorFlow.

    with ascend_dump.fakes.install("npu_bridge") as npu:                 # beside a real TensorFlow
    with ascend_dump.fakes.install("tensorflow", "npu_bridge") as npu:   # without one
        import tensorflow as tf
        from npu_bridge.npu_init import *

Importing its modules changes `tf.Session`, as importing the real ones does. A session with an NpuOptimizer in its
ConfigProto runs its graphs "on the device", unless it sets use_off_line=False: TensorFlow computes the graph, and all
operators that the fetches need are reported to the simulated NPU. Settings are read, checked and refused as the
adapter's C++ code does (`options`). `ProcessAborted` is raised where the real process would be killed.

Differences from a device:

- Operators are not fused, and have TensorFlow's names. Their types are GE's for the few types in `plan`, else
  TensorFlow's. There is one stream, and all layouts are ND.
- A fed tensor is a Data operator that is named after the tensor's operation. The name in GE is unknown.
  (assumption npu_bridge.fed_names)
- Operators inside control flow are not dumped, because TensorFlow does not return their values. This concerns the
  branches and bodies of functional control flow, and old control flow (Switch to Merge, loops).
- The dump has the value of a variable from before the run, even if the program assigns the variable and then reads it
  in one run. Before a variable is initialised, its value is zeros. (assumption npu_bridge.variables)
- The `<n>` in a graph's name `ge_default_<time>_<n>` counts the graphs of the process. What GE counts is unknown.
  (assumption npu_bridge.graph_name)
- Of the stages of a graph, only Build is written, as text. The numbers of the files rise by a constant.
- PRINT_MODEL and the checks of rank tables are left out. DEVICE_ID is read as a logical number.
- iterations_per_loop has no effect: each `Session.run` is one step. `Session.partial_run` runs on the host.
  (assumption npu_bridge.loop)
- Overwritten outputs (`Npu.trample`) are in the dump, but later operators do not read them, because TensorFlow
  computes the whole run first.
- Settings for precision, profiling and collectives are accepted, and have no effect. Ranks are read from RANK_ID and
  RANK_SIZE.
- The fake has the documented interface for ported scripts, except the distributed optimizer, loss scaling and hooks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ascend_dump.fakes._importing import Fill, leave_empty
from ascend_dump.fakes.npu_bridge import config as _config
from ascend_dump.fakes.npu_bridge import estimator as _estimator
from ascend_dump.fakes.npu_bridge import init as _init
from ascend_dump.fakes.npu_bridge.options import ProcessAborted
from ascend_dump.fakes.npu_bridge.process import process_of

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["ProcessAborted", "modules", "patches"]


def modules(npu: Npu) -> Mapping[str, Fill]:
    """Return the functions that fill the modules when they are imported. The modules use the device `npu`."""
    process = process_of(npu)
    return {
        "npu_bridge": leave_empty,
        "npu_bridge.npu_init": functools.partial(_init.fill_npu_init, process),
        "npu_bridge.estimator": leave_empty,
        "npu_bridge.estimator.npu_ops": functools.partial(_init.fill_npu_ops, process),
        "npu_bridge.estimator.npu": leave_empty,
        "npu_bridge.estimator.npu.npu_config": _config.fill,
        "npu_bridge.estimator.npu.npu_estimator": _estimator.fill,
        "npu_bridge.estimator.npu.util": _init.fill_util,
        **_init.hccl_modules(process),
    }


@contextlib.contextmanager
def patches(npu: Npu, modules: Mapping[str, Any]) -> Iterator[None]:
    """Restore TensorFlow's sessions at the end of the installation, and unload the device's graphs."""
    try:
        yield
    finally:
        process_of(npu).leave()

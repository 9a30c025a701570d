"""A stand-in for `npu_bridge` and `hccl`, on a real TensorFlow (1.x API) or on the stand-in for it.

    with ascend_dump.fakes.install("npu_bridge") as npu:                 # beside a real TensorFlow
    with ascend_dump.fakes.install("tensorflow", "npu_bridge") as npu:   # without one
        import tensorflow as tf
        from npu_bridge.npu_init import *

An import of its modules changes `tf.Session` as the real one does. A session with NpuOptimizer in its ConfigProto, and
without use_off_line=False, runs its graphs "on the device": TensorFlow computes, and the simulated NPU receives all
operators of the pruned graph. Settings are read, validated and refused as by the C++ side, see `options`;
`ProcessAborted` is raised if the real process would die.

Differences from a device:

- Operators are not fused and have TensorFlow's names. Types are GE's for the few in `plan`, else TensorFlow's. There is
  one stream, all layouts are ND.
- A fed tensor is a Data operator, named after the tensor's operation; its real name in GE is unknown.
  (assumption npu_bridge.fed_names)
- Operators in the branches and bodies of functional control flow are not dumped, nor is old control flow (Switch to
  Merge, loops): TensorFlow returns no values of them.
- A variable's value is that from before the run, also if the program assigns and then reads it in one run.
  Before its initialisation it is zeros. (assumption npu_bridge.variables)
- The `_<n>` after `ge_default_<time>` counts the graphs of the process; the origin of the real number is unknown.
  (assumption npu_bridge.graph_name)
- Only the stage Build of graphs is written, as text; the gaps between the numbers of the files are constant.
- PRINT_MODEL and the checks of rank tables are left out. DEVICE_ID is read as a logical number.
- iterations_per_loop changes nothing: each `Session.run` is one step. `Session.partial_run` runs on the host.
  (assumption npu_bridge.loop)
- Trampled outputs are in the dump, but not in the inputs of later operators: TensorFlow has computed them.
- Settings that need a device beyond the dump (precision, profiling, collectives) are accepted without effect. Ranks
  come from RANK_ID and RANK_SIZE.
- The fake has the documented interface for ported scripts, without the distributed optimizer, loss scaling and hooks.
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
    """Return the modules of one process, bound to `npu`, filled when they are imported."""
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

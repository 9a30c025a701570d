"""A stand-in for `npu_bridge` and `hccl`, on a real TensorFlow (1.x API) or on the stand-in for it.

    with ascend_dump.fakes.install("npu_bridge") as npu:                 # beside a real TensorFlow
    with ascend_dump.fakes.install("tensorflow", "npu_bridge") as npu:   # without one
        import tensorflow as tf
        from npu_bridge.npu_init import *

Importing a part of it changes `tf.Session` as the real one does. Every session whose ConfigProto names NpuOptimizer,
and does not say use_off_line=False, runs its graphs "on the device": TensorFlow computes, and the simulated NPU
receives every operator of the pruned graph. Settings are read, validated and refused as by the C++ side, see
`_options`; `ProcessAborted` is raised where the real process dies.

Known differences from a device:

- Operators are not fused and keep TensorFlow's names; types are GE's for the few that `_plan` lists, else
  TensorFlow's. There is one stream, all layouts are ND.
- What is fed is a Data operator of the tensor's own operation; its real name in GE is not known.
  (assumption npu_bridge.fed_names)
- What is inside the branches and bodies of functional control flow is not dumped, nor is old control flow (Switch to
  Merge, loops): TensorFlow gives out no values from there.
- A variable's value is that from before the run, also where the program assigns and then reads it in one run.
  Before its initialisation it is zeros. (assumption npu_bridge.variables)
- The `_<n>` after `ge_default_<time>` counts the graphs of the process; where the real number comes from is not known.
  (assumption npu_bridge.graph_name)
- Of the graphs only the stage Build is written, as text; the gaps between the numbers of the files are always the same.
- PRINT_MODEL and the checks of rank tables are left out. DEVICE_ID is taken for a logical number.
- iterations_per_loop changes nothing: each `Session.run` is one step. `Session.partial_run` runs on the host.
  (assumption npu_bridge.loop)
- What an operator tramples over is seen in the dump, not by later operators: TensorFlow has computed them.
- Settings that need a device beyond the dump (precision, profiling, collectives) are accepted without effect. Ranks
  come from RANK_ID and RANK_SIZE.
- Of `npu_bridge` there is what a ported script with the documented interface needs; the distributed optimizer, loss
  scaling and hooks are left out.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ascend_dump.fakes._importing import Fill
from ascend_dump.fakes.npu_bridge import config as _config
from ascend_dump.fakes.npu_bridge import estimator as _estimator
from ascend_dump.fakes.npu_bridge import init as _init
from ascend_dump.fakes.npu_bridge.options import ProcessAborted
from ascend_dump.fakes.npu_bridge.process import process_of

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["ProcessAborted", "modules", "patches"]


def modules(npu: Npu) -> Mapping[str, Fill]:
    """The modules of one process, bound to `npu`; each is filled when it is imported."""
    process = process_of(npu)
    return {
        "npu_bridge": _nothing,
        "npu_bridge.npu_init": functools.partial(_init.fill_npu_init, process),
        "npu_bridge.estimator": _nothing,
        "npu_bridge.estimator.npu_ops": functools.partial(_init.fill_npu_ops, process),
        "npu_bridge.estimator.npu": _nothing,
        "npu_bridge.estimator.npu.npu_config": _config.fill,
        "npu_bridge.estimator.npu.npu_estimator": _estimator.fill,
        "npu_bridge.estimator.npu.util": _init.fill_util,
        **_init.hccl_modules(process),
    }


@contextlib.contextmanager
def patches(npu: Npu, modules: Mapping[str, Any]) -> Iterator[None]:
    """At the end of the installation TensorFlow's sessions are as they were, and what ran on the device is unloaded."""
    try:
        yield
    finally:
        process_of(npu).leave()


def _nothing(module: ModuleType) -> None:
    """A package without a content of its own."""

"""The adapter for TensorFlow. On Ascend it uses the settings that npu_bridge and npu_device pass to CANN.

    with ascend_dump.capture(session_config, steps="0|5|10"):
        train(session_config)

    with ascend_dump.capture(framework="tensorflow"):
        train()

The target is a tf.ConfigProto, a RunConfig, an NPURunConfig or an Estimator, which has the settings during the block.
Without a target, every session that is created in the block has them, and npu_device if it is opened in the block.

The bridge reads the settings when a session is created. Each graph of a session counts its own steps. If neither bridge
is imported, the same calls write a reference dump of the host in our own format: runs of sessions are recorded with
TensorFlow's debugger, eager operators with callbacks. On the host the target may also be an existing session.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Callable, Optional

from ascend_dump.adapter import Adapter, Begin, DumpRequest, Problem, RunDirectory, Session

__all__ = ["TensorflowAdapter", "apply", "check_config", "dump_config"]


class TensorflowAdapter(Adapter):
    name = "tensorflow"
    framework = "tensorflow"
    # Lower than the priority of other host adapters, because programs of PyTorch may import tensorflow for TensorBoard.
    priority = -1
    process_hooks = ("tensorflow",)
    only_from_the_start = "sessions and devices read their dump settings when they are created"

    def accepts(self, target: Any) -> bool:
        from ascend_dump_tensorflow._bridge import kind_of

        return kind_of(target) != ""

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        from ascend_dump_tensorflow._check import check

        return check(request, target, run)

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> Session:
        from ascend_dump_tensorflow._bridge import is_on_npu

        if is_on_npu():
            from ascend_dump_tensorflow._npu import NpuSession

            return NpuSession(request, target, run)
        from ascend_dump_tensorflow._host import HostSession

        return HostSession(request, target, run)

    def counts_steps(self, target: Any) -> bool:
        """Return True for sessions, which count their runs. Return False for eager operators without a target."""
        from ascend_dump_tensorflow._bridge import is_on_npu

        if target is not None or is_on_npu():
            return True
        tensorflow = sys.modules.get("tensorflow")
        return tensorflow is None or not tensorflow.executing_eagerly()

    def launch(self, begin: Begin) -> Optional[Callable[[], str]]:
        from ascend_dump_tensorflow._launcher import launch

        return launch(begin)


def apply(config_proto: Any, request: DumpRequest, *, names: Optional[Iterable[str]] = None) -> Any:
    """Write the dump settings of a request into a ConfigProto for the bridge, and return the proto.

    The settings are written into the proto's last entry of NpuOptimizer. If the proto has no such entry, one is added.
    The directory `request.path` must exist when a session is created.

    names: names of the graph's operators, to which patterns in layers are expanded

    Raises ConfigError for a conflict with existing settings (AD291), NotSupported for settings that GE's session
    options do not have.
    """
    from ascend_dump.native.tensorflow.config import parameters
    from ascend_dump.native.tensorflow.options import OPTIONS
    from ascend_dump_tensorflow._proto import put

    put(config_proto, parameters(request, names=names, known_options=OPTIONS))
    return config_proto


def dump_config(request: DumpRequest, *, names: Optional[Iterable[str]] = None) -> Any:
    """Return the dump settings of a request as npu_bridge's DumpConfig, for `NPURunConfig(dump_config=…)`.

    Raises FrameworkMissing without npu_bridge, NotSupported for settings that npu_bridge or GE does not have.
    """
    from ascend_dump.native.tensorflow.config import parameters
    from ascend_dump.native.tensorflow.options import OPTIONS
    from ascend_dump_tensorflow._bridge import make_dump_config

    return make_dump_config(parameters(request, names=names, known_options=OPTIONS))


def check_config(config_proto: Any) -> list[Problem]:
    """Find dump settings in a ConfigProto that the bridge or GE would refuse or ignore. The proto is not changed."""
    from ascend_dump_tensorflow._check import check_config as check

    return check(config_proto)

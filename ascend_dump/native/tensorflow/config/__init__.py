"""The dump settings of TensorFlow on Ascend: the `parameter_map` of the optimizer NpuOptimizer in a ConfigProto.

The bridge (npu_bridge, TensorFlow's plugin for Ascend) reads these settings once for each graph of a session. It checks
some of them, and passes them to GE as session options.
Sources: hicann/tensorflow `npu_attrs` (keys, defaults, values, refusals, fatal errors), GE
`dump_properties` (`enable_dump` and `enable_dump_debug` cannot be combined).
"""

from __future__ import annotations

from ascend_dump.native.tensorflow.config.build import parameters
from ascend_dump.native.tensorflow.config.check import check_parameters
from ascend_dump.native.tensorflow.config.keys import DUMP_KEYS, KEYS

__all__ = ["DUMP_KEYS", "KEYS", "check_parameters", "parameters"]

"""The fake of `npu_bridge.estimator.npu.npu_estimator`: an Estimator whose sessions have an NpuOptimizer entry.

Source: hicann/tensorflow tf_adapter/python/npu_bridge/estimator/npu/npu_estimator.py, npu_common.py. The original
sets about 45 keys. The fake sets only those that concern the dump and the execution of graphs.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import Any

from ascend_dump.fakes.npu_bridge.options import OPTIMIZER
from ascend_dump.fakes.npu_bridge.process import import_tensorflow

__all__ = ["fill"]

_OPTIMIZERS = ("pruning", "function", "constfold", "shape", "arithmetic", "loop", "dependency", "layout")


def fill(module: ModuleType) -> None:
    """Define NPUEstimator and NPUEstimatorSpec in the module, if TensorFlow has Estimator."""
    tf = import_tensorflow()
    from tensorflow.core.protobuf import config_pb2

    config_class = import_module(f"{module.__name__.rpartition('.')[0]}.npu_config").NPURunConfig
    estimator = getattr(tf.compat.v1, "estimator", None)
    if estimator is None:
        return

    base: Any = estimator.Estimator

    class NPUEstimator(base):  # type: ignore[misc]  # the base is TensorFlow's
        def __init__(
            self,
            model_fn: Any = None,
            model_dir: Any = None,
            config: Any = None,
            params: Any = None,
            job_start_file: str = "",
            warm_start_from: Any = None,
        ) -> None:
            if config is None or not isinstance(config, config_class):
                raise ValueError("`config` must be provided with type `NPUConfigs`")
            if config.session_config is None:
                config = config.replace(session_config=config_pb2.ConfigProto())
            _load_graph_optimizers(config)
            if not os.path.isfile(job_start_file) and not os.environ.get("JOB_ID"):
                raise ValueError("Load job info failed, please check whether `JOB_ID` is set in environment variable")
            super().__init__(
                model_fn=model_fn,
                model_dir=model_dir,
                config=config,
                params=params,
                warm_start_from=warm_start_from,
            )

    NPUEstimator.__module__, NPUEstimator.__qualname__ = module.__name__, "NPUEstimator"
    vars(module).update(NPUEstimator=NPUEstimator, NPUEstimatorSpec=estimator.EstimatorSpec)


def _load_graph_optimizers(config: Any) -> None:
    """Add the NpuOptimizer entry and the Grappler optimizers to the user's session_config, in place."""
    rewrite = config.session_config.graph_options.rewrite_options
    rewrite.optimizers.extend([*_OPTIMIZERS, "GradFusionOptimizer"])
    entry = rewrite.custom_optimizers.add()
    entry.name = OPTIMIZER
    keys = entry.parameter_map
    keys["enable_data_pre_proc"].b = config.enable_data_pre_proc
    keys["mix_compile_mode"].b = config.mix_compile_mode
    keys["use_off_line"].b = True
    keys["iterations_per_loop"].i = config.iterations_per_loop
    keys["graph_run_mode"].i = config.graph_run_mode
    if config.op_debug_level is not None:
        keys["op_debug_level"].i = config.op_debug_level
    keys["enable_exception_dump"].i = config.enable_exception_dump
    if config._precision_mode is not None:
        keys["precision_mode"].s = _bytes(config._precision_mode)
    _load_dump_config(config, keys)
    if config._quant_dumpable is not None:
        keys["quant_dumpable"].s = _bytes(config._quant_dumpable)


def _load_dump_config(config: Any, keys: Any) -> None:
    dump = config._dump_config
    keys["enable_dump"].b = False if dump is None else dump._enable_dump
    keys["enable_dump_debug"].b = False if dump is None else dump._enable_dump_debug
    if dump is None:
        return
    # As in npu_bridge, dump_debug_mode is read whenever dump_mode is set. If it is None, TypeError is raised.
    if dump._dump_mode is not None:
        keys["dump_debug_mode"].s = _bytes(dump._dump_debug_mode)
    for key, value in {
        "dump_path": dump._dump_path,
        "dump_step": dump._dump_step,
        "dump_mode": dump._dump_mode,
        "dump_data": dump.dump_data,
        "dump_layer": dump.dump_layer,
    }.items():
        if value is not None:
            keys[key].s = _bytes(value)


def _bytes(value: Any) -> bytes:
    """Return bytes as tf.compat.as_bytes does. Raises TypeError for other types than text and bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise TypeError(f"Expected binary or unicode string, got {value!r}")

"""The fake of `npu_bridge.estimator.npu.npu_config`, with the classes NPURunConfig and DumpConfig.

Source: hicann/tensorflow tf_adapter/python/npu_bridge/estimator/npu/npu_config.py.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Optional

from ascend_dump.fakes.npu_bridge.process import import_tensorflow

__all__ = ["fill", "set_npu_defaults"]

#: Options of NPURunConfig that RunConfig does not have and that do not concern the dump, with their defaults.
_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("distribute", "precision_mode", "variable_format_optimize", "graph_memory_max_size"),
            *("variable_memory_max_size", "stream_max_parallel_num", "op_debug_level", "enable_scope_fusion_passes"),
            *("op_select_implmode", "optypelist_for_implmode", "dynamic_input_config", "aoe_mode", "work_path"),
            *("fusion_switch_file", "compress_weight_conf", "op_compiler_cache_mode", "op_compiler_cache_dir"),
            *("debug_dir", "dynamic_input", "dynamic_inputs_shape_range", "local_rank_id", "local_device_list"),
            *("session_device_id", "distribute_config", "modify_mixlist", "op_precision_mode", "soc_config"),
            *("hccl_timeout", "op_wait_timeout", "op_execute_timeout", "HCCL_algorithm", "customize_dtypes"),
            *("op_debug_config", "memory_config", "experimental_config", "topo_sorting_mode", "aoe_config_file"),
            *("insert_op_file", "precision_mode_v2", "ac_parallel_enable", "quant_dumpable", "compile_dynamic_mode"),
            *("aicore_num", "auto_multistream_parallel_mode", "optimization_switch", "profiling_config"),
        )
    ),
    "enable_data_pre_proc": True,
    "enable_reduce_precision": False,
    "mix_compile_mode": False,
    "hcom_parallel": True,
    "is_tailing_optimization": False,
    "horovod_mode": False,
    "graph_run_mode": 1,
    "enable_exception_dump": 2,
    "buffer_optimize": "l2_optimize",
    "enable_small_channel": 0,
    "enable_compress_weight": False,
    "hcom_multi_mode": False,
    "dynamic_graph_execute_mode": "dynamic_execute",
    "device_type": "default_device_type",
    "stream_sync_timeout": -1,
    "event_sync_timeout": -1,
    "external_weight": False,
    "deterministic": 0,
    "frozen_variable": False,
    "variable_placement": "Device",
    "jit_compile": "auto",
    "input_fusion_size": 131072,
    "graph_max_parallel_model_num": 1,
    "export_compile_stat": 1,
    "oo_constant_folding": True,
    "input_batch_cpy": False,
    "shape_generalization_mode": "STRICT",
    "all_tensor_not_empty": False,
    "oo_level": "O3",
}
#: Options that NPURunConfig stores as attributes of the same name. For other options an underscore precedes the name.
_PUBLIC = frozenset(
    (
        *("mix_compile_mode", "enable_data_pre_proc", "is_tailing_optimization", "variable_format_optimize"),
        *("horovod_mode", "graph_run_mode", "op_debug_level", "enable_scope_fusion_passes", "enable_exception_dump"),
        *("topo_sorting_mode", "aoe_config_file", "insert_op_file", "stream_sync_timeout", "event_sync_timeout"),
    )
)


class DumpConfig:
    """The dump settings for an Estimator. The values are not checked here."""

    def __init__(
        self,
        enable_dump: bool = False,
        dump_path: Optional[str] = None,
        dump_step: Optional[str] = None,
        dump_mode: str = "output",
        enable_dump_debug: bool = False,
        dump_debug_mode: str = "all",
        dump_data: str = "tensor",
        dump_layer: Optional[str] = None,
    ) -> None:
        self._enable_dump = enable_dump
        self._dump_path = dump_path
        self._dump_step = dump_step
        self._dump_mode = dump_mode
        self._enable_dump_debug = enable_dump_debug
        self._dump_debug_mode = dump_debug_mode
        # In npu_bridge, these two attributes have no underscore.
        self.dump_data = dump_data
        self.dump_layer = dump_layer


class ProfilingConfig:
    def __init__(self, enable_profiling: bool = False, profiling_options: Optional[str] = None) -> None:
        self._enable_profiling = enable_profiling
        self._profiling_options = profiling_options


def fill(module: ModuleType) -> None:
    """Define the classes in the module. NPURunConfig extends TensorFlow's RunConfig, if TensorFlow has Estimator."""
    tf = import_tensorflow()
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

    estimator = getattr(tf.compat.v1, "estimator", None)
    base: Any = _Settings if estimator is None else estimator.RunConfig

    class NPURunConfig(base):  # type: ignore[misc]  # the base is TensorFlow's
        """RunConfig with options for the NPU. Only the options of the dump have an effect here."""

        def __init__(
            self,
            iterations_per_loop: int = 1,
            profiling_config: Any = None,
            model_dir: Optional[str] = None,
            tf_random_seed: Optional[int] = None,
            save_summary_steps: int = 0,
            save_checkpoints_steps: Optional[int] = None,
            save_checkpoints_secs: Optional[int] = None,
            session_config: Any = None,
            keep_checkpoint_max: int = 5,
            keep_checkpoint_every_n_hours: int = 10000,
            log_step_count_steps: int = 100,
            *,
            dump_config: Any = None,
            train_distribute: Any = None,
            eval_distribute: Any = None,
            **options: Any,
        ) -> None:
            unknown = [name for name in options if name not in _OPTIONS]
            if unknown:
                raise TypeError(f"__init__() got an unexpected keyword argument {unknown[0]!r}")
            values = {**_OPTIONS, **options, "profiling_config": profiling_config}
            _check_values(iterations_per_loop, values)
            if json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster"):
                raise ValueError('"cluster" and "distribute" must all be set in ps mode')
            if dump_config is not None and not isinstance(dump_config, module.DumpConfig):
                raise ValueError("`dump_config` must be provided with type `DumpConfig`")
            self.iterations_per_loop = iterations_per_loop
            self._dump_config = dump_config
            for name, value in values.items():
                setattr(self, name if name in _PUBLIC else f"_{name}", value)
            if save_checkpoints_secs is None and save_checkpoints_steps is None:
                save_checkpoints_steps = 100
            super().__init__(
                model_dir=model_dir,
                tf_random_seed=tf_random_seed,
                save_summary_steps=save_summary_steps,
                save_checkpoints_steps=save_checkpoints_steps,
                save_checkpoints_secs=save_checkpoints_secs,
                session_config=session_config,
                keep_checkpoint_max=keep_checkpoint_max,
                keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
                log_step_count_steps=log_step_count_steps,
                train_distribute=train_distribute,
                eval_distribute=eval_distribute,
            )

    NPURunConfig.__module__, NPURunConfig.__qualname__ = module.__name__, "NPURunConfig"
    vars(module).update(
        NPURunConfig=NPURunConfig,
        DumpConfig=type("DumpConfig", (DumpConfig,), {"__module__": module.__name__}),
        ProfilingConfig=type("ProfilingConfig", (ProfilingConfig,), {"__module__": module.__name__}),
        decorator_tf_session=functools.partial(_decorate, config_pb2, RewriterConfig),
        config_pb2=config_pb2,
        RewriterConfig=RewriterConfig,
    )


def _check_values(loop: Any, values: Mapping[str, Any]) -> None:
    """Check the values that the real NPURunConfig checks. Raises its TypeError or ValueError."""
    for name, value, least in (
        ("iterations_per_loop", loop, 1),
        ("graph_run_mode", values["graph_run_mode"], 0),
        ("enable_exception_dump", values["enable_exception_dump"], 0),
    ):
        if not isinstance(value, int):
            raise TypeError(f"{name} must be int, got {type(value)}")
        if value < least:
            raise ValueError(f"{name} must be {'positive' if least else 'nonnegative'}, got {value}")
    if values["graph_run_mode"] > 1:
        raise ValueError('"graph_run_mode" value must be 0 or 1')
    if not isinstance(values["mix_compile_mode"], bool):
        raise TypeError('"mix_compile_mode" type must be bool')
    if values["mix_compile_mode"] and loop != 1:
        raise ValueError('"iterations_per_loop" must be 1 with "mix_compile_mode" is True')
    if not isinstance(values["jit_compile"], str):
        raise TypeError(f"Expected str, got {type(values['jit_compile']).__name__}")
    if not isinstance(values["horovod_mode"], bool):
        raise ValueError('"horovod_mode" type must be bool')


class _Settings:
    """The base of NPURunConfig if TensorFlow has no Estimator, and thus no RunConfig."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    @property
    def session_config(self) -> Any:
        return self._settings["session_config"]

    @property
    def model_dir(self) -> Any:
        return self._settings["model_dir"]


def set_npu_defaults(config: Any, config_pb2: Any, rewriter: Any) -> None:
    """Add an NpuOptimizer and its settings to a ConfigProto in place, as npu_config_proto does."""
    rewrite = config.graph_options.rewrite_options
    if not any(optimizer.name == "NpuOptimizer" for optimizer in rewrite.custom_optimizers):
        rewrite.custom_optimizers.add().name = "NpuOptimizer"
        rewrite.memory_optimization = rewriter.OFF
    config.allow_soft_placement = True
    config.log_device_placement = False
    rewrite.remapping = rewriter.OFF
    config.graph_options.optimizer_options.global_jit_level = config_pb2.OptimizerOptions.OFF


def _decorate(config_pb2: Any, rewriter: Any, function: Any) -> Any:
    """Return a `Session.__init__` that adds an NpuOptimizer to the session's ConfigProto before it calls `function`.

    As in npu_bridge, this changes the object that the program passed.
    """

    @functools.wraps(function)
    def init(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        config = config_pb2.ConfigProto() if config is None else config
        set_npu_defaults(config, config_pb2, rewriter)
        function(self, target=target, graph=graph, config=config)

    return init

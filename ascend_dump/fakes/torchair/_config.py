"""torchair's CompilerConfig: its sections and options, and their conversion to options of GE and of graphs.

The method `as_dict` of each section returns two dicts: the local options of one graph, and the global options of the
process. Source: torchair 2.13, configs/ (compiler_config, dump_config, debug_config, ge_config, experimental_config
and the smaller ones). Version 2.14 has the same options.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, Optional

from ascend_dump.fakes.torchair._options import (
    AnyOf,
    DirectoryOption,
    FileOption,
    FunctionOption,
    Integers,
    JsonFileOption,
    Mapped,
    NpuBaseConfig,
    OptionValue,
    Pattern,
    RangeOption,
    Text,
    matches_steps,
)

__all__ = ["CompilerConfig", "rank_level"]

_INT64_MAX = 2**63 - 1
_STEPS = r"^(((\d+)|(\d+-{0,1}\d+))\|{0,1})*$"
_LAYERS = r'^[0-9a-zA-Z_" "/\\.]*$'
_SORTING = {"BFS": "0", "DFS": "1", "RDFS": "2", "StableRDFS": "3"}
_MAX_AUTOTUNE, _ACLGRAPH = "max-autotune", ("reduce-overhead", "npugraph_ex")
_Dicts = tuple[dict[str, Any], dict[str, Any]]


def _distributed() -> Any:
    """Return torch.distributed if a process group is initialised, else None."""
    module = sys.modules.get("torch.distributed")
    ready = module is not None and module.is_available() and module.is_initialized()
    return module if ready else None


def rank_level() -> str:
    """Return the name of this rank's directory. A process without a process group is rank 0 of 1."""
    group = _distributed()
    if group is not None and group.get_world_size() > 1:
        return f"worldsize{group.get_world_size()}_global_rank{group.get_rank()}"
    return "worldsize1_global_rank0"


class _DataDumpConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.enable_dump = AnyOf(False, [False, True])
        self.dump_path = DirectoryOption("./")
        self.dump_mode = AnyOf("all", ["input", "output", "all"])
        self.quant_dumpable = AnyOf(False, [False, True])
        self.dump_step = Pattern("", matches_steps, _STEPS, "0|1|2-5|6")
        self.dump_layer = Pattern("", _matches_layers, _LAYERS, "Mul_1 Add1 Conv2D_1")
        self.dump_data = AnyOf("tensor", ["tensor", "stats"])
        self.dump_config_path = JsonFileOption(None)
        self.data_dump_stage = AnyOf("optimized", ["original", "optimized"])
        self._fix()

    def full_path(self) -> str:
        """Create this rank's directory below the dump path, and return it."""
        path = os.path.join(self.dump_path.value, rank_level())
        os.makedirs(path, exist_ok=True)
        return path

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> _Dicts:
        shared: dict[str, Any] = {}
        if self.dump_config_path.value is not None:
            shared["ge_dump_with_acl_config"] = self.dump_config_path.value
        if self.enable_dump and mode == _MAX_AUTOTUNE:
            shared["ge.exec.enableDump"] = "1"
            shared["ge.exec.dumpPath"] = self.full_path()
            shared["ge.exec.dumpMode"] = self.dump_mode.value
            shared["ge.quant_dumpable"] = "1" if self.quant_dumpable else "0"
            for name, option in (("ge.exec.dumpStep", self.dump_step), ("ge.exec.dumpLayer", self.dump_layer)):
                if option.value != "":
                    shared[name] = option.value
            shared["ge.exec.dumpData"] = self.dump_data.value
        if self.enable_dump and mode in _ACLGRAPH:
            shared["aclgraph.enableDump"] = "1"
            shared["aclgraph.dumpPath"] = self.full_path()
            shared["aclgraph.dumpStage"] = self.data_dump_stage.value
        return {}, shared


def _matches_layers(text: str) -> bool:
    return re.match(_LAYERS, text) is not None


class _DebugBase(NpuBaseConfig):
    type: Any

    @property
    def enabled(self) -> bool:
        return self.type.value is not None

    @property
    def path(self) -> Optional[str]:
        path: Optional[str] = self._path.value
        return path

    @path.setter
    def path(self, value: Any) -> None:
        self._path.value = os.path.realpath(value)

    def _keep_path(self, *names: str) -> None:
        self._path = OptionValue(None)
        self._fix(*names)

    def full_path(self, name: str) -> Optional[str]:
        """Return the path of a file of this dump, None if the dump is off. The directory is not created.

        name: the beginning of the file name.
        """
        if not self.enabled:
            return None
        group = _distributed()
        rank = 0 if group is None else group.get_rank()
        stamp = datetime.now(tz=timezone.utc).strftime("%Y%m%d%H%M%S%f")
        folder = "." if self._path.value is None else self._path.value
        return f"{folder}/{name}_rank_{rank}_pid_{os.getpid()}_ts_{stamp}.{self.type.value}"


class _Dump(_DebugBase):
    def __init__(self) -> None:
        self.type = AnyOf(None, ["txt", "pbtxt", "py"])
        self._keep_path("path")


class _DataDump(_DebugBase):
    def __init__(self) -> None:
        self.filter = None
        self.type = AnyOf(None, ["npy"])
        self._keep_path("filter", "path")


class _FxSummary(_DebugBase):
    def __init__(self) -> None:
        self.type = AnyOf(None, ["csv"])
        self.skip_compile = AnyOf(True, [True, False])
        self._keep_path()


class _AclGraphDebugConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.disable_reinplace_inplaceable_ops_pass = AnyOf(False, [True, False])
        self.disable_reinplace_input_mutated_ops_pass = AnyOf(False, [True, False])
        self.disable_mempool_reuse_in_same_fx = AnyOf(False, [True, False])
        self.enable_output_clone = AnyOf(False, [True, False])
        self.static_capture_size_limit = RangeOption(64, 1, _INT64_MAX)
        self.clone_input = AnyOf(True, [True, False])
        self.remove_cat_ops = AnyOf(True, [True, False])
        self._fix()

    def local(self) -> dict[str, Any]:
        names = ("disable_mempool_reuse_in_same_fx", "enable_output_clone", "static_capture_size_limit", "clone_input")
        return {name: getattr(self, name).value for name in names}

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> Any:
        # The real class returns the local options only, not a pair.
        return self.local()


class _DebugConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.graph_dump = _Dump()
        self.data_dump = _DataDump()
        self.fx_summary = _FxSummary()
        self.run_eagerly = AnyOf(False, [True, False])
        self.aclgraph = _AclGraphDebugConfig()
        self.deadlock_check = AnyOf(False, [True, False])
        self._fix()

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> _Dicts:
        switches = {"run_eagerly": self.run_eagerly.value, "deadlock_check": self.deadlock_check.value}
        return {**self.aclgraph.as_dict(mode), **switches}, {}


class _AoeConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.aoe_mode = AnyOf(None, ["2"])
        self.work_path = DirectoryOption("./")
        self.aoe_config_file = FileOption(None)
        self._fix()

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> _Dicts:
        return ({}, {}) if self.aoe_mode.value is None else super().as_dict()


class _ExportExperimentalConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.enable_record_nn_module_stack = AnyOf(False, [True, False])
        self.auto_atc_config_generated = AnyOf(False, [True, False])
        self.enable_lite_export = AnyOf(False, [True, False])
        self._fix()


_ExportExperimentalConfig.__name__ = "_ExperimentalConfig"


class _ExportConfig(NpuBaseConfig):
    """The section `export`. It does not call `_fix`: any attribute can be set, and the value replaces the option."""

    def __init__(self) -> None:
        self.export_mode = AnyOf(False, [False, True])
        self.export_path_dir = DirectoryOption("./")
        self.export_name = None
        self.weight_name = None
        self.inputs_name = None
        self.experimental = _ExportExperimentalConfig()

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> _Dicts:
        if not self.export_mode:
            return {}, {}
        return {"export_path_dir": self.export_path_dir, "export_name": self.export_name}, {}


class _FusionConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.fusion_switch_file = FileOption(None)
        self._fix()

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> _Dicts:
        file = self.fusion_switch_file.value
        return {}, {} if file is None else {"ge.fusionSwitchFile": file}


class _InferenceConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.dynamic_gears_merge_policy = AnyOf("zip", ["zip", "product"])
        self._fix()

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> _Dicts:
        return {}, {}


class _AclGraphExperimentalConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self._aclnn_static_shape_kernel = AnyOf(False, [True, False])
        self._aclnn_static_shape_kernel_build_dir = Text(None)
        self._aclnn_static_shape_kernel_sym_value_range = Integers(None)
        self._aclnn_static_shape_kernel_sym_index = RangeOption(0, 0, _INT64_MAX)
        self._super_kernel_optimize = AnyOf(False, [True, False])
        self._super_kernel_optimize_options = Mapped(None)
        self._super_kernel_debug_options = Mapped(None)
        self._fix()

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> _Dicts:
        local: dict[str, Any] = {}
        if mode == _MAX_AUTOTUNE:
            return local, {}
        if self._aclnn_static_shape_kernel.value == "1":
            prefix = "_aclnn_static_shape_kernel"
            local[prefix] = "1"
            local[f"{prefix}_build_dir"] = self._aclnn_static_shape_kernel_build_dir.value or ""
            local[f"{prefix}_sym_value_range"] = self._aclnn_static_shape_kernel_sym_value_range.value
            local[f"{prefix}_sym_index"] = self._aclnn_static_shape_kernel_sym_index.value
        if self._super_kernel_optimize.value == "1":
            local["_super_kernel_optimize"] = "1"
            for name in ("_super_kernel_optimize_options", "_super_kernel_debug_options"):
                if getattr(self, name).value is not None:
                    local[name] = getattr(self, name).value
        return local, {}


class _ExperimentalConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.cc_parallel_enable = AnyOf(False, [False, True])
        self.keep_inference_input_mutations = AnyOf(True, [True, False])
        self.memory_efficiency = AnyOf(False, [True, False])
        self.frozen_parameter = AnyOf(False, [True, False])
        self.static_model_ops_lower_limit = RangeOption(None, -1, _INT64_MAX)
        self.jit_compile = AnyOf("auto", ["auto"])
        self.npu_fx_pass = AnyOf(False, [True, False])
        self.aot_config_enable_joint_graph = AnyOf(False, [True, False])
        self.aot_config_output_loss_index = OptionValue(0)
        self.topology_sorting_strategy = AnyOf("DFS", ["BFS", "DFS", "RDFS", "StableRDFS"])
        self.enable_ref_data = AnyOf(False, [True, False])
        self.enable_view_optimize = AnyOf(True, [True, False])
        self.remove_noop_ops = AnyOf(True, [True, False])
        self.tiling_schedule_optimize = AnyOf(False, [True, False])
        self.pattern_fusion_pass = AnyOf(True, [True, False])
        self.aclgraph = _AclGraphExperimentalConfig()
        self._fix()

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> _Dicts:
        names = ("remove_noop_ops", "pattern_fusion_pass", "frozen_parameter")
        local = {name: getattr(self, name).value for name in names}
        if mode != _MAX_AUTOTUNE:
            inner, shared = self.aclgraph.as_dict(mode)
            return {**local, **inner}, shared
        local["ge.tiling_schedule_optimize"] = "1" if self.tiling_schedule_optimize else "0"
        local["ge.featureBaseRefreshable"] = "1" if self.memory_efficiency else "0"
        local["ge.topoSortingMode"] = _SORTING[self.topology_sorting_strategy.value]
        local["ge.jit_compile"] = "2"
        if self.static_model_ops_lower_limit.value is not None:
            local["ge.exec.static_model_ops_lower_limit"] = self.static_model_ops_lower_limit.value
        return local, {"ge.exec.enableEngineParallel": "1" if self.cc_parallel_enable else "0"}


class _GEConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.enable_single_stream = AnyOf(False, [True, False])
        self.oo_level = AnyOf("O3", ["O1", "O3"])
        self.oo_constant_folding = AnyOf(None, [True, False])
        self.oo_dead_code_elimination = AnyOf(None, [True, False])
        self.export_compile_stat = AnyOf("2", ["0", "1", "2"])
        self.aicore_num = OptionValue(None)
        self.optimization_switch = OptionValue(None)
        self.multistream_parallel_mode = OptionValue(None)
        self._fix()

    def as_dict(self, mode: str = _MAX_AUTOTUNE) -> _Dicts:
        words = {True: "true", False: "false"}
        shared: dict[str, Any] = {
            "ge.enableSingleStream": words[bool(self.enable_single_stream)],
            "ge.oo.level": self.oo_level.value,
            "ge.exportCompileStat": self.export_compile_stat.value,
        }
        for key, switch in (
            ("ge.oo.constantFolding", self.oo_constant_folding),
            ("ge.oo.deadCodeElimination", self.oo_dead_code_elimination),
        ):
            if switch.value is not None:
                shared[key] = words[bool(switch)]
        for key, option in (("ge.aicoreNum", self.aicore_num), ("ge.optimizationSwitch", self.optimization_switch)):
            if option.value is not None:
                shared[key] = option.value
        local = {"ge.topoSortingMode": _SORTING["StableRDFS"]} if self.oo_level.value == "O1" else {}
        if self.multistream_parallel_mode.value is not None:
            local["ge.autoMultistreamParallelMode"] = self.multistream_parallel_mode.value
        return local, shared


class _AclGraphConfig:
    def __init__(self) -> None:
        self.use_custom_pool = None


class _NpuGraphExConfig:
    """The options of `torch.compile(options=…)`. They are set on the class, so they stay for later compilations."""


class CompilerConfig(NpuBaseConfig):
    """The argument of `get_npu_backend(compiler_config=…)`. It is read when the first graph is built."""

    def __init__(self) -> None:
        self.debug = _DebugConfig()
        self.aoe_config = _AoeConfig()
        self.export = _ExportConfig()
        self.dump_config = _DataDumpConfig()
        self.fusion_config = _FusionConfig()
        self.experimental_config = _ExperimentalConfig()
        self.inference_config = _InferenceConfig()
        self.ge_config = _GEConfig()
        self.aclgraph_config = _AclGraphConfig()
        self.npugraphex_config = _NpuGraphExConfig()
        self.mode = AnyOf(_MAX_AUTOTUNE, [_MAX_AUTOTUNE, *_ACLGRAPH])
        self.post_grad_custom_pre_pass = FunctionOption(None)
        self.post_grad_custom_post_pass = FunctionOption(None)
        self._fix("post_grad_custom_pre_pass", "post_grad_custom_post_pass")

    def __eq__(self, config: object) -> bool:
        return isinstance(config, CompilerConfig) and dict(_leaves(self)) == dict(_leaves(config))

    __hash__ = None  # type: ignore[assignment]  # as in the real class, which defines __eq__ alone

    def as_dict(self) -> _Dicts:  # type: ignore[override]  # the mode is an option of this config
        local, shared = super().as_dict(self.mode.value)
        for name in ("post_grad_custom_pre_pass", "post_grad_custom_post_pass"):
            local.pop(name, None)
        return local, shared


def _leaves(holder: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name, with the names of its sections, and the value of each option of a section."""
    for name, value in vars(holder).items():
        if isinstance(value, OptionValue):
            yield prefix + name, value.value
        elif getattr(value, "__dict__", None) and not callable(value):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            # A section without attributes is yielded as an object, which equals only itself. So no two CompilerConfigs
            # are equal.
            yield prefix + name, value

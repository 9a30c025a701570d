"""The options of `npu_device`: accepted values, error messages, and their conversion to options of GE.

Options that do not concern a dump can be set, but have no effect. Those under `experimental` are missing. Source:
hicann/tensorflow tf_adapter_2.x/python/npu_device/configs (option_base.py, dump_config.py, npu_config.py).
"""

from __future__ import annotations

from typing import Any, Optional

from ascend_dump.native.cann.config import keys

__all__ = ["NpuBaseConfig", "NpuConfig", "NpuDumpConfig", "OptionValue", "ge_options"]

_BOTH = [True, False]

#: Option of npu_device -> GE's option for a session or for GEInitialize.
_GE_NAMES = {
    "enable_dump": keys.ENABLE_DUMP,
    "dump_path": keys.DUMP_PATH,
    "dump_step": keys.DUMP_STEP,
    "dump_mode": keys.DUMP_MODE,
    "enable_dump_debug": keys.ENABLE_DEBUG,
    "dump_debug_mode": keys.DEBUG_MODE,
    "dump_data": keys.DUMP_DATA,
    "dump_layer": keys.DUMP_LAYER,
    "quant_dumpable": keys.QUANT,
    "enable_exception_dump": keys.ENABLE_EXCEPTION,
}


class OptionValue:
    """One option, as an attribute of a configuration.

    default   the value at the beginning
    optional  the accepted values; None accepts any
    value     the value as text, None if there is none
    """

    def __init__(self, default: Any, optional: Any) -> None:
        self.default = default
        self.optional = optional
        self._value = default

    @property
    def value(self) -> Any:
        if self._value is None:
            return None
        # As in npu_device, the text "True" is read as "1" too.
        return {"True": "1", "False": "0"}.get(str(self._value), str(self._value))

    @value.setter
    def value(self, value: Any) -> None:
        """Set the value.

        For a value that is not in the list, raises TypeError if its type differs from that of the default, else
        ValueError.
        """
        if isinstance(self.optional, (tuple, list)) and value not in self.optional:
            if self.default is not None and not isinstance(value, type(self.default)):
                raise TypeError(f"Expected {type(self.default).__name__}, got {type(value).__name__}")
            raise ValueError(f"'{value}' not in optional list {self.optional}")
        self._value = value


class NpuBaseConfig:
    """A configuration with options as attributes. After the initialisation, only existing options can be set."""

    def __init__(self) -> None:
        self._fixed_attrs = [
            name for name, value in vars(self).items() if isinstance(value, (OptionValue, NpuBaseConfig))
        ]

    def __setattr__(self, key: str, value: Any) -> None:
        if "_fixed_attrs" not in vars(self):
            super().__setattr__(key, value)
            return
        if key not in self._fixed_attrs:
            raise ValueError(f"{type(self).__name__} has no option {key}, all options {self._fixed_attrs}")
        option = getattr(self, key)
        if isinstance(option, OptionValue):
            option.value = value
        else:
            super().__setattr__(key, value)

    def as_dict(self) -> dict[str, str]:
        """Return the values of all options that have one, by name. Options of nested configurations are included."""
        options: dict[str, str] = {}
        for name in self._fixed_attrs:
            option = getattr(self, name)
            if isinstance(option, NpuBaseConfig):
                options.update(option.as_dict())
            elif option.value is not None:
                if isinstance(option, DeprecatedValue):
                    instead = f"use '{option.replacement}' instead" if option.replacement else "do not set it"
                    print(f"[warning][tf_adapter] Option '{name}' is deprecated, please {instead}.")
                options[name] = option.value
        return options


class NpuDumpConfig(NpuBaseConfig):
    def __init__(self) -> None:
        self.enable_dump = OptionValue(False, _BOTH)
        self.dump_path = OptionValue(None, None)
        self.dump_step = OptionValue(None, None)
        self.dump_mode = OptionValue("output", ["input", "output", "all"])
        self.enable_dump_debug = OptionValue(False, _BOTH)
        self.dump_debug_mode = OptionValue("all", ["aicore_overflow", "atomic_overflow", "all"])
        self.dump_data = OptionValue("tensor", ["tensor", "stats"])
        self.dump_layer = OptionValue(None, None)
        super().__init__()


class DeprecatedValue(OptionValue):
    """An option that prints a warning. replacement: the name of the option to use instead, if any."""

    def __init__(self, optional: Any, *, replacement: Optional[str]) -> None:
        super().__init__(None, optional)
        self.replacement = replacement


class _Group(NpuBaseConfig):
    """A nested configuration that does not concern a dump. options: default and accepted values, by name."""

    def __init__(self, **options: tuple[Any, Any]) -> None:
        for name, (default, optional) in options.items():
            setattr(self, name, OptionValue(default, optional))
        super().__init__()


_PRECISIONS = (
    *("force_fp32", "allow_fp32_to_fp16", "force_fp16", "must_keep_origin_dtype", "allow_mix_precision"),
    *("cube_fp16in_fp32out", "allow_mix_precision_fp16", "allow_mix_precision_bf16", "allow_fp32_to_bf16"),
)
_NEWER_PRECISIONS = (
    *("fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16", "cube_hif8", "mixed_hif8"),
)
#: Option -> default, and accepted values (None for any). The options in `_ANYTHING` have no default.
_CHECKED: dict[str, tuple[Any, Any]] = {
    "graph_run_mode": (1, [0, 1]),
    "precision_mode": (None, list(_PRECISIONS)),
    "precision_mode_v2": (None, list(_NEWER_PRECISIONS)),
    "op_compiler_cache_mode": ("enable", ["enable", "disable", "force"]),
    "ac_parallel_enable": (None, ["0", "1"]),
    "hcom_parallel": (True, _BOTH),
    "is_tailing_optimization": (False, _BOTH),
    "enable_small_channel": (False, _BOTH),
    "deterministic": (0, [0, 1]),
    "topo_sorting_mode": (None, [0, 1, None]),
    "overflow_flag": (1, [0, 1]),
    "stream_sync_timeout": (-1, None),
    "event_sync_timeout": (-1, None),
    "execute_times": (-1, None),
    "external_weight": (False, _BOTH),
    "jit_compile": ("auto", ["true", "false", "auto"]),
    "input_fusion_size": (131072, None),
    "compile_dynamic_mode": (False, _BOTH),
    "export_compile_stat": (1, [0, 1, 2]),
    "oo_constant_folding": (True, _BOTH),
    "input_batch_cpy": (False, _BOTH),
    "shape_generalization_mode": ("STRICT", ["STRICT", "FULL", "ADAPTIVE"]),
    "all_tensor_not_empty": (False, _BOTH),
    "oo_level": ("O3", ["O0", "O1", "O2", "O3"]),
}
_ANYTHING = (
    *("graph_memory_max_size", "variable_memory_max_size", "enable_scope_fusion_passes", "fusion_switch_file"),
    *("op_compiler_cache_dir", "stream_max_parallel_num", "hcom_multi_mode", "op_debug_config", "debug_dir"),
    *("modify_mixlist", "op_precision_mode", "graph_exec_timeout", "customize_dtypes", "graph_compiler_cache_dir"),
    *("aicore_num", "auto_multistream_parallel_mode", "optimization_switch"),
)


class NpuConfig(NpuBaseConfig):
    """The configuration that `npu_device.global_options()` returns."""

    def __init__(self) -> None:
        for name, (default, optional) in {**_CHECKED, **dict.fromkeys(_ANYTHING, (None, None))}.items():
            setattr(self, name, OptionValue(default, optional))
        self.quant_dumpable = OptionValue(None, ["0", "1"])
        self.enable_exception_dump = OptionValue(2, [0, 1, 2])
        self.dump_config = NpuDumpConfig()
        self.variable_format_optimize = DeprecatedValue(_BOTH, replacement=None)
        self.op_select_implmode = DeprecatedValue(
            ["high_performance", "high_precision"], replacement="op_precision_mode"
        )
        self.optypelist_for_implmode = DeprecatedValue(None, replacement="op_precision_mode")
        self.op_debug_level = DeprecatedValue([0, 1, 2, 3, 4], replacement="op_debug_config")
        self.aoe_config = _Group(aoe_mode=(None, ["1", "2", "4"]), work_path=("./", None), aoe_config_file=(None, None))
        self.profiling_config = _Group(enable_profiling=(False, _BOTH), profiling_options=("{}", None))
        self.memory_config = _Group(
            atomic_clean_policy=(0, [0, 1]),
            static_memory_policy=(0, [0, 1, 2, 3, 4]),
            variable_use_1g_huge_page=(0, [0, 1, 2]),
        )
        super().__init__()


def ge_options(options: dict[str, str]) -> dict[str, str]:
    """Convert the result of `as_dict` to GE's options. Options that do not concern a dump are dropped."""
    return {_GE_NAMES[name]: value for name, value in options.items() if name in _GE_NAMES}

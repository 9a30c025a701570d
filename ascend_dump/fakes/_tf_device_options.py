"""The options of `npu_device`: what can be set, what is refused, and what GE is handed.

Source: hicann/tensorflow tf_adapter_2.x/python/npu_device/configs (option_base.py, dump_config.py, npu_config.py).
Options without a part in a dump are kept as far as programs commonly set them.
"""

from __future__ import annotations

from typing import Any

from ascend_dump.cann.config import keys

__all__ = ["NpuBaseConfig", "NpuConfig", "NpuDumpConfig", "OptionValue", "ge_options"]

_BOTH = [True, False]

#: Option -> GE's session or initialisation option.
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
    """One option. Reading the option of a configuration gives this object; `value` is a text or None."""

    def __init__(self, default: Any, optional: Any) -> None:
        self.default = default
        self.optional = optional
        self._value = default

    @property
    def value(self) -> Any:
        if self._value is None:
            return None
        # By their texts: a program may set "True".
        return {"True": "1", "False": "0"}.get(str(self._value), str(self._value))

    @value.setter
    def value(self, given: Any) -> None:
        """Raises TypeError for another type than the default's, ValueError for what is not in the list."""
        if isinstance(self.optional, (tuple, list)) and given not in self.optional:
            if self.default is not None and not isinstance(given, type(self.default)):
                raise TypeError(f"Expected {type(self.default).__name__}, got {type(given).__name__}")
            raise ValueError(f"'{given}' not in optional list {self.optional}")
        self._value = given


class NpuBaseConfig:
    """Options as attributes; no others can be set once it is made."""

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
        """The options that have a value, those of nested configurations under their own names."""
        found: dict[str, str] = {}
        for name in self._fixed_attrs:
            option = getattr(self, name)
            if isinstance(option, NpuBaseConfig):
                found.update(option.as_dict())
            elif option.value is not None:
                found[name] = option.value
        return found


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


class NpuConfig(NpuBaseConfig):
    """What `npu_device.global_options()` gives."""

    def __init__(self) -> None:
        self.precision_mode = OptionValue(None, None)
        self.precision_mode_v2 = OptionValue(None, None)
        self.graph_run_mode = OptionValue(1, [0, 1])
        self.quant_dumpable = OptionValue(None, ["0", "1"])
        self.op_debug_level = OptionValue(None, [0, 1, 2, 3, 4])
        self.op_debug_config = OptionValue(None, None)
        self.debug_dir = OptionValue(None, None)
        self.fusion_switch_file = OptionValue(None, None)
        self.enable_exception_dump = OptionValue(2, [0, 1, 2])
        self.dump_config = NpuDumpConfig()
        self.deterministic = OptionValue(0, [0, 1])
        self.jit_compile = OptionValue("auto", ["true", "false", "auto"])
        super().__init__()


def ge_options(options: dict[str, str]) -> dict[str, str]:
    """GE's options for what `as_dict` gave."""
    return {_GE_NAMES[name]: value for name, value in options.items() if name in _GE_NAMES}

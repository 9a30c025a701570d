"""Conversion of the options of `torch.compile(options=…)` to torchair's config, and warnings of `get_npu_backend`.

Source: torchair 2.13, configs/npugraphex_config.py and configs/compiler_config.py.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_dump.fakes.torchair._config import CompilerConfig

__all__ = ["check_support", "process_kwargs_options"]

#: Option of `torch.compile(options=…)` -> path of torchair's option. A minus sign means that the value is negated.
_COMPILE_OPTIONS = {
    "_vllm_aclnn_static_kernel_sym_index": "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_index",
    "_vllm_aclnn_static_kernel_sym_range": "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range",
    "static_kernel_compile": "experimental_config.aclgraph._aclnn_static_shape_kernel",
    "super_kernel_optimize": "experimental_config.aclgraph._super_kernel_optimize",
    "super_kernel_optimize_options": "experimental_config.aclgraph._super_kernel_optimize_options",
    "super_kernel_debug_options": "experimental_config.aclgraph._super_kernel_debug_options",
    "inplace_pass": "-debug.aclgraph.disable_reinplace_inplaceable_ops_pass",
    "input_inplace_pass": "-debug.aclgraph.disable_reinplace_input_mutated_ops_pass",
    "remove_noop_ops": "experimental_config.remove_noop_ops",
    "remove_cat_ops": "debug.aclgraph.remove_cat_ops",
    "force_eager": "debug.run_eagerly",
    "pattern_fusion_pass": "experimental_config.pattern_fusion_pass",
    "clone_input": "debug.aclgraph.clone_input",
    "frozen_parameter": "experimental_config.frozen_parameter",
    "post_grad_custom_pre_pass": "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass": "post_grad_custom_post_pass",
    "use_graph_pool": "aclgraph_config.use_custom_pool",
    "reuse_graph_pool_in_same_fx": "-debug.aclgraph.disable_mempool_reuse_in_same_fx",
    "capture_limit": "debug.aclgraph.static_capture_size_limit",
    "clone_output": "debug.aclgraph.enable_output_clone",
    "dump_tensor_data": "dump_config.enable_dump",
    "data_dump_stage": "dump_config.data_dump_stage",
    "data_dump_dir": "dump_config.dump_path",
}


def process_kwargs_options(config: CompilerConfig, keywords: dict[str, Any]) -> None:
    """Set the options of `torch.compile(options=…)` in `config`. Raises ValueError for an unknown option.

    keywords: the keyword arguments with which PyTorch calls a backend; the options are under "options".
    """
    for name, value in keywords.get("options", {}).items():
        if name not in _COMPILE_OPTIONS:
            raise ValueError(f"Invalid option '{name}', allowed options: {sorted(_COMPILE_OPTIONS)}")
        setattr(type(config.npugraphex_config), name, value)
        path = _COMPILE_OPTIONS[name]
        section: Any = config
        *sections, last = path.lstrip("-").split(".")
        for part in sections:
            section = getattr(section, part)
        opposite = path.startswith("-") and isinstance(value, int) and value in (0, 1)
        setattr(section, last, type(value)(not value) if opposite else value)


def check_support(config: CompilerConfig) -> None:
    """Warn of the mode reduce-overhead, as `get_npu_backend` does.

    With a dump, a further warning says that the dump may have no effect in this mode, although it has one.
    """
    if config.mode.value != "reduce-overhead":
        return
    if config.dump_config.enable_dump:
        warnings.warn(
            "The following torchair config or properties may not take effect or report error in reduce-overhead "
            "mode: config.dump_config.enable_dump:True, set_dim_gears, "
            "dynamo_export, scope, npu_print",
            UserWarning,
            stacklevel=4,
        )
    warnings.warn(
        'The "reduce-overhead" mode configuration will be deprecated. Please use the "npugraph_ex" backend.',
        DeprecationWarning,
        stacklevel=4,
    )

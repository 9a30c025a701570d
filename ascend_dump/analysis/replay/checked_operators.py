"""Operators that are replayed by default, because their kernels check shapes and arguments.

The check matters because the files of a dump may be malicious. Views and copies in these lists read no memory outside
of their input.
"""

from __future__ import annotations

from ascend_dump.analysis.operators.properties import operator_class

__all__ = ["is_checked"]

_CHECKED = frozenset(
    (
        *("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "pow", "tanh", "sigmoid", "relu"),
        *("gelu", "silu", "softplus", "elu", "clamp", "where", "addcmul", "addcdiv", "lerp"),
        *("sum", "mean", "var", "amax"),
        *("mm", "bmm", "addmm", "baddbmm", "_softmax", "_log_softmax", "native_layer_norm", "_fused_rms_norm"),
        *("gelu_backward", "silu_backward", "tanh_backward", "sigmoid_backward", "threshold_backward"),
        *("_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward"),
    )
)
#: Further operators that occur in layers, whose local error is measured by replaying them. Their kernels check shapes
#: too.
_IN_LAYERS = frozenset(
    (
        *("t", "view", "_unsafe_view", "transpose", "permute", "reshape", "expand", "unsqueeze", "squeeze", "select"),
        *("slice", "split", "split_with_sizes", "chunk", "unbind", "cat", "stack", "clone", "_to_copy", "detach"),
        *("alias", "contiguous", "flatten", "linear", "convolution", "conv1d", "conv2d", "silu", "hardtanh"),
        *("hardswish", "leaky_relu", "relu6", "mish", "cos", "sin", "masked_fill", "maximum", "minimum", "rsub"),
        *("_native_batch_norm_legit_no_training", "native_batch_norm", "native_group_norm", "_safe_softmax"),
        *("_scaled_dot_product_flash_attention_for_cpu", "_adaptive_avg_pool2d", "avg_pool2d", "square", "matmul"),
    )
)


def is_checked(op_type: str, *, in_layers: bool = False) -> bool:
    """Return True for an ATen operator that is replayed by default.

    in_layers: also operators that layers consist of beside arithmetic, such as views
    """
    if not op_type.startswith("aten::"):
        return False
    name = operator_class(op_type)
    return name in _CHECKED or (in_layers and name in _IN_LAYERS)

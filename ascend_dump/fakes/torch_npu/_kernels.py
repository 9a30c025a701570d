"""Eager operators of PyTorch as kernels of the simulated NPU.

On a device each ATen operator calls one function of the aclnn libraries, which launches one or more kernels. Here it
is one kernel: its type is GE's name of the operator where there is one, and its name is formed as those in profiles,
`aclnn{Function}_{Kernel}AiCore_{Kernel}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._pytree import tree_iter

from ascend_dump.fakes.torch_npu._graphs import CapturedCall, captures_of

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu
    from ascend_dump.fakes.torch_npu._graphs import CapturedKernels

__all__ = ["KernelLauncher", "kernel_of"]

#: ATen's name -> GE's type.
_TYPES = {
    "_log_softmax": "LogSoftmaxV2",
    "_log_softmax_backward_data": "LogSoftmaxGrad",
    "_softmax": "SoftmaxV2",
    "_softmax_backward_data": "SoftmaxGrad",
    "_to_copy": "Cast",
    "addmm": "MatMulV2",
    "baddbmm": "BatchMatMulV2",
    "bmm": "BatchMatMulV2",
    "cat": "ConcatD",
    "clone": "TensorMove",
    "convolution": "Conv2D",
    "copy": "TensorMove",
    "div": "RealDiv",
    "embedding": "GatherV2",
    "index_select": "GatherV2",
    "mean": "ReduceMean",
    "mm": "MatMulV2",
    "native_batch_norm": "BNInfer",
    "native_layer_norm": "LayerNorm",
    "nll_loss_backward": "NLLLossGrad",
    "nll_loss_forward": "NLLLoss",
    "silu": "Swish",
    "sum": "ReduceSum",
    "threshold_backward": "ReluGrad",
    "where": "SelectV2",
    "zero": "ZerosLike",
}
#: Operators that only allocate memory or only read a value.
_NO_KERNEL = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense", "resize")
)
#: Operators that do not check their indices on a device: the kernel reads invalid memory with a wrong one, and fails.
_READ_BY_INDEX = frozenset(("aten::embedding",))


def kernel_of(operator: str) -> tuple[str, str]:
    """Return the type and the name of the kernel of an ATen operator, such as `aten::add_.Tensor`.

    (assumption torch_npu.kernel_names)
    """
    base = operator.partition("::")[2].partition(".")[0]
    inplace = base.endswith("_") and not base.endswith("__")
    plain = base.rstrip("_")
    camel = "".join(part[:1].upper() + part[1:] for part in plain.split("_"))
    kind = _TYPES.get(plain, camel)
    return kind, f"aclnn{'Inplace' if inplace else ''}{camel}_{kind}AiCore_{kind}"


class KernelLauncher:
    """Runs operators on host tensors, and reports each to the device. (assumption torch_npu.kernels_per_operator)"""

    def __init__(self, npu: Npu) -> None:
        self._npu = npu
        self._captures = captures_of(npu)

    def __call__(self, func: Any, args: Any, kwargs: Any, *, stream: int = 0) -> Any:
        if self._npu.in_model:
            # A graph is computed with PyTorch's operators here, but the device records the operators of the graph.
            return func(*args, **kwargs)
        if self._captures.updated is not None:
            return self._captures.update(func, args, kwargs)
        if self._captures.current is not None:
            return self._capture(self._captures.current, func, args, kwargs, stream)
        schema = func._schema
        if not _is_kernel(schema):
            return func(*args, **kwargs)
        # An in-place operator overwrites its inputs: they are copied before it runs.
        inputs = _arrays(_tensors((args, kwargs)), copy=schema.is_mutable)
        result, fails = None, ""
        try:
            result = func(*args, **kwargs)
        except IndexError as error:
            if schema.name not in _READ_BY_INDEX:
                raise
            fails = str(error)
        kind, name = kernel_of(schema.name)
        self._npu.run_op(kind, name, inputs, _arrays(_tensors(result)), stream=stream, fails=fails)
        return result

    def _capture(self, graph: CapturedKernels, func: Any, args: Any, kwargs: Any, stream: int) -> Any:
        """Add an operator to a graph. The device computes nothing before a replay; here only its outputs are sized."""
        schema = func._schema
        operands = _tensors((args, kwargs))
        values = [tensor.clone() for tensor in operands] if schema.is_mutable else []
        result = func(*args, **kwargs)
        for tensor, value in zip(operands, values):
            tensor.copy_(value)
        outputs = _tensors(result)
        if not _is_kernel(schema):
            return result
        kind, name = kernel_of(schema.name)
        task = self._npu.capture_op(kind, name, captured=graph.name, stream=stream)

        def replay(call: CapturedCall) -> None:
            inputs = _arrays(_tensors((call.args, call.kwargs)), copy=schema.is_mutable)
            computed = _tensors(call.func(*call.args, **call.kwargs))
            for tensor, value in zip(outputs, computed):
                if tensor is not value:
                    tensor.copy_(value)
            self._npu.run_op(kind, name, inputs, _arrays(outputs), task=task, stream=stream, captured=graph.name)

        graph.calls.append(CapturedCall(func, args, kwargs, replay))
        return result


def _is_kernel(schema: Any) -> bool:
    view = not schema.is_mutable and any(value.alias_info is not None for value in schema.returns)
    return not view and schema.name.partition("::")[2].rstrip("_") not in _NO_KERNEL


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]


def _arrays(tensors: list[torch.Tensor], *, copy: bool = False) -> list[Any]:
    arrays = (_array(tensor, copy=copy) for tensor in tensors)
    return [array for array in arrays if array is not None]


def _array(tensor: torch.Tensor, *, copy: bool = False) -> Any:
    """Return the tensor's values as a numpy array of its type; None for a sparse or meta tensor or a subclass."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
        return None
    plain = tensor.detach().contiguous()
    if copy and plain.data_ptr() == tensor.data_ptr():
        plain = plain.clone()
    kind = _dtype(tensor.dtype)
    raw = plain.reshape(-1).view(torch.uint8).numpy()
    return raw.view(kind).reshape(tuple(tensor.shape))


def _dtype(dtype: torch.dtype) -> np.dtype[Any]:
    import ml_dtypes

    name = str(dtype).rpartition(".")[2]
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)

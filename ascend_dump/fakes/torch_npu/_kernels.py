"""Eager operators of PyTorch as API calls of the simulated NPU.

An operator calls one API of aclnn, which launches one main kernel. A tensor is *in order* if its elements are in memory
in the order of its dimensions, without gaps. If an operand is a view that is not in order, further kernels before the
main one put its elements in order. If the result goes to such a view, one more kernel writes it.

`KernelLauncher` runs operators, and `EagerOperators` reports them to the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
import torch
from torch.utils._pytree import tree_iter

from ascend_dump.analysis.operators.names import reports_no_outputs, written_as
from ascend_dump.fakes.device.npu import ApiCall, Kernel
from ascend_dump.fakes.torch_npu._apis import api_of, generated_type, is_in_place, kernel_of
from ascend_dump.fakes.torch_npu._graphs import CapturedOperator, captures_of
from ascend_dump.fakes.torch_npu._views import DeviceTensor, brought_in_order, written_to

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu
    from ascend_dump.fakes.torch_npu._graphs import CapturedKernels

    _Array = np.ndarray[Any, Any]

__all__ = ["DeviceTensor", "EagerOperators", "KernelLauncher"]

#: Operators that launch no kernel: they allocate memory, or read a value.
_NO_KERNEL = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense", "resize")
)
#: Operators whose kernel does not check indices: on a device it fails, because it reads memory outside of the tensor.
_READ_BY_INDEX = frozenset(("aten::embedding",))
#: APIs whose kernel can read a transposed operand, so that no other kernel has to put it in order.
_MATRIX_PRODUCTS = frozenset(("aclnnMm", "aclnnMatmul", "aclnnAddmm", "aclnnBatchMatMul", "aclnnBaddbmm"))
_COPY = "aclnnInplaceCopy"
#: The API that fills a tensor. Its kernel has no tensor as input.
_FILL = "aclnnInplaceFillScalar"
#: Types for which AI Core has no kernels.
_WIDE = (np.dtype("float64"), np.dtype("complex128"))


class EagerOperators:
    """A reporter of ATen operators to the device. The tensors are host aliases of the device's tensors."""

    def __init__(self, npu: Npu) -> None:
        self._npu = npu

    def read(self, tensors: Sequence[torch.Tensor], *, copy: bool = False) -> list[DeviceTensor]:
        """Return tensors as `DeviceTensor`, without sparse and meta tensors and instances of subclasses.

        copy: copy the values, because the operator overwrites some of them.
        """
        device_tensors = (_device_tensor(tensor, copy=copy) for tensor in tensors)
        return [tensor for tensor in device_tensors if tensor is not None]

    def run(
        self,
        operator: str,
        inputs: Sequence[DeviceTensor],
        outputs: Sequence[torch.Tensor],
        *,
        stream: int = 0,
        fails: str = "",
    ) -> None:
        """Report that an operator such as `aten::add_.Tensor` ran.

        In saturation mode, results out of range are replaced by the largest number of their type. fails: if not "", the
        operator fails on the device for this reason, and OperatorFailed is raised.
        """
        overflowed = [_saturate(output) for output in outputs] if self._npu.saturates else []
        call = _api_call(operator, inputs, self.read(outputs))
        self._npu.run_api(call._replace(overflowed=any(overflowed)), stream=stream, fails=fails)

    def capture(
        self, operator: str, inputs: Sequence[DeviceTensor], outputs: Sequence[torch.Tensor], *, stream: int = 0
    ) -> Callable[[Sequence[DeviceTensor], Sequence[torch.Tensor]], None]:
        """Report that a graph captured an operator. Returns a function that reports a replay.

        That function takes the inputs and the outputs of the replay.
        """
        captured = self._npu.capture_api(_api_call(operator, inputs, self.read(outputs)), stream=stream)

        def replay(inputs: Sequence[DeviceTensor], outputs: Sequence[torch.Tensor]) -> None:
            if self._npu.saturates:
                for output in outputs:
                    _saturate(output)
            self._npu.replay_api(captured, _api_call(operator, inputs, self.read(outputs)), stream=stream)

        return replay


def _api_call(operator: str, inputs: Sequence[DeviceTensor], outputs: Sequence[DeviceTensor]) -> ApiCall:
    """Return the API call of an operator with all its kernels, in the order of their launch."""
    # (assumption torch_npu.kernels_per_operator)
    called = api_of(operator, len(inputs))
    api, generated = written_as(called), generated_type(called)
    is_copy = called == _COPY
    outputs = [_allocated(output, inputs) for output in outputs]
    kernels, operands = [], []
    for tensor in [] if api == _FILL else inputs[-1:] if is_copy else inputs:
        # For APIs that CANN's build generates, op-plugin itself passes operands in order.
        before, operand = _operand(tensor, api) if not generated else ([], np.asarray(tensor.view, order="C"))
        kernels += before
        operands.append(operand)
    if is_copy:
        kernels += _copied(operands[0], outputs[0], is_made=bool(kernels))
        results = [kernels[-1].outputs[0] if kernels else operands[0]]
    else:
        results = [np.asarray(tensor.view, order="C") for tensor in outputs]
        kernels.append(Kernel(generated or kernel_of(api), operands, results))
    for target, result in zip(outputs, results) if not generated else ():
        kernels += written_to(target, result, _storage_before(target, inputs))
    input_storages, output_storages = ([tensor.storage for tensor in side] for side in (inputs, outputs))
    if reports_no_outputs(api):
        # Such an API reports its output tensors as inputs, with their values before the call: first for a call in
        # place, last for others.
        input_addresses = {tensor.address for tensor in inputs}
        targets = [np.zeros_like(tensor.storage) for tensor in outputs if tensor.address not in input_addresses]
        input_storages = [*targets, *input_storages] if is_in_place(api) else [*input_storages, *targets]
        output_storages = []
    kernels = [kernel._replace(is_reported=_runs_on_ai_core(kernel)) for kernel in kernels]
    return ApiCall(api, input_storages, output_storages, kernels, bool(generated))


def _allocated(output: DeviceTensor, inputs: Sequence[DeviceTensor]) -> DeviceTensor:
    """Return an output as op-plugin allocates it: in order. An output with the memory of an input is not changed."""
    if output.is_in_order() or output.address in {tensor.address for tensor in inputs}:
        return output
    elements = np.asarray(output.view, order="C")
    return DeviceTensor(elements.ravel(), elements, output.address)


def _operand(tensor: DeviceTensor, api: str) -> tuple[list[Kernel], _Array]:
    """Return the kernels that put an operand in order, and the elements as the main kernel reads them."""
    memory = tensor.memory_order()
    if api in _MATRIX_PRODUCTS and memory.flags.c_contiguous:
        return [], memory
    return brought_in_order(tensor)


def _copied(source: _Array, target: DeviceTensor, *, is_made: bool) -> list[Kernel]:
    """Return the kernels of a copy: a cast and a broadcast where needed; if there is no other kernel, one for the move.

    is_made: kernels have already put the source in order; the last of them writes to the target.
    """
    kernels, current = [], source
    if source.dtype != target.view.dtype:
        current = source.astype(target.view.dtype)
        kernels.append(Kernel("CastAiCore", [source], [current]))
    if current.shape != target.view.shape:
        repeated = np.asarray(np.broadcast_to(current, target.view.shape), order="C")
        kernels.append(Kernel("BroadcastToAiCore", [current], [repeated]))
    if target.is_in_order() and not is_made and not kernels:
        kernels.append(Kernel("TensorMoveAiCore", [current], [np.asarray(target.view, order="C")]))
    return kernels


def _storage_before(target: DeviceTensor, inputs: Sequence[DeviceTensor]) -> _Array:
    """Return the storage of an output before the call if the output is also an input, else its storage after it."""
    return next((tensor.storage for tensor in inputs if tensor.address == target.address), target.storage)


def _runs_on_ai_core(kernel: Kernel) -> bool:
    """Return True if a kernel runs on AI Core; only then CANN reports its tensors.

    Kernels for float64 and complex128, and those whose name ends with "aicpu", run on AICPU; kernels for random numbers
    run on DSA. Their launchers report no tensors (opbase, kernel_launcher.h:135-195).
    """
    wide = any(array.dtype in _WIDE for array in (*kernel.inputs, *kernel.outputs))
    return not (wide or kernel.name.startswith("DSA") or kernel.name.lower().endswith("aicpu"))


class KernelLauncher:
    """A function that runs an operator on host aliases of the device's tensors, and reports it to the device."""

    def __init__(self, npu: Npu) -> None:
        self._npu = npu
        self._operators = EagerOperators(npu)
        self._captures = captures_of(npu)

    def __call__(self, func: Any, args: Any, kwargs: Any, operands: Sequence[torch.Tensor], *, stream: int) -> Any:
        """Run an operator, and return its result.

        operands: the aliases among the arguments that are inputs. stream: number of the stream of its kernels.
        """
        if self._npu.in_model:
            # Another fake computes a graph with PyTorch's operators. It reports the operators of the graph itself.
            return func(*args, **kwargs)
        if self._captures.updated is not None:
            return self._captures.update(func, args, kwargs, operands)
        schema = func._schema
        if not _is_kernel(schema):
            return func(*args, **kwargs)
        if self._captures.current is not None:
            return self._capture(self._captures.current, func, args, kwargs, operands, stream)
        # An in-place operator overwrites inputs, so they are copied before it runs.
        inputs = self._operators.read(operands, copy=schema.is_mutable)
        result, fails = None, ""
        try:
            result = func(*args, **kwargs)
        except IndexError as error:
            if schema.name not in _READ_BY_INDEX:
                raise
            fails = str(error)
        outputs = _outputs(schema, args, kwargs, result)
        self._operators.run(_name(schema), inputs, outputs, stream=stream, fails=fails)
        return result

    def _capture(
        self,
        graph: CapturedKernels,
        func: Any,
        args: Any,
        kwargs: Any,
        operands: Sequence[torch.Tensor],
        stream: int,
    ) -> Any:
        """Add an operator to a graph, and return its result, whose values mean nothing before a replay.

        A device computes nothing during a capture. Here the operator runs, to know the sizes of its outputs, and
        overwritten arguments get their old values back.
        """
        schema = func._schema
        overwritten = _tensors((args, kwargs)) if schema.is_mutable else []
        values = [tensor.clone() for tensor in overwritten]
        result = func(*args, **kwargs)
        for tensor, value in zip(overwritten, values):
            tensor.copy_(value)
        outputs = _outputs(schema, args, kwargs, result)
        report = self._operators.capture(_name(schema), self._operators.read(operands), outputs, stream=stream)

        def replay(call: CapturedOperator) -> None:
            inputs = self._operators.read(call.operands, copy=schema.is_mutable)
            computed = _outputs(schema, call.args, call.kwargs, call.func(*call.args, **call.kwargs))
            for tensor, value in zip(outputs, computed):
                if tensor is not value:
                    tensor.copy_(value)
            report(inputs, outputs)

        graph.calls.append(CapturedOperator(func, args, kwargs, operands, result, replay))
        return result


def _is_kernel(schema: Any) -> bool:
    """Return True if an operator launches a kernel: it neither returns a view nor is in `_NO_KERNEL`."""
    view = not schema.is_mutable and any(value.alias_info is not None for value in schema.returns)
    return not view and schema.name.partition("::")[2].rstrip("_") not in _NO_KERNEL


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]


def _outputs(schema: Any, args: Any, kwargs: Any, result: Any) -> list[torch.Tensor]:
    """Return the results and the overwritten operands of a call, each tensor once."""
    named = dict(zip((argument.name for argument in schema.arguments), args), **kwargs)
    written = [
        named.get(argument.name)
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return list({id(tensor): tensor for tensor in _tensors((result, written))}.values())


def _name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}"


def _device_tensor(tensor: torch.Tensor, *, copy: bool) -> Optional[DeviceTensor]:
    """Return a tensor as `DeviceTensor`; None for a sparse or meta tensor, or an instance of a subclass.

    copy: copy the storage. Otherwise the arrays share the tensor's memory.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
        return None
    kind = _dtype(tensor.dtype)
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    storage = raw[: raw.size // kind.itemsize * kind.itemsize].view(kind)
    if copy:
        storage = storage.copy()
    strides = [stride * kind.itemsize for stride in tensor.stride()]
    start = storage[tensor.storage_offset() :]
    view = np.lib.stride_tricks.as_strided(start, tuple(tensor.shape), strides)
    return DeviceTensor(storage, view, tensor.untyped_storage().data_ptr())


def _saturate(tensor: torch.Tensor) -> bool:
    """Replace Inf by the largest number of the tensor's type, -Inf by its negative. Returns True if there was any."""
    if not tensor.is_floating_point() or _device_tensor(tensor, copy=False) is None:
        return False
    overflowed = bool(tensor.isinf().any())
    if overflowed:
        largest = torch.finfo(tensor.dtype).max
        tensor.clamp_(-largest, largest)
    return overflowed


def _dtype(dtype: torch.dtype) -> np.dtype[Any]:
    import ml_dtypes

    name = str(dtype).rpartition(".")[2]
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)

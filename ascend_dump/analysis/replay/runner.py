"""Run one recorded operator again with PyTorch, in its own types or in finer ones."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.replay.reasons import NotRun, refuse_by_name
from ascend_dump.dump_format import UNINITIALISED, Arguments, Cut, Named, TensorOf
from ascend_dump.errors import AscendDumpError, FrameworkMissing, NotSupported
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Runner"]

_BYTES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_FLOATS = ("float16", "bfloat16", "float32", "float64", *_BYTES)
_COMPLEX = {"complex32": "complex64", "complex64": "complex128", "complex128": "complex128"}
#: By size in bytes: the integer type that carries the bits of types that numpy lacks from ml_dtypes to PyTorch.
_WORDS = {1: "uint8", 2: "int16"}
#: Largest tensor, in bytes, that is made without values.
_MOST_BYTES = 1 << 34
#: The outputs of an operator may have at most `_FACTOR` times the bytes of its records, plus `_CONSTANT`.
_FACTOR, _CONSTANT = 64, 1 << 24
#: The bytes of an element of the widest type.
_WIDEST = 16


class Runner:
    """Runs operators again. Raises FrameworkMissing where PyTorch is not installed."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError:
            raise FrameworkMissing(
                "operators are run again by PyTorch, which is not installed", hint="pip install torch"
            ) from None
        self._torch: Any = torch
        self.version = str(torch.__version__)

    def run(
        self, operator: Operator, call: Arguments, wide: Optional[str], *, is_small: bool = False
    ) -> dict[int, np.ndarray]:
        """Return the outputs by their index. Raises NotRun with the reason.

        wide      the type that floating-point tensors are converted to; None: each keeps its own type
        is_small  the size of the outputs was checked before, and is not checked here
        """
        torch = self._torch
        function = self._function(call)
        names = {argument.name for argument in function._schema.arguments}
        records = {("input", record.index): record for record in operator.inputs}
        records.update({("output", record.index): record for record in operator.outputs})
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        values: dict[str, Any] = {}
        is_positional = True
        for argument in function._schema.arguments:
            if argument.name not in call.values:
                is_positional = False  # later arguments are passed by name
                continue
            value = self._value(call.values[argument.name], argument.name, records, wide)
            values[argument.name] = value
            if argument.kwarg_only or not is_positional:
                kwargs[argument.name] = value
            else:
                args.append(value)
        if set(call.values) - names:
            raise NotRun("kernel", f"{call.operator} takes other arguments in PyTorch {self.version}")
        if not is_small:
            self._check_size(function, args, kwargs, operator)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = function(*args, **kwargs)
        except Exception as error:  # whatever PyTorch raises for arguments or types that it does not take
            raise NotRun("kernel", str(error).strip().split("\n")[0][:200]) from None
        return {record.index: array for record, array in self._outputs(operator, result, values)}

    def bind(self, operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the arguments of an ATen operator with their names in its schema. Raises NotRun."""
        names = [argument.name for argument in self._function(Arguments(operator, {}))._schema.arguments]
        if len(args) > len(names) or not set(kwargs) <= set(names[len(args) :]):
            raise NotRun("kernel", f"{operator} takes other arguments in PyTorch {self.version}")
        yield from zip(names, args)
        yield from kwargs.items()

    def _function(self, call: Arguments) -> Any:
        name, overload = refuse_by_name(call)
        function = getattr(getattr(self._torch.ops.aten, name, None), overload, None)
        if not isinstance(function, self._torch._ops.OpOverload):
            raise NotRun("kernel", f"PyTorch {self.version} has no {call.operator[:100]}")
        return function

    def _check_size(self, function: Any, args: list[Any], kwargs: dict[str, Any], operator: Operator) -> None:
        """Raise NotRun if the outputs would be too large: a number in a file must not exhaust the memory.

        The size is determined by a run on meta tensors, which have no memory. If PyTorch cannot run the operator on
        meta tensors, the size is not checked.
        """
        torch = self._torch
        if self._is_small(function, args, kwargs):
            return
        try:
            on_meta: Any = _mapped([args, kwargs], lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x)
            if "device" in kwargs or not _tensors([*args, *kwargs.values()], torch):
                on_meta[1]["device"] = torch.device("meta")
            with torch.no_grad():
                results = _tensors([function(*on_meta[0], **on_meta[1])], torch)
        except Exception:
            # Many operators have no meta kernel, or shapes that depend on values. But operators that create a tensor
            # from numbers alone, where a number may be huge, have one.
            return
        recorded = sum(record.nbytes or 0 for record in (*operator.inputs, *operator.outputs))
        if sum(result.numel() * result.element_size() for result in results) > _FACTOR * recorded + _CONSTANT:
            raise NotRun("size", f"{[tuple(result.shape) for result in results][:4]}")

    def _is_small(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
        """Return True if the shapes of the inputs alone show that the results take little memory.

        This avoids meta kernels: those of pointwise operators load the compiler of PyTorch, which takes seconds.
        """
        torch = self._torch
        if torch.Tag.pointwise not in function.tags:
            return False
        try:
            shape = torch.broadcast_shapes(*(tensor.shape for tensor in _tensors([*args, *kwargs.values()], torch)))
        except RuntimeError:
            return False
        return bool(math.prod(shape) * _WIDEST <= _CONSTANT)

    def _value(self, value: Any, name: str, records: Mapping[tuple[str, int], Record], wide: Optional[str]) -> Any:
        torch = self._torch
        if isinstance(value, TensorOf):
            record = records.get((value.io, value.index))
            if record is None:
                raise NotRun("inputs" if value.io == "input" else "outputs", f"{name}: there is no record of {value}")
            return self._tensor(record, wide, empty=value.io == "output")
        if isinstance(value, list):
            return [self._value(element, name, records, wide) for element in value]
        if isinstance(value, Cut):
            raise NotRun("cut", name)
        if name == "half_to_float":
            return False if wide is not None else value
        if not isinstance(value, Named):
            return value
        if value.kind == "device":
            return torch.device("cpu")
        if value.kind == "dtype":
            return self._dtype(value.name, wide)
        constant = getattr(torch, value.name, None) if value.kind in ("layout", "memory_format") else None
        if not isinstance(constant, (torch.layout, torch.memory_format)):
            raise NotRun("type", f"{name}: {value.kind} {value.name[:100]}")
        return constant

    def _dtype(self, name: str, wide: Optional[str]) -> Any:
        if wide is not None and name in _FLOATS:
            name = wide
        elif wide is not None and name in _COMPLEX:
            name = _COMPLEX[name] if wide == "float64" else name
        dtype = getattr(self._torch, name, None)
        if not isinstance(dtype, self._torch.dtype):
            raise NotRun("type", name[:100])
        return dtype

    def _tensor(self, record: Record, wide: Optional[str], *, empty: bool) -> Any:
        """Return a new tensor with the values of a record; empty: a result, whose values do not matter."""
        import numpy as np

        torch = self._torch
        if record.attrs.get("quantization") or record.dtype is None or record.shape is None:
            raise NotRun("type", f"{record.label}: {record.dtype}")
        dtype = self._dtype(record.dtype, wide)
        if empty or record.attrs.get("skipped") == UNINITIALISED:
            if (record.nbytes or 0) > _MOST_BYTES:
                raise NotRun("type", f"{record.label} has {record.nbytes} bytes")
            # NaN exposes an operator that reads these values.
            has_nan = dtype.is_floating_point or dtype.is_complex
            return torch.full(record.shape, float("nan") if has_nan else 0, dtype=dtype)
        try:
            array = np.array(record.numpy(), order="K")
        except (NotSupported, MemoryError) as error:
            raise NotRun("inputs", str(error)[:200]) from None
        except AscendDumpError as error:
            raise NotRun("unreadable", str(error)[:200]) from None
        try:
            if array.dtype.kind == "V" or array.dtype.name in ("bfloat16", *_BYTES):
                dtype_of_record = getattr(torch, record.dtype)
                tensor = torch.from_numpy(array.view(_WORDS[array.dtype.itemsize])).view(dtype_of_record)
            else:
                tensor = torch.from_numpy(array)
        except (TypeError, KeyError, AttributeError, ValueError, RuntimeError) as error:
            raise NotRun("type", f"{record.label}: {error}") from None
        if tuple(tensor.shape) != record.shape or (wide is None and tensor.dtype != dtype):
            raise NotRun("type", f"{record.label}: {record.dtype}")
        return tensor.to(dtype)

    def _outputs(
        self, operator: Operator, result: Any, values: Mapping[str, Any]
    ) -> Iterator[tuple[Record, np.ndarray]]:
        torch = self._torch
        returned = _tensors([result], torch)
        for record in operator.outputs:
            argument = record.attrs.get("argument")
            if argument and record.index >= len(returned):
                # An argument that the operator overwrites and does not return, such as `exp_avgs[3]`.
                name, _, suffix = argument.partition("[")
                tensor = values.get(name)
                if suffix and isinstance(tensor, list):
                    index = int(suffix[:-1]) if suffix[:-1].isdigit() else len(tensor)
                    tensor = tensor[index] if index < len(tensor) else None
            else:
                tensor = returned[record.index] if record.index < len(returned) else None
            if tensor is None or not isinstance(tensor, torch.Tensor):
                raise NotRun("outputs", f"PyTorch {self.version} returns no output {argument or record.index}")
            if tensor.layout is not torch.strided or tensor.is_quantized:
                raise NotRun("type", f"output {record.index} has the layout {tensor.layout}")
            yield record, self._array(tensor)

    def _array(self, tensor: Any) -> np.ndarray:
        plain = tensor.detach().resolve_conj().resolve_neg()
        name = str(plain.dtype).replace("torch.", "")
        with contextlib.suppress(TypeError):
            array: np.ndarray = plain.numpy()
            return array
        from ascend_dump.dump_format import numpy_dtype

        try:
            kind = getattr(self._torch, _WORDS[plain.element_size()])
            words: np.ndarray = plain.contiguous().view(kind).numpy()
            return words.view(numpy_dtype(name)).reshape(tuple(plain.shape))
        except (KeyError, AscendDumpError, RuntimeError, ValueError) as error:
            raise NotRun("type", f"{name}: {error}") from None


def _tensors(values: Sequence[Any], torch: Any) -> list[Any]:
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (tuple, list)):
            tensors += _tensors(value, torch)
    return tensors


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_mapped(element, change) for element in value]
    if isinstance(value, dict):
        return {name: _mapped(element, change) for name, element in value.items()}
    return change(value)

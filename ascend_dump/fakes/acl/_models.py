"""The functions of `acl.mdl` for one `AclProcess`: models, their descriptions, data sets, execution and the dump."""

from __future__ import annotations

import itertools
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from ascend_dump import AscendDumpError
from ascend_dump.fakes.acl._memory import DEVICE, RtError
from ascend_dump.native.cann.acl_codes import AclError

if TYPE_CHECKING:
    from ascend_dump.fakes.acl.process import AclProcess
    from ascend_dump.fakes.device.offline_model import OfflineModel

__all__ = ["DeviceBuffer", "GeError", "Models", "TensorInfo"]

#: The aclFormat of all tensors. The stand-ins of models have no other layout than ND.
_ND = 2
#: The code of CANN's runtime for a failed operator. (From rt_error_codes.h.)
_AICORE_EXCEPTION = 507015


class GeError:
    """Error codes of GE. (From ge_error_codes.h.)"""

    PARAM_INVALID = 145000
    MODEL_PATH_INVALID = 145002
    MODEL_ID_INVALID = 145003


class DeviceBuffer(NamedTuple):
    address: int
    size: int


class TensorInfo(NamedTuple):
    """An input or output of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def data_type(self) -> int:
        """The number of the type as aclDataType. It is GE's number, which can differ from the number in dump files."""
        from ascend_dump.native.cann import dtypes

        number, _ = dtypes.encode(np.zeros(1, self.dtype))
        return dtypes.to_ge(number)

    @property
    def dims(self) -> dict[str, Any]:
        return {"name": self.name, "dimCount": len(self.shape), "dims": list(self.shape)}


class _Loaded:
    """A loaded model. `executions` counts its steps, from 0 for each load."""

    def __init__(self, graph: OfflineModel, inputs: list[TensorInfo], outputs: list[TensorInfo]) -> None:
        self.graph = graph
        self.inputs = inputs
        self.outputs = outputs
        self.executions = itertools.count()


class Models:
    """The functions of `acl.mdl`. Each public attribute is one of them."""

    def __init__(self, process: AclProcess) -> None:
        self._process = process
        self._loaded: dict[int, _Loaded] = {}
        process.unload_models = self._unload_all
        self.init_dump = process.init_dump
        self.set_dump = process.set_dump
        self.finalize_dump = process.finalize_dump

    # Loading.

    def load_from_file(self, model_path: str) -> tuple[int, int]:
        if not isinstance(model_path, str):
            raise TypeError(f"argument must be str, not {type(model_path).__name__}")
        try:
            data = Path(model_path).read_bytes()
        except OSError as error:
            return 0, self._process.fail(GeError.MODEL_PATH_INVALID, f"{model_path}: {error.strerror}")
        return self._load(data, Path(model_path).stem, model_path)

    def load_from_mem(self, model: int, model_size: int) -> tuple[int, int]:
        try:
            data = bytes(self._process.memory.host_view(model, model_size))
        except ValueError as error:
            return 0, self._process.fail(AclError.INVALID_PARAM, str(error))
        return self._load(data, None, "memory")

    def _load(self, data: bytes, om_name: Optional[str], origin: str) -> tuple[int, int]:
        from ascend_dump.fakes.device.offline_model import load

        process = self._process
        if not process.initialised:
            return 0, process.fail(AclError.UNINITIALIZE, "acl.init must be executed before a model is loaded")
        if not process.context:
            return 0, process.fail(RtError.CONTEXT_NULL, "acl.rt.set_device must be executed before a model is loaded")
        try:
            graph = load(data)
            loaded = _describe(graph)
        except AscendDumpError as error:
            return 0, process.fail(AclError.PARSE_MODEL, f"{origin}: {error}")
        model_id = process.npu.load_model(
            graph.model, om_name=om_name, ops=graph.node_infos(), status_check=graph.status_check
        )
        self._loaded[model_id] = loaded
        return model_id, AclError.SUCCESS

    def unload(self, model_id: int) -> int:
        if self._loaded.pop(model_id, None) is None:
            return self._process.fail(GeError.MODEL_ID_INVALID, f"no model {model_id} is loaded")
        self._process.npu.unload_model(model_id)
        return AclError.SUCCESS

    def _unload_all(self) -> None:
        for model_id in list(self._loaded):
            self.unload(model_id)

    # Descriptions.

    def create_desc(self) -> int:
        return self._process.add(("desc", []))

    def get_desc(self, model_desc: int, model_id: int) -> int:
        models = self._process.get(model_desc, "desc")
        if models is None:
            return AclError.INVALID_PARAM
        if model_id not in self._loaded:
            return self._process.fail(GeError.MODEL_ID_INVALID, f"no model {model_id} is loaded")
        models[:] = [self._loaded[model_id]]
        return AclError.SUCCESS

    def destroy_desc(self, model_desc: int) -> int:
        return self._process.remove(model_desc, "desc")

    def _tensors(self, side: str, model_desc: int) -> list[TensorInfo]:
        models = self._process.get(model_desc, "desc")
        return getattr(models[0], side) if models else []

    def _tensor(self, side: str, model_desc: int, index: int) -> Optional[TensorInfo]:
        tensors = self._tensors(side, model_desc)
        return tensors[index] if 0 <= index < len(tensors) else None

    def _count(self, side: str, model_desc: int) -> int:
        return len(self._tensors(side, model_desc))

    def _size(self, side: str, model_desc: int, index: int) -> int:
        tensor = self._tensor(side, model_desc, index)
        return 0 if tensor is None else tensor.size

    def _dims(self, side: str, model_desc: int, index: int) -> tuple[dict[str, Any], int]:
        tensor = self._tensor(side, model_desc, index)
        return ({}, AclError.INVALID_PARAM) if tensor is None else (tensor.dims, AclError.SUCCESS)

    def _name(self, side: str, model_desc: int, index: int) -> str:
        tensor = self._tensor(side, model_desc, index)
        return "" if tensor is None else tensor.name

    def _index(self, side: str, model_desc: int, name: str) -> tuple[int, int]:
        names = [tensor.name for tensor in self._tensors(side, model_desc)]
        return (names.index(name), AclError.SUCCESS) if name in names else (0, AclError.INVALID_PARAM)

    def _data_type(self, side: str, model_desc: int, index: int) -> int:
        tensor = self._tensor(side, model_desc, index)
        return -1 if tensor is None else tensor.data_type

    def _format(self, side: str, model_desc: int, index: int) -> int:
        return -1 if self._tensor(side, model_desc, index) is None else _ND

    get_num_inputs = partialmethod(_count, "inputs")
    get_num_outputs = partialmethod(_count, "outputs")
    get_input_size_by_index = partialmethod(_size, "inputs")
    get_output_size_by_index = partialmethod(_size, "outputs")
    get_input_dims = partialmethod(_dims, "inputs")
    get_output_dims = partialmethod(_dims, "outputs")
    #: Models here have static shapes, so the current dimensions are those of the description.
    get_cur_output_dims = get_output_dims
    get_input_name_by_index = partialmethod(_name, "inputs")
    get_output_name_by_index = partialmethod(_name, "outputs")
    get_input_index_by_name = partialmethod(_index, "inputs")
    get_output_index_by_name = partialmethod(_index, "outputs")
    get_input_data_type = partialmethod(_data_type, "inputs")
    get_output_data_type = partialmethod(_data_type, "outputs")
    get_input_format = partialmethod(_format, "inputs")
    get_output_format = partialmethod(_format, "outputs")

    # Data sets.

    def create_dataset(self) -> int:
        return self._process.add(("dataset", []))

    def destroy_dataset(self, dataset: int) -> int:
        return self._process.remove(dataset, "dataset")

    def add_dataset_buffer(self, dataset: int, data_buffer: int) -> tuple[int, int]:
        buffers = self._process.get(dataset, "dataset")
        if buffers is None or self._process.get(data_buffer, "buffer") is None:
            return dataset, AclError.INVALID_PARAM
        buffers.append(data_buffer)
        return dataset, AclError.SUCCESS

    def get_dataset_num_buffers(self, dataset: int) -> int:
        return len(self._process.get(dataset, "dataset") or ())

    def get_dataset_buffer(self, dataset: int, index: int) -> int:
        buffers = self._process.get(dataset, "dataset") or ()
        return buffers[index] if 0 <= index < len(buffers) else 0

    # Execution.

    def execute(self, model_id: int, inputs: int, outputs: int) -> int:
        if not self._process.context:
            return RtError.CONTEXT_NULL
        return self._run(model_id, inputs, outputs)

    def execute_async(self, model_id: int, inputs: int, outputs: int, stream: int) -> int:
        return self._process.enqueue(stream, lambda: self._run(model_id, inputs, outputs))

    def _run(self, model_id: int, inputs: int, outputs: int) -> int:
        from ascend_dump.fakes.device.npu import OperatorFailed

        process = self._process
        model = self._loaded.get(model_id)
        if model is None:
            return process.fail(GeError.MODEL_ID_INVALID, f"no model {model_id} is loaded")
        input_buffers, output_buffers = self._buffers(inputs), self._buffers(outputs)
        for side, infos, buffers in (("input", model.inputs, input_buffers), ("output", model.outputs, output_buffers)):
            if len(infos) != len(buffers):
                message = f"the model has {len(infos)} {side}s, the data set {len(buffers)}"
                return process.fail(GeError.PARAM_INVALID, message)
            for info, buffer in zip(infos, buffers):
                size = buffer.size
                if size < info.size or process.memory.side(buffer.address, size) != DEVICE:
                    message = f"{side} {info.name} needs {info.size} bytes of device memory, its buffer has {size}"
                    return process.fail(GeError.PARAM_INVALID, message)
        feeds = {info.name: self._read(info, buffer) for info, buffer in zip(model.inputs, input_buffers)}
        try:
            results = process.npu.execute_graph(model.graph, feeds, model_id=model_id, step=next(model.executions))
        except OperatorFailed as error:
            return process.fail(_AICORE_EXCEPTION, str(error))
        for info, buffer in zip(model.outputs, output_buffers):
            process.memory.device_write(buffer.address, results[info.name].tobytes())
        return AclError.SUCCESS

    def _buffers(self, dataset: int) -> list[DeviceBuffer]:
        handles = self._process.get(dataset, "dataset") or ()
        return [self._process.get(handle, "buffer") or DeviceBuffer(0, 0) for handle in handles]

    def _read(self, info: TensorInfo, buffer: DeviceBuffer) -> np.ndarray[Any, Any]:
        raw = np.frombuffer(self._process.memory.device_bytes(buffer.address, info.size), np.uint8)
        return raw.view(info.dtype).reshape(info.shape)


def _describe(graph: OfflineModel) -> _Loaded:
    import ml_dtypes  # noqa: F401  (its import lets np.dtype accept names such as "bfloat16")

    from ascend_dump.fakes.device.graph import output_specs

    inputs = [TensorInfo(spec.name, spec.shape, np.dtype(spec.dtype)) for spec in graph.inputs]
    return _Loaded(graph, inputs, [TensorInfo(*output) for output in output_specs(graph)])

"""The functions of `acl.mdl` over one `AclProcess`: models, their descriptions, data sets, execution, dump."""

from __future__ import annotations

import itertools
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

#: aclFormat: stand-ins have no layout.
_ND = 2
#: What the runtime returns for an operator that failed. Source: rt_error_codes.h.
_AICORE_EXCEPTION = 507015


class GeError:
    """Codes of GE that programs meet. Source: ge_error_codes.h."""

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
        """The aclDataType, which has GE's numbers and not those of a dump file."""
        from ascend_dump.native.cann import dtypes

        number, _ = dtypes.encode(np.zeros(1, self.dtype))
        return dtypes.to_ge(number)

    @property
    def dims(self) -> dict[str, Any]:
        return {"name": self.name, "dimCount": len(self.shape), "dims": list(self.shape)}


class _Loaded:
    """A loaded model; `executions` is its step counter, which GE makes anew for each load."""

    def __init__(self, graph: OfflineModel, inputs: list[TensorInfo], outputs: list[TensorInfo]) -> None:
        self.graph = graph
        self.inputs = inputs
        self.outputs = outputs
        self.executions = itertools.count()


class Models:
    """Offline models, their descriptions and data sets, and the interface of the dump."""

    def __init__(self, process: AclProcess) -> None:
        self._process = process
        self._loaded: dict[int, _Loaded] = {}
        process.unload_models = self._unload_all

    # Dump.

    def init_dump(self) -> int:
        return self._process.init_dump()

    def set_dump(self, dump_cfg_path: Optional[str]) -> int:
        return self._process.set_dump(dump_cfg_path)

    def finalize_dump(self) -> int:
        return self._process.finalize_dump()

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
        place = self._process.get(model_desc, "desc")
        if place is None:
            return AclError.INVALID_PARAM
        if model_id not in self._loaded:
            return self._process.fail(GeError.MODEL_ID_INVALID, f"no model {model_id} is loaded")
        place[:] = [self._loaded[model_id]]
        return AclError.SUCCESS

    def destroy_desc(self, model_desc: int) -> int:
        return self._process.remove(model_desc, "desc")

    def get_num_inputs(self, model_desc: int) -> int:
        return len(self._tensors(model_desc, "inputs"))

    def get_num_outputs(self, model_desc: int) -> int:
        return len(self._tensors(model_desc, "outputs"))

    def get_input_size_by_index(self, model_desc: int, index: int) -> int:
        found = self._tensor(model_desc, "inputs", index)
        return 0 if found is None else found.size

    def get_output_size_by_index(self, model_desc: int, index: int) -> int:
        found = self._tensor(model_desc, "outputs", index)
        return 0 if found is None else found.size

    def get_input_dims(self, model_desc: int, index: int) -> tuple[dict[str, Any], int]:
        return self._dims(model_desc, "inputs", index)

    def get_output_dims(self, model_desc: int, index: int) -> tuple[dict[str, Any], int]:
        return self._dims(model_desc, "outputs", index)

    # The stand-ins have static shapes: what is current is what was described.
    get_cur_output_dims = get_output_dims

    def get_input_name_by_index(self, model_desc: int, index: int) -> str:
        found = self._tensor(model_desc, "inputs", index)
        return "" if found is None else found.name

    def get_output_name_by_index(self, model_desc: int, index: int) -> str:
        found = self._tensor(model_desc, "outputs", index)
        return "" if found is None else found.name

    def get_input_index_by_name(self, model_desc: int, name: str) -> tuple[int, int]:
        return self._index(model_desc, "inputs", name)

    def get_output_index_by_name(self, model_desc: int, name: str) -> tuple[int, int]:
        return self._index(model_desc, "outputs", name)

    def get_input_data_type(self, model_desc: int, index: int) -> int:
        found = self._tensor(model_desc, "inputs", index)
        return -1 if found is None else found.data_type

    def get_output_data_type(self, model_desc: int, index: int) -> int:
        found = self._tensor(model_desc, "outputs", index)
        return -1 if found is None else found.data_type

    def get_input_format(self, model_desc: int, index: int) -> int:
        return -1 if self._tensor(model_desc, "inputs", index) is None else _ND

    def get_output_format(self, model_desc: int, index: int) -> int:
        return -1 if self._tensor(model_desc, "outputs", index) is None else _ND

    def _tensors(self, model_desc: int, side: str) -> list[TensorInfo]:
        place = self._process.get(model_desc, "desc")
        return getattr(place[0], side) if place else []

    def _tensor(self, model_desc: int, side: str, index: int) -> Optional[TensorInfo]:
        found = self._tensors(model_desc, side)
        return found[index] if 0 <= index < len(found) else None

    def _dims(self, model_desc: int, side: str, index: int) -> tuple[dict[str, Any], int]:
        found = self._tensor(model_desc, side, index)
        return ({}, AclError.INVALID_PARAM) if found is None else (found.dims, AclError.SUCCESS)

    def _index(self, model_desc: int, side: str, name: str) -> tuple[int, int]:
        names = [one.name for one in self._tensors(model_desc, side)]
        return (names.index(name), AclError.SUCCESS) if name in names else (0, AclError.INVALID_PARAM)

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
        given, taken = self._buffers(inputs), self._buffers(outputs)
        for what, infos, buffers in (("input", model.inputs, given), ("output", model.outputs, taken)):
            if len(infos) != len(buffers):
                said = f"the model has {len(infos)} {what}s, the data set {len(buffers)}"
                return process.fail(GeError.PARAM_INVALID, said)
            for info, buffer in zip(infos, buffers):
                fits = buffer.size >= info.size and process.memory.side(buffer.address, buffer.size) == DEVICE
                if not fits:
                    said = f"{what} {info.name} needs {info.size} bytes of device memory, its buffer has {buffer.size}"
                    return process.fail(GeError.PARAM_INVALID, said)
        feeds = {info.name: self._read(info, buffer) for info, buffer in zip(model.inputs, given)}
        try:
            found = process.npu.execute_graph(model.graph, feeds, model_id=model_id, step=next(model.executions))
        except OperatorFailed as error:
            return process.fail(_AICORE_EXCEPTION, str(error))
        for info, buffer in zip(model.outputs, taken):
            process.memory.device_write(buffer.address, found[info.name].tobytes())
        return AclError.SUCCESS

    def _buffers(self, dataset: int) -> list[DeviceBuffer]:
        handles = self._process.get(dataset, "dataset") or ()
        return [self._process.get(handle, "buffer") or DeviceBuffer(0, 0) for handle in handles]

    def _read(self, info: TensorInfo, buffer: DeviceBuffer) -> np.ndarray[Any, Any]:
        raw = np.frombuffer(self._process.memory.device_bytes(buffer.address, info.size), np.uint8)
        return raw.view(info.dtype).reshape(info.shape)


def _describe(graph: OfflineModel) -> _Loaded:
    import ml_dtypes  # noqa: F401  (numpy knows its types by name from here on)

    from ascend_dump.fakes.device.graph import output_specs

    inputs = [TensorInfo(one.name, one.shape, np.dtype(one.dtype)) for one in graph.inputs]
    return _Loaded(graph, inputs, [TensorInfo(*found) for found in output_specs(graph)])

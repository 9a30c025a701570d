"""Write the dump of a MindSpore process whose kernels run one by one: on CPU, on GPU, and on Ascend with O0 or O1.

The tree for CPU was measured with MindSpore 2.10.0. Those for GPU and Ascend follow the document "Using Dump in the
Graph Mode": chapters "Dump in CPU/GPU Mode" and "Dump in Ascend O0/O1 Mode", and its table of modes. GPU also writes
statistics and constants. Ascend writes no parameters, constants, metadata and execution orders; types in file names
are in lower case, and bfloat16 is stored as float32.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from ascend_dump.fakes.mindspore import _ir as ir
from ascend_dump.fakes.mindspore._disk import Folder
from ascend_dump.fakes.mindspore._statistics import write_row
from ascend_dump.fakes.mindspore._types import BFLOAT16, Parameter, Tensor, dtype_of
from ascend_dump.native.mindspore.config.keys import DEVICE_STATISTICS
from ascend_dump.native.mindspore.config.select import KernelSelector, iteration_ranges
from ascend_dump.native.mindspore.names import CONSTANTS, METADATA_DIRECTORY, PARAMETER, NpyName, build_name, written

if TYPE_CHECKING:
    from ascend_dump.fakes.mindspore._graph import CompiledGraph, ExecutedOperator, Tape
    from ascend_dump.fakes.mindspore._state import MindSporeState
    from ascend_dump.native.mindspore.config.settings import DumpJsonSettings

    _Array = np.ndarray[Any, Any]

__all__ = ["DumpSelection", "KernelDumper"]

_FORMAT = "DefaultFormat"
_ORDER = "NodeExecutionOrder-FullNameWithScope\n"


class DumpSelection:
    """The selection of operators, parameters and steps by the settings of a dump JSON."""

    def __init__(self, settings: DumpJsonSettings, process: MindSporeState) -> None:
        self._ranges = iteration_ranges(settings.iteration)
        self._kernels = KernelSelector(settings.kernels) if settings.dump_mode == 1 else None
        #: Entries of `kernels` that have not matched a name yet.
        self._unused = dict.fromkeys(entry for entry in settings.kernels if entry) if settings.dump_mode == 1 else {}
        self._marked = settings.dump_mode == 2
        # On Ascend, kernels that run one by one are dumped only if the JSON has the block `e2e_dump_settings`.
        self._silent = process.target == "Ascend" and not settings.e2e and not process.runtime.ge
        self.inputs = settings.input_output in (0, 1)
        self.outputs = settings.input_output in (0, 2)
        self._devices = None if process.target == "CPU" else settings.support_device
        self._process = process

    def takes_device(self) -> bool:
        if self._silent:
            return False
        return self._devices is None or self._process.context["device_id"] in self._devices

    def takes_step(self, iteration: int) -> bool:
        if not self.takes_device():
            return False
        return self._ranges is None or any(first <= iteration <= last for first, last in self._ranges)

    def takes_node(self, node: ExecutedOperator, name: str) -> bool:
        if self._marked:
            return node.marked
        return self._named(name)

    def takes_parameter(self, name: str) -> bool:
        return not self._marked and self._named(name)

    def _named(self, name: str) -> bool:
        if self._kernels is None:
            return True
        for entry in [entry for entry in self._unused if KernelSelector([entry]).matches(name)]:
            del self._unused[entry]
        return self._kernels.matches(name)

    def unused(self) -> list[str]:
        """Return the entries of `kernels` that matched no operator and no parameter."""
        return list(self._unused)


class _WrittenTensor(NamedTuple):
    """A tensor to write. io: "input" or "output". slot: its index on that side."""

    io: str
    slot: int
    array: _Array


class KernelDumper:
    """A writer of the dump of one process. config: path of the dump JSON. (assumption mindspore.ascend_tree)"""

    def __init__(self, process: MindSporeState, settings: DumpJsonSettings, config: str) -> None:
        self.process = process
        self.settings = settings
        self.selection = DumpSelection(settings, process)
        self._config = Path(config)
        self._last_stamp = 0
        self._overflows = 0
        #: The iteration that was last appended to a file of executed iterations.
        self._last_iteration: Optional[int] = None

    @property
    def _root(self) -> Path:
        return Path(self.settings.path) / f"rank_{self.process.rank_id}"

    def folder(self, *parts: str) -> Folder:
        return Folder(self._root.joinpath(*parts), self.process.npu.disk, self.process.log)

    def stamp(self) -> int:
        """Return the time in µs since the epoch. Each call returns a larger number, so it is unique."""
        self._last_stamp = max(self._last_stamp + 1, int(self.process.npu.now * 1_000_000))
        return self._last_stamp

    def close(self) -> None:
        """Log the warnings that MindSpore logs at the end of a process, about entries that matched nothing."""
        for entry in self.selection.unused():
            self.process.log("WARNING", f"[DataDump] Unused Kernel in json: {entry}")

    # Files that are written once for a process, or once for a graph.

    def write_metadata(self) -> None:
        """Copy the dump JSON to the directory of metadata, and write the device and version there.

        Only rank 0 does so. Existing files are not replaced.
        """
        if self.process.rank_id != 0:
            return
        folder = self.folder(METADATA_DIRECTORY)
        if not folder.create():
            self.process.log("ERROR", "Get real path failed in CopyDumpJsonToDir.")
            return
        facts = json.dumps(
            {"device_target": self.process.target, "ms_version": self.process.version}, separators=(",", ":")
        )
        for name, data in (("data_dump.json", self._config.read_bytes()), ("config.json", facts.encode())):
            if (folder.path / name).exists():
                self.process.log("WARNING", f"The file: {folder.path / name} is already exist, skip copy it.")
            else:
                folder.write(name, data)

    def write_graph(self, graph: CompiledGraph, tape: Tape) -> None:
        """Write a graph as text and as protobuf, and the order of its operators.

        tape: the first run of the graph. Raises RuntimeError if a tensor is complex.
        """
        for node in tape.nodes:
            if any(array is not None and array.dtype.kind == "c" for array in (*node.seen, *node.results)):
                raise RuntimeError("Unexpected type Complex")
        texts = self.folder("graphs")
        name = f"ms_output_trace_code_graph_{graph.number}"
        texts.write(f"{name}.ir", ir.text(graph, tape).encode())
        texts.write(f"{name}.pb", ir.protobuf(graph, tape))
        if self.process.target != "Ascend":
            order = _ORDER + "".join(f"{shown}\n" for shown in graph.shown)
            self.folder("execution_order").write(f"ms_execution_order_graph_{graph.number}.csv", order.encode())

    # Files of each run of a graph.

    def write_step(self, graph: CompiledGraph, tape: Tape, iteration: int) -> None:
        """Write the selected tensors of a run of a graph. On Ascend, also report the operators to the device."""
        taken = self.selection.takes_step(iteration)
        folder = self.folder(self.settings.net_name, str(graph.number), str(iteration))
        for node, name in graph.names_of(tape):
            self._write_node(folder, node, name, taken)
            if taken and self.process.target != "Ascend":
                self._write_history(graph, iteration)
        if taken and self.process.target != "Ascend" and self.selection.outputs:
            self._write_parameters(folder, tape)
        if taken and self.process.target == "GPU":
            self._write_constants(self.folder(self.settings.net_name, str(graph.number), CONSTANTS), tape)

    def _write_history(self, graph: CompiledGraph, iteration: int) -> None:
        """Append an iteration to the file of executed iterations of a graph.

        If several graphs run in one iteration, only the file of the first graph gets the iteration.
        """
        if self.process.rank_id == 0 and self.settings.op_debug_mode != 4 and iteration != self._last_iteration:
            name = f"ms_global_execution_order_graph_{graph.number}.csv"
            self.folder("execution_order").append(name, f"{iteration}\n".encode())
            self._last_iteration = iteration

    def _write_node(self, folder: Folder, node: ExecutedOperator, name: str, taken: bool) -> None:
        mode = self.settings.op_debug_mode
        if self.process.target == "Ascend":
            try:
                self.process.run_on_device(node.op_type, name, node)
            except RuntimeError:
                if mode == 4 and self.selection.takes_device():
                    self._write(folder, node.op_type, name, self._pieces(node, inputs=True, outputs=False))
                raise
            if mode == 4 or (mode == 3 and not (taken and self._overflowed(node, name))):
                return
        elif mode == 4:
            self.process.log("ERROR", f"Abnormal dump is not supported on {self.process.target} backend.")
            return
        if not taken or not self.selection.takes_node(node, name):
            return
        if self.settings.save_kernel_args and self.settings.enable and self.process.target == "Ascend":
            arguments = {key: str(value) for key, value in ir.arguments(node).items()}
            folder.write(f"{node.op_type}.{written(name)}.json", json.dumps(arguments, indent=4).encode())
        pieces = self._pieces(node, inputs=self.selection.inputs, outputs=self.selection.outputs)
        self._write(folder, node.op_type, name, pieces)

    def _overflowed(self, node: ExecutedOperator, name: str) -> bool:
        """Return True if an operator overflowed, and count it. After `overflow_number` overflows return False."""
        if self.settings.overflow_number and self._overflows >= self.settings.overflow_number:
            return False
        overflowed = self.process.npu.overflows_in(name) or made_non_finite(node)
        self._overflows += overflowed
        return overflowed

    def _pieces(self, node: ExecutedOperator, *, inputs: bool, outputs: bool) -> Iterator[_WrittenTensor]:
        if inputs:
            yield from (
                _WrittenTensor("input", slot, array) for slot, array in enumerate(node.seen) if array is not None
            )
        if outputs:
            yield from (_WrittenTensor("output", slot, array) for slot, array in enumerate(node.results))

    def _write_parameters(self, folder: Folder, tape: Tape) -> None:
        tensors: dict[str, Tensor] = {parameter.name: parameter for parameter in tape.parameters()}
        tensors.update(tape.inputs)
        for name, tensor in tensors.items():
            if self.selection.takes_parameter(name):
                self._write(folder, PARAMETER, name, [_WrittenTensor("output", 0, tensor.array)])

    def _write_constants(self, folder: Folder, tape: Tape) -> None:
        """Write the tensors that are neither parameters, inputs nor results of operators, once for a graph."""
        if os.path.exists(folder.path):
            return
        computed = {id(output) for node in tape.nodes for output in node.outputs} | {
            id(tensor) for tensor in tape.inputs.values()
        }
        constants = {
            id(value): value
            for node in tape.nodes
            for value in node.inputs
            if isinstance(value, Tensor) and not isinstance(value, Parameter) and id(value) not in computed
        }
        for number, value in enumerate(constants.values(), 1):
            piece = _WrittenTensor("output", 0, value.array)
            folder.write_tensor(self._name(PARAMETER, f"data-{number}", piece, self.stamp()), value.array)

    def _write(self, folder: Folder, op_type: str, name: str, pieces: Any) -> None:
        # A tensor is written before its statistics (e2e_dump.cc), and both have the same timestamp. The line of
        # statistics has the operator's full name. For statistics that the device computes, no tensor is written.
        for piece in pieces:
            stamp = self.stamp()
            if self.settings.saved_data in ("tensor", "full"):
                folder.write_tensor(self._name(op_type, name, piece, stamp), self._stored(piece.array))
            if self.settings.saved_data in ("statistic", "full") and piece.array.size:
                facts = (op_type, name, "0", "0", str(stamp), piece.io, str(piece.slot))
                write_row(folder, facts, piece.array, dtype_of(piece.array).label, self._categories())

    def _stored(self, array: _Array) -> _Array:
        # (assumption mindspore.ascend_types)
        # (assumption mindspore.sampling)
        if self.process.target == "CPU":
            return array
        if self.settings.sample_mode and self.process.target == "Ascend":
            array = array.reshape(-1)[: self.settings.sample_num]
        return array.astype(np.float32) if array.dtype == BFLOAT16 else array

    def _name(self, op_type: str, name: str, piece: _WrittenTensor, stamp: int) -> str:
        # (assumption mindspore.ascend_types)
        label = dtype_of(piece.array).label
        dtype: Optional[str] = label.lower() if self.process.target == "Ascend" else label
        if self.process.target == "GPU":
            dtype = None
        return build_name(NpyName(op_type, written(name), 0, 0, stamp, piece.io, piece.slot, _FORMAT, dtype))

    def _categories(self) -> Sequence[str]:
        """Return the names of the statistics to write: the requested ones, on the device those that it can compute.

        (assumption mindspore.device_statistics)
        """
        categories = self.settings.statistic_category
        if self.process.target != "Ascend" or self.settings.stat_calc_mode != "device":
            return categories
        return [name for name in categories if name in DEVICE_STATISTICS]


def made_non_finite(node: ExecutedOperator) -> bool:
    """Return True if all inputs of an operator are finite, and an output is not. The device reports this as overflow.

    (assumption mindspore.overflow)
    """

    def finite(arrays: Sequence[Optional[_Array]]) -> bool:
        # For numpy, types of ml_dtypes such as bfloat16 have the kind "V".
        return all(
            bool(np.isfinite(array.astype(np.float64)).all())
            for array in arrays
            if array is not None and array.dtype.kind in "fV"
        )

    return finite(node.before) and not finite(node.results)

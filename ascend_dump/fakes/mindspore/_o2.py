"""The dump of whole graphs on the device, by MindSpore below 2.6 with jit_level O2.

For each step MindSpore writes `acl_dump_{device}.json` and passes it to CANN. So the device itself writes the files, to
`{path}/{step}/{time}/{device}/{model_name}/{model_id}/{iteration}/`. If `file_format` is npy, MindSpore then replaces
CANN's files by arrays. Overflow detection is set by GE's session options, as in "GE dump" of the document. Sources: the
document's chapter "Dump in Ascend O2 Mode"; acl_dump_json_writer.cc.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ascend_dump.fakes.device.select import NodeInfo
from ascend_dump.fakes.mindspore._disk import Folder
from ascend_dump.fakes.mindspore._files import KernelDumper
from ascend_dump.fakes.mindspore._statistics import write_row
from ascend_dump.fakes.mindspore._types import BFLOAT16, dtype_of
from ascend_dump.native.cann.config import keys
from ascend_dump.native.cann.dump_file import decode, payload, read_header
from ascend_dump.native.cann.formats import format_name
from ascend_dump.native.cann.overflow import decode_overflow
from ascend_dump.native.mindspore.names import NpyName, build_name

if TYPE_CHECKING:
    from ascend_dump.fakes.mindspore._graph import CompiledGraph, Tape

__all__ = ["ModelDumper"]

_MODES = ("all", "input", "output")


class ModelDumper(KernelDumper):
    """A dumper that lets the simulated device write the files. (assumption mindspore.o2_layout)"""

    def write_metadata(self) -> None:
        """Do nothing: Ascend has no metadata."""

    def write_graph(self, graph: CompiledGraph, tape: Tape) -> None:
        """Do nothing: with O2, neither graphs nor execution orders are written."""

    def write_step(self, graph: CompiledGraph, tape: Tape, iteration: int) -> None:
        npu, device = self.process.npu, self.process.context["device_id"]
        armed = device in self.settings.support_device and self._arm(iteration)
        named = list(graph.names_of(tape))
        model = npu.load_model(
            f"kernel_graph{graph.number}", ops=[NodeInfo(name, node.op_type) for node, name in named]
        )
        npu.begin_step(model, 0)
        before = len(npu.files)
        try:
            for node, name in named:
                self.process.run_on_device(node.op_type, name, node, model_id=model)
        finally:
            npu.end_step(model)
            npu.unload_model(model)
            if armed:
                npu.disarm_acl()
                npu.disarm_ge()
        if self.settings.file_format == "npy":
            for path in npu.files[before:]:
                self._convert(path)

    def _arm(self, iteration: int) -> bool:
        """Set the dump on the device for a step. Returns False if nothing is to be dumped, or a setting is refused."""
        overflow = self.settings.op_debug_mode == 3
        if overflow and self.settings.overflow_number and self._overflows >= self.settings.overflow_number:
            return False
        if not overflow and self.settings.op_debug_mode != 4 and not self.selection.takes_step(iteration):
            return False
        root = Path(self.settings.path)
        folder = Folder(root / str(iteration), self.process.npu.disk, self.process.log)
        if not folder.create():
            return False
        if overflow:
            options = {keys.ENABLE_DEBUG: "1", keys.DEBUG_MODE: "all", keys.DUMP_PATH: str(folder.path)}
            return self.process.npu.arm_ge(options) == 0
        text = json.dumps({"dump": self._settings_of(folder.path)})
        name = f"acl_dump_{self.process.context['device_id']}.json"
        Folder(root, self.process.npu.disk, self.process.log).write(name, text.encode())
        return self.process.npu.arm_acl(root / name) == 0

    def _settings_of(self, path: Path) -> dict[str, object]:
        kernels = list(self.settings.kernels) if self.settings.dump_mode == 1 else []
        dump: dict[str, object] = {
            "dump_path": str(path),
            "dump_mode": _MODES[self.settings.input_output],
            "dump_list": [{"layer": kernels}] if kernels else [],
            "dump_op_switch": "on",
        }
        if self.settings.op_debug_mode == 4:
            dump["dump_scene"] = "lite_exception"
        return dump

    def _convert(self, path: Path) -> None:
        """Replace a dump file of CANN by an array file for each tensor; an overflow record by a JSON file."""
        op_type, op_name, task, stream, _ = path.name.split(".")[:5]
        dump = read_header(path)
        folder = Folder(path.parent, self.process.npu.disk, self.process.log)
        for tensor in dump.tensors:
            if op_type == "Opdebug":
                text = json.dumps(decode_overflow(payload(dump, tensor).tobytes()).document)
                folder.write(f"{path.name}.output.0.json", text.encode())
                self._overflows += 1
                continue
            array = decode(dump, tensor)
            name = NpyName(
                op_type,
                op_name,
                int(task),
                int(stream),
                self.stamp(),
                tensor.io,
                tensor.index,
                format_name(tensor.format),
                dtype_of(array).label.lower(),
            )
            self._write_array(folder, name, array)
        os.unlink(path)

    def _write_array(self, folder: Folder, name: NpyName, array: np.ndarray[Any, Any]) -> None:
        if self.settings.saved_data in ("statistic", "full") and array.size:
            facts = tuple(str(part) for part in name[:7])
            write_row(folder, facts, array, dtype_of(array).label, self.settings.statistic_category)
        if self.settings.saved_data in ("tensor", "full"):
            folder.write_tensor(build_name(name), array.astype("f4") if array.dtype == BFLOAT16 else array)

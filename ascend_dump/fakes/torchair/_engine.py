"""torchair's state in one process: the options of GE, and the dump JSON that torchair generates.

The first graph initialises GE. Each option of a later graph must have the value that it had for the first graph.
Sources: torchair 2.13, core/_backend.py (comparison of options) and _ge_concrete_graph/fx2ge_converter.py (dump JSON).
To simulate a torchair that generates no dump JSON, delete `fx2ge_converter._set_dump_options_json`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.fakes.torchair._compile import process_kwargs_options
from ascend_dump.fakes.torchair._native_session import NativeSession
from ascend_dump.fakes.torchair._options import with_tail

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu
    from ascend_dump.fakes.torchair._lowering import LoweredOp

__all__ = ["DUMP_KEYS", "TorchairEngine"]

#: GE's dump options, and their keys in the generated dump JSON; "" if the option has no key there.
DUMP_KEYS = {
    "ge.exec.enableDump": "",
    "ge.exec.dumpPath": "dump_path",
    "ge.exec.dumpMode": "dump_mode",
    "ge.exec.dumpData": "dump_data",
    "ge.exec.dumpStep": "dump_step",
    "ge.quant_dumpable": "quant_dumpable",
    "ge.exec.dumpLayer": "",
}


class TorchairEngine:
    """The graph engine of one process, with four of torchair's modules.

    backend     `torchair.core._backend`; its global _GLOBAL_COMPILE_OPTION has the options of the first graph
    converter   `torchair._ge_concrete_graph.fx2ge_converter`; its global g_cached_dump_root is the dump JSON of all
                graphs, as a dict
    native      `torchair.core._torchair`, the native module that calls the device
    compiler    `torchair.npu_fx_compiler`, which applies the options of `torch.compile`
    """

    def __init__(self, npu: Npu) -> None:
        self.npu = npu
        self._session = NativeSession(npu)
        self.backend = ModuleType("torchair.core._backend")
        self.converter = ModuleType("torchair._ge_concrete_graph.fx2ge_converter")
        self.native = ModuleType("torchair.core._torchair")
        self.compiler = ModuleType("torchair.npu_fx_compiler")
        self.backend._GLOBAL_COMPILE_OPTION = None  # type: ignore[attr-defined]  # a module made here
        self.converter.g_cached_dump_root = None  # type: ignore[attr-defined]  # as above
        for module, functions in (
            (self.compiler, {"_process_kwargs_options": process_kwargs_options}),
            (self.backend, {"finalize_graph_engine": self.finalize, "initialize_graph_engine": self.initialize}),
            (self.converter, {"_set_dump_options_json": self.write_dump_json}),
            (
                self.native,
                {
                    "InitializeGraphEngine": self._session.initialize,
                    "AclmdlSetDump": self._session.set_dump,
                    "FinalizeGraphEngine": self._session.finalize,
                },
            ),
        ):
            for name, function in functions.items():
                setattr(module, name, function)
        self._graphs = 0
        self._saved: dict[str, int] = {}

    def next_graph(self) -> str:
        """Return the name of the next graph of this process."""
        self._graphs += 1
        return f"graph_{self._graphs}"

    def count_saved(self, path: str) -> int:
        """Return the number of files that were saved with this path before, and count one more."""
        self._saved[path] = self._saved.get(path, -1) + 1
        return self._saved[path]

    def initialize(self, shared: Optional[Mapping[str, str]] = None) -> None:
        """Initialise GE with the global options `shared`.

        Raises ValueError if an option has another value than for the first graph.
        """
        try:
            options = {**self._recorded(shared), "ge.exec.deviceId": str(self.npu.device_id)}
        except Exception as error:
            raise with_tail(error)  # noqa: B904  (as torchair does)
        options["ge_run_with_torch_npu"] = "1" if "torch_npu" in sys.modules else "0"
        options.update({"ge.exec.allow_hf32": "10", "ge.deterministic": "1", "ge.deterministicLevel": "0"})
        getattr(self.native, "InitializeGraphEngine")(options)  # noqa: B009  (looked up here: tests replace it)

    def _recorded(self, shared: Optional[Mapping[str, str]]) -> Mapping[str, str]:
        """Return the options of the first graph. Raises ValueError if `shared` has another value or option."""
        options: Optional[dict[str, str]] = getattr(self.backend, "_GLOBAL_COMPILE_OPTION", None)
        if options is None:
            options = dict(shared or {})
            self.backend._GLOBAL_COMPILE_OPTION = options  # type: ignore[attr-defined]  # as above
            return options
        for key, value in (shared or {}).items():
            if key not in options or options[key] != value:
                raise ValueError(
                    f"Unsupport twice initialtion with different options, new option key {key} value {value}, and all "
                    f"recorded options are {options}. Please check your compile config for torch.compile()"
                )
        return options

    def finalize(self) -> None:
        """Close GE's session, and drop all functions that PyTorch compiled. torchair's two globals keep their values.

        (assumption torchair.closed_engine)
        """
        import torch

        torch._dynamo.reset()
        getattr(self.native, "FinalizeGraphEngine")()  # noqa: B009  (as above)

    def write_dump_json(self, options: Mapping[str, str], name: str, ops: Iterable[LoweredOp]) -> None:
        """Add a graph to the process's dump JSON, and pass the file to acl.

        The file is in `ge_dump_data_json` in the working directory. Nothing is written without a dump option. For
        operators in `scope.data_dump()`, the JSON lists their types as layers, not their names.

        (assumption torchair.json_and_options)
        (assumption torchair.scope)
        """
        if not any(str(options.get(key, "")).strip() for key in DUMP_KEYS):
            return
        scoped = {kind for op in ops if op.in_scope for kind in (op.type, *("Const" for _ in op.constants))}
        layers = {*options.get("ge.exec.dumpLayer", "").split(), *scoped}
        entry: dict[str, Any] = {"model_name": name}
        if layers:
            entry["layer"] = list(layers)
        root = getattr(self.converter, "g_cached_dump_root", None)
        if root is None:
            header = {ours: options[key] for key, ours in DUMP_KEYS.items() if ours and options.get(key, "").strip()}
            root = {"dump": {**header, "dump_list": []}}
            self.converter.g_cached_dump_root = root  # type: ignore[attr-defined]  # as above
        root["dump"]["dump_list"].append(entry)
        group = sys.modules.get("torch.distributed")
        world, rank = 1, 0
        if group is not None and group.is_available() and group.is_initialized():
            world, rank = group.get_world_size(), group.get_rank()
        folder = Path.cwd() / "ge_dump_data_json"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"dump_options_worldsize{world}_rank{rank}_pid{os.getpid()}.json"
        file.write_text(json.dumps(root, indent=4, ensure_ascii=False), encoding="utf-8")
        getattr(self.native, "AclmdlSetDump")(str(file))  # noqa: B009  (as above)

    def load(self, name: str, ops: Sequence[Any], *, static_shape: bool) -> int:
        """Load a graph on the device, and return the id of the model. It stays loaded until the session ends."""
        self._session.ensure()
        return self._session.load(self.npu.load_model(name, ops=ops, static_shape=static_shape))

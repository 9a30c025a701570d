"""GE, the graph engine of torchair, for programs of the self-test. Each question opens it anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ascend_dump.selftest.evidence import DeviceFile, device_files

__all__ = ["GraphEngine", "files", "some_files"]

#: Names in torchair: the global with the content of the dump JSON, and the function that writes the JSON.
_HEADER, _WRITER = "g_cached_dump_root", "_set_dump_options_json"


class GraphEngine:
    """The modules of torchair, and operations on them. simulated: torchair or the device below it is a fake."""

    def __init__(self) -> None:
        self.simulated = not sys.modules.keys().isdisjoint({"torchair", "torchair.core._torchair"})
        self.torch_npu: Any = None if self.simulated else import_module("torch_npu")
        self.torchair: Any = import_module("torchair")
        self.backend: Any = import_module("torchair.core._backend")
        self.native: Any = import_module("torchair.core._torchair")
        self.converter: Any = import_module("torchair._ge_concrete_graph.fx2ge_converter")
        self.device = "cpu" if self.simulated else "npu"

    def forget(self, header: Any = None) -> None:
        """Close GE, and reset torchair's options. header: content of the dump JSON that graphs extend, or None."""
        torch._dynamo.reset()
        self.backend.finalize_graph_engine()
        self.backend._GLOBAL_COMPILE_OPTION = None
        setattr(self.converter, _HEADER, header)

    def needs_json(self) -> None:
        """Raise LookupError if torchair writes no dump JSON. Older versions do not."""
        if not hasattr(self.converter, _WRITER):
            raise LookupError("this torchair writes no dump JSON")

    @contextmanager
    def without_json(self) -> Iterator[None]:
        """Stop torchair from writing a dump JSON: GE receives the options alone."""
        writer = getattr(self.converter, _WRITER, None)
        setattr(self.converter, _WRITER, lambda *arguments: None)
        try:
            yield
        finally:
            if writer is None:
                delattr(self.converter, _WRITER)
            else:
                setattr(self.converter, _WRITER, writer)

    @contextmanager
    def with_options(self, options: Mapping[str, str]) -> Iterator[None]:
        """Open GE with these options in addition to those of torchair; torchair does not check them."""
        initialize = self.native.InitializeGraphEngine
        self.native.InitializeGraphEngine = lambda defaults: initialize({**defaults, **options})
        try:
            yield
        finally:
            self.native.InitializeGraphEngine = initialize

    def compile(self, model: Any, config: Any, *, dynamic: bool = False) -> Any:
        backend = self.torchair.get_npu_backend(compiler_config=config)
        return torch.compile(model.to(self.device), backend=backend, dynamic=dynamic)

    def run(
        self, model: Any, root: Path, x: torch.Tensor, *, times: int = 1, graphs: bool = False, **options: Any
    ) -> None:
        """Compile a model, and run it with a dump to the directory `root`.

        times: number of runs. graphs: let torchair also write its graph as Python text. options: further options of
        `dump_config`.
        """
        root.mkdir(exist_ok=True)
        config = self.torchair.CompilerConfig()
        for name, value in {"enable_dump": True, "dump_path": str(root), "dump_mode": "all", **options}.items():
            setattr(config.dump_config, name, value)
        if graphs:
            config.debug.graph_dump.type = "py"
            config.debug.graph_dump.path = str(root)
        self.call(self.compile(model, config), x, times=times)

    def call(self, compiled: Any, x: torch.Tensor, *, times: int = 1) -> None:
        """Run a compiled model `times` times, and wait for the device."""
        with torch.no_grad():
            for _ in range(times):
                compiled(x.to(self.device))
        if self.torch_npu is not None:
            self.torch_npu.npu.synchronize()


def files(root: Path) -> list[DeviceFile]:
    return [file for file in device_files(root) if file.name is not None]


def some_files(root: Path) -> list[DeviceFile]:
    """Return the files of a dump. Raises LookupError if the device dumped nothing."""
    dumped = files(root)
    if not dumped:
        raise LookupError(f"nothing was dumped into {root.name!r}")
    return dumped

"""A fake of the native module of torchair. With it the real torchair runs without CANN and without a device.

    sys.path.append("<unpacked torch_npu wheel>/torch_npu/dynamo")
    with ascend_dump.fakes.install("torchair_native") as npu:
        import torchair                      # the real package
        backend = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())
        torch.compile(model, backend=backend)(x)

torchair lowers the model to a GE graph and passes it as bytes. The fake computes the graph with torch on the CPU, and
reports all operators to the simulated device under their GE names. torchair itself configures the dump: by session
options `ge.exec.*`, by a dump JSON in `dump_config_path`, and by the JSON that newer versions generate.
Without torch_npu, torchair's device is the CPU. This fake cannot be installed together with the fake torch_npu,
because the real torchair needs operators that only the real torch_npu has. For programs that import both packages,
use `install("torch_npu", "torchair")`.

A process can import torchair only once. So the package stays loaded after the `with` block, and raises RuntimeError
if it is used there. The first graph of a block determines the options and the dump JSON for the block. The next block
begins with a new device and new options, but the numbers in the names of graphs continue.

Differences from CANN on a device:

- Graphs run unchanged: GE does not fold constants, fuse or rename operators here, so there may be more operators, and
  different names, than on a device. All operators run on one stream, and all tensors are on the device.
  (assumption torchair.names_stay)
- Only the operators of `ge_compute` exist. There is no control flow, and there are no subgraphs.
  `ascend-dump help converters` lists the PyTorch operators that can be run.
- Random operators return values of NumPy's Philox for torchair's seed and offset, not the device's values.
- Outputs 1 to 4 of `BatchNormV3` are in the order that torchair expects: mean and variance of the batch (inputs of
  `BNTrainingUpdateGrad`), then the moving mean and variance. GE's prototype lists the moving ones first, and then the
  batch's mean and the inverse of its deviation. With that order, training with batch normalisation would give other
  results than PyTorch. The device's order is unknown. (assumption torchair.batch_norm_outputs)
- The bit mask of `MaxPoolWithArgmaxV1` has one uint16 for each 16 outputs. A device stores it in blocks.
  (assumption torchair.max_pool_mask) Float16 and bfloat16 are computed as PyTorch does on the CPU.
- `export` raises NotSupported. Tuning, the channel for `print`, and operator arguments for `aclop` do nothing.
- Only the number of the simulated device is accepted as device: set ASCEND_DEVICE_ID to it.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump import NotSupported
from ascend_dump.fakes.torchair._native_graph import NpuGraph
from ascend_dump.fakes.torchair._native_session import NativeSession

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["modules", "patches"]

_NAME = "torchair.core._torchair"


class TorchDataType(enum.IntEnum):
    """The element types of `torchair.llm_datadist`. Importing torchair reads this class."""

    BOOL = 0
    UINT8 = 1
    INT8 = 2
    INT16 = 3
    UINT16 = 4
    INT32 = 5
    UINT32 = 6
    INT64 = 7
    UINT64 = 8
    BF16 = 9
    FLOAT16 = 10
    FLOAT32 = 11
    FLOAT64 = 12
    COMPLEX32 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15


class _Boundary:
    """The native module of this process, and the session that it currently uses.

    torchair derives classes from those of the native module. So the module stays the same for all devices.
    """

    def __init__(self) -> None:
        self.current: Optional[NativeSession] = None
        boundary = self

        class TorchNpuGraphBase(NpuGraph):
            """The base of torchair's own graph class."""

            def __init__(self, name: str) -> None:
                super().__init__(boundary.session(), name)

        members: dict[str, Any] = {
            "TorchNpuGraphBase": TorchNpuGraphBase,
            "TorchDataType": TorchDataType,
            "InitializeGraphEngine": lambda options: self.session().initialize(options),
            "AclmdlSetDump": lambda path: self.session().set_dump(path),
            "FinalizeGraphEngine": self.finalize,
            "GetSocName": lambda: self.session().npu.soc,
            "CheckAclnnAvaliable": lambda name: True,
            # Returning "" means that the operator is compatible. "None" means that this CANN lacks the function.
            "check_cann_compat": lambda op_type, inputs, attrs: "",
            "get_registered_ir_def": lambda op_type: ("None", [], [], []),
            "export": _export,
            "as_torch_tensors": _as_torch_tensors,
            **dict.fromkeys(("InitDeviceStdoutChannel", "SetDebugLogPath", "StupidRepeat"), _do_nothing),
            **dict.fromkeys(("AclopStartDumpArgs", "AclopStopDumpArgs"), _do_nothing),
        }
        self.module = ModuleType(_NAME, "torchair's native boundary on the simulated device")
        for name, value in members.items():
            setattr(self.module, name, value)

    def session(self) -> NativeSession:
        if self.current is None:
            raise RuntimeError("no device: the block of ascend_dump.fakes.install('torchair_native') has ended")
        return self.current

    def finalize(self) -> None:
        # torchair also finalises at the end of the process.
        if self.current is not None:
            self.current.finalize()


@functools.cache
def _boundary() -> _Boundary:
    return _Boundary()


def modules(npu: Npu) -> Mapping[str, ModuleType]:
    """Return the native module of this process."""
    return {_NAME: _boundary().module}


@contextlib.contextmanager
def patches(npu: Npu, modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Let the native module use `npu`, and reset torchair's recorded options at the beginning and at the end.

    Raises NotSupported if the fake torch_npu is installed too.
    """
    if "torch_npu" in modules:
        raise NotSupported(
            "the real torchair does not run beside the fake torch_npu, which lacks operators that torchair needs",
            hint='install("torch_npu", "torchair"), or "torchair_native" without torch_npu',
        )
    boundary = _boundary()
    replaced = boundary.current
    _reset_frontend()
    boundary.current = NativeSession(npu)
    try:
        with _generator_of_the_device():
            yield
    finally:
        try:
            _reset_frontend()
            # `finalize` raises RuntimeError if the program has ended the dump. That is no error here.
            with contextlib.suppress(RuntimeError):
                boundary.current.finalize()
        finally:
            boundary.current = replaced


@contextlib.contextmanager
def _generator_of_the_device() -> Iterator[None]:
    """Replace PyTorch's default generator by one with an offset, which torchair needs.

    torchair reads seed and offset in each run of a graph with random operators. The generators of devices have an
    offset, but the CPU's has none. Without torch_npu, torchair sets the seed to 10 while it converts such a graph.
    """
    import torch

    class DefaultGenerator(torch.Generator):  # type: ignore[misc]  # torch is not typed where mypy runs
        """A generator with the seed of PyTorch, and as offset the number of random values that graphs have drawn."""

        _drawn = 0

        def initial_seed(self) -> int:
            return int(torch.initial_seed())

        def get_offset(self) -> int:
            return self._drawn

        def set_offset(self, offset: int) -> None:
            self._drawn = offset

    original = torch.default_generator
    torch.default_generator = DefaultGenerator()
    try:
        yield
    finally:
        torch.default_generator = original


def _reset_frontend() -> None:
    """Reset the globals of torchair, if it is loaded, so that its next graph initialises GE again.

    torchair's own tests do the same between two cases.
    """
    backend = sys.modules.get("torchair.core._backend")
    if backend is None:
        return
    torch = sys.modules["torch"]
    torch._dynamo.reset()
    backend._GLOBAL_COMPILE_OPTION = None  # type: ignore[attr-defined]  # the real module
    converter = sys.modules.get("torchair._ge_concrete_graph.fx2ge_converter")
    if hasattr(converter, "g_cached_dump_root"):
        converter.g_cached_dump_root = None  # type: ignore[union-attr]  # as above


def _do_nothing(*arguments: object) -> None:
    return None


def _export(serialized: bytes, options: Mapping[str, str]) -> None:
    raise NotSupported(
        "the simulated device cannot export graphs (torchair.dynamo_export)", hint="run the model with torch.compile"
    )


def _as_torch_tensors(shape: object, dtype: object, addresses: object) -> None:
    raise NotSupported(
        "the simulated device has no addresses to make tensors from (torchair.llm_datadist)",
        hint="use ordinary tensors",
    )

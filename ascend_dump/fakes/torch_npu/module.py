"""A stand-in for `torch_npu`: devices, streams, graphs, the dump interface, and kernels on the simulated NPU.

    with ascend_dump.fakes.install("torch_npu") as npu:
        import torch_npu
        model = Net().to("npu:0")
        model(x.to("npu:0"))                # on the CPU; npu.executed lists the kernels

It needs PyTorch 2.13 or newer. `torch.device("npu")` is real: PyTorch's private device type under the name npu, with
kernels in Python (`_backend`). So autograd, views, autocast, DDP, FSDP, pickles and torch.compile are PyTorch's own, as
they are on a device; marks on host tensors would leave `.device`, `torch.autocast` and every check of devices wrong.
PyTorch never renames that device type back: after the installation `torch.device("npu")` still exists in the process,
and operators on its tensors raise NotSupported until the next installation. `torch.npu` is a module without devices
then. All else is restored.

Sources: torch_npu 2.13, `npu/__init__.py`, `npu/utils.py`, `npu/npu_config.py` (its `init_dump`, `set_dump` and
`finalize_dump` are the ones in `torch_npu.npu`, which imports them last), `_init/registry`,
`npu_native_functions.yaml`; op-plugin's `op_plugin_functions.yaml`; and those named in `_process`.

Differences from the real one:

- One operator is one API call with one kernel, and one more for each operand in another memory order; a device may
  run several. The names are those of op-plugin and of CANN's operators, see `_apis`.
  (assumption torch_npu.kernels_per_operator)
- An index out of range makes `embedding` fail on the device, at once and without harm to later operators. Other
  operators raise PyTorch's error of the host.
- Operators run at once, and backward passes in the thread that starts them. Streams only number kernels.
- Operators inside a model's step, as those of a graph that another fake runs, are no kernels.
- The backend "hccl" of torch.distributed runs on gloo, and its collectives are no kernels.
- A process has the devices that ASCEND_RT_VISIBLE_DEVICES lists; without it one, or LOCAL_WORLD_SIZE. They are one
  simulated device under several numbers. Without a number a device is the current one, and so is `npu:0`.
- The only random generator is the host's. No memory is cached or pinned, and formats are ND.
- A capture only refuses to wait for the device; on a device it also refuses a copy to the host.
- Autocast makes the half-precision copy of a weight anew for each use. Sparse tensors raise NotSupported.
- The profiler writes nothing, and optimizers of `torch_npu.optim` compute for each parameter.
- Names that are not there raise NotSupported when they are called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Union

from ascend_dump import FrameworkMissing

if TYPE_CHECKING:
    from ascend_dump.fakes._importing import Fill
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["modules", "patches"]

#: The attribute of `torch_npu.npu` with the state of the process.
_PROCESS = "_ascend_dump_process"


def modules(npu: Npu) -> Mapping[str, Union[ModuleType, Fill]]:
    """Return the modules of one process with torch_npu, bound to `npu`. Raises FrameworkMissing without PyTorch."""
    try:
        import torch  # noqa: F401  (the modules below need it)
    except ImportError as error:
        raise FrameworkMissing(f"the fake torch_npu runs on PyTorch: {error}", hint="install torch") from None
    from ascend_dump.fakes.torch_npu._backend import register
    from ascend_dump.fakes.torch_npu._modules import Process, make

    register()
    process = Process(npu)
    made = make(process)
    setattr(made["torch_npu.npu"], _PROCESS, process)
    return made


@contextlib.contextmanager
def patches(npu: Npu, modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Install `torch.npu`, `Tensor.npu` and the like, and the kernels of eager operators."""
    from ascend_dump.fakes.torch_npu._patches import patched

    npu_module = modules["torch_npu.npu"]
    with patched(getattr(npu_module, _PROCESS), npu_module):
        yield

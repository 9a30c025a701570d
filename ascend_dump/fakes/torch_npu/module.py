"""A fake of `torch_npu`: devices, streams, graphs, the dump interface, and kernels on the simulated NPU.

    with ascend_dump.fakes.install("torch_npu") as npu:
        import torch_npu
        model = Net().to("npu:0")
        model(x.to("npu:0"))                # on the CPU; npu.executed lists the kernels

It needs PyTorch 2.13 or newer. `torch.device("npu")` is a real device type: PyTorch's private one under the name npu,
with kernels in Python (`_backend`). So `.device`, autograd, views, autocast, DDP, FSDP, pickles and torch.compile work
as on a device.
PyTorch cannot rename that device type back. After the installation, `torch.device("npu")` still exists in the process,
operators on its tensors raise NotSupported until the next installation, and `torch.npu` is a module without devices.
All other changes are undone.

Sources: torch_npu 2.13, `npu/__init__.py`, `npu/utils.py`, `npu/npu_config.py` (`init_dump`, `set_dump` and
`finalize_dump` in `torch_npu.npu` are those of npu_config.py, because it is imported last), `_init/registry`,
`npu_native_functions.yaml`; op-plugin's `op_plugin_functions.yaml`; and the files that `_process` names.

Differences from torch_npu:

- An operator is one API call with one main kernel, and further kernels for operands and results that are not in order
  (`_views`). On a device, an API may launch several main kernels. The names are those of op-plugin and of CANN's
  operators (`_apis`). (assumption torch_npu.kernels_per_operator)
- An index out of range makes the kernel of `embedding` fail, at once, and later operators run. On a device the error
  comes later, and the device cannot be used afterwards. Other operators raise PyTorch's error of the host.
- Operators run at once, and backward passes run in the thread that starts them. Of a stream only the number is used.
- Operators that another fake runs inside the step of a model (graph) are not reported as kernels.
- The backend "hccl" of torch.distributed uses gloo, and its collectives are not reported as kernels.
- A process has the devices that ASCEND_RT_VISIBLE_DEVICES lists. Without this variable it has LOCAL_WORLD_SIZE
  devices, by default one, and more if the number of its own device is higher. All are the same simulated device under
  several numbers. A device without a number is the current one, and so is `npu:0`.
- The only random generator is the host's. No memory is cached or pinned, and all formats are ND.
- During a capture, only waiting for the device is refused. A device also refuses a copy to the host.
- Autocast makes the half-precision copy of a weight for each use. Sparse tensors raise NotSupported.
- The profiler writes nothing, and the optimizers of `torch_npu.optim` compute one parameter after the other.
- Functions of torch_npu that the fake lacks exist, but raise NotSupported when they are called.
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
    """Return the modules of torch_npu that use the device `npu`. Raises FrameworkMissing without PyTorch."""
    try:
        import torch  # noqa: F401  (the modules below need it)
    except ImportError as error:
        raise FrameworkMissing(f"the fake torch_npu needs PyTorch: {error}", hint="install torch") from None
    from ascend_dump.fakes.torch_npu._backend import register
    from ascend_dump.fakes.torch_npu._modules import Process, make

    register()
    process = Process(npu)
    torch_npu_modules = make(process)
    setattr(torch_npu_modules["torch_npu.npu"], _PROCESS, process)
    return torch_npu_modules


@contextlib.contextmanager
def patches(npu: Npu, modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Install `torch.npu`, `Tensor.npu` and the like, and the kernels of eager operators."""
    from ascend_dump.fakes.torch_npu._patches import patched

    npu_module = modules["torch_npu.npu"]
    with patched(getattr(npu_module, _PROCESS), npu_module):
        yield

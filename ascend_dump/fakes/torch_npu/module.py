"""A stand-in for `torch_npu` in eager mode: devices, the dump interface, and kernels on the simulated NPU.

    with ascend_dump.fakes.install("torch_npu") as npu:
        import torch_npu
        model = Net().npu()
        model(x.npu())                      # on the CPU; npu.executed lists the kernels

It needs the real PyTorch. Tensors that are moved to the NPU stay in the host's memory and are marked; the
simulated device records each operator that touches one as an API call of aclnn with its kernels. Sources: torch_npu
2.13, `npu/__init__.py`, `npu/utils.py`, `npu/npu_config.py` (whose `init_dump`, `set_dump` and `finalize_dump`
are the ones that `torch_npu.npu` shows: it imports them last), `_init/registry`, and those named in
`_torch_npu_process`.

Differences from the real one:

- `Tensor.device` is `cpu`; use `Tensor.is_npu`. `torch.device("npu")` raises as in a PyTorch without torch_npu, because
  its private device type could not be renamed back: use text, `"npu:0"`, or `.npu()`.
- Mixing tensors of host and NPU in one operator is not refused. Operators run at once, on one stream.
- One operator is one API call with one kernel, and one more for each operand in another memory order; a device may
  run several. The names are those of op-plugin and of CANN's operators, see `_apis`.
  (assumption torch_npu.kernels_per_operator)
- An index out of range makes `embedding` fail on the device, at once and without harm to later operators. Other
  operators raise PyTorch's error of the host.
- Only operators of the thread that installed the fake, and of its backward passes, are kernels.
- Operators inside a model's step, as those of a graph that another fake runs, are no kernels.
- The backend "hccl" of torch.distributed is "gloo", with that name.
- Only the simulated device exists: devices with a lower number are counted and cannot be set.
- Graphs are `NPUGraph` and `graph`, without pools, updates and `make_graphed_callables`. A capture only refuses
  to wait for the device; on a device it also refuses a copy to the host.
- There are no profiler, contrib or optimizers of torch_npu, and no `torch_npu.npu_*` operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from ascend_dump import FrameworkMissing

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["modules", "patches"]


def modules(npu: Npu) -> Mapping[str, ModuleType]:
    """Return the modules of one process with torch_npu, bound to `npu`. Raises FrameworkMissing without PyTorch."""
    try:
        import torch  # noqa: F401  (the modules below need it)
    except ImportError as error:
        raise FrameworkMissing(f"the fake torch_npu runs on PyTorch: {error}", hint="install torch") from None
    from ascend_dump.fakes.torch_npu._modules import make

    return make(npu)


@contextlib.contextmanager
def patches(npu: Npu, modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Install `torch.npu`, `Tensor.npu` and the like, and the kernels of eager operators."""
    from ascend_dump.fakes.torch_npu._patches import patched

    with patched(npu, modules["torch_npu.npu"]):
        yield

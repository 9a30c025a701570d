"""Dumps of eager PyTorch on NPUs, by CANN's own dump service: every kernel that torch_npu launches.

    with ascend_dump.capture(model, steps="0|1", path="dumps"):
        train(model)

torch_npu's dump interface has no steps, so it is switched on and off at their boundaries; each selected step has a
directory of its own, `{path}/worldsize{N}_global_rank{R}/{run}/{step}/{time}/{device}`. Between selected steps nothing
of it is on. `record.op_type` and `record.op_name` are those of the kernels of aclnn.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump import NotSupported
from ascend_dump.adapter import Adapter, Begin, DumpRequest, Problem, RunDirectory

if TYPE_CHECKING:
    from ascend_dump_torch_npu._session import TorchNpuSession

__all__ = ["TorchNpuAdapter"]


class TorchNpuAdapter(Adapter):
    name = "torch_npu"
    framework = "torch_npu"
    # A process that uses the device is after what runs there, not after its host side.
    priority = 10
    process_hooks = ("torch_npu",)
    # torchair takes acl's dump interface itself, and dumps what its graphs run.
    yields_to = ("torchair",)

    def accepts(self, target: Any) -> bool:
        torch = sys.modules.get("torch")
        if torch is None or "torch_npu" not in sys.modules:
            return False
        return target is None or isinstance(target, torch.nn.Module)

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        from ascend_dump_torch_npu._check import check

        return check(request, target, run)

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> TorchNpuSession:
        from ascend_dump_torch_npu._session import TorchNpuSession

        return TorchNpuSession(request, target, run)

    def launch(self, begin: Begin) -> Optional[Callable[[], str]]:
        from ascend_dump_torch_npu._launcher import launch

        return launch(begin)

    def only_starts_others(self) -> bool:
        return "torch.distributed.run" in sys.modules

    def wait(self) -> None:
        from ascend_dump.adapter.pytorch.compiled import keep_compiled

        keep_compiled()

    def may_attach(self, request: DumpRequest) -> None:
        if request.scene == "exception":
            raise NotSupported(
                "scene='exception' is read when the NPU is initialised, and this program runs already",
                hint="start the program with `ascend-dump run --scene exception`",
            )

    def attach(self, begin: Begin) -> Callable[[], bool]:
        from ascend_dump_torch_npu._launcher import attach

        return attach(begin)

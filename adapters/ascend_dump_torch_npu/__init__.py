"""The adapter for eager PyTorch on NPUs. CANN's own dump service writes every API call of torch_npu and its kernels.

    with ascend_dump.capture(model, steps="0|1", path="dumps"):
        train(model)

torch_npu's dump interface has no steps, so the dump is switched on and off at the boundaries of selected steps. Each
selected step has a directory of its own, `{path}/worldsize{N}_global_rank{R}/{run}/{step}/{time}/{device}`.
`record.op_type` is the API call, such as `aclnnAdd`. `record.kernel` is the kernel, such as `AddAiCore`; it is None for
records of the call itself.

CANN reads the switch of overflow detection at the first operator of the process. An exception dump is requested when
the NPU is initialised; one of the kind "norm" (`aic_err_norm_dump`) must still be requested at the first operator. Both
stay on until the process ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump import NotSupported
from ascend_dump.adapter import Begin, DumpRequest, Problem, RunDirectory
from ascend_dump.adapter.pytorch.base import PyTorchAdapter

if TYPE_CHECKING:
    from ascend_dump_torch_npu._session import TorchNpuSession

__all__ = ["OPTIONS", "TorchNpuAdapter"]

#: The options of `DumpRequest.options` besides the keys of the dump JSON. CANN does not get them: they are settings of
#: the capture, which counts the steps.
OPTIONS = {
    "skip_warmup": "True: calls in which a server profiles memory, warms up or captures graphs do not count as steps",
}


class TorchNpuAdapter(PyTorchAdapter):
    name = "torch_npu"
    framework = "torch_npu"
    # Higher than the priority of host adapters: whoever uses an NPU wants its operators, not those of the host.
    priority = 10
    process_hooks = ("torch_npu",)
    # torchair uses acl's dump interface itself, and also dumps the operators in its graphs.
    yields_to = ("torchair",)

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        from ascend_dump_torch_npu._check import check

        return check(request, target, run)

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> TorchNpuSession:
        from ascend_dump_torch_npu._session import TorchNpuSession

        return TorchNpuSession(request, target, run)

    def launch(self, begin: Begin) -> Optional[Callable[[], str]]:
        from ascend_dump_torch_npu._launcher import launch

        return launch(begin)

    def may_attach(self, request: DumpRequest) -> None:
        moments = {"exception": "when the NPU is initialised", "overflow": "at the first operator on an NPU"}
        if request.scene in moments:
            raise NotSupported(
                f"scene={request.scene!r} is read {moments[request.scene]}, and this program runs already",
                hint=f"start the program with `ascend-dump run --scene {request.scene}`",
            )

    def attach(self, begin: Begin) -> Callable[[], bool]:
        from ascend_dump_torch_npu._launcher import attach

        return attach(begin)

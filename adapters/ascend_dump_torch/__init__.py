"""Host reference dumps of PyTorch: every ATen operator that runs in the block, on CPU, CUDA or another accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.adapter import Begin, DumpRequest, Problem, RunDirectory
from ascend_dump.adapter.pytorch.base import PyTorchAdapter

if TYPE_CHECKING:
    from ascend_dump_torch._session import TorchSession

__all__ = ["TorchAdapter"]

_OPTIONS = {
    "stack": "True: the call stack of each operator, `record.stack`; without it the line of the program alone",
    "rehash": "True: tell tensors apart by content only, for kernels that write memory unseen by PyTorch",
    "buffer_bytes": "how many bytes of tensors may wait for the writer",
    "graft": "outputs or inputs to replace by recorded values: {'layers.3/addmm_0.output.0': PATH of a dump}",
    "outline": "of a launched program: a directory for a few numbers of each step, for `ascend-dump triage --run`",
    "outline_gradients": "steps in which it looks at gradients too, such as '100-115'",
    "outline_wait": "seconds for which the program waits, at the end of the outline, to be stopped",
    "outline_until": "'wrong': record nothing, end with NaN or Inf; 'recorded' (default): end with the selected steps; "
    "'end': record nothing",
    "step": "'optimizer': a step ends with the optimizer's, however many calls of the model it has",
    "skip_warmup": "True: calls in which a server profiles its memory, warms up or captures graphs are no steps",
    "steps_after_origin": "with scene='overflow', steps that are recorded after the first of a row with NaN or Inf (1)",
}


class TorchAdapter(PyTorchAdapter):
    name = "torch"
    framework = "torch"
    priority = 0
    process_hooks = ("torch",)
    yields_to = ("torch_npu", "torchair")

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        from ascend_dump_torch._check import check

        return check(request, target, _OPTIONS, launched=run.launched)

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> TorchSession:
        from ascend_dump_torch._session import TorchSession

        return TorchSession(request, target, run)

    def launch(self, begin: Begin) -> Optional[Callable[[], str]]:
        from ascend_dump_torch._launcher import launch

        return launch(begin)

    def attach(self, begin: Begin) -> Callable[[], bool]:
        from ascend_dump_torch._launcher import attach

        return attach(begin)

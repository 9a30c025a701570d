"""Host reference dumps of PyTorch: records every ATen operator that runs while a capture is active, on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.adapter import Begin, DumpRequest, Problem, RunDirectory
from ascend_dump.adapter.pytorch.base import PyTorchAdapter

if TYPE_CHECKING:
    from ascend_dump_torch._session import TorchSession

__all__ = ["OPTIONS", "TorchAdapter"]

#: The options of `DumpRequest.options`, with their descriptions. `triage --run` sets the options of the outline.
OPTIONS = {
    "stack": "True: the call stack of each operator, `record.stack`; without it the line of the program alone",
    "rehash": "True: compare tensors by content only, for kernels that write memory unseen by PyTorch",
    "buffer_bytes": "the most bytes of tensors that may be queued for the writer",
    "graft": "outputs or inputs to replace by recorded values: {'layers.3/addmm_0.output.0': PATH of a dump}",
    "outline": "launched programs only: a directory for a few numbers per step, used by `ascend-dump triage --run`",
    "outline_wait": "seconds that the program waits at the end of the outline, so that it can be stopped",
    "outline_until": "when the outline ends. 'recorded' (default): after the selected steps; 'symptom': also after the "
    "first step with NaN or Inf; 'wrong': at NaN or Inf; 'end': at the end of the program. With the last two nothing "
    "is recorded",
    "outline_reports_all": "True: the recorded steps have a record of each loss and gradient, with or without NaN and "
    "Inf",
    "outline_from_start": "True: the first recorded step begins with the program, not with the first call of a model",
    "step": "'optimizer': a step ends at the first call of the model after an optimizer step, not with each call",
    "skip_warmup": "True: calls in which a server profiles memory, warms up or captures graphs do not count as steps",
    "spread": "True, with data='stats' and keep=N: when N steps are on disk, every second one is removed, and from "
    "then on only every second step is recorded, so that few steps cover a long run",
    "steps_after_origin": "with scene='overflow': of consecutive steps with NaN or Inf, how many are recorded after "
    "the first (default 1)",
}


class TorchAdapter(PyTorchAdapter):
    name = "torch"
    framework = "torch"
    priority = 0
    process_hooks = ("torch",)
    yields_to = ("torch_npu", "torchair")

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        from ascend_dump_torch._check import check

        return check(request, target, OPTIONS, launched=run.launched)

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> TorchSession:
        from ascend_dump_torch._session import TorchSession

        return TorchSession(request, target, run)

    def launch(self, begin: Begin) -> Optional[Callable[[], str]]:
        from ascend_dump_torch._launcher import launch

        return launch(begin)

    def attach(self, begin: Begin) -> Callable[[], bool]:
        from ascend_dump_torch._launcher import attach

        return attach(begin)

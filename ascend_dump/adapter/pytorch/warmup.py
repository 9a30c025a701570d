"""Recognise warm-up calls of an inference server: calls that serve no request.

With such calls a server profiles memory, compiles, or captures graphs. For the model they look like other calls, so the
call stack is searched for the functions that make them.

- vLLM 0.33.0: the methods `profile_run`, `_dummy_run`, `capture_model` and `profile_cudagraph_memory` of its model
  runners (vllm/v1/worker/gpu_model_runner.py and gpu/model_runner.py). And `compile_or_warm_up_model` of its workers
  (gpu_worker.py, cpu_worker.py), which passes artificial requests to `execute_model`. A rank of data parallelism that
  has no request runs `_dummy_run` too.
- vllm-ascend: the first three methods in vllm_ascend/worker/model_runner_v1.py, `profile_run` in v2/model_runner.py,
  and `compile_or_warm_up_model` in worker.py.
- SGLang: the method `capture` of its runners in sglang/srt/model_executor: cuda_graph_runner.py, cpu_graph_runner.py,
  and in 0.5.23 runner/decode_cuda_graph_runner.py and runner/prefill_cuda_graph_runner.py, which are base classes of
  the runners of speculative decoding. And `_dummy_run` and `warmup` in runner/base_runner.py of 0.5.23.

`torch.distributed.pipelining` calls a stage once before the first micro-batch, with uninitialised memory, to learn the
shapes of its results: in PyTorch 2.4 to 2.12 by `_shape_inference` of stage.py, in 2.13 by
`_forward_metadata_inference`. The values of this call mean nothing, so it is never a step.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_left_out", "is_warmup"]

#: Functions that are recognised in any module, because other packages subclass the runners.
_FUNCTIONS = frozenset(
    {"_dummy_run", "profile_run", "capture_model", "profile_cudagraph_memory", "compile_or_warm_up_model"}
)
#: Functions that are recognised in modules of SGLang only, because their names are common.
_IN_SGLANG = frozenset({"capture", "warmup"})
_SGLANG = "sglang.srt.model_executor"
_PIPELINE = "torch.distributed.pipelining.stage"
_IN_PIPELINE = frozenset({"_shape_inference", "_forward_metadata_inference"})


def is_warmup() -> bool:
    """Return True if the running call is a warm-up call, according to the call stack, or if a graph is being captured.

    >>> is_warmup()
    False
    >>> def _dummy_run():
    ...     return is_warmup()
    >>> _dummy_run()
    True
    """
    return _is_in_warmup_function() or _is_capturing()


def is_left_out(skip_warmup: bool) -> bool:
    """Return True if the running call is no step: a pipeline infers shapes by it, or it is a warm-up to be skipped.

    >>> is_left_out(True)
    False
    """
    return _is_shape_inference() or (skip_warmup and is_warmup())


def _is_shape_inference() -> bool:
    if _PIPELINE not in sys.modules:
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _IN_PIPELINE and frame.f_globals.get("__name__") == _PIPELINE:
            return True
        frame = frame.f_back
    return False


def _is_in_warmup_function() -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name in _FUNCTIONS:
            return True
        if name in _IN_SGLANG and str(frame.f_globals.get("__name__", "")).startswith(_SGLANG):
            return True
        frame = frame.f_back
    return False


def _is_capturing() -> bool:
    """Return True if a graph is being captured on an accelerator. Then values cannot be copied to the host."""
    torch: Any = sys.modules.get("torch")
    for device in (getattr(torch, "npu", None), getattr(torch, "cuda", None)):
        ready = getattr(device, "is_initialized", None)
        asks = getattr(device, "is_current_stream_capturing", None)
        if asks is not None and ready is not None and ready() and asks():
            return True
    return False

"""Runs of a server that serve no request: memory profiling, warm-up, and the capture of graphs.

vLLM and vllm-ascend make them in methods of their model runner: `profile_run`, `_dummy_run`, `capture_model` and
`profile_cudagraph_memory` (vllm/v1/worker/gpu/model_runner.py, vllm_ascend/worker/v2/model_runner.py, and
model_runner_v1.py); a rank of data parallelism that has no request runs `_dummy_run` too. SGLang makes them in
`_dummy_run` and in `capture` of its runners (sglang/srt/model_executor). None of them leaves a mark on the model, so
the callers of a call are looked at.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_warmup"]

#: In any module, as runners are subclassed elsewhere.
_FUNCTIONS = frozenset({"_dummy_run", "profile_run", "capture_model", "profile_cudagraph_memory"})
#: Too common a name outside of it.
_IN_SGLANG = frozenset({"capture", "capture_one_batch_size", "warmup"})
_SGLANG = "sglang.srt.model_executor"


def is_warmup() -> bool:
    """Whether what runs now serves no request, by the functions that this thread is in, or by a graph being captured.

    >>> is_warmup()
    False
    >>> def _dummy_run():
    ...     return is_warmup()
    >>> _dummy_run()
    True
    """
    return _is_in_dummy() or _is_capturing()


def _is_in_dummy() -> bool:
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
    """On an accelerator that the program uses; values cannot be fetched then."""
    torch: Any = sys.modules.get("torch")
    for device in (getattr(torch, "npu", None), getattr(torch, "cuda", None)):
        ready = getattr(device, "is_initialized", None)
        asks = getattr(device, "is_current_stream_capturing", None)
        if asks is not None and ready is not None and ready() and asks():
            return True
    return False

"""Convert a request to the dump JSON for the MindSpore of this process."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from ascend_dump.adapter import DumpRequest
from ascend_dump.native.mindspore.config.build import mindspore_config
from ascend_dump_mindspore._runtime import current_runtime, device_id, native

__all__ = ["FAR", "build", "can_pause", "far"]

#: An iteration that no training reaches. While the dump is paused, MindSpore's counter has this value or a larger one.
FAR = 10**9


def far(request: DumpRequest) -> int:
    """Return an iteration that the request does not select."""
    last = request.steps.last
    return FAR if last is None else max(FAR, last + 1)


def can_pause(mindspore: ModuleType, request: DumpRequest) -> bool:
    """Return True if the dump can be paused by setting the iteration.

    With scene="exception" it cannot, because that scene applies to every iteration.
    """
    return native(mindspore, "_set_init_iter") is not None and request.scene != "exception"


def build(request: DumpRequest, mindspore: ModuleType, path: Path) -> dict[str, Any]:
    """Return the dump JSON for a dump into `path`. Raises ConfigError and NotSupported."""
    options = dict(request.options)
    options.pop("on", None)
    device = device_id()
    if device is not None and device > 7:
        options.setdefault("devices", [*range(8), device])
    config = mindspore_config(request.replace(path=path, options=options), runtime=current_runtime(mindspore))
    if request.steps.all and can_pause(mindspore, request):
        # Not "all", so that there is an iteration without dump for the pause.
        config["common_dump_settings"]["iteration"] = f"0-{FAR - 1}"
    return config

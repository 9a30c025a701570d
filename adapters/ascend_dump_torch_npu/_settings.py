"""Build CANN's dump JSON for eager kernels from a request, and describe the process that will dump."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Optional

from ascend_dump.adapter import DumpRequest, Steps
from ascend_dump.native.cann.config import Situation
from ascend_dump.native.cann.config.build import acl_config
from ascend_dump_torch_npu import OPTIONS

__all__ = [
    "INIT_CONFIG",
    "SKIP_WARMUP",
    "build",
    "build_initial",
    "look_around",
    "own_initial_config",
    "selects_in_models",
    "torchair_dump",
]

#: The environment variable with the path of the file that torch_npu passes to aclInit.
INIT_CONFIG = "TORCH_ACL_INIT_CONFIG_PATH"
#: The option that leaves out warm-up calls.
SKIP_WARMUP = "skip_warmup"
#: Options that select operators in models.
_MODEL_OPTIONS = ("optype_blacklist", "opname_blacklist", "opname_range")
#: The version of CANN from which on torch_npu requires a default device in the file for aclInit.
_DEFAULT_DEVICE_SINCE = "8.3.RC1"


def build(request: DumpRequest, path: Path) -> dict[str, Any]:
    """Return the dump JSON for one step. Raises ConfigError and NotSupported.

    It contains no steps, because CANN counts executions of models only. The capture switches the dump on and off
    instead. Without a scene and without the option `op_switch`, no models are dumped, so settings that select operators
    in models are left out.

    (assumption cann.single_operators)
    """
    all_steps = request.replace(path=path, steps=Steps(None))
    if request.scene is None and "op_switch" not in request.options:
        if selects_in_models(request):
            options = {name: value for name, value in request.options.items() if name not in _MODEL_OPTIONS}
            all_steps = all_steps.replace(layers=(), models=(), options=options)
        all_steps = all_steps.replace(options={**all_steps.options, "op_switch": "only"})
    return acl_config(all_steps, known_options=OPTIONS)


def selects_in_models(request: DumpRequest) -> bool:
    """Return True if the request selects operators in models. Kernels that eager PyTorch launches are in no model."""
    return bool(request.layers or request.models or any(name in request.options for name in _MODEL_OPTIONS))


def build_initial(request: DumpRequest, path: Path) -> dict[str, Any]:
    """Return the content of a file for aclInit: the scene, and the default device that torch_npu requires."""
    config = build(request, path)
    torch_npu: Any = sys.modules["torch_npu"]
    at_least = getattr(getattr(torch_npu.npu, "utils", None), "_is_gte_cann_version", None)
    if at_least is None or at_least(_DEFAULT_DEVICE_SINCE, "CANN"):
        config["defaultDevice"] = {"default_device": "0"}
    return config


def look_around() -> Situation:
    """Return the situation of this process.

    Exception dumps are on if the NPU is initialised, because torch_npu passes `lite_exception` to aclInit, and CANN
    keeps the first exception dump. Overflow detection (status_check) needs an option of atc only for models that atc
    converts, and this process converts none.

    (assumption torch_npu.initial_config)
    """
    torch_npu: Any = sys.modules.get("torch_npu")
    initialised = torch_npu is not None and bool(torch_npu.npu.is_initialized())
    return Situation.here()._replace(exception_on=initialised, status_check=True)


def torchair_dump() -> Optional[str]:
    """Return the reason why torchair uses acl's dump interface in this process; None if it does not."""
    backend: Any = sys.modules.get("torchair.core._backend")
    recorded = getattr(backend, "_GLOBAL_COMPILE_OPTION", None) or {}
    for name in ("ge_dump_with_acl_config", "ge.exec.enableDump"):
        if recorded.get(name) not in (None, "", "0"):
            return f"its first graph was built with {name}={recorded[name]}"
    converter: Any = sys.modules.get("torchair._ge_concrete_graph.fx2ge_converter")
    if getattr(converter, "g_cached_dump_root", None) is not None:
        return "it has passed a dump configuration to acl"
    return None


def own_initial_config() -> Optional[str]:
    """Return the path of the file for aclInit that the user has set; None if there is none."""
    return os.environ.get(INIT_CONFIG)

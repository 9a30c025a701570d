"""`torch_npu.npu.amp` and `torch_npu.optim`, made of PyTorch's own classes.

The fused optimizers of torch_npu combine all parameters of a group in one tensor. The classes here compute the same
for one parameter after the other.
"""

from __future__ import annotations

from typing import Any

import torch

from ascend_dump import NotSupported

__all__ = ["make_amp", "make_autocast", "make_optimizers"]

#: Name in torch_npu.optim -> name in torch.optim.
_OPTIMIZERS = {
    "NpuFusedAdadelta": "Adadelta",
    "NpuFusedAdam": "Adam",
    "NpuFusedAdamW": "AdamW",
    "NpuFusedRMSprop": "RMSprop",
    "NpuFusedSGD": "SGD",
}
_MISSING = ("NpuFusedAdamP", "NpuFusedBertAdam", "NpuFusedLamb", "NpuFusedOptimizerBase", "NpuFusedRMSpropTF")


class autocast(torch.amp.autocast_mode.autocast):  # type: ignore[misc]  # noqa: N801  (torch_npu's name); torch is not typed here
    """`torch.autocast("npu")` with float16 as default type."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]  # torch is not typed where mypy runs
    """`torch.amp.GradScaler("npu")`. dynamic: if False, the scale does not change."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        super().__init__("npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._dynamic = dynamic

    def update(self, new_scale: Any = None) -> None:
        if self._dynamic or new_scale is not None:
            super().update(new_scale)
        else:
            self._per_optimizer_states.clear()


def make_amp() -> dict[str, Any]:
    """Return the members of `torch_npu.npu.amp`."""
    return {
        "autocast": autocast,
        "GradScaler": GradScaler,
        "custom_fwd": lambda fwd=None, *, cast_inputs=None: torch.amp.custom_fwd(
            fwd, device_type="npu", cast_inputs=cast_inputs
        ),
        "custom_bwd": lambda bwd: torch.amp.custom_bwd(bwd, device_type="npu"),
    }


def make_autocast() -> dict[str, Any]:
    """Return the functions of `torch_npu.npu` for automatic mixed precision."""
    return {
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16, torch.float32],
        "is_autocast_enabled": lambda: torch.is_autocast_enabled("npu"),
        "set_autocast_enabled": lambda enable: torch.set_autocast_enabled("npu", enable),
        "get_autocast_dtype": lambda: torch.get_autocast_dtype("npu"),
        "set_autocast_dtype": lambda dtype: torch.set_autocast_dtype("npu", dtype),
    }


def make_optimizers() -> dict[str, Any]:
    """Return the members of `torch_npu.optim`."""
    optimizers = {name: _optimizer(name, getattr(torch.optim, plain)) for name, plain in _OPTIMIZERS.items()}
    return {**optimizers, **{name: _missing(name) for name in _MISSING}}


def _optimizer(name: str, plain: Any) -> Any:
    class Fused(plain):  # type: ignore[misc]  # the class is known at run time only
        is_npu_fused_optimizer = True

        def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(params, *args, **kwargs, foreach=False)

        def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
            """Scale the gradients of all parameters so that their common norm is at most `max_norm`.

            Returns the norm before the scaling.
            """
            parameters = [parameter for group in self.param_groups for parameter in group["params"]]
            return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, foreach=False)

    Fused.__name__ = Fused.__qualname__ = name
    return Fused


def _missing(name: str) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        raise NotSupported(
            f"the fake torch_npu has no torch_npu.optim.{name}", hint=f"it has {', '.join(sorted(_OPTIMIZERS))}"
        )

    return make

"""Run the scenarios of the self-test with a tiny PyTorch network, on the host or on an NPU."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ascend_dump.selftest.program import Network, StepSeen, main

ON_NPU = sys.argv[1] == "torch_npu"
#: The module torch_npu, None on the host. If there is no device, the program exits with code 4.
torch_npu: Any = None
if ON_NPU:
    try:
        torch_npu = import_module("torch_npu")
    except (ImportError, OSError) as error:
        print(f"torch_npu cannot be imported: {error}")
        sys.exit(4)
    if not torch_npu.npu.is_available():
        print("torch_npu sees no device")
        sys.exit(4)
#: Number of matrix products in one step: x @ w + b, twice.
PRODUCTS = 2


class Gain(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # where torch is not installed
    """The first layer, with one operator. It overflows for inputs near the largest float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 8


def on_device(value: Any) -> Any:
    return value.npu() if ON_NPU else value


def make() -> torch.nn.Module:
    """Return a network with the same weights in each call."""
    torch.manual_seed(0)
    return on_device(torch.nn.Sequential(Gain(), torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 8)))


def step(model: torch.nn.Module, number: int, overflow: bool) -> StepSeen:
    generator = torch.Generator().manual_seed(number)
    x = torch.full((4, 64), 3e38) if overflow else torch.randn(4, 64, generator=generator)
    y = model(on_device(x))
    fetched = y.detach().cpu().numpy()
    return StepSeen([x.numpy()], [fetched], [fetched])


def facts(directory: Path) -> dict[str, Any]:
    if not ON_NPU:
        return {}
    name = torch_npu.npu.get_device_name(0)
    facts = {"eager": True, "products": PRODUCTS, "soc": name}
    return {**facts, "device": torch_npu.npu.current_device()}


if __name__ == "__main__":
    framework = "torch_npu" if ON_NPU else "torch"
    main(Network(make, step, {"framework": framework}, detects=ON_NPU, facts=facts))

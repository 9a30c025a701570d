"""Run the scenarios of the self-test with a tiny network that torchair compiles to graphs for an NPU."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ascend_dump.selftest.program import Network, StepSeen, main

#: True if torchair or the device below it is simulated.
SIMULATED = not sys.modules.keys().isdisjoint({"torchair", "torchair.core._torchair"})
try:
    # On a device torch_npu provides torchair.
    torch_npu: Any = None if SIMULATED else import_module("torch_npu")
    torchair: Any = import_module("torchair")
except (ImportError, OSError) as error:
    print(f"torchair cannot be imported: {error}")
    sys.exit(4)
if torch_npu is not None and not torch_npu.npu.is_available():
    print("torch_npu sees no device")
    sys.exit(4)
DEVICE = "cpu" if torch_npu is None else "npu"


class CompiledNetwork(NamedTuple):
    """A model compiled with torchair, and the config that torchair reads when it builds the model's first graph."""

    config: Any
    model: Any


def make() -> CompiledNetwork:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 8))
    config = torchair.CompilerConfig()
    backend = torchair.get_npu_backend(compiler_config=config)
    return CompiledNetwork(config, torch.compile(torch.nn.Sequential(*layers).to(DEVICE), backend=backend))


def step(net: CompiledNetwork, number: int, overflow: bool) -> StepSeen:
    generator = torch.Generator().manual_seed(number)
    x = torch.full((4, 64), 3e38) if overflow else torch.randn(4, 64, generator=generator)
    with torch.no_grad():
        y = net.model(x.to(DEVICE)).cpu().numpy()
    return StepSeen([x.numpy()], [y], [y])


def facts(directory: Path) -> dict[str, Any]:
    """Return facts about a second capture in this process, and about the device.

    torchair keeps the settings of the first capture until GE is closed. The option `reset` lets the capture close it.
    """
    import ascend_dump

    network = make()
    torch._dynamo.reset()
    with ascend_dump.capture(
        network.config, path=directory / "again", mode="all", steps="0", quiet=True, options={"reset": True}
    ) as cap:
        step(network, 0, False)
    noted: dict[str, Any] = {"graphs_again": len(cap.dump()) > 0}
    if torch_npu is not None:
        noted.update(soc=torch_npu.npu.get_device_name(0), device=torch_npu.npu.current_device())
    return noted


if __name__ == "__main__":
    settings = {"framework": "torchair"}
    main(Network(make, step, settings, target=lambda network: network.config, anew=True, detects=True, facts=facts))

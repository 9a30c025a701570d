"""Train and evaluate each network through the real torchair, beside the same network in eager mode.

    python run_models.py VERSION

For each run: the directory `<network>_<forward|train>` with the dump, and `report.json`: the graphs as torchair handed
them over, what each operator computed, how far the results are from eager mode, the native calls.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import frontend
import networks
import torch

from ascend_dump.fakes.device.npu import Npu

STEPS, SELECTED = 5, "1|3-4"


class Recorder:
    """Keeps what passes the native boundary, and every operator that reaches the device."""

    def __init__(self, npu: Npu) -> None:
        self.graphs: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.computed: dict[str, str] = {}
        self._models: dict[int, str] = {}
        native = sys.modules["torchair.core._torchair"]
        for name in ("InitializeGraphEngine", "AclmdlSetDump"):
            self._watch(native, name)
        self._watch_graphs(native.TorchNpuGraphBase)
        self._watch_device(npu)

    def _watch(self, native: Any, name: str) -> None:
        original = getattr(native, name)

        def call(argument: Any) -> Any:
            self.calls.append(name)
            return original(argument)

        setattr(native, name, call)

    def _watch_graphs(self, base: Any) -> None:
        from torchair._ge_concrete_graph import ge_ir_pb2

        original = getattr(base, "_original_load", base.load)
        base._original_load = original

        def load(graph: Any, serialized: bytes, *more: Any) -> None:
            model = ge_ir_pb2.ModelDef()  # torchair's own messages
            model.ParseFromString(serialized)
            [found] = model.graph
            self.graphs.append({"name": found.name, "ops": [(op.name, op.type, list(op.input)) for op in found.op]})
            original(graph, serialized, *more)

        base.load = load

    def _watch_device(self, npu: Npu) -> None:
        load_model, run_op = npu.load_model, npu.run_op

        def load(name: str, **more: Any) -> int:
            model = load_model(name, **more)
            self._models[model] = name
            return model

        def run(op_type: str, name: str, inputs: Any, outputs: Any, *, model_id: int, **more: Any) -> None:
            run_op(op_type, name, inputs, outputs, model_id=model_id, **more)
            step = npu.executed[-1].step
            for io, arrays in (("input", inputs), ("output", outputs)):
                for index, array in enumerate(arrays):
                    key = f"{self._models[model_id]} {step} {name} {io} {index}"
                    self.computed[key] = digest(array)

        npu.load_model, npu.run_op = load, run  # type: ignore[method-assign]  # for the length of this run


def digest(array: Any) -> str:
    return f"{array.dtype.name} {list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()}"


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


def run(version: str, name: str, train: bool) -> None:
    place = Path(f"{name}_{'train' if train else 'forward'}")
    (place / "dump").mkdir(parents=True)
    with frontend.installed(version) as npu:
        import torchair

        recorder = Recorder(npu)
        config = torchair.CompilerConfig()
        config.dump_config.enable_dump = True
        config.dump_config.dump_path = str(place / "dump")
        config.dump_config.dump_step = SELECTED
        # torchair has no converter for silu_backward; this is the way it offers for such operators.
        more = torch._decomp.get_decompositions([torch.ops.aten.silu_backward])
        backend = torchair.get_npu_backend(compiler_config=config, custom_decompositions=more)
        eager = networks.make(name).train(train)
        model = copy.deepcopy(eager)
        compiled = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
        outputs, gradients = [], []
        optimizers = [torch.optim.SGD(each.parameters(), lr=1e-3) for each in (eager, model)]
        for step in range(STEPS):
            x = networks.NETWORKS[name].feed(step)
            with torch.set_grad_enabled(train):
                wanted, found = eager(x), compiled(x)
            outputs.append(distance(found, wanted))
            if train:
                for y, optimizer in zip((wanted, found), optimizers):
                    optimizer.zero_grad()
                    networks.loss_of(y).backward()
                gradients += [distance(a.grad, b.grad) for a, b in zip(model.parameters(), eager.parameters())]
                for optimizer in optimizers:
                    optimizer.step()
        state = [distance(a, b) for a, b in zip(model.state_dict().values(), eager.state_dict().values())]
        report = {
            "graphs": recorder.graphs,
            "calls": recorder.calls,
            "computed": recorder.computed,
            "log": npu.log,
            "output": max(outputs),
            "gradient": max(gradients, default=0.0),
            "state": max(state),
        }
    (place / "report.json").write_text(json.dumps(report))


def main(version: str) -> None:
    for name in networks.NETWORKS:
        for train in (False, True):
            run(version, name, train)


if __name__ == "__main__":
    main(sys.argv[1])

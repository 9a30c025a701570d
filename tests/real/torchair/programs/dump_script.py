"""One script for every torchair: train and evaluate a network, dumping some steps.

python dump_script.py VERSION NETWORK     ("fake" for the fake torchair) -> dump/, graphs.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frontend
import networks
import torch

from ascend_dump.fakes.device.npu import NodeInfo

NETWORKS = ("mlp", "resnet", "llama")


def run(version: str, name: str) -> None:
    place = Path(name)
    (place / "dump").mkdir(parents=True)
    with frontend.installed(version) as npu:
        import torchair

        graphs: dict[str, Any] = {}
        load_model = npu.load_model

        def load(model: str, *, ops: Sequence[NodeInfo], **more: Any) -> int:
            graphs[model] = {op.name: [op.type, list(op.inputs)] for op in ops}
            return load_model(model, ops=ops, **more)

        npu.load_model = load  # type: ignore[method-assign]  # to see what is loaded
        config = torchair.CompilerConfig()
        config.dump_config.enable_dump = True
        config.dump_config.dump_path = str(place / "dump")
        config.dump_config.dump_step = "0|2"
        # The fake leaves views as they are.
        config.experimental_config.enable_view_optimize = False
        more = torch._decomp.get_decompositions([torch.ops.aten.silu_backward])
        backend = torchair.get_npu_backend(compiler_config=config, custom_decompositions=more)
        model = networks.make(name).train()
        compiled = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
        for step in range(3):
            networks.loss_of(compiled(networks.NETWORKS[name].feed(step))).backward()
        model.eval()
        with torch.no_grad():
            compiled(networks.NETWORKS[name].feed(3))
    (place / "graphs.json").write_text(json.dumps(graphs))


def main(version: str) -> None:
    for name in NETWORKS:
        run(version, name)


if __name__ == "__main__":
    main(sys.argv[1])

"""`ascend-dump triage --run` of a MindSpore program, which is run with a recorder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = """
    import mindspore
    import numpy as np
    from mindspore import Tensor, nn, ops

    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU", jit_level="O0")

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(4, 4)

        def construct(self, x, y):
            return ops.log(self.dense(x) * 0 + y)

    net = Net()
    for step in range(6):
        net(Tensor(np.ones((2, 4), np.float32)), Tensor(np.float32(-1 if step == 4 else 1)))
"""


def test_names_the_operator_its_step_and_its_line(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM))
    mine = [sys.executable, "-m", "ascend_dump", "triage", "--path", str(tmp_path / "t"), "--run", "--"]
    done = subprocess.run([*mine, sys.executable, str(file)], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "(Log), step 4" in done.stdout
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if "ops.log" in text)
    assert f"{file}:{line}" in done.stdout

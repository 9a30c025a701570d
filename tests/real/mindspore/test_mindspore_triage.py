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


#: Only what is compiled is recorded: the update of the parameters.
PYNATIVE = """
    import mindspore
    import numpy as np
    from mindspore import Tensor, nn, ops

    mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
    net = nn.Dense(4, 4)
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    gradient = mindspore.value_and_grad(lambda x, y: (net(x) / y).sum(), None, optimizer.parameters)
    for step in range(6):
        loss, gradients = gradient(Tensor(np.ones((2, 4), np.float32)), Tensor(np.float32(step != 4)))
        optimizer(gradients)
        print("loss", loss.asnumpy())
"""


def triage(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    (directory / "program.py").write_text(textwrap.dedent(program))
    mine = [sys.executable, "-m", "ascend_dump", "triage", "--path", str(directory / "t"), "--run", "--"]
    command = [*mine, sys.executable, str(directory / "program.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=directory)


def test_an_operator_that_gets_nan_from_what_is_not_recorded_is_no_cause(tmp_path: Path) -> None:
    done = triage(tmp_path, PYNATIVE)
    assert done.returncode == 3, done.stderr
    assert "cause " not in done.stdout
    assert "has NaN or Inf in its inputs already, and no recorded operator made it" in done.stdout


def test_names_the_operator_its_step_and_its_line(tmp_path: Path) -> None:
    done = triage(tmp_path, PROGRAM)
    file = tmp_path / "program.py"
    assert done.returncode == 1, done.stderr
    assert "(Log), step 4" in done.stdout
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if "ops.log" in text)
    assert f"{file}:{line}" in done.stdout

"""`ascend-dump triage --run` of programs for NPUs, on the simulated device."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from preloaded import COMPILER, write_python

pytestmark = pytest.mark.thorough

pytest.importorskip("torch", minversion="2.13")

#: What `python -m ascend_dump.fakes` does.
START = "import sys\nfrom ascend_dump.fakes.__main__ import run\nrun(sys.argv[1:])\n"
EAGER = """
    import sys, torch, torch_npu
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).to("npu")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(5):
        x = torch.randn(4, 8).to("npu")
        target = model(x).detach() if step == 3 and sys.argv[1] == "norm" else torch.randn(4, 4).to("npu")
        optimizer.zero_grad()
        loss = (model(x) - target).norm(dim=-1).log().mean()
        loss.backward()
        if step == 2 and sys.argv[1] == "weight":
            with torch.no_grad():
                model[1].weight[3] = float("inf")
        optimizer.step()
        print("loss", loss.item())
"""
COMPILED = """
    import sys, torch, torchair
    torch.manual_seed(0)
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        def forward(self, x, scale):
            return self.second(torch.relu(self.first(x)) / scale)
    config = torchair.CompilerConfig()
    net = torch.compile(Net(), backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    for step in range(5):
        with torch.no_grad():
            net(torch.randn(2, 8), torch.full((1,), 0.0 if step == 3 and sys.argv[1] == "div" else 2.0))
"""


def triage(directory: Path, fake: str, program: str, fault: str) -> subprocess.CompletedProcess[str]:
    (directory / "start.py").write_text(START)
    (directory / "program.py").write_text(textwrap.dedent(program))
    python = str(write_python(directory / "python", COMPILER))
    mine = [sys.executable, "-m", "ascend_dump", "triage", "--path", str(directory / "t"), "--run", "--"]
    command = [*mine, python, str(directory / "start.py"), fake, "--", str(directory / "program.py"), fault]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=directory)


@pytest.mark.parametrize(
    ("fake", "program", "fault", "text", "cause", "why"),
    [
        ("torch_npu", EAGER, "norm", ".log()", "(aten::log), step 4", "input 0 is zero everywhere"),
        ("torch_npu", EAGER, "weight", "weight[3]", "(aten::scalar_tensor), step 2", "writes Inf into the parameter "),
        ("torchair", COMPILED, "div", "/ scale", "(aten::div), step 3", "input 1 is zero everywhere"),
    ],
)
def test_operator_step_and_line(
    fake: str, program: str, fault: str, text: str, cause: str, why: str, tmp_path: Path
) -> None:
    done = triage(tmp_path, fake, program, fault)
    assert done.returncode == 1, (done.stdout, done.stderr)
    line = next(n for n, code in enumerate((tmp_path / "program.py").read_text().splitlines(), 1) if text in code)
    assert f"program.py:{line}" in done.stdout
    assert cause in done.stdout
    assert why in done.stdout


@pytest.mark.parametrize(("fake", "program", "seen"), [("torch_npu", EAGER, "5 losses"), ("torchair", COMPILED, "")])
def test_healthy_programs_have_no_cause(fake: str, program: str, seen: str, tmp_path: Path) -> None:
    done = triage(tmp_path, fake, program, "")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert f"no NaN or Inf in 5 steps: {seen}" in done.stdout

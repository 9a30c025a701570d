"""`python -m ascend_dump.fakes`: a program of a user on the simulated device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ascend_dump
from ascend_dump import fakes

#: torchair's document on data dump, with a model of ours.
GRAPH_MODE = """
import torch
import torch_npu, torchair
config = torchair.CompilerConfig()
config.dump_config.enable_dump = True
config.dump_config.dump_mode = "all"
config.dump_config.dump_path = "dump"
config.dump_config.quant_dumpable = True
config.dump_config.dump_step = "0|1"
npu_backend = torchair.get_npu_backend(compiler_config=config)
model = torch.nn.Linear(4, 3).npu()
opt_model = torch.compile(model, backend=npu_backend)
with torch.no_grad():
    for _ in range(3):
        opt_model(torch.ones(2, 4).npu())
"""


def run(*arguments: str, cwd: Path = Path()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ascend_dump.fakes", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=cwd, env=environment)


def test_the_program_sees_the_fake_and_its_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WORD = 'beside it'\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, acl, helper\n"
        "if __name__ == '__main__':\n"
        "    print(acl.__ascend_dump_fake__, sys.argv[1:], helper.WORD)\n"
        "    sys.exit(5)\n"
    )
    done = run("acl", "--", str(program), "--steps", "3")
    assert (done.returncode, done.stdout.strip()) == (5, "True ['--steps', '3'] beside it")


def test_an_unknown_fake_and_a_missing_program_are_told(tmp_path: Path) -> None:
    for arguments in (["paddle", "--", str(tmp_path / "x.py")], ["acl", "train.py"], []):
        done = run(*arguments)
        assert done.returncode == 1
        assert "acl" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_program_in_graph_mode_imports_torch_npu_and_torchair(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text(GRAPH_MODE)
    (tmp_path / "dump").mkdir()
    done = run("torch_npu,torchair", "--", str(program), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = ascend_dump.open(tmp_path / "dump").select(op_type="MatMulV2")
    assert {(record.step, record.io) for record in found} == {
        (step, io) for step in (0, 1) for io in ("input", "output")
    }


def test_an_import_without_its_fake_names_the_command(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import acl, torchair\n")
    done = run("acl", "--", str(program))
    assert done.returncode == 1
    assert f"python -m ascend_dump.fakes acl,torchair -- {program}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_real_torchair_beside_the_fake_torch_npu_is_refused() -> None:
    pytest.importorskip("torch")
    with (
        pytest.raises(ascend_dump.NotSupported, match=r"install\(\"torch_npu\", \"torchair\"\)"),
        fakes.install("torch_npu", "torchair_native"),
    ):
        pass

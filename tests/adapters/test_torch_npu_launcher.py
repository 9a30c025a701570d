"""A whole process of eager kernels is captured without a change to its code, and the host's adapter rests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Callable

import pytest
from interpreters import STARTUP
from places import REPOSITORY
from preloaded import COMPILER, run_preloaded

import ascend_dump

pytest.importorskip("torch")

PROGRAM = """
    import torch
    import ascend_dump.fakes as fakes

    with fakes.install("torch_npu") as npu:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2).npu()
        loss_of = torch.nn.MSELoss()
        npu.fail("aclnnTanh")
        for step in range(3):
            loss = loss_of(model(torch.ones(3, 4).npu()), torch.zeros(3, 2).npu())
            loss.backward()
"""


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., Any]:
    def run(
        settings: str = "",
        *,
        more: str = "pass",
        program: str = PROGRAM,
        whole: bool = False,
        imported: str = "torch",
    ) -> subprocess.CompletedProcess[str]:
        """whole: the process imports PyTorch itself, as that of a user."""
        file = tmp_path / "train.py"
        file.write_text(textwrap.dedent(program) + textwrap.indent(textwrap.dedent(more), "    "))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ACL_", "NPU_"))}
        environment["PYTHONPATH"] = os.pathsep.join(
            (str(STARTUP / "site"), str(REPOSITORY), str(REPOSITORY / "adapters"))
        )
        environment["ASCEND_DUMP"] = ",".join(filter(None, (f"path={tmp_path / 'dumps'}", settings)))
        if whole:
            command = [sys.executable, str(file)]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        else:
            done = run_preloaded(file, cwd=tmp_path, env=environment, imported=imported)
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_each_call_of_the_model_is_a_step(launch: Any, tmp_path: Path) -> None:
    launch("steps=0|2,mode=output")
    dump = ascend_dump.open(tmp_path / "dumps")
    assert dump.known_values("step") == {0, 2}
    types = {record.op_type for record in dump.select(step=2)}
    assert {"aclnnAddmm", "aclnnMseLoss", "aclnnMseLossBackward"} <= types
    assert not list((tmp_path / "dumps").rglob("index.jsonl")), "the host's adapter dumped too"


def test_an_exception_dump_is_set_before_the_npu_is_initialised(launch: Any, tmp_path: Path) -> None:
    fail = """
        try:
            torch.ones(2).npu().tanh()
        except RuntimeError:
            pass
    """
    launch("scene=exception", more=fail, whole=True)
    assert {record.op_type for record in ascend_dump.open(tmp_path / "dumps")} == {"aclnnTanh"}


@pytest.mark.parametrize("steps", ["1", "0-2"])
def test_overflow_is_detected_from_the_first_operator_on(launch: Any, tmp_path: Path, steps: str) -> None:
    """Operators run before the first step, in which a capture of the script would be too late."""
    before = """
        import torch
        import ascend_dump.fakes as fakes

        with fakes.install("torch_npu") as npu:
            model = torch.nn.Linear(4, 2)
            model.weight.data.fill_(1)
            model.npu()
            torch.ones(1).npu() / 0
            for step in range(3):
                model(torch.full((3, 4), 3e38 if step == 1 else 1.0).npu())
    """
    launch(f"scene=overflow,steps={steps}", program=before)
    found = list(ascend_dump.open(tmp_path / "dumps"))
    assert {record.step for record in found} == {1}
    assert {record.op_type for record in found} == {"aclnnAddmm"}
    assert {record.attrs["scene"] for record in found} == {"overflow"}


def test_what_the_script_asks_for_is_more_precise(launch: Any, tmp_path: Path) -> None:
    capture = """
        import ascend_dump
        with ascend_dump.capture(model, steps="0", path="own"):
            model(torch.ones(1, 4).npu())
    """
    done = launch(more=capture)
    assert "ends here: the script starts one of its own" in done.stderr
    products = ascend_dump.open(tmp_path / "own").select(op_type="aclnnAddmm", io="output")
    assert {record.shape[0] for record in products if record.kernel == "MatMulCommon"} == {1}


def test_torchair_takes_over_when_it_is_imported(launch: Any, tmp_path: Path) -> None:
    compiled = """
        with fakes.install("torchair", npu=npu):
            import torchair
            config = torchair.CompilerConfig()
            compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
            compiled(torch.ones(1, 4).npu())
    """
    done = launch(more=compiled, imported=COMPILER)
    assert done.stderr.count("nothing more is dumped by torch_npu: torchair takes over") == 1
    dump = ascend_dump.open(tmp_path / "dumps")
    assert {record.step for record in dump if record.model is None} == {0, 1, 2}
    assert {record.op_type for record in dump if record.model == "graph_1"} >= {"MatMulV2"}


def test_unreached_steps_are_told(launch: Any) -> None:
    assert "steps=7 was not reached: 3 steps ran" in launch("steps=7").stderr


def test_what_would_be_refused_is_one_line_and_the_program_runs(launch: Any) -> None:
    done = launch("data=full", more='print("ran to the end")')
    assert done.stdout == "ran to the end\n"
    assert [line for line in done.stderr.splitlines() if "torch_npu" in line and "AD203" in line]


def test_the_host_is_captured_where_the_adapter_is_left_out(launch: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ASCEND_DUMP_DISABLED_ADAPTERS", "torch_npu")
    launch("steps=0")
    assert list((tmp_path / "dumps").rglob("index.jsonl"))
    assert not list((tmp_path / "dumps").rglob("torch_npu-*.json"))

"""A whole pyACL program is dumped without a change to its code."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from places import REPOSITORY

import ascend_dump

PROGRAM = """
    import sys
    import numpy as np
    from acl_helpers import execute
    from ascend_dump import fakes
    from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save

    node = OfflineNode("act", "Relu", ("x:0",))
    save(OfflineModel("net", (TensorSpec("x", (1, 4), "float32"),), (node,), ("act:0",), True), "net.om")
    with fakes.install("acl", environ={}):
        import acl

        assert [acl.init(), acl.rt.set_device(0)] == [0, 0]
        if sys.argv[1] != "idle":
            model, ret = acl.mdl.load_from_file("net.om")
            for step in range(3):
                print(execute(acl, model, np.arange(4, dtype=np.float32) + step).tolist())
            acl.mdl.unload(model)
        assert acl.finalize() == 0
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "infer.py"
    file.write_text(textwrap.dedent(PROGRAM))
    return file


def run(program: Path, argument: str, *options: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ascend_dump", "run", "--path", "dumps", *options, "--", sys.executable]
    paths = [str(REPOSITORY), str(REPOSITORY / "adapters"), str(REPOSITORY / "tests" / "helpers")]
    done = subprocess.run(
        [*command, str(program), argument],
        cwd=program.parent,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(paths)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == status, done.stderr
    return done


def test_the_selected_executions_are_dumped(program: Path) -> None:
    done = run(program, "run", "--steps", "0|2")
    assert done.stdout.splitlines() == [f"[{step}.0, {step + 1}.0, {step + 2}.0, {step + 3}.0]" for step in range(3)]
    dump = ascend_dump.open(program.parent / "dumps")
    assert dump.known_values("step") == {0, 2}
    (record,) = dump.select(op="act", step=2, io="output")
    assert record.numpy().tolist() == [[2, 3, 4, 5]]


def test_a_program_that_loads_nothing_is_told(program: Path) -> None:
    done = run(program, "idle", "--steps", "0")
    assert "the capture wrote nothing" in done.stderr
    assert "loaded before the dump was set is not dumped" in done.stderr

"""The real converter takes the files of the simulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ascend_dump.fakes.device.npu import NodeInfo, Npu

pytestmark = pytest.mark.skipif(find_spec("msprobe") is None, reason="mindstudio-probe is not installed")

RUNNER = Path(__file__).with_name("run_converter.py")


def test_msaccucmp_converts_what_the_simulated_device_wrote(tmp_path):
    npu = Npu(environ={}, cwd=tmp_path)
    x, y = np.arange(6, dtype="f4").reshape(2, 3), np.array([[1.5, np.inf]], "f2")
    config = {"dump_path": str(tmp_path), "dump_mode": "all", "dump_list": [{}]}
    (tmp_path / "acl.json").write_text(json.dumps({"dump": config}))
    assert npu.arm_acl("acl.json") == 0
    loaded = npu.load_model("net", ops=[NodeInfo("net/add", "Add")])
    npu.begin_step(loaded, 0)
    npu.run_op("Add", "net/add", [x, x], [y], model_id=loaded)
    config = {"dump_path": str(tmp_path), "dump_debug": "on"}
    (tmp_path / "acl.json").write_text(json.dumps({"dump": config}))
    assert npu.arm_acl("acl.json") == 0
    npu.overflow("net/mul", status=0x120, acc_type="AIV")
    npu.run_op("Mul", "net/mul", [x], [y], task=9)
    jobs = tmp_path / "jobs.json"
    jobs.write_text(json.dumps([{"file": str(file), "out": str(tmp_path / "out")} for file in npu.files]))
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, RUNNER, jobs], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [0, 0, 0]
    add, mul, opdebug = (file.name for file in npu.files)
    for name, expected in ((f"{add}.input.1", x), (f"{add}.output.0", y), (f"{mul}.output.0", y)):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{name}.npy"), expected)
    record = json.loads((tmp_path / "out" / f"{opdebug}.output.0.json").read_text())
    assert record["magic"] == "0x5a5a5a5a"
    assert record["acc_list"]["data"]["status"] == 0x120
    assert record["acc_list"]["data"]["task_id"] == 9

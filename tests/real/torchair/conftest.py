"""The real torchair of several versions of torch_npu, taken out of their wheels, on the simulated NPU.

What is taken out is kept below the environment of the suite, so the wheels are downloaded once. A version runs in one
process of its own, because torchair can be imported only once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest

CACHE = Path(sys.prefix) / "torchair"
VERSIONS = ("2.9.0", "2.13.0", "2.14.0")
#: Their converters are measured, which takes far less than all that is asked of the others.
CONVERTERS = ("2.9.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0")
PACKAGE = "torch_npu/dynamo/torchair/"
PROGRAMS = Path(__file__).parent / "programs"
AHEAD = {"everything": ("fake", *VERSIONS), "adapter_contract": ("2.9.0", "2.14.0"), "measure_converters": CONVERTERS}

os.environ["OMP_NUM_THREADS"] = "1"
for name in ("ASCEND_DUMP", "ASCEND_DUMP_STRICT", "ASCEND_DEVICE_ID", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)


def unpack(version: str) -> Path:
    """The directory with the package torchair of this version of torch_npu."""
    place = CACHE / version
    if not place.exists():
        wheels = CACHE / "wheels"
        wanted = f"torch-npu=={version}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"{wanted} cannot be downloaded: {done.stderr}")
        [wheel] = wheels.glob(f"torch_npu-{version}-*.whl")
        unfinished = CACHE / f"{version}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            # Its libraries need CANN; nothing may be loaded of them by mistake.
            names = [name for name in archive.namelist() if name.startswith(PACKAGE) and not name.endswith(".so")]
            archive.extractall(unfinished, names)
        unfinished.rename(place)
        wheel.unlink()
    return place / "torch_npu" / "dynamo"


@pytest.fixture(scope="session", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="session")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Path]]:
    """Run a program with torchair of a version, or the fake one for "fake", once; gives the directory it ran in.

    Two run at a time: what is asked of one version will be asked of the others.
    """

    def start(program: str, version: str) -> Path:
        place = tmp_path_factory.mktemp(f"{program}_{version}".replace(".", "_"))
        paths = [str(PROGRAMS)] if version == "fake" else [str(PROGRAMS), str(unpack(version))]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(PROGRAMS / f"{program}.py"), version],
            cwd=place,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return place

    tmp_path_factory.getbasetemp()  # which empties it, and may do so once only
    running: dict[tuple[str, str], Future[Path]] = {}
    with ThreadPoolExecutor(2) as pool:

        def run(program: str, version: str) -> Path:
            for each in (version, *AHEAD.get(program, ())):
                if (program, each) not in running:
                    if each != "fake":
                        unpack(each)  # here, so that no two do it at a time
                    running[program, each] = pool.submit(start, program, each)
            return running[program, version].result()

        yield run
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def fake_run(run_program: Callable[..., Path]) -> Path:
    """What the programs wrote under the fake torchair."""
    return run_program("everything", "fake")


@pytest.fixture(scope="session")
def real_run(version: str, run_program: Callable[..., Path]) -> Path:
    """What the programs wrote under the real torchair of a version."""
    return run_program("everything", version)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())

"""Engines that compute statistics: numba where it can be used, numpy otherwise, and the messages about them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from places import REPOSITORY

from ascend_dump.statistics import warm_up

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        filter(None, [environment.pop("first", ""), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )


COUNT_WARNINGS = """
import logging, sys
import numpy as np
from ascend_dump import ConfigError
from ascend_dump.statistics import statistics, warm_up
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.levelname + ": " + record.getMessage())
logging.getLogger("ascend_dump").addHandler(handler)
array = np.arange(5, dtype=np.float32)
for _ in range(3):
    assert statistics(array)[:4] == (5, 4.0, 0.0, 2.0)
    assert statistics(array.astype(np.int64)).max == 4
assert warm_up() == "numpy"
try:
    statistics(array, engine="numba")
except ConfigError as error:
    print("refused", "numba" in str(error))
print(len(said), *said)
"""


ANNOUNCE = """
import logging, sys
from ascend_dump.statistics import warm_up
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
logging.getLogger("ascend_dump").setLevel(logging.INFO)
print(warm_up(["bool"]), warm_up(["int8"]))
import numba
print("own", numba.config.CACHE_DIR)
"""


@needs_numba
@pytest.mark.parametrize("open_to_all", ["ascend-dump", "ascend-dump/numba"])
def test_what_others_could_exchange_is_not_run(tmp_path: Path, open_to_all: str) -> None:
    directory = tmp_path / "ascend-dump" / "numba"
    directory.mkdir(parents=True, mode=0o700)
    (tmp_path / open_to_all).chmod(0o777)
    code = "from ascend_dump.statistics import warm_up; print(warm_up(['bool']))"
    done = run_python(code, XDG_CACHE_HOME=str(tmp_path), NUMBA_CACHE_DIR="")
    assert done.stdout == "numba\n", done.stderr
    assert not list(directory.iterdir())


@needs_numba
def test_what_is_compiled_is_told_once_and_stays_with_the_user(tmp_path: Path) -> None:
    place = {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    first, second = run_python(ANNOUNCE, **place), run_python(ANNOUNCE, **place)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    told, *rest = first.stdout.splitlines()
    assert "compiling the kernels for statistics" in told
    # The program's own functions are cached where they were before.
    assert rest == second.stdout.splitlines() == ["numba numba", "own "]
    directory = tmp_path / "ascend-dump" / "numba"
    assert directory.stat().st_mode & 0o077 == 0
    assert list(directory.rglob("*.nbi"))


IN_THE_BACKGROUND = """
import sys, threading, time, numpy as np
from ascend_dump.statistics import warm_up_soon
threading.Thread(target=lambda: warm_up_soon(np.dtype("bool")), daemon=True).start()
while "numba" not in sys.modules:
    time.sleep(0.01)
"""


@needs_numba
def test_a_program_that_ends_early_waits_for_the_kernel_so_that_it_is_compiled_once(tmp_path: Path) -> None:
    """The thread that writes a dump asks for it, and ends with the program."""
    place = {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    first, second = run_python(IN_THE_BACKGROUND, **place), run_python(IN_THE_BACKGROUND, **place)
    assert ("compiling the kernels" in first.stderr, second.stderr) == (True, "")


class TestEngines:
    @needs_numba
    def test_warm_up_compiles(self) -> None:
        assert warm_up(["float32", np.dtype("int64"), np.bool_, ml_dtypes.bfloat16, "bfloat16"]) == "numba"
        assert warm_up([]) == "numba"

    @needs_numba
    def test_numba_is_loaded_for_large_arrays_and_for_many_small_ones(self) -> None:
        code = "import sys; from ascend_dump.statistics import *; import numpy as np; statistics(np.ones(1000)); "
        ask = "print('numba' in sys.modules); "
        large = "print(statistics(np.ones(1 << 24, np.int8)).mean); " + ask
        many = "[statistics(np.ones(1 << 20, np.int8)) for _ in range(16)]; " + ask
        for rest in (large, many):
            done = run_python(code + ask + rest)
            assert done.returncode == 0, done.stderr
            assert done.stdout.split()[:: len(done.stdout.split()) - 1] == ["False", "True"]

    @needs_numba
    def test_what_is_compiled_is_told_where_nothing_handles_logging(self, tmp_path: Path) -> None:
        code = "from ascend_dump.statistics import warm_up; warm_up(['bool'])"
        done = run_python(code, XDG_CACHE_HOME=str(tmp_path), NUMBA_CACHE_DIR="")
        assert done.stderr.startswith("ascend-dump: compiling the kernels for statistics, once on this machine"), done

    @needs_numba
    @pytest.mark.thorough
    def test_a_capture_that_is_quiet_says_nothing_of_what_is_compiled(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        code = (
            "import ascend_dump, torch\n"
            f"with ascend_dump.capture(path={str(tmp_path / 'dump')!r}, data='stats', quiet=True):\n"
            "    torch.ones(2048).exp()\n"
            "from ascend_dump.statistics import warm_up; assert warm_up(['float32']) == 'numba'"
        )
        done = run_python(code, XDG_CACHE_HOME=str(tmp_path), NUMBA_CACHE_DIR="")
        assert (done.returncode, done.stderr) == (0, "")
        assert list(tmp_path.rglob("*.nbi"))
        again = run_python(code, XDG_CACHE_HOME=str(tmp_path / "other"), NUMBA_CACHE_DIR="", ASCEND_DUMP_LOG="debug")
        assert "compiling the kernels for statistics" in again.stderr

    def test_without_numba_nothing_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['numba'] = None\n")
        done = run_python(COUNT_WARNINGS, first=str(tmp_path))
        assert (done.stdout, done.stderr) == ("refused True\n0\n", "")

    @pytest.mark.parametrize(
        "fault",
        [
            "raise ImportError('Numba needs NumPy 1.0 or less')",
            "raise RuntimeError('cannot cache function: no locator available')",
            "raise SystemError('initialization of _internal failed')",
        ],
    )
    def test_broken_numba_is_reported_once(self, tmp_path: Path, fault: str) -> None:
        (tmp_path / "numba").mkdir()
        (tmp_path / "numba" / "__init__.py").write_text(fault + "\n")
        done = run_python(COUNT_WARNINGS, first=str(tmp_path))
        assert done.stderr == ""
        assert done.stdout.startswith("refused True\n1 WARNING: numba cannot compute statistics (")
        assert fault.split("'")[1] in done.stdout

    @needs_numba
    def test_numba_that_fails_when_called_is_reported_once(self) -> None:
        done = run_python(COUNT_WARNINGS, NUMBA_DISABLE_JIT="1")
        assert done.stderr == ""
        assert done.stdout.startswith("refused True\n1 WARNING: numba cannot compute statistics (")

    def test_large_arrays_while_the_interpreter_exits(self) -> None:
        code = (
            "import atexit, numpy as np\n"
            "from ascend_dump.statistics import statistics\n"
            "atexit.register(lambda: print(statistics(np.ones(5 << 20, np.float32), engine='numpy').mean))\n"
        )
        done = run_python(code)
        assert (done.stdout.strip(), done.stderr) == ("1.0", "")

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    def test_large_arrays_in_a_forked_child(self) -> None:
        code = (
            "import os, numpy as np\n"
            "from ascend_dump.statistics import statistics\n"
            "array = np.ones(5 << 20, np.float32)\n"
            "statistics(array)\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    os._exit(0 if statistics(array).mean == 1.0 else 1)\n"
            "print(os.waitpid(child, 0)[1])\n"
        )
        done = run_python(code)
        assert (done.stdout.strip(), done.stderr) == ("0", "")

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    @needs_numba
    def test_a_fork_does_not_wait_for_the_compiler_of_another_thread(self) -> None:
        """A slow compilation: that of the first kernel takes until the child has ended."""
        code = (
            "import os, threading, time, numba.core.dispatcher as dispatcher, numpy as np\n"
            "from ascend_dump.statistics import statistics, warm_up\n"
            "compile, begun, ended = dispatcher.Dispatcher.compile, threading.Event(), threading.Event()\n"
            "def slowly(self, signature):\n"
            "    begun.set(), ended.wait(60)\n"
            "    return compile(self, signature)\n"
            "dispatcher.Dispatcher.compile = slowly\n"
            "thread = threading.Thread(target=warm_up, args=(['float32'],))\n"
            "thread.start(), begun.wait(60)\n"
            "since = time.monotonic()\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    array = np.ones(5 << 20, np.float32)\n"
            "    os._exit(0 if [statistics(array).mean for _ in range(4)] == [1.0] * 4 else 1)\n"
            "waited = time.monotonic() - since\n"
            "print(os.waitpid(child, 0)[1], waited < 10)\n"
            "ended.set(), thread.join()\n"
            "print(statistics(np.ones(4, np.float32), engine='numba').mean)\n"
        )
        done = run_python(code)
        assert (done.stdout.split(), done.stderr) == (["0", "True", "1.0"], "")

    def test_reading_the_class_needs_no_numpy(self) -> None:
        done = run_python("import sys; import ascend_dump.statistics; print('numpy' in sys.modules)")
        assert (done.stdout.strip(), done.stderr) == ("False", "")

"""A whole MindSpore program in a process of its own, on the fake: begun by a script or by the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ascend_dump

PROGRAM = """
import sys
import numpy as np
from ascend_dump import DumpRequest, fakes
from ascend_dump.testing import launch
from ascend_dump.adapter import load

with fakes.install("mindspore"):
    import mindspore as ms
    launch(load("mindspore"), DumpRequest.from_text(sys.argv[1]))
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    if sys.argv[2] == "run":
        net = ms.nn.Dense(4, 3)
        for _ in range(3):
            net(ms.Tensor(np.ones((2, 4), "f4")))
    # The fake ends with the block, so the program ends in it.
    sys.exit()
"""


UNSTOPPED = """
import sys
import numpy as np
import ascend_dump
from ascend_dump import fakes

with fakes.install("mindspore"):
    import mindspore as ms
    ms.set_context(mode=ms.GRAPH_MODE)
    net = ms.nn.Dense(4, 3)
    cap = ascend_dump.capture(net, path=sys.argv[1], quiet=True).start()
    net(ms.Tensor(np.ones((2, 4), "f4")))
    sys.exit()
"""


@pytest.mark.parametrize("name", ["plain", "with.dot"])
def test_a_program_that_ends_without_stopping_its_capture_leaves_only_the_dump(name, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", UNSTOPPED, tmp_path / name],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path for path in tmp_path.rglob("*") if path.is_symlink()] == []
    assert list(temporary.iterdir()) == []
    assert len(ascend_dump.open(tmp_path / name)) > 0


ENDED = UNSTOPPED.replace(
    "    sys.exit()",
    """
    cap.stop()
    print("ended", flush=True)
    import os
    if sys.argv[2] == "waits":
        sys.stdin.read()
    os._exit(0)
""",
)


def test_what_a_process_without_exit_functions_leaves_is_removed_by_the_next_one(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (temporary / "ascend_dump_other").mkdir()  # made by somebody else
    env = {**os.environ, "TMPDIR": str(temporary)}

    def start(does: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", ENDED, str(tmp_path / "dumps"), does]
        return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def scratch() -> set[str]:
        return {path.name for path in temporary.iterdir()} - {"ascend_dump_other"}

    with start("ends") as first:
        assert first.wait(timeout=900) == 0
    left = scratch()
    assert len(left) == 1
    with start("waits") as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "ended\n"
        mine = scratch()
        assert len(mine) == 1
        assert mine != left
        with start("ends") as third:  # while the second one lives
            assert third.wait(timeout=900) == 0
        assert mine < scratch()
        second.communicate(timeout=900)
    done = subprocess.run(
        [sys.executable, "-c", UNSTOPPED.replace("sys.exit()", "cap.stop(); sys.exit()"), str(tmp_path / "dumps")],
        env=env, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in temporary.iterdir()] == ["ascend_dump_other"]


def launch(tmp_path: Path, settings: str, does: str = "run", **values: str) -> tuple[str, list[Path]]:
    dumps = tmp_path / "dumps"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND_DUMP", "RANK", "MS_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"path={dumps}{settings}", does],
        env={**env, **values},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr, sorted(path.relative_to(dumps) for path in dumps.rglob("*") if path.is_file())


def test_a_whole_process_is_dumped(tmp_path):
    said, _ = launch(tmp_path, ",steps=0|2,quiet=1")
    # Nor does it say that operators outside of graphs are not dumped: the program chooses its mode after the import.
    assert said == ""
    dump = ascend_dump.open(tmp_path / "dumps")
    assert {record.step for record in dump} == {0, 2}
    assert [path for path in (tmp_path / "dumps").rglob("*") if path.is_symlink()] == []


def test_a_rank_of_msrun_has_its_directory(tmp_path):
    launch(tmp_path, "", RANK_ID="1", MS_WORKER_NUM="2")
    assert [path.name for path in (tmp_path / "dumps").iterdir()] == ["worldsize2_global_rank1"]


@pytest.mark.parametrize(
    ("settings", "values"),
    [("", {"MS_ROLE": "MS_SCHED"}), (",ranks=0", {"RANK_ID": "1", "MS_WORKER_NUM": "2"})],
    ids=["scheduler", "other rank"],
)
def test_who_does_not_dump_leaves_nothing(settings, values, tmp_path):
    said, files = launch(tmp_path, settings, **values)
    assert files == []
    assert "wrote nothing" not in said


def test_a_process_that_ran_nothing_says_so(tmp_path):
    said, _ = launch(tmp_path, "", does="nothing")
    assert "wrote nothing" in said

"""Workers that are started by a program without a main guard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_program_without_a_main_guard_is_told_to_have_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from ascend_dump.analysis.ranks import RankWorkers\n"
        "with RankWorkers(1) as workers:\n"
        "    print(workers.submit(abs, -1).result())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode != 0
    assert "a worker process imports this program, which starts workers itself" in ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert 'below `if __name__ == "__main__":`' in ended.stderr
    assert "WorkerLost" in last or "WorkerLost" in ended.stderr

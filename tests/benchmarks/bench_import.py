"""Processor time of `import ascend_dump` and `ascend-dump --help`, compared with an interpreter that does nothing, and
of the start-up line and the pytest plugin if no dump is requested.

python tests/benchmarks/bench_import.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import ascend_dump": ["-c", "import ascend_dump"],
    "ascend-dump --help": ["-m", "ascend_dump", "--help"],
    "import numpy": ["-c", "import numpy"],
    "import torch": ["-c", "import torch"],
    "import msprobe.pytorch": ["-c", "import msprobe.pytorch"],
}

STARTUP = Path(__file__).parents[2] / "ascend_dump" / "startup"
#: Milliseconds of processor time: of reading and running the .pth file as the interpreter does, and of the import.
ADDED = {
    "start-up line": f"""
import site, time
site.addpackage({str(STARTUP)!r}, "ascend_dump_startup.pth", set())
begin = time.process_time()
for _ in range(100):
    site.addpackage({str(STARTUP)!r}, "ascend_dump_startup.pth", set())
print((time.process_time() - begin) * 10)
""",
    "pytest plugin": """
import time, pytest
begin = time.process_time()
import ascend_dump.testing.pytest_plugin
print((time.process_time() - begin) * 1e3)
""",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args(argv).rounds
    environment = {name: value for name, value in os.environ.items() if name != "ASCEND_DUMP"}
    base = 0.0
    print(f"{'command':24} {'best ms':>9} {'over python':>12} {'ratio':>7}")
    for name, arguments in COMMANDS.items():
        seconds = []
        for _ in range(rounds):
            begin = time.perf_counter()
            done = subprocess.run([sys.executable, *arguments], capture_output=True, env=environment, check=False)
            seconds.append(time.perf_counter() - begin)
            if done.returncode:
                break
        if done.returncode:
            print(f"{name:24} not installed")
            continue
        best = min(seconds) * 1e3
        base = base or best
        print(f"{name:24} {best:9.1f} {best - base:12.1f} {best / base:6.1f}x")
    print()
    for name, code in ADDED.items():
        command = [sys.executable, "-c", code]
        found = [
            subprocess.run(command, capture_output=True, text=True, env=environment, check=False).stdout
            for _ in range(rounds)
        ]
        print(f"{name:24} {min(map(float, found)):9.3f} ms" if all(found) else f"{name:24} not installed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

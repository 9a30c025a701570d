"""Run a script on the simulated MindSpore, where the real one is not installed.

python simulated.py SCRIPT [ARGUMENTS]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from ascend_dump import fakes

if __name__ == "__main__":
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    with fakes.install("mindspore"):
        runpy.run_path(sys.argv[0], run_name="__main__")

"""The tests of eager TensorFlow 2 on this release, in a process without the 1.x behaviour."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EAGER = Path(__file__).resolve().parents[1] / "tensorflow_eager"


def test_eager_tensorflow() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(EAGER)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-5000:]

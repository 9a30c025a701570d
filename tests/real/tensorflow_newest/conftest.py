"""The newest TensorFlow, with its 1.x behaviour: the tests are those of the suite `tensorflow` that it can run."""

from __future__ import annotations

import sys
from pathlib import Path

OTHER = Path(__file__).resolve().parents[1] / "tensorflow"
sys.path.insert(0, str(OTHER))

exec(compile((OTHER / "conftest.py").read_text(), str(OTHER / "conftest.py"), "exec"))

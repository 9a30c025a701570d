"""The newest TensorFlow, with its 1.x behaviour: the tests are those of the suite `tensorflow` that it can run."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

OTHER = Path(__file__).resolve().parents[1] / "tensorflow"
sys.path.insert(0, str(OTHER))

_spec = spec_from_file_location("conftest_of_tensorflow", OTHER / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_other = module_from_spec(_spec)
_spec.loader.exec_module(_other)

# What pytest looks for in a conftest.
pytest_configure, v1_api, fresh_graph = _other.pytest_configure, _other.v1_api, _other.fresh_graph

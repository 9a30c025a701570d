"""TensorFlow 2 as it is by default; the suites of each release run these tests in a process of their own."""

from __future__ import annotations

import os

import pytest

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_configure(config: pytest.Config) -> None:
    # TensorFlow and what it pulls in use deprecated parts of Python and numpy.
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "UserWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::{kind}")

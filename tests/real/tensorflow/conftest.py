"""TensorFlow 2.15 with its 1.x behaviour: the API the document's programs are written for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# What operators are merged would depend on the CPU that the tests run on.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"


def pytest_configure(config: pytest.Config) -> None:
    # TensorFlow and what it pulls in use deprecated parts of Python and numpy.
    for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "UserWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::{kind}")


@pytest.fixture(scope="session", autouse=True)
def v1_api() -> None:
    """`import tensorflow as tf` gives the 1.x names, as it does in the environment of ported scripts."""
    import tensorflow

    v1 = tensorflow.compat.v1
    v1.disable_v2_behavior()
    for name in dir(v1):
        if not name.startswith("__") and name not in ("compat", "python", "core"):
            setattr(tensorflow, name, getattr(v1, name))
    v1.logging.set_verbosity(v1.logging.ERROR)


@pytest.fixture(autouse=True)
def fresh_graph(v1_api: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tensorflow as tf

    # GE writes the graphs of a dump into the working directory where no other place is set.
    monkeypatch.chdir(tmp_path)

    # What NPUEstimator asks for where a job starts.
    monkeypatch.setenv("JOB_ID", "10087")
    tf.reset_default_graph()
    tf.set_random_seed(7)

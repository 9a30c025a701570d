"""What the Estimator of the stand-in for TensorFlow refuses and logs, as the real one does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ascend_dump import fakes

pytest.register_assert_rewrite("tf_estimator_cases")

from tf_estimator_cases import *  # noqa: E402, F403  (the cases, after their asserts are rewritten)


@pytest.fixture
def tf() -> Iterator[Any]:
    with fakes.install("tensorflow"):
        import tensorflow

        with tensorflow.Graph().as_default():
            yield tensorflow

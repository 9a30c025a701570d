"""What the tests of the stand-in's Estimator expect, the real one does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("tf_estimator_cases")

from tf_estimator_cases import *  # noqa: E402, F403  (the cases, after their asserts are rewritten)


@pytest.fixture
def tf() -> Iterator[Any]:
    import tensorflow

    v1 = tensorflow.compat.v1
    if not hasattr(v1, "estimator"):
        pytest.skip("this TensorFlow has no Estimator any more")
    # Other tests of this process switch all of version 1 on; the stand-in has the shapes of version 2.
    old_shapes = str(v1.TensorShape([None])) == "(?,)"
    v1.enable_v2_tensorshape()
    try:
        with v1.Graph().as_default():
            yield v1
    finally:
        if old_shapes:
            v1.disable_v2_tensorshape()

"""What the tests of the stand-in's Estimator expect, the real one does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("tf_estimator_cases")

from tf_estimator_cases import (  # noqa: E402  (after their asserts are rewritten)
    test_a_model_function_must_return_a_spec,
    test_a_run_config_refuses_what_is_out_of_range,
    test_a_spec_must_have_what_its_mode_needs,
    test_an_estimator_refuses_a_function_that_it_cannot_call,
    test_an_estimator_refuses_two_directories_and_what_is_no_function,
    test_one_way_of_saving_replaces_the_other,
    test_shapes_are_written_as_tuples,
    test_the_loss_is_logged_as_often_as_the_configuration_says,
)

__all__ = [
    "test_a_model_function_must_return_a_spec",
    "test_a_run_config_refuses_what_is_out_of_range",
    "test_a_spec_must_have_what_its_mode_needs",
    "test_an_estimator_refuses_a_function_that_it_cannot_call",
    "test_an_estimator_refuses_two_directories_and_what_is_no_function",
    "test_one_way_of_saving_replaces_the_other",
    "test_shapes_are_written_as_tuples",
    "test_the_loss_is_logged_as_often_as_the_configuration_says",
]


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

"""What the tests of the stand-in for TensorFlow expect, the real TensorFlow does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "fakes"))
pytest.register_assert_rewrite("test_fake_tensorflow")

from test_fake_tensorflow import (  # noqa: E402  (after their asserts are rewritten)
    test_a_branch_runs_only_where_it_is_taken,
    test_a_truncated_normal_is_drawn_again_outside_and_not_cut,
    test_an_estimator_saves_as_often_as_its_configuration_says,
    test_an_estimator_trains_saves_and_goes_on,
    test_data_sets_end_and_begin_again,
    test_fetches_keep_their_structure,
    test_gradients_are_those_of_the_function,
    test_keras_trains_in_the_session_it_is_given,
    test_metrics_gather_over_batches,
    test_names_are_made_as_tensorflow_makes_them,
    test_run_options_have_trace_levels,
    test_tensors_and_operations_run_in_the_default_session,
    test_the_application_ends_with_what_main_returns,
    test_training_is_plain_gradient_descent,
    test_what_tensorflow_refuses,
)

__all__ = [
    "test_a_branch_runs_only_where_it_is_taken",
    "test_a_truncated_normal_is_drawn_again_outside_and_not_cut",
    "test_an_estimator_saves_as_often_as_its_configuration_says",
    "test_an_estimator_trains_saves_and_goes_on",
    "test_data_sets_end_and_begin_again",
    "test_fetches_keep_their_structure",
    "test_gradients_are_those_of_the_function",
    "test_keras_trains_in_the_session_it_is_given",
    "test_metrics_gather_over_batches",
    "test_names_are_made_as_tensorflow_makes_them",
    "test_run_options_have_trace_levels",
    "test_tensors_and_operations_run_in_the_default_session",
    "test_the_application_ends_with_what_main_returns",
    "test_training_is_plain_gradient_descent",
    "test_what_tensorflow_refuses",
]


@pytest.fixture
def tf() -> Iterator[Any]:
    import tensorflow

    v1 = tensorflow.compat.v1
    with v1.Graph().as_default():
        yield v1

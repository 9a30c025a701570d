"""At the edges too the real TensorFlow does what the tests of the stand-in expect."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "fakes"))
pytest.register_assert_rewrite("test_fake_tensorflow_values")

from test_fake_tensorflow_values import (  # noqa: E402  (after their asserts are rewritten)
    test_branches_give_what_both_may_be,
    test_data_without_an_end_is_shuffled_and_numbers_of_python_are_small,
    test_gradients_of_what_is_repeated_in_a_run_are_summed,
    test_gradients_take_one_source_weights_and_every_reading,
    test_graphs_and_sessions_nest,
    test_hooks_feed_and_stop,
    test_keras_goes_on_from_initialised_weights_and_weighs_rows,
    test_labels_and_shapes_are_looked_at_in_a_run,
    test_scopes_of_variables,
    test_shapes_that_do_not_fit_are_refused,
    test_types_are_neither_mixed_nor_cut,
    test_unknown_sizes_are_any_that_fit,
    test_values_are_tensorflows,
    test_what_is_fed_is_not_computed_and_mappings_keep_their_kind,
)

__all__ = [
    "test_branches_give_what_both_may_be",
    "test_data_without_an_end_is_shuffled_and_numbers_of_python_are_small",
    "test_gradients_of_what_is_repeated_in_a_run_are_summed",
    "test_gradients_take_one_source_weights_and_every_reading",
    "test_graphs_and_sessions_nest",
    "test_hooks_feed_and_stop",
    "test_keras_goes_on_from_initialised_weights_and_weighs_rows",
    "test_labels_and_shapes_are_looked_at_in_a_run",
    "test_scopes_of_variables",
    "test_shapes_that_do_not_fit_are_refused",
    "test_types_are_neither_mixed_nor_cut",
    "test_unknown_sizes_are_any_that_fit",
    "test_values_are_tensorflows",
    "test_what_is_fed_is_not_computed_and_mappings_keep_their_kind",
]


@pytest.fixture
def tf() -> Iterator[Any]:
    import tensorflow

    v1 = tensorflow.compat.v1
    with v1.Graph().as_default():
        yield v1

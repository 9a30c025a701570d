"""Sessions and the legacy keras on the newest TensorFlow."""

from __future__ import annotations

import pytest
from snippets import SNIPPETS, Snippet
from test_tf_default_behaviour import test_eager_tensorflow  # noqa: F401  (collected here)
from test_tf_host import (  # noqa: F401  (collected here)
    capture,
    control_flow,
    test_a_monitored_session_and_its_metadata,
    test_after_the_block_tensorflow_is_as_before,
    test_every_dumped_tensor_is_the_value_fetched_without_the_debugger,
    test_every_input_is_the_output_it_comes_from,
    test_loop_bodies_are_seen_once_for_each_iteration,
    test_only_the_branch_taken_is_seen,
    test_operators_that_onednn_merges_are_told,
    test_side_effects_happen_once,
    test_threads_have_their_own_runs,
    test_training_is_the_same_with_and_without_a_capture,
    test_types,
)
from test_tf_snippets import (  # noqa: F401  (collected here)
    test_a_program_dumps_the_same_with_the_adapter_as_with_the_documents_settings,
    test_every_session_has_the_configuration_of_the_document,
    test_results_are_those_of_a_run_without_a_dump,
    test_the_manual_configuration_is_the_documents_to_the_byte,
    test_the_users_objects_are_as_before,
)


@pytest.fixture(params=[name for name in SNIPPETS if not name.startswith("estimator") and name != "keras_public"])
def snippet(request: pytest.FixtureRequest) -> Snippet:
    """The programs that need neither tf.estimator nor a session in tf.keras."""
    return SNIPPETS[request.param]

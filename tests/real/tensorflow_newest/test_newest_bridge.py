"""The cases of the fake npu_bridge on the newest TensorFlow."""

from test_tf_bridge_cases import *  # noqa: F403  (the cases, and the fixture that they share)
from test_tf_functions import (
    test_functions_are_graphs_of_the_device_and_eager_operators_run_one_by_one as test_functions,  # noqa: F401
)

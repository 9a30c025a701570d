"""The marker `slow`: the files that `make quick` leaves out."""

from __future__ import annotations

import pytest

#: Files `test_NAME.py` that take more than a second on two cores, as `pytest --durations` shows.
_SLOW = """
    activation assumptions attach back_into_frameworks call_arguments cann_config cann_config_build
    cann_config_properties cann_file cann_formats cann_names catalog compare compare_across compare_align
    compare_bad_input compare_calls compare_elements compare_equal_steps compare_faults compare_fused
    compare_gradients compare_kernels compare_layouts compare_on_executors compare_over_ranks compare_shards
    compare_statistics compare_taken_apart compare_undefined convert curves dump eager_dumps errors fake_mindspore
    fake_npu_bridge fake_npu_silent fake_offline_model fake_torch_npu fake_torchair fake_torchair_native
    fakes_command findings ge_graph ge_kernels host_faults host_kill host_writer host_writer_beside hostile_files
    linear_time listing_large_dumps main measured mindspore_config page partials probes_engine probes_frameworks
    probes_offline push ranks_check ranks_index ranks_order reading_cann reading_converted reading_host
    reading_mindspore reading_msprobe reading_serving reading_torchair reading_verbs replay replay_graphs request
    retention round_files rules run_doctor selftest serve serving startup_harm statistics statistics_engines
    statistics_memory steps stored_dumps subjects suspects_trainings tables targets torchair_graph triage
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem.removeprefix("test_") in _SLOW.split():
            item.add_marker("slow")

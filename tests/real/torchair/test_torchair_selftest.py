"""`ascend-dump selftest` on the real torchair, with the simulated device below it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import unpack

from ascend_dump.selftest import probes_engine
from ascend_dump.selftest.run import run_selftest


def test_every_promise_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that fits the PyTorch of this suite."""
    place = str(unpack("2.13.0"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([place, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.syspath_prepend(place)
    test = run_selftest(tmp_path, frameworks=["torchair"], simulated=True)
    assert [result for result in test.results if result.state != "PASS"] == []
    assert len(test.results) == 18
    asked = ("first_graph", "json_and_options", "refusal_dropped", "scope_selects", "renamed", "batch_statistics")
    assert {test.probed[name].state for name in (*asked, "graphs_again", "max_pool_mask")} == {"confirmed"}
    # The simulated native part has no collective operators.
    of_options = set(probes_engine.PROBES) - {"steps_on_the_device", "watch_collective"}
    assert {test.probed[name].state for name in of_options} == {"confirmed"}

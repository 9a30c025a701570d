"""`ascend-dump selftest` on the real TensorFlow 2, on the CPU."""

from __future__ import annotations

from pathlib import Path

from ascend_dump.selftest.run import run_selftest


def test_every_promise_is_kept(tmp_path: Path) -> None:
    test = run_selftest(tmp_path, frameworks=["tensorflow"])
    assert [result for result in test.results if result.state == "FAIL"] == []
    assert [result.road for result in test.results if result.state == "SKIP"] == ["launcher"]
    assert sum(result.state == "PASS" for result in test.results) == 13
    assert not test.lacks_device


def test_every_promise_is_kept_by_the_bridges_on_it(tmp_path: Path) -> None:
    test = run_selftest(tmp_path, frameworks=["npu_bridge", "npu_device"], simulated=True)
    assert [result for result in test.results if result.state == "FAIL"] == []
    skipped = [(result.framework, result.road) for result in test.results if result.state == "SKIP"]
    assert skipped == [("npu_device", "decorator")]
    assert sum(result.state == "PASS" for result in test.results) == 18 + 14
    assert not test.failed
    asked = ("last_entry", "init_keys", "graph_names", "signatures", "fed_names", "variable_values")
    more = ("times_of_sessions", "graph_texts", "loop", "steps_of_calls", "options_once")
    assert {test.probed[name].state for name in (*asked, *more)} == {"confirmed"}

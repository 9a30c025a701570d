"""`ascend-dump selftest` on the real MindSpore, on the CPU."""

from __future__ import annotations

from pathlib import Path

from ascend_dump.selftest.run import run_selftest


def test_every_promise_is_kept(tmp_path: Path) -> None:
    test = run_selftest(tmp_path, frameworks=["mindspore"])
    assert [result for result in test.results if result.state == "FAIL"] == []
    # MindSpore has no statistics on a CPU, and ends the program itself on a full disk.
    assert [result.check for result in test.results if result.state == "SKIP"] == [
        "statistics are those of the tensors",
        "a full disk is reported",
    ]
    assert sum(result.state == "PASS" for result in test.results) == 16
    assert not test.lacks_device

"""Tests of the training loop that need no NPU: the fixtures come with ascend-dump."""

from __future__ import annotations

from training import Net, train

import ascend_dump


def test_no_operator_looks_wrong(ascend_dump_capture):
    """Each operator of two steps on the host, in statistics: NaN, dead layers, parameters that do not move, ..."""
    model = Net()
    with ascend_dump_capture(model, data="stats") as cap:
        train(model, 2, "cpu")
    assert not ascend_dump.triage(cap.dump()).suspects


def test_every_matmul_runs_on_the_device(ascend_dump_fakes, ascend_dump_capture):
    """The simulated device dumps what runs on it, in files as CANN writes them."""
    ascend_dump_fakes("torch_npu")
    model = Net().npu()
    with ascend_dump_capture(model, steps="1") as cap:
        train(model, 2, "npu")
    names = [record.op_name for record in cap.dump().select(op="*/MatMul*", io="output")]
    assert len(names) == 5  # forward, and backward without the gradient of the first input


def test_an_overflow_of_the_device_is_found(ascend_dump_fakes, ascend_dump_capture):
    """The simulated device reports an overflow that never happened, to test that a capture finds what is reported."""
    npu = ascend_dump_fakes("torch_npu")
    npu.overflow("aclnnAddmm")
    model = Net().npu()
    with ascend_dump_capture(model, scene="overflow") as cap:
        train(model, 1, "npu")
    assert {record.op_type for record in cap.dump()} == {"aclnnAddmm"}

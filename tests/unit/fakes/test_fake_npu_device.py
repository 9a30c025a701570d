"""The fake npu_device: its options, `open`, and its compat.v1 on the stand-in. Functions are tested on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump
from ascend_dump import NotSupported, fakes


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("ASCEND_DEVICE_ID", "RANK_ID", "RANK_SIZE", "CM_WORKER_SIZE", "DUMP_GRAPH_PATH"):
        monkeypatch.delenv(name, raising=False)
    with fakes.install("tensorflow", "npu_device", cwd=tmp_path) as device:
        yield device


def test_options_have_the_defaults_and_lists_of_the_real_ones(npu: Any) -> None:
    import npu_device

    dump = npu_device.global_options().dump_config
    values = {name: getattr(dump, name).value for name in dump._fixed_attrs}
    assert values == {
        "enable_dump": "0",
        "dump_path": None,
        "dump_step": None,
        "dump_mode": "output",
        "enable_dump_debug": "0",
        "dump_debug_mode": "all",
        "dump_data": "tensor",
        "dump_layer": None,
    }
    dump.enable_dump = True
    dump.dump_path = "dumps"
    assert (dump.enable_dump.value, npu_device.global_options().as_dict()["dump_path"]) == ("1", "dumps")
    assert "dump_step" not in npu_device.global_options().as_dict()


def test_wrong_options_are_refused_when_they_are_set(npu: Any) -> None:
    import npu_device

    options = npu_device.global_options()
    with pytest.raises(ValueError, match="NpuDumpConfig has no option dump_steps, all options"):
        options.dump_config.dump_steps = "0"
    with pytest.raises(ValueError, match="'outputs' not in optional list"):
        options.dump_config.dump_mode = "outputs"
    with pytest.raises(TypeError, match="Expected bool, got str"):
        options.dump_config.enable_dump = "yes"
    # An option without a default takes anything.
    options.dump_config.dump_step = 5
    assert options.dump_config.dump_step.value == "5"


def test_open_takes_the_options_once(npu: Any, tmp_path: Path) -> None:
    import npu_device

    options = npu_device.global_options()
    handle = npu_device.open()
    options.dump_config.enable_dump = True
    options.dump_config.dump_path = str(tmp_path)
    assert npu_device.open(0) is handle
    assert npu.dump_root is None
    assert handle.name().endswith("NPU:0")
    with pytest.raises(RuntimeError, match="device 1 as existed instance on"):
        npu_device.open(1)


def test_options_beside_the_dump_can_be_set(npu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import npu_device

    options = npu_device.global_options()
    options.hcom_parallel = False
    options.modify_mixlist = "ops.json"
    options.profiling_config.enable_profiling = True
    options.aoe_config.aoe_mode = "2"
    options.op_debug_level = 1
    with pytest.raises(ValueError, match="'fp32' not in optional list"):
        options.precision_mode = "fp32"
    with pytest.raises(ValueError, match="NpuConfig has no option nosuch"):
        options.nosuch = 1
    found = options.as_dict()
    assert [found[name] for name in ("hcom_parallel", "modify_mixlist", "enable_profiling", "aoe_mode")] == [
        *("0", "ops.json", "1", "2")
    ]
    assert "Option 'op_debug_level' is deprecated, please use 'op_debug_config' instead" in capsys.readouterr().out


def test_a_device_that_was_closed_is_not_opened_again(npu: Any, tmp_path: Path) -> None:
    import npu_device.npu_device

    handle = npu_device.open()
    npu_device.npu_device.close()
    dump = npu_device.global_options().dump_config
    dump.enable_dump, dump.dump_path = True, str(tmp_path)
    assert npu_device.open() is handle
    assert npu.dump_root is None


def test_workers_are_counted_by_either_variable(npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import npu_device

    monkeypatch.setenv("CM_WORKER_SIZE", "4")
    monkeypatch.setenv("RANK_ID", "3")
    handle = npu_device.open()
    assert (handle.workers_num, handle.worker_id, handle.is_cluster_worker()) == (4, 3, True)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"enable_dump": True}, "E10058"),
        ({"enable_dump": True, "dump_path": "nosuch"}, "E10001"),
        ({"enable_dump": True, "dump_path": ".", "dump_step": "3-1"}, "E10001"),
        ({"enable_dump": True, "enable_dump_debug": True, "dump_path": "."}, "E10001"),
    ],
)
def test_what_only_ge_refuses_fails_at_open(npu: Any, settings: dict[str, Any], code: str) -> None:
    import npu_device

    for name, value in settings.items():
        setattr(npu_device.global_options().dump_config, name, value)
    with pytest.raises(RuntimeError, match=f"Failed open npu device 0 : {code}"):
        npu_device.open()


def test_two_ways_of_telling_the_ranks_exclude_each_other(npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import npu_device

    monkeypatch.setenv("RANK_SIZE", "2")
    monkeypatch.setenv("CM_WORKER_SIZE", "2")
    with pytest.raises(ValueError, match="cannot be configured at the same time"):
        npu_device.open()


def test_the_stand_in_has_no_functions_to_run(npu: Any) -> None:
    import npu_device

    with pytest.raises(NotSupported, match="neither functions nor eager operators"):
        npu_device.open().as_default()


def test_sessions_run_on_the_device_through_compat_v1(npu: Any, tmp_path: Path) -> None:
    import npu_device

    npu_device.compat.enable_v1()
    names: dict[str, Any] = {}
    # Python allows a star only at the top of a module, which this stands for.
    exec("from npu_device.compat.v1.npu_init import *", names)
    tf = names["tf"]
    config = names["npu_config_proto"](tf.ConfigProto())
    keys = config.graph_options.rewrite_options.custom_optimizers[0].parameter_map
    keys["enable_dump"].b = True
    keys["dump_path"].s = str(tmp_path).encode()
    with tf.Session(config=config) as session:
        session.run(tf.square(tf.placeholder(tf.float32, [2], name="x"), name="sq"), {"x:0": [1.0, 2.0]})
    (record,) = ascend_dump.open(tmp_path).select(op="sq")
    assert (record.numpy() == np.array([1, 4], np.float32)).all()
    assert names["NPURunConfig"].__module__ == "npu_device.compat.v1.estimator.npu.npu_config"


def test_both_bridges_can_be_installed_and_share_what_is_global(tmp_path: Path) -> None:
    with fakes.install("tensorflow", "npu_bridge", "npu_device", cwd=tmp_path) as npu:
        import hccl.manage.api
        import npu_bridge.npu_init as init
        import npu_device

        assert init.get_rank_id is hccl.manage.api.get_rank_id
        npu_device.global_options().dump_config.dump_data = "stats"
        npu_device.open()
        init.init_resource()
        assert any("dumpData=tensor is ignored, stats is in force" in line for line in npu.log)

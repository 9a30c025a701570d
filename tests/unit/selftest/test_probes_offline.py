"""The programs that dump offline models ask the simulated device, agree with it, and refute one that is otherwise."""

from __future__ import annotations

import dataclasses
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from other_devices import OTHER_ACL, OTHER_DUMPS, at_step_0

from ascend_dump import fakes
from ascend_dump.selftest import probes_offline, processes
from ascend_dump.selftest.evidence import Evidence
from ascend_dump.selftest.probes import PROBES

PROGRAMS = Path(processes.__file__).with_name("programs")
OF_DUMPS = tuple(name for name in probes_offline.PROBES if name not in ("disk_reserve", "no_step_counter"))
OF_INIT = ("finalize_ends_init", "init_dump_after_init", "init_twice")


def ask(program: str, directory: Path) -> Evidence:
    """What the program notes in a process of its own, as far as acl can tell."""
    directory.mkdir()
    with pytest.MonkeyPatch.context() as patch, fakes.install("acl", environ={}):
        patch.chdir(directory)
        noted = runpy.run_path(str(PROGRAMS / program))["ask"](directory)
    return Evidence(device=0, began=0, ended=1, facts=json.loads(json.dumps(noted)))


@pytest.fixture(scope="module")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    root = tmp_path_factory.mktemp("offline")
    dumps, init = ask("offline_dumps.py", root / "dumps"), ask("acl_init.py", root / "init")
    return dataclasses.replace(dumps, facts={**dumps.facts, **init.facts})


@pytest.mark.parametrize("name", [*OF_DUMPS, *OF_INIT])
def test_the_simulated_device_is_as_assumed(agreed: Evidence, name: str) -> None:
    found = PROBES[name](agreed)
    assert found.state == "confirmed", found


def test_what_was_not_accepted_or_left_nothing_is_unknown(agreed: Evidence) -> None:
    """Every dump refused, and every dump without a file: but for the two that are to be as they were."""
    for change in ({"code": 100009}, {"files": []}):
        facts = {key: {**one, **change} if isinstance(one, dict) else one for key, one in agreed.facts.items()}
        facts["loaded"] = [0, 0, 0]
        other = dataclasses.replace(agreed, facts=facts)
        assert {name: PROBES[name](other) for name in OF_DUMPS if PROBES[name](other).state != "unknown"} == {}


@pytest.mark.parametrize(("name", "owner", "attribute", "behaviour"), OTHER_DUMPS)
def test_a_device_that_is_otherwise_refutes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, owner: Any, attribute: str, behaviour: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, behaviour)
        evidence = ask("offline_dumps.py", tmp_path / "dumps")
    found = PROBES[name](evidence)
    assert found.state == "refuted", found


def test_every_probe_is_refuted_here() -> None:
    assert {name for name, *_ in OTHER_DUMPS} == set(OF_DUMPS)
    assert {name for name, *_ in OTHER_ACL} == set(OF_INIT)


@pytest.mark.parametrize(("name", "owner", "attribute", "behaviour"), OTHER_ACL)
def test_an_acl_that_is_otherwise_refutes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, owner: Any, attribute: str, behaviour: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, behaviour)
        evidence = ask("acl_init.py", tmp_path / "init")
    found = PROBES[name](evidence)
    assert found.state == "refuted", found


def test_a_dump_that_acl_init_did_not_begin_tells_nothing(agreed: Evidence) -> None:
    facts = {
        "init_dump_after_init": {"files": 0, "code": 0},
        "finalize_ends_init": {"before": 0, "code": 0, "after": 0},
    }
    other = dataclasses.replace(agreed, facts=facts)
    assert {PROBES[name](other).state for name in ("init_dump_after_init", "finalize_ends_init")} == {"unknown"}
    refused = {"finalize_ends_init": {"before": 2, "code": 100045, "after": 2}}
    assert PROBES["finalize_ends_init"](dataclasses.replace(agreed, facts=refused)).state == "unknown"


# A device without step counters, which no GE of today is.


def ask_without_counters(directory: Path) -> Evidence:
    with pytest.MonkeyPatch.context() as patch, fakes.install("acl", environ={}) as npu:
        npu.drop_step_counter()
        patch.chdir(directory)
        noted = runpy.run_path(str(PROGRAMS / "offline_dumps.py"))["ask"](directory)
    return Evidence(device=0, began=0, ended=1, facts=noted)


def test_without_a_step_counter_the_first_step_is_left_out(agreed: Evidence, tmp_path: Path) -> None:
    found = PROBES["no_step_counter"](ask_without_counters(tmp_path))
    assert found.state == "confirmed", found
    found = PROBES["no_step_counter"](agreed)
    assert (found.state, "every operator here has a step counter" in found.seen) == ("unknown", True)


def test_a_device_that_takes_no_counter_for_step_0_refutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ascend_dump.fakes.device._model.LoadedModel.at_step", at_step_0)
    found = PROBES["no_step_counter"](ask_without_counters(tmp_path))
    assert found.state == "refuted", found


# A disk that is nearly full.


def ask_of_disks(directory: Path) -> Evidence:
    """What the program notes where its file systems are directories, one of which has a byte too little."""

    def free(path: Path) -> int:
        return (1 << 20) - 1 if "tight" in path.parts else 1 << 30

    def mount_small(directory: Path) -> dict[str, Path]:
        return {name: make_directory(directory / name) for name in ("tight", "roomy")}

    with fakes.install("acl", environ={}, disk=free):
        module = runpy.run_path(str(PROGRAMS / "small_disk.py"))
        module["disk_reserve"].__globals__["mount_small"] = mount_small
        return Evidence(device=0, began=0, ended=1, facts=module["ask"](directory))


def make_directory(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_disk_that_is_nearly_full_gets_nothing(tmp_path: Path) -> None:
    found = PROBES["disk_reserve"](ask_of_disks(tmp_path))
    assert found.state == "confirmed", found


def test_a_device_that_keeps_nothing_free_refutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ascend_dump.fakes.device.disk._LEAST_FREE", 0)
    found = PROBES["disk_reserve"](ask_of_disks(tmp_path))
    assert found.state == "refuted", found


def test_disks_that_get_nothing_or_cannot_be_mounted_tell_nothing() -> None:
    nothing: dict[str, Any] = {"disk_reserve": {"tight": 0, "roomy": 0, "bytes": 0}}
    failed = {"failed": {"disk_reserve": "PermissionError: unshare"}}
    for facts, seen in ((nothing, "where there is room"), (failed, "PermissionError")):
        found = PROBES["disk_reserve"](Evidence(device=0, began=0, ended=1, facts=facts))
        assert found.state == "unknown"
        assert seen in found.seen


# What the files of a graph tell.


def graph(root: Path, op_type: str) -> Evidence:
    """The file of one operator of a graph."""
    place = root.joinpath("20260101000000", "0", "net", "1", "0")
    place.mkdir(parents=True)
    (place / f"{op_type}.name.1.0.1700000000000000").write_bytes(b"")
    return Evidence(device=0, began=0, ended=1, tensors=root, facts={"constants": 2, "container": True})


def test_a_file_of_a_constant_or_of_control_flow_refutes(tmp_path: Path) -> None:
    good = graph(tmp_path / "good", "MatMul")
    assert PROBES["never_dumped"](good).state == "confirmed"
    assert PROBES["never_dumped"](dataclasses.replace(good, facts={})).state == "unknown"
    for number, op_type in enumerate(("Const", "If", "While")):
        assert PROBES["never_dumped"](graph(tmp_path / str(number), op_type)).state == "refuted"


def test_a_container_without_files_refutes(tmp_path: Path) -> None:
    good = graph(tmp_path / "good", "MatMul")
    assert PROBES["container"](good).state == "confirmed"
    (tmp_path / "empty").mkdir()
    assert PROBES["container"](dataclasses.replace(good, tensors=tmp_path / "empty")).state == "refuted"
    assert PROBES["container"](dataclasses.replace(good, facts={"container": False})).state == "unknown"
    assert PROBES["container"](dataclasses.replace(good, tensors=None)).state == "unknown"

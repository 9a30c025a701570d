"""Probes of eager operators agree with the simulated device, and refute one that writes them otherwise."""

from __future__ import annotations

import dataclasses
import re
import runpy
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
from other_devices import write_empty_operators

import ascend_dump
from ascend_dump import fakes

# Private: a probe has to refute a device that is otherwise.
from ascend_dump.fakes.device._api_calls import ApiReports
from ascend_dump.native.cann.dump_file import payload, read_header, write
from ascend_dump.native.cann.names import eager_name, parse_name
from ascend_dump.selftest import probes_eager, program
from ascend_dump.selftest.evidence import FAILED, Evidence
from ascend_dump.selftest.probes import PROBES, run_probes

torch = pytest.importorskip("torch")

PROGRAMS = Path(program.__file__).with_name("programs")
CALLS = "ascend_dump.fakes.device._api_calls"
VARIABLES = ("NPU_COLLECT_PATH", "ASCEND_DUMP_SCENE", "TORCH_ACL_INIT_CONFIG_PATH", "INF_NAN_MODE_FORCE_DISABLE")
OF_FILES = {
    *("call_counter", "kernels_per_operator", "levels", "no_model_levels", "split_files", "statistics_ids"),
}
Otherwise = Callable[[pytest.MonkeyPatch], None]


def dump(root: Path) -> Evidence:
    """Return the evidence of steps 0 and 2 of a product, on a device of its own."""
    with fakes.install("torch_npu", environ={}):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).npu()
        paths = {}
        for data in ("tensor", "stats"):
            with ascend_dump.capture(model, steps="0|2", path=root / data, mode="all", data=data) as cap:
                for _ in range(3):
                    model(torch.ones(2, 4).npu())
            paths[data] = cap.path
    facts = {"products": 1}
    evidence = Evidence(device=0, began=0, ended=time.time(), eager=True, steps=(0, 2), facts=facts)
    return dataclasses.replace(evidence, tensors=paths["tensor"], statistics=paths["stats"])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return dump(tmp_path_factory.mktemp("eager"))


def states(evidence: Evidence) -> dict[str, str]:
    found = run_probes(evidence)
    return {name: one.state for name, one in found.items() if name in probes_eager.PROBES and one.state != "unknown"}


def test_the_files_are_as_assumed(recorded: Evidence) -> None:
    assert states(recorded) == dict.fromkeys(OF_FILES, "confirmed")


def test_graphs_tell_nothing_of_eager_operators(recorded: Evidence) -> None:
    assert states(dataclasses.replace(recorded, eager=False)) == {}


def files(root: Optional[Path], pattern: str) -> list[Path]:
    assert root is not None
    found = sorted(path for path in root.rglob(pattern) if path.is_file())
    assert found
    return found


def rename(pattern: str, change: Callable[[Path], Path]) -> Callable[[Evidence], None]:
    def spoil(evidence: Evidence) -> None:
        root = evidence.statistics if pattern.endswith(".csv") else evidence.tensors
        path = files(root, pattern)[0]
        target = change(path)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)

    return spoil


def rewrite(pattern: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[Evidence], None]:
    def spoil(evidence: Evidence) -> None:
        path = files(evidence.tensors, pattern)[0]
        header = read_header(path)
        tensors = change([(tensor, bytes(payload(header, tensor))) for tensor in header.tensors])
        path.unlink()
        write(path, tensors, op_name=header.op_name, dump_time=header.dump_time)

    return spoil


def both_sides(tensors: list[Any]) -> list[Any]:
    other = {"input": "output", "output": "input"}
    return [*tensors, *((tensor._replace(io=other[tensor.io]), data) for tensor, data in tensors)]


def in_two_dimensions(tensors: list[Any]) -> list[Any]:
    return [(tensor._replace(shape=(1, *tensor.shape)), data) for tensor, data in tensors]


def remove(pattern: str, sides: tuple[str, ...] = ("inputs", "outputs")) -> Callable[[Evidence], None]:
    def spoil(evidence: Evidence) -> None:
        for path in files(evidence.tensors, pattern):
            if any(getattr(read_header(path), side) for side in sides):
                path.unlink()

    return spoil


def restart(evidence: Evidence) -> None:
    """The number begins anew in each step."""
    for step in ("0", "2"):
        assert evidence.tensors is not None
        found = files(evidence.tensors / step, "aclnn*")
        numbers = {eager_name(parse_name(path.name)).number for path in found}  # type: ignore[arg-type, union-attr]
        first = min(numbers)
        for path in found:
            for number in numbers:
                if f"_{number}_L" in path.name:
                    path.rename(path.with_name(path.name.replace(f"_{number}_L", f"_{number - first}_L", 1)))
                    break


SPOILT: list[tuple[str, Callable[[Evidence], None]]] = [
    ("split_files", rewrite("*_L0.*", both_sides)),
    ("split_files", remove("*", ("outputs",))),
    ("levels", rename("*_L2.*", lambda path: path.with_name(path.name.replace(".aclnnAddmm.", ".addmm.")))),
    ("levels", remove("*_L2.*", ("outputs",))),
    ("levels", remove("*_L0.*")),
    ("levels", rewrite("*_L2.*", in_two_dimensions)),
    ("call_counter", restart),
    ("kernels_per_operator", remove("*_L0.*", ("outputs",))),
    ("no_model_levels", rename("*_L0.*", lambda path: path.parent / "net" / path.name)),
    (
        "statistics_ids",
        rename("*.csv", lambda path: path.with_name(re.sub(r"\.\d+\.\d+\.", ".65535.65535.", path.name))),
    ),
]


@pytest.mark.parametrize(("name", "spoil"), SPOILT)
def test_other_files_refute(recorded: Evidence, tmp_path: Path, name: str, spoil: Callable[[Evidence], None]) -> None:
    roots = {each: tmp_path / each for each in ("tensors", "statistics")}
    for each, root in roots.items():
        shutil.copytree(getattr(recorded, each), root)
    copied = dataclasses.replace(recorded, **roots)
    spoil(copied)
    assert states(copied).get(name) == "refuted"


@pytest.mark.parametrize(
    ("name", "facts"),
    [("kernels_per_operator", {"products": 2})],
)
def test_other_operators_refute(recorded: Evidence, name: str, facts: dict[str, Any]) -> None:
    assert states(dataclasses.replace(recorded, facts={**recorded.facts, **facts}))[name] == "refuted"


def counts_dumped_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ApiReports._begin
    monkeypatch.setattr(ApiReports, "_begin", lambda self, call, dumps: begin(self, call, dumps) if dumps else -1)


def test_a_counter_of_dumped_calls_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts_dumped_calls_only(monkeypatch)
    assert states(dump(tmp_path))["call_counter"] == "refuted"


# Programs: each question has a device of its own.


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def ask(program: str, *questions: str) -> dict[str, Any]:
        facts: dict[str, Any] = {FAILED: {}}
        for question in questions:
            directory = tmp_path / question
            directory.mkdir()
            with monkeypatch.context() as patch, fakes.install("torch_npu"):
                patch.chdir(directory)
                module = runpy.run_path(str(PROGRAMS / program))
                if program == "dump_interface.py":
                    facts[question] = module[question](module["KernelDumps"](module["torch_npu"], directory))
                else:
                    found = module["ask"](question, directory)
                    facts[FAILED].update(found.pop(FAILED))
                    facts.update(found)
            for name in VARIABLES:
                monkeypatch.delenv(name, raising=False)
        return facts

    return ask


#: The programs and the questions that answer each probe.
QUESTIONS = {
    "overflow_switch": ("overflow_switch.py", "early", "late"),
    "overflow_of_kernels": ("overflow_switch.py", "early"),
    "overflow_values": ("overflow_switch.py", "early", "saturated"),
    "overflow_mode": ("overflow_switch.py", "early", "saturated"),
    "exception_switch": ("failing_kernel.py", "norm_early", "norm_late"),
    "left_out_side": ("dump_interface.py", "sides_of_modes"),
    "generated_names": ("dump_interface.py", "generated_names"),
    "api_names": ("dump_interface.py", "called_apis"),
    "kernel_names": ("dump_interface.py", "called_apis"),
    "empty_operator": ("dump_interface.py", "empty_operator"),
}


def judge(name: str, facts: dict[str, Any]) -> str:
    assert facts[FAILED] == {}
    return PROBES[name](Evidence(device=0, began=0, ended=1, facts=facts)).state


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_simulated_device_is_as_assumed(asked: Callable[..., dict[str, Any]], name: str) -> None:
    assert judge(name, asked(*QUESTIONS[name])) == "confirmed"


def test_every_probe_is_tried_here() -> None:
    assert {*OF_FILES, *QUESTIONS} == {*probes_eager.PROBES, "empty_operator"}


def reads_switches_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: ApiReports, arming: Any, exception: Any) -> None:
        self._checks_overflow = arming is not None and arming.overflow
        self._registers_exceptions = exception is not None and exception.kind == "norm"

    monkeypatch.setattr(ApiReports, "_read_switches", read)


def forgets_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The detection does not come back after it has ended."""
    read = ApiReports._read_switches

    def read_and_forget(self: ApiReports, arming: Any, exception: Any) -> None:
        read(self, arming, exception)
        if arming is None:
            self._checks_overflow = False

    monkeypatch.setattr(ApiReports, "_read_switches", read_and_forget)


def writes_sides_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    write_overflow = ApiReports._write_overflow

    def apart(self: ApiReports, call: Any, *arguments: Any) -> None:
        write_overflow(self, call._replace(generated=True), *arguments)

    monkeypatch.setattr(ApiReports, "_write_overflow", apart)


def finds_the_first_only(monkeypatch: pytest.MonkeyPatch) -> None:
    overflows = ApiReports._overflows

    def first(self: ApiReports, call: Any, *arguments: Any) -> bool:
        return call.api == "aclnnMuls" and overflows(self, call, *arguments)

    monkeypatch.setattr(ApiReports, "_overflows", first)


def never_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.fakes.torch_npu._kernels._saturate", lambda tensor: bool(tensor.isinf().any()))


def dumps_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = ApiReports._tensors
    monkeypatch.setattr(
        ApiReports, "_tensors", lambda self, call, reports, mode, name: tensors(self, call, reports, "all", name)
    )


def names_generated_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ApiReports._names
    monkeypatch.setattr(
        ApiReports, "_names", lambda self, call, kernel, number: names(self, call._replace(generated=False), kernel, 5)
    )


def calls_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call keeps the name of its own API."""
    monkeypatch.setattr("ascend_dump.fakes.torch_npu._kernels.written_as", lambda api: api)


def names_kernels_by_their_apis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.fakes.torch_npu._kernels.kernel_of", lambda api: f"{api[5:]}AiCore")


def writes_empty_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CALLS}.operator_file", write_empty_operators)


@pytest.mark.parametrize(
    ("name", "otherwise"),
    [
        ("overflow_switch", reads_switches_each_time),
        ("overflow_switch", forgets_the_switch),
        ("overflow_of_kernels", writes_sides_apart),
        ("overflow_values", finds_the_first_only),
        ("overflow_values", never_saturates),
        ("overflow_mode", never_saturates),
        ("exception_switch", reads_switches_each_time),
        ("left_out_side", dumps_both_sides),
        ("generated_names", names_generated_as_others),
        ("api_names", calls_in_place),
        ("kernel_names", names_kernels_by_their_apis),
        ("empty_operator", writes_empty_ones),
    ],
)
def test_a_device_that_is_otherwise_refutes(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[..., dict[str, Any]], name: str, otherwise: Otherwise
) -> None:
    otherwise(monkeypatch)
    assert judge(name, asked(*QUESTIONS[name])) == "refuted"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("overflow_switch", {"detected_early": {"files": [], "again": 0}, "detected_late": 0}),
        ("overflow_of_kernels", {"detected_early": {"files": []}}),
        ("overflow_mode", {"detected_early": {"inf_nan": None}, "detected_saturated": {"inf_nan": None}}),
        ("exception_switch", {"failed_norm_early": [], "failed_norm_late": []}),
        ("left_out_side", {"sides_of_modes": {"input": ["input"], "output": []}}),
        ("kernel_names", {"called_apis": {"aclnnAbs.AbsAiCore": {"api": [], "kernel": []}}}),
    ],
)
def test_without_a_control_nothing_is_known(name: str, facts: dict[str, Any]) -> None:
    assert judge(name, {FAILED: {}, **facts}) == "unknown"

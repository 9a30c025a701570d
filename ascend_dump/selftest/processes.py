"""The processes of a self-test: one for each *scenario* of each *subject*.

A subject is a framework, on the host or on an NPU, with a program of `programs/` that uses it. A scenario is what the
program does: it runs without a capture ("plain"), in a `with` block, with a full disk, and so on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.selftest.program import DUMPS, SELECTED
from ascend_dump.storage.files import read_small

if TYPE_CHECKING:
    import numpy as np

__all__ = ["INTERFACE", "NO_DEVICE", "SUBJECTS", "ProcessResult", "ScenarioRunner", "Subject"]

_PROGRAMS = Path(__file__).with_name("programs")
#: Exit code of a program that finds no device.
NO_DEVICE = 4
#: Prefix of the scenarios whose program sets native dump options, without a capture of ascend_dump.
INTERFACE = "interface-"
#: Seconds after which a process is ended: many, because importing a framework from a slow disk takes long.
_TIMEOUT = 300
#: Maximum size of the JSON file with a program's notes, in bytes.
_LONGEST_TRUTH = 1 << 24
#: Prefixes of environment variables that the processes do not inherit: those of ascend_dump and of launchers.
_LEFT_OUT = ("ASCEND_DUMP", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK_ID", "RANK_SIZE")
_SCENARIOS = ("plain", "with", "decorator", "statistics", "overflow", "unwritable", "full")


@dataclass(frozen=True)
class Subject:
    """A framework with its program.

    module     the module that has to be installed to run on a device
    device     True if the program runs on an NPU
    cann       True if CANN writes the dump files; then probes read them
    fakes      the fakes to install on the simulated device
    native     for a fake: another fake to install in its place if the real framework is installed. The other fake
               replaces only the part that needs a device
    below      modules that the program also needs, on the simulated device too; the value is the name of the module's
               fake, "" if it has none
    interface  programs that set native dump options, without a capture; followed by a space and a question if each
               question of the program needs a process of its own
    without    scenarios that the subject does not have, with the reasons

    >>> Subject("torch", "torch", "with_torch.py").stand_ins()
    []
    """

    name: str
    module: str
    program: str
    device: bool = False
    cann: bool = True
    fakes: tuple[str, ...] = ()
    native: Mapping[str, str] = field(default_factory=dict)
    below: Mapping[str, str] = field(default_factory=dict)
    interface: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)

    def lacks(self, *, simulated: bool) -> str:
        """Return "" if this machine can run the program, else the reason. simulated: on the simulated device."""
        uses_fakes = simulated and bool(self.fakes)
        for module in (*self.below, *(() if uses_fakes else (self.module,))):
            if not _is_installed(module) and not (uses_fakes and self.below[module]):
                return f"{module} is not installed"
        if uses_fakes:
            for module in self.fakes:
                if _is_installed(module) and module not in self.native:
                    return f"the real {module} is installed, and the simulated device needs its fake instead"
        return ""

    def stand_ins(self) -> list[str]:
        """Return the names of the fakes to install for the simulated device."""
        stand_ins = [self.native.get(name, name) if _is_installed(name) else name for name in self.fakes]
        return [*stand_ins, *(fake for module, fake in self.below.items() if fake and not _is_installed(module))]


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None


_TORCH: Mapping[str, str] = {"torch": ""}
_NO_FULL_DISK = {"full": "MindSpore itself ends a program whose graph it cannot write"}
_FAILURE_QUESTIONS = ("initial", "later", "collected", "scene", "chosen", "norm_early", "norm_late")
_OVERFLOW_QUESTIONS = ("early", "late", "saturated")
_MINDSPORE_QUESTIONS = ("samples", "overflowed", "without_e2e", "graph_engine", "device_statistics", "older_layout")
SUBJECTS = (
    Subject("torch", "torch", "with_torch.py"),
    Subject("mindspore", "mindspore", "with_mindspore.py", without=_NO_FULL_DISK),
    Subject(
        "tensorflow",
        "tensorflow",
        "with_tensorflow.py",
        without={"launcher": "eager operators have no steps that a launcher could count"},
    ),
    Subject(
        "torch_npu",
        "torch_npu",
        "with_torch.py",
        device=True,
        fakes=("torch_npu",),
        below=_TORCH,
        interface=(
            *("dump_interface.py", "captured_graph.py"),
            *(f"failing_kernel.py {name}" for name in _FAILURE_QUESTIONS),
            *(f"overflow_switch.py {name}" for name in _OVERFLOW_QUESTIONS),
        ),
    ),
    Subject(
        "torchair",
        "torch_npu",
        "with_torchair.py",
        device=True,
        fakes=("torchair",),
        native={"torchair": "torchair_native"},
        below=_TORCH,
        interface=("torchair_graphs.py", "engine_options.py"),
    ),
    Subject(
        "acl",
        "acl",
        "with_acl.py",
        device=True,
        fakes=("acl",),
        interface=("offline_dumps.py", "acl_init.py", "small_disk.py"),
    ),
    Subject(
        "npu_bridge",
        "npu_bridge",
        "with_npu_bridge.py",
        device=True,
        fakes=("npu_bridge",),
        below={"tensorflow": "tensorflow"},
        interface=("bridge_sessions.py",),
    ),
    Subject(
        "npu_device",
        "npu_device",
        "with_npu_device.py",
        device=True,
        fakes=("npu_device",),
        below={"tensorflow": ""},
        interface=("device_options.py",),
        without={"decorator": "npu_device takes its options once, and each call of a decorated function has others"},
    ),
    Subject(
        "mindspore-ascend",
        "mindspore",
        "with_mindspore.py",
        device=True,
        cann=False,
        fakes=("mindspore",),
        interface=tuple(f"mindspore_dumps.py {name}" for name in _MINDSPORE_QUESTIONS),
        without=_NO_FULL_DISK,
    ),
)


@dataclass(frozen=True)
class ProcessResult:
    """The results of a process.

    directory  its working directory
    code       its exit code, None if it did not end in time
    output     the text that it printed, to stdout and stderr
    truth      its notes, from `truth.json`
    arrays     the arrays that it fetched, from `truth.npz`
    """

    scenario: str
    directory: Path
    code: Optional[int]
    output: str
    truth: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    @property
    def dumps(self) -> Path:
        return self.directory / DUMPS

    @property
    def last_line(self) -> str:
        """The last line of the output that is not empty, as a short reason of a failure."""
        return next(
            (line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "the program printed nothing"
        )

    def arrays_of(self, kind: str) -> dict[int, list[np.ndarray]]:
        """Return the arrays of one kind, "inputs", "outputs" or "result", by step."""
        arrays: dict[int, list[np.ndarray]] = {}
        for name, array in self.arrays.items():
            noted_kind, number, _ = name.split("-")
            if noted_kind == kind:
                arrays.setdefault(int(number), []).append(array)
        return arrays


class ScenarioRunner:
    """A runner of the processes of one subject.

    directory  the parent of the working directories of the processes
    simulated  use the simulated device instead of an NPU
    device     number of the device, None for the framework's default
    python     path of the Python interpreter
    """

    def __init__(
        self,
        subject: Subject,
        directory: Path,
        *,
        simulated: bool = False,
        device: Optional[int] = None,
        python: str = sys.executable,
    ) -> None:
        self._subject = subject
        self._directory = directory
        self._simulated = simulated and subject.device
        self._device = device
        self._python = python

    def run_all(self) -> dict[str, ProcessResult]:
        """Run all scenarios, and return the results by scenario. If "plain" fails, the others are not run."""
        runs = {"plain": self._scenario("plain")}
        if runs["plain"].code != 0:
            return runs
        for scenario in _SCENARIOS[1:]:
            if scenario not in self._subject.without:
                runs[scenario] = self._scenario(scenario)
        if "launcher" not in self._subject.without:
            for rank in (1, 0):
                runs[f"launcher-{rank}"] = self._launched(rank)
        for entry in self._subject.interface:
            program, _, question = entry.partition(" ")
            scenario = INTERFACE + (question or Path(program).stem)
            runs[scenario] = self._scenario(scenario, program=program)
        return runs

    def _command(self, program: str, scenario: str, directory: Path) -> list[str]:
        fakes = ["-m", "ascend_dump.fakes", ",".join(self._subject.stand_ins()), "--"] if self._simulated else []
        return [self._python, *fakes, str(_PROGRAMS / program), self._subject.name, scenario, str(directory)]

    def _scenario(self, scenario: str, *, program: str = "") -> ProcessResult:
        directory = self._make(scenario)
        return self._run(scenario, directory, self._command(program or self._subject.program, scenario, directory), {})

    def _launched(self, rank: int) -> ProcessResult:
        """Run the scenario "plain" under `ascend-dump run`, as `rank` of two ranks. Only rank 1 is captured."""
        name = f"launcher-{rank}"
        directory = self._make(name)
        settings = ["--path", str(directory / DUMPS), "--steps", "|".join(map(str, SELECTED)), "--mode", "all"]
        command = [self._python, "-m", "ascend_dump", "run", *settings, "--ranks", "1", "--quiet", "--"]
        plain = self._command(self._subject.program, "plain", directory)
        return self._run(name, directory, [*command, *plain], {"RANK": str(rank), "WORLD_SIZE": "2"})

    def _make(self, name: str) -> Path:
        directory = self._directory / self._subject.name / name
        directory.mkdir(parents=True)
        return directory

    def _run(self, scenario: str, directory: Path, command: list[str], variables: Mapping[str, str]) -> ProcessResult:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
        if self._device is not None:
            environment["ASCEND_RT_VISIBLE_DEVICES"] = str(self._device)
        code: Optional[int] = None
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env={**environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_TIMEOUT,
                check=False,
            )
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            printed = error.stdout or b""
            text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
            output = f"{text}\nthe program did not end within {_TIMEOUT} s"
        return ProcessResult(scenario, directory, code, output, _truth(directory), _arrays(directory))


def _truth(directory: Path) -> dict[str, Any]:
    file = directory / "truth.json"
    truth: dict[str, Any] = json.loads(read_small(file, _LONGEST_TRUTH)) if file.is_file() else {}
    return truth


def _arrays(directory: Path) -> dict[str, np.ndarray]:
    import numpy as np

    file = directory / "truth.npz"
    if not file.is_file():
        return {}
    with np.load(file, allow_pickle=False) as opened:
        return {name: opened[name] for name in opened.files}

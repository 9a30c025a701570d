"""Making dumps: each framework runs in its own environment, and a program runs once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

Program = tuple[str, str, dict[str, Any]]
_PROGRAMS = Path(__file__).parent / "programs"
_JOBS = 12


class Dumps:
    """The dumps of programs below a folder, with the losses and parameters of each program.

    pythons: the interpreters of TensorFlow and MindSpore
    """

    def __init__(self, folder: Path, pythons: dict[str, str]) -> None:
        self.folder, self.pythons = folder.absolute(), pythons
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, program: Program) -> Path:
        """Return the folder of a dump."""
        framework, network, changed = program
        key = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:10]
        return self.folder / f"{network}_{framework}_{key}"

    def results(self, program: Program) -> dict[str, np.ndarray]:
        """Return the losses and the parameters after all steps."""
        with np.load(self._results(program)) as arrays:
            return dict(arrays)

    def _results(self, program: Program) -> Path:
        return self.path(program).with_suffix(".npz")

    def make(self, programs: Iterable[Program]) -> None:
        """Run the programs that have no results yet."""
        unique = {str(self.path(program)): program for program in programs}
        missing = [program for program in unique.values() if not self._results(program).exists()]
        for program in missing:
            shutil.rmtree(self.path(program), ignore_errors=True)
        for program in missing:
            if program[0] in ("torch", "forward", "torchair"):
                self._run_torch(program)
            elif program[0] == "mindspore":
                _, network, changed = program
                paths = str(self.path(program)), str(self._results(program))
                self._start("mindspore", network, json.dumps(changed), *paths)
        of_tensorflow = [program for program in missing if program[0] in ("graph", "eager")]
        for first in range(0, len(of_tensorflow), _JOBS):
            jobs = [
                [network, changed, mode, str(self.path((mode, network, changed))), str(self._results(program))]
                for program in of_tensorflow[first : first + _JOBS]
                for mode, network, changed in [program]
            ]
            file = self.folder / "jobs.json"
            file.write_text(json.dumps(jobs), encoding="utf-8")
            self._start("tensorflow", str(file))

    def _run_torch(self, program: Program) -> None:
        from framework_pairs.programs import torch_programs
        from framework_pairs.programs.shared import Settings

        framework, network, changed = program
        settings, path = Settings(**changed), str(self.path(program))
        if framework == "torch":
            found = torch_programs.Program(network, settings).results(path)
        else:
            is_compiled = framework == "torchair"
            found = torch_programs.forward_results(network, settings, path, compiled=is_compiled)
        np.savez(self._results(program), **found)

    def _start(self, framework: str, *arguments: str) -> None:
        paths = [str(_PROGRAMS.parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "GLOG_v": "3"}
        program = str(_PROGRAMS / f"{framework}_programs.py")
        done = subprocess.run(
            [self.pythons[framework], program, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"{framework} {arguments}:\n{done.stderr[-3000:]}", flush=True)

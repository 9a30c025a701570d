"""Run a whole self-test: the programs of one framework after the other, then the checks and probes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from ascend_dump.errors import ConfigError
from ascend_dump.selftest.assumptions import Assumption, Outcome, load_assumptions, merge_outcomes
from ascend_dump.selftest.checks import CheckResult, check_runs
from ascend_dump.selftest.evidence import FAILED, Evidence
from ascend_dump.selftest.probes import run_probes
from ascend_dump.selftest.processes import INTERFACE, NO_DEVICE, SUBJECTS, ProcessResult, ScenarioRunner, Subject
from ascend_dump.selftest.program import SELECTED

__all__ = ["SelfTest", "run_selftest"]


@dataclass
class SelfTest:
    """The state and the result of a self-test.

    simulated     True if the simulated device was used
    results       one `CheckResult` for each row of the printed table
    probed        the outcomes of probes, by name of the probe
    on_device     True if a device, real or simulated, was used
    wants_device  True if at least one of the frameworks needs a device
    runs          the results of processes, by framework and scenario
    """

    simulated: bool
    results: list[CheckResult] = field(default_factory=list)
    probed: dict[str, Outcome] = field(default_factory=dict)
    on_device: bool = False
    wants_device: bool = False
    runs: dict[str, dict[str, ProcessResult]] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """True if a check failed, or if a probe on the simulated device refuted an assumption."""
        is_refuted = self.simulated and any(outcome.state == "refuted" for outcome in self.probed.values())
        return is_refuted or any(result.state == "FAIL" for result in self.results)

    @property
    def lacks_device(self) -> bool:
        return self.wants_device and not self.on_device

    def assumptions(self) -> list[dict[str, Any]]:
        """Return a dict for each assumption: id, state, probe, seen (the evidence) and statement.

        The simulated device confirms nothing. With it the state is "unknown", and the key "simulated" has the outcome.
        """
        return [self._entry(assumption) for assumption in load_assumptions()]

    def _entry(self, assumption: Assumption) -> dict[str, Any]:
        outcome = self.probed.get(assumption.probe, Outcome("unknown", assumption.by_hand or "no device was tested"))
        entry = {"id": assumption.id, "state": outcome.state, "probe": assumption.probe, "seen": outcome.seen}
        if self.simulated:
            entry.update(state="unknown", simulated=outcome.state)
        return {**entry, "statement": assumption.statement}


def run_selftest(
    directory: Path,
    *,
    frameworks: Sequence[str] = (),
    simulated: bool = False,
    device: Optional[int] = None,
    python: Optional[str] = None,
    tell: Callable[[CheckResult], None] = lambda result: None,
) -> SelfTest:
    """Run the self-test.

    directory: an existing, empty directory for the dumps. frameworks: names of subjects to test; all if empty.
    simulated: use the simulated device. device: number of the device. python: path of the interpreter of the programs.
    tell: called with each result. Raises ConfigError for a framework that has no self-test.
    """
    subjects = {subject.name: subject for subject in SUBJECTS}
    unknown = [name for name in frameworks if name not in subjects]
    if unknown:
        raise ConfigError(f"there is no self-test of {unknown[0]!r}", hint=f"choose from {', '.join(subjects)}")
    test = SelfTest(simulated)
    outcomes = []
    for subject in [subjects[name] for name in dict.fromkeys(frameworks)] or SUBJECTS:
        test.wants_device = test.wants_device or subject.device
        interpreter = {} if python is None else {"python": python}
        runner = ScenarioRunner(subject, directory, simulated=simulated, device=device, **interpreter)
        for result in _check_subject(test, subject, runner):
            test.results.append(result)
            tell(result)
        if subject.device and subject.name in test.runs:
            outcomes.append(run_probes(_evidence(test.runs[subject.name], cann=subject.cann)))
    test.probed = merge_outcomes(outcomes)
    return test


def _check_subject(test: SelfTest, subject: Subject, runner: ScenarioRunner) -> list[CheckResult]:
    lacking = subject.lacks(simulated=test.simulated)
    if lacking:
        return [CheckResult(subject.name, "-", "all", "SKIP", lacking)]
    runs = runner.run_all()
    if runs["plain"].code == NO_DEVICE:
        return [CheckResult(subject.name, "-", "all", "SKIP", runs["plain"].last_line)]
    test.runs[subject.name] = runs
    test.on_device = test.on_device or subject.device
    return list(check_runs(subject, runs))


def _evidence(runs: dict[str, ProcessResult], *, cann: bool) -> Evidence:
    """Return the evidence of one framework on a device. runs: results of its processes, by scenario.

    The expected arrays are those that the scenario "with" fetched, because all scenarios compute the same values.
    cann: True if CANN writes the dump files; otherwise the evidence has no directories of dumps.
    """
    with_run = runs.get("with", runs["plain"])
    facts = {"container": _is_container(), **with_run.truth.get("facts", {})}
    for name, run in runs.items():
        if name.startswith(INTERFACE):
            noted = run.truth.get("facts", {})
            failed = {**facts.get(FAILED, {}), **noted.get(FAILED, {})}
            facts.update({**noted, FAILED: failed})
    times = [run.truth for run in runs.values() if "ended" in run.truth]

    def dumps(name: str) -> Optional[Path]:
        run = runs.get(name)
        if not cann or run is None or run.code != 0 or "refused" in run.truth:
            return None
        return run.dumps

    return Evidence(
        device=int(facts.get("device", 0)),
        began=min((truth["began"] for truth in times), default=0.0),
        ended=max((truth["ended"] for truth in times), default=0.0),
        tensors=dumps("with"),
        statistics=dumps("statistics"),
        overflow=dumps("overflow"),
        eager=bool(facts.get("eager", False)),
        steps=SELECTED,
        inputs=with_run.arrays_of("inputs"),
        outputs=with_run.arrays_of("outputs"),
        facts=facts,
    )


def _is_container() -> bool:
    """Return True if files or control groups of Docker, Podman or Kubernetes show that this is a container."""
    if any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        return True
    try:
        groups = Path("/proc/1/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(word in groups for word in ("docker", "containerd", "kubepods", "libpod", "lxc"))

"""A campaign finds each kind of fault, and in a short one over every reader there is none."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from campaign import make_mutant, run_campaign
from mutation import LARGEST, mutate
from planted import PLANTED, planted
from subjects import subjects


@pytest.mark.thorough
def test_each_planted_fault_is_found_and_named_and_nothing_else() -> None:
    chosen = [planted(what) for what in PLANTED]
    report = run_campaign(chosen, mutants=len(chosen), seed=3, jobs=2, patience=8)
    found = dict(report.by_cause().keys())
    assert set(found) == {what for what in PLANTED if what}
    assert all(what.startswith(subject) for subject, what in found.items())
    assert dict(report.counts) == {subject.name: 1 for subject in chosen}


@pytest.mark.thorough
def test_no_reader_falls_over_in_a_short_campaign() -> None:
    chosen = subjects()
    report = run_campaign(chosen, mutants=30 * len(chosen), seed=20, jobs=1)
    assert report.findings == []
    assert set(report.counts.values()) == {30}


def test_whole_files_are_read(tmp_path: Path) -> None:
    """Else a campaign would try what is refused at the first byte."""
    for number, subject in enumerate(subjects()):
        root = tmp_path / str(number)
        for name, data in {**subject.beside, **subject.seeds}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for name in subject.seeds if subject.alone else [""]:
            subject.use(root / name)


def test_a_mutant_is_made_again_by_its_seed_and_number() -> None:
    for subject in subjects():
        mutants = [make_mutant(subject, 7, number) for number in range(5)]
        assert mutants == [make_mutant(subject, 7, number) for number in range(5)]
        assert len({data for _, data in mutants}) > 1
        assert all(len(data) <= LARGEST for _, data in mutants)


def test_an_empty_file_has_mutants_too() -> None:
    assert {len(mutate(b"", [], random.Random(number))) > 0 for number in range(50)} == {True, False}


def test_no_reader_of_that_name(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "campaign.py"), "--only", "no such", "--save", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no reader is named 'no such'" in done.stderr

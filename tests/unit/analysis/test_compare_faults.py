"""Faults of every kind in real programs are named, and runs that differ by rounding alone have no origin."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from compare_faults import Site, judged, plant, sites
from compare_programs import PROGRAMS
from compare_roundings import ROUNDINGS, reference_of

import ascend_dump

#: The benchmark has more of everything, and larger programs.
_FAULTS = [
    ("constant", "convolutions"),
    ("nan", "recommender"),
    ("dtype", "convolutions"),
    ("layout", "mlp"),
    ("dropped operators", "mlp"),
    ("extra operators", "recommender"),
    ("renamed modules", "mlp"),
    ("random mask", "mlp"),
    ("stale buffer", "convolutions"),
    ("input", "recommender"),
]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Site]]]:
    @cache
    def dumped(program: str) -> tuple[Path, list[Site]]:
        directory = tmp_path_factory.mktemp(program)
        return directory, sites(PROGRAMS[program], directory / "reference")

    return dumped


@pytest.mark.parametrize(("kind", "program"), _FAULTS)
def test_the_operator_of_a_fault_comes_first(
    known: Callable[[str], tuple[Path, list[Site]]], kind: str, program: str
) -> None:
    directory, operators = known(program)
    fault = plant(PROGRAMS[program], kind, 1, operators, directory)
    assert fault is not None
    found = ascend_dump.compare(fault.actual, directory / "reference")
    assert not judged(fault, found), fault.what


@pytest.mark.parametrize(
    ("rounding", "program"),
    [
        ("last place of parameters, seed 0", "convolutions"),
        ("other order of sums", "recommender"),
        ("strided inputs", "lstm"),
        ("float64", "mlp"),
        ("decomposed graphs", "mlp"),
        ("decomposed graphs", "transformer"),
    ],
)
def test_rounding_alone_has_no_origin(tmp_path: Path, rounding: str, program: str) -> None:
    reference = reference_of(rounding, PROGRAMS[program], tmp_path / "reference")
    ROUNDINGS[rounding](PROGRAMS[program], tmp_path / "actual")
    found = ascend_dump.compare(tmp_path / "actual", reference)
    assert not found.origins
    assert found.verdict == "noise"
    assert found.counts["noise"] > 100


def test_gradients_of_norms_that_only_one_side_adds_up_are_no_origins(tmp_path: Path) -> None:
    """With one thread their sums are rounded in another way, and the sums of one side are no sums of the other."""
    program, threads = PROGRAMS["bfloat16"], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        reference = reference_of("decomposed graphs", program, tmp_path / "reference")
        ROUNDINGS["decomposed graphs"](program, tmp_path / "actual")
    finally:
        torch.set_num_threads(threads)
    found = ascend_dump.compare(tmp_path / "actual", reference)
    assert not found.origins
    assert set(found.counts) <= {"equal", "noise", "unmatched"}

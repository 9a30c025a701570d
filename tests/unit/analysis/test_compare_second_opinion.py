"""Operators that `compare` runs again by itself where it is not sure."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable

import pytest

import ascend_dump

torch = pytest.importorskip("torch")


def opinions(origin: ascend_dump.Origin) -> list[str]:
    return [text for text in origin.evidence if text.startswith(("replay:", "undecided:"))]


def times(x: torch.Tensor, number: int) -> torch.Tensor:
    return x * number


def dump(path: Path, numbers: list[int], apply: Callable[[torch.Tensor, int], torch.Tensor] = times) -> Path:
    """Parts that read one input, each with a number of its own."""
    torch.manual_seed(0)

    class Part(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return apply(x, self.number)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(map(Part, numbers))

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [part(x) for part in self.parts]

    network, inputs = Network(), torch.randn(4, 8)
    with torch.no_grad(), ascend_dump.capture(network, path=path, mode="all"):
        network(inputs)
    return path


def test_the_first_of_many_origins_are_run_again(tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "a", [2, 3, 4, 5]), dump(tmp_path / "b", [1] * 4))
    assert len(found.origins) == 4
    right = [f"replay: the output of {side} is right for its inputs" for side in ("actual", "the reference")]
    assert [opinions(origin) for origin in found.origins] == [right, right, right, []]


def test_few_origins_are_certain(tmp_path: Path) -> None:
    found = ascend_dump.compare(dump(tmp_path / "a", [2, 1]), dump(tmp_path / "b", [1, 1]))
    assert [opinions(origin) for origin in found.origins] == [[]]


def test_what_is_asked_for_is_not_done_twice(tmp_path: Path) -> None:
    sides = dump(tmp_path / "a", [2, 3, 4, 5]), dump(tmp_path / "b", [1] * 4)
    found = ascend_dump.compare(*sides, replay=True)
    assert {len(opinions(origin)) for origin in found.origins} == {2}


def test_an_executor_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        dump(tmp_path / "a", [2, 3, 4, 5])
        dump(tmp_path / "b", [1] * 4)
    with ThreadPoolExecutor(2) as executor:
        found = ascend_dump.compare(tmp_path / "a", tmp_path / "b", executor=executor)
    plain = ascend_dump.compare(tmp_path / "a", tmp_path / "b")
    assert [len(opinions(origin)) for origin in found.origins[:4]] == [2, 2, 2, 0]
    assert [origin.evidence for origin in found.origins] == [origin.evidence for origin in plain.origins]


def test_others_are_run_only_if_they_are_asked_for(tmp_path: Path) -> None:
    """Their kernels may take what the files of a hostile dump say."""

    def roll(x: torch.Tensor, number: int) -> torch.Tensor:
        return x.roll(number)

    found = ascend_dump.compare(dump(tmp_path / "a", [2, 3, 4, 5], roll), dump(tmp_path / "b", [1] * 4, roll))
    advice = "undecided: run `ascend-dump compare --replay` to replay this operator, if you trust the dump"
    assert [opinions(origin) for origin in found.origins] == [[advice]] * 3 + [[]]

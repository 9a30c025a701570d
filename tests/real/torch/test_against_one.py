"""Two ranks on gloo are compared with one rank: the origin is the line that makes the mistake."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional

import pytest
from processes import PROGRAMS, run_python

import ascend_dump


class Expected(NamedTuple):
    """The first origin: its operator, and words of its line and of its evidence. rank: None if all ranks are wrong."""

    op_type: str
    line: str
    words: str
    rank: Optional[int] = None


FAULTS = {
    "means.local": Expected("aten::mean", "mean = x.detach().mean(0)", "it is not reduced over ranks"),
    "means.exchanged": Expected(
        "c10d::allreduce_", "dist.all_reduce(mean", "sends another tensor than the other ranks"
    ),
    "means.kept": Expected("aten::copy_", "parameter.grad.copy_(mean)", "rank 0 runs aten::copy_, rank 1 does not", 0),
    "means.largest": Expected("c10d::allreduce_", "dist.all_reduce(mean", "combines terms of a sum, but not by a sum"),
    "parts.undivided": Expected("aten::div_", "part.div_(ranks)", "rank 0 runs aten::div_, rank 1 does not", 0),
    "pairs.cut": Expected("aten::split", "gradients[0].chunk(", "it is not reduced over ranks"),
    "pairs.source": Expected("c10d::broadcast_", "dist.broadcast(weights", "replaces the tensor of the other side"),
    "parts.old": Expected("aten::clone", "sent = own.clone()", "only rank 1 runs aten::clone", 1),
}
HEALTHY = ("means", "parts", "pairs")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("against_one")
    for ranks, names in ((1, HEALTHY), (2, (*HEALTHY, *FAULTS))):
        (directory / str(ranks)).mkdir()
        run_python(PROGRAMS / "against_one.py", directory / str(ranks), *names, RANKS=ranks)
    return directory


@pytest.mark.parametrize("name", HEALTHY)
def test_two_healthy_ranks_agree_with_one(name: str, dumps: Path) -> None:
    comparison = ascend_dump.compare(dumps / "2" / name, dumps / "1" / name)
    assert comparison.origins == ()
    assert comparison.verdict in ("equal", "noise")


@pytest.mark.parametrize("name", FAULTS)
def test_the_line_of_a_mistake_is_the_first_origin(name: str, dumps: Path) -> None:
    expected = FAULTS[name]
    comparison = ascend_dump.compare(dumps / "2" / name, dumps / "1" / name.partition(".")[0])
    first = comparison.origins[0]
    path, _, number = str(first.source).rpartition(":")
    assert first.op_type == expected.op_type
    assert expected.line in Path(path).read_text().splitlines()[int(number) - 1]
    assert expected.words in " ".join(first.evidence)
    assert expected.rank in (None, first.rank)

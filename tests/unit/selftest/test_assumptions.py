"""Assumptions, the code that relies on them, and the probes that judge them stay in step."""

from __future__ import annotations

import ast
import re
import time
from functools import cache
from pathlib import Path
from typing import Optional

import pytest
from places import DATA, REPOSITORY

from ascend_dump.selftest.assumptions import Assumption, Outcome, load_assumptions, merge_outcomes
from ascend_dump.selftest.evidence import Evidence
from ascend_dump.selftest.probes import PROBES

REFERENCE = re.compile(r"\(assumption ([a-z0-9_]+\.[a-z0-9_]+)\)")
ALL = load_assumptions()
BY_ID = {one.id: one for one in ALL}
SYMBOLS = [(one, where) for one in ALL for where in one.relied_on_by]


def sources() -> list[Path]:
    files = [*(REPOSITORY / "ascend_dump").rglob("*.py"), *(REPOSITORY / "adapters").rglob("*.py")]
    return [path for path in files if path.parent.name != "selftest"]


@cache
def parsed(path: Path) -> tuple[ast.Module, tuple[str, ...]]:
    text = path.read_text(encoding="utf-8")
    return ast.parse(text), tuple(text.splitlines())


def find(nodes: list[ast.stmt], names: list[str]) -> Optional[ast.stmt]:
    """The function, class or constant of a dotted name."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == names[0]:
            return find(node.body, names[1:]) if names[1:] else node
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not names[1:] and any(isinstance(one, ast.Name) and one.id == names[0] for one in targets):
            return node
    return None


def references(path: Path, symbol: str) -> set[str]:
    """The ids that the code of a symbol names; of a constant those above it too, of "" those of the docstring."""
    tree, lines = parsed(path)
    if not symbol:
        return set(REFERENCE.findall(ast.get_docstring(tree) or ""))
    node = find(tree.body, symbol.split("."))
    assert node is not None, f"{path} has no {symbol}"
    assert node.end_lineno is not None
    first = node.lineno - 1
    while isinstance(node, (ast.Assign, ast.AnnAssign)) and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return set(REFERENCE.findall("\n".join(lines[first : node.end_lineno])))


def test_there_are_many_and_each_has_an_id_of_its_own() -> None:
    assert len(ALL) >= 60
    assert sum(not one.probe for one in ALL) <= 5, "nearly all have a probe"
    assert len(BY_ID) == len(ALL)
    assert all(re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", one.id) for one in ALL)


@pytest.mark.parametrize("assumption", ALL, ids=lambda one: one.id)
def test_an_assumption_says_where_it_comes_from_and_how_it_is_judged(assumption: Assumption) -> None:
    assert assumption.statement.endswith(".")
    assert assumption.source
    assert assumption.relied_on_by
    assert bool(assumption.probe) != bool(assumption.by_hand), "either a probe, or what a person has to do"
    if assumption.probe:
        assert assumption.probe in PROBES


@pytest.mark.parametrize(("assumption", "where"), SYMBOLS, ids=lambda one: one if isinstance(one, str) else one.id)
def test_the_code_that_relies_on_an_assumption_names_it(assumption: Assumption, where: str) -> None:
    file, _, symbol = where.partition(":")
    assert assumption.id in references(REPOSITORY / file, symbol)


def test_the_code_names_no_other_assumptions() -> None:
    known = {
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in sources()
        for name in REFERENCE.findall(path.read_text(encoding="utf-8"))
        if name not in BY_ID
    }
    assert not known


def test_the_code_names_an_assumption_only_where_it_is_listed() -> None:
    """A file that refers to an assumption is one of those that the assumption lists."""
    wrong = {
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in sources()
        for name in REFERENCE.findall(path.read_text(encoding="utf-8"))
        if name in BY_ID
        and str(path.relative_to(REPOSITORY)) not in {one.partition(":")[0] for one in BY_ID[name].relied_on_by}
    }
    assert not wrong


def test_every_probe_judges_an_assumption() -> None:
    assert set(PROBES) == {one.probe for one in ALL} - {""}


def test_what_one_framework_refutes_is_refuted() -> None:
    confirmed, unknown, refuted = Outcome("confirmed", "a"), Outcome("unknown", "b"), Outcome("refuted", "c")
    assert merge_outcomes([{"p": unknown}, {"p": confirmed}])["p"] is confirmed
    assert merge_outcomes([{"p": refuted}, {"p": confirmed}])["p"] is refuted
    assert merge_outcomes([{"p": unknown}, {}])["p"] is unknown


# What public logs of devices confirm.


def test_a_real_listing_confirms_names_and_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump of ResNet-50 on an Ascend 310, from a public repository; the files are empty here."""
    paths = (DATA / "cann" / "real_listing_resnet50_20210331.txt").read_text().splitlines()
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    stamps = [int(path.rpartition(".")[2]) / 1e6 for path in paths]
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        # The host made the directory by its own clock, which is two seconds ahead of the device's.
        evidence = Evidence(device=0, began=min(stamps), ended=max(stamps) + 2, tensors=tmp_path)
        probes = ("file_names", "time_directory", "device_directory", "graph_levels")
        found = {probe: PROBES[probe](evidence).state for probe in probes}
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == dict.fromkeys(probes, "confirmed")


def test_real_names_confirm_those_of_exceptions() -> None:
    names = [
        name for name in (DATA / "cann" / "real_names.txt").read_text().splitlines() if re.search(r"\.\d{17}$", name)
    ]
    paths = [f"extra-info/data-dump/0/{name}" for name in names]
    brief, norm = ([path for path in paths if ("exception_info" in path) is kind] for kind in (True, False))
    facts = {"failed_initial": brief, "failed_collected": {"named": norm, "working": []}}
    found = PROBES["exception_names"](Evidence(device=0, began=0, ended=1, facts=facts))
    assert (found.state, len(brief), len(norm)) == ("confirmed", 3, 4)


def test_nothing_else_is_confirmed() -> None:
    confirmed = {assumption.id for assumption in ALL if assumption.confirmed}
    assert confirmed == {
        *("cann.file_name", "cann.time_directory", "cann.device_directory", "torchair.levels"),
        "cann.exception_names",
    }

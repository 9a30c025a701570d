"""The fake CompilerConfig against the real one: every value of a table assigned to every option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import read_json

#: The fake imitates these; 2.9.0 has fewer options and other options beside those of the dump.
IMITATED = ("2.13.0", "2.14.0")


@pytest.fixture(scope="session")
def fake(fake_run: Path) -> Any:
    return read_json(fake_run / "assignments" / "outcomes.json")


@pytest.fixture(scope="session")
def real(real_run: Path) -> Any:
    return read_json(real_run / "assignments" / "outcomes.json")


@pytest.mark.parametrize("version", IMITATED, scope="session")
def test_options_defaults_and_hash_are_the_same(fake: Any, real: Any) -> None:
    assert len(real["options"]) > 60
    for what in ("options", "defaults", "default", "hash", "positional"):
        assert fake[what] == real[what], what
    assert real["positional"][:2] == ["error", "TypeError"]


@pytest.mark.parametrize("version", IMITATED, scope="session")
def test_every_assignment_is_accepted_refused_and_read_back_alike(fake: Any, real: Any) -> None:
    different = {key: (fake["assigned"].get(key), value) for key, value in real["assigned"].items()}
    different = {key: both for key, both in different.items() if both[0] != both[1]}
    assert different == {}
    outcomes = [outcome[0] for outcome in real["assigned"].values()]
    assert outcomes.count("ok") > 1000
    assert outcomes.count("error") > 1000


@pytest.mark.parametrize("version", IMITATED, scope="session")
def test_assignments_one_after_another_give_the_same_options(fake: Any, real: Any) -> None:
    assert fake["sequences"] == real["sequences"]
    assert len(real["sequences"]) == 150


@pytest.mark.parametrize("version", ["2.9.0"], scope="session")
def test_the_options_of_the_dump_are_those_of_the_older_version(fake: Any, real: Any) -> None:
    names = [name for name in real["options"] if name.startswith("dump_config.")]
    assert {"dump_config.dump_data", "dump_config.dump_config_path"} <= set(names)
    # It came after 2.9.0.
    assert {name for name in fake["options"] if name.startswith("dump_config.")} - set(names) == {
        "dump_config.data_dump_stage"
    }
    checked = 0
    for key, outcome in real["assigned"].items():
        if key.partition(" = ")[0] in names:
            assert dump_options(fake["assigned"][key]) == dump_options(outcome), key
            checked += 1
    assert checked > 500


def dump_options(outcome: Any) -> Any:
    """An outcome with only those of GE's options that are about the dump."""
    if outcome[0] == "error":
        return outcome
    read, (status, *options) = outcome[1]
    if status == "error":
        return read, status, options
    shared = {key: value for key, value in options[0][1].items() if "ump" in key}
    return read, status, shared

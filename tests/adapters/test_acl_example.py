"""The example of offline models: every command of its README, in order, on the simulated device."""

from __future__ import annotations

import json

import pytest
from places import REPOSITORY
from readmes import Walked, walk_once

EXAMPLE = REPOSITORY / "examples" / "03_acl_offline"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("03_acl_offline", tmp_path_factory)


def test_every_part_leaves_what_the_readme_says(done: Walked) -> None:
    place, printed = done
    assert len(list(place.glob("arrays/**/*.npy"))) == 14
    assert printed.count("6 operators · 14 records") == 2
    assert "1. Mul square  (first)" in printed
    row = printed.strip().splitlines()[-1].split()
    assert row[1:4] == ["dense2", "square", "0"]
    assert row[-2:] == ["after", "square"]


def test_the_configuration_in_the_tree_is_the_one_the_command_writes(done: Walked) -> None:
    place, _ = done
    written, kept = (json.loads((folder / "acl.json").read_text()) for folder in (place, EXAMPLE))
    assert written["dump"].pop("dump_path") == str(place / kept["dump"].pop("dump_path"))
    assert written == kept

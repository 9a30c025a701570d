"""The program of torchair's document on the real torchair: each option changes on disk what it promises."""

from __future__ import annotations

from pathlib import Path

from conftest import read_json

#: The document says that the options win over the file. In 2.9.0, which hands the options to GE alone, the file wins.
OLDER = {"2.9.0": {"test_with_all_of_them_the_options_win_over_the_file"}}


def test_each_option_does_on_disk_what_it_promises(real_run: Path, version: str) -> None:
    outcomes = read_json(real_run / "document" / "outcomes.json")
    assert len(outcomes) > 12
    failed = {name: outcome for name, outcome in outcomes.items() if outcome != "passed"}
    assert failed.keys() == OLDER.get(version, set()), failed

"""Find the label of each file of a dump: the `label=` of the capture that wrote the file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ascend_dump.reading._dialect import Entry
from ascend_dump.reading._runs import read_run, runs_above
from ascend_dump.storage import located

__all__ = ["labels_of"]


def labels_of(entries: Iterable[Entry], run_paths: Iterable[Path]) -> list[str]:
    """Return the label of each entry: the label of the run whose directory contains its file; "" without a label.

    run_paths: absolute paths of the directories of runs, whose manifests are read
    """
    labels = {run.path: run.label for run in map(read_run, run_paths) if run is not None}
    if not any(labels.values()):
        return [""] * len(list(entries))
    of_directory: dict[str, str] = {}
    by_entry = []
    for entry in entries:
        directory = os.path.dirname(entry.path_text)
        if directory not in of_directory:
            of_directory[directory] = _label_of(located(directory), labels)
        by_entry.append(of_directory[directory])
    return by_entry


def _label_of(directory: Path, labels: dict[Path, str]) -> str:
    above = (directory.absolute(), *runs_above(directory))
    return next((labels[path] for path in above if path in labels), "")

"""The configuration of MindSpore in this process; MindSpore reads it only once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ascend_dump import WriteError
from ascend_dump.adapter import (
    RunDirectory,
    at_exit,
    located,
    make_private_directory,
    move,
    open_private,
    remove_file,
    remove_tree,
)
from ascend_dump.native.mindspore.config.dump_json import CONFIG_VARIABLE
from ascend_dump_mindspore._scratch import ACCEPTED, Scratch

__all__ = ["OURS", "ArmedRun", "armed", "forget", "is_foreign"]

#: Set in addition to MINDSPORE_DUMP_CONFIG: a child process thus distinguishes its parent's file from the user's.
OURS = "ASCEND_DUMP_MINDSPORE_CONFIG"
#: Files that MindSpore writes only once: per process, or per graph when it is compiled.
_WRITTEN_ONCE = ("rank_*/.dump_metadata/*", "rank_*/graphs/*", "rank_*/execution_order/ms_execution_order_graph_*")

_HINT = "free some space, and give path= a directory in which only this user may write"

_armed: Optional[ArmedRun] = None


def armed() -> Optional[ArmedRun]:
    """Return the configuration of MindSpore in this process; None if there is none."""
    global _armed
    loaded = sys.modules.get("mindspore")
    if _armed is not None and (_armed.pid != os.getpid() or _armed.module is not loaded):
        _armed = None
    return _armed


def forget() -> None:
    """Drop the configuration, if MindSpore has not read it: the next capture may have other settings."""
    global _armed
    if _armed is not None:
        _armed.remove()
    _armed = None


def is_foreign(config: str) -> bool:
    """Return True if MINDSPORE_DUMP_CONFIG names a file of the user."""
    return bool(config) and config != os.environ.get(OURS)


class ArmedRun:
    """The configuration file of MindSpore, and the symbolic link to the directory that it writes to.

    MindSpore keeps the path that it has read, so this path is a link to the directory of the current capture. The path
    of the link has only characters that MindSpore accepts, whatever the user's path is.

    settings  the dump JSON without its path
    text      the whole dump JSON

    Creating it writes the file and sets the environment. Raises WriteError.
    """

    def __init__(self, module: Any, build: Any, run: RunDirectory) -> None:
        global _armed
        self.module = module
        self.pid = os.getpid()
        self.on = True
        self._scratch: Optional[Scratch] = None
        self._removed = False
        #: Directories of graphs that stood in the way of the link.
        self._kept: list[Path] = []
        self.link = Path(os.path.abspath(run.beside("mindspore")))
        try:
            if not ACCEPTED.fullmatch(f"{self.link.parent}/"):
                self._scratch = Scratch()
                self.link = self._scratch.path / self.link.name
            self._lead_to(run.path)
            config = build(self.link)
            self.settings = without_path(config)
            self.text = json.dumps(config, indent=2) + "\n"
            self.config = self._write(run)
        except OSError as error:
            self.remove()
            raise WriteError(f"the dump cannot be prepared: {error}", hint=_HINT) from error
        except BaseException:
            self.remove()
            raise
        self._roots = [run.path]
        self._before = {name: os.environ.get(name) for name in (CONFIG_VARIABLE, OURS)}
        os.environ[CONFIG_VARIABLE] = os.environ[OURS] = self.config
        _armed = self
        at_exit(self._exit)

    def lead_to(self, run: RunDirectory) -> None:
        """Point the link to this run, and copy the graphs that MindSpore has written for earlier runs into it.

        Raises WriteError; the link is unchanged then.
        """
        try:
            self._mend()
            for before in self._roots:
                _share(before, run.path)
            # The reader takes the settings of a dump from the file next to it.
            self._write(run)
            self._lead_to(run.path)
        except OSError as error:
            raise WriteError(f"the dump cannot be prepared: {error}", hint=_HINT) from error
        self._roots.append(run.path)

    def lead_away(self) -> None:
        """Point the link to a scratch directory, because MindSpore still writes each graph that it compiles.

        Raises WriteError.
        """
        if self._removed:  # at the end of the process the link is removed before open captures are stopped
            return
        try:
            self._scratch = self._scratch or Scratch()
            aside = self._scratch.path / "aside"
            aside.mkdir(mode=0o700, exist_ok=True)
            self._mend()
            self._lead_to(aside)
        except OSError as error:
            raise WriteError(
                f"graphs that are compiled from now on are added to the dump: {error}", hint=_HINT
            ) from error
        if aside not in self._roots:
            self._roots.append(aside)

    def restore_environment(self) -> None:
        for name, value in self._before.items():
            if os.environ.get(name) == self.config:
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def remove(self) -> None:
        self._removed = True
        with contextlib.suppress(OSError, AttributeError):
            remove_file(self.link)
        for graphs in self._kept:
            remove_tree(graphs)
        if self._scratch is not None:
            self._scratch.remove()

    def _exit(self) -> None:
        # A forked child must not remove the link of its parent.
        if self.pid == os.getpid():
            self.remove()

    def _mend(self) -> None:
        """Recreate the directory of the link, if the user removed it."""
        make_private_directory(self.link.parent)
        if self.link.is_dir() and not self.link.is_symlink():
            # Without the link MindSpore has created a directory of that name for its graphs: keep them.
            graphs = self.link.with_name(f"{self.link.name}-{len(self._kept)}")
            move(self.link, graphs)
            self._kept.append(graphs)
            self._roots.append(graphs)

    def forget_config(self, run: RunDirectory) -> None:
        """Remove the configuration file of a run that did not start."""
        with contextlib.suppress(OSError):
            remove_file(self._config_of(run))

    @staticmethod
    def _config_of(run: RunDirectory) -> Path:
        return Path(os.path.abspath(run.beside("mindspore.json")))

    def _write(self, run: RunDirectory) -> str:
        path = self._config_of(run)
        with open(open_private(path, os.O_WRONLY | os.O_EXCL), "w", encoding="utf-8") as file:
            file.write(self.text)
        return os.fspath(path)

    def _lead_to(self, directory: Path) -> None:
        beside = self.link.with_name(f"{self.link.name}-new")
        with located(beside) as (name, above):
            os.symlink(os.path.abspath(directory), name, target_is_directory=True, dir_fd=above)
        # Atomically, so that MindSpore finds a directory at any time.
        move(beside, self.link)


def without_path(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dump JSON without its path, the only setting that may differ between captures."""
    common = {key: value for key, value in config["common_dump_settings"].items() if key != "path"}
    return {**config, "common_dump_settings": common}


def _share(before: Path, root: Path) -> None:
    for pattern in _WRITTEN_ONCE:
        for file in before.glob(pattern):
            copy = root / file.relative_to(before)
            make_private_directory(copy.parent)
            try:
                with located(copy) as (name, above):
                    os.link(file, name, dst_dir_fd=above)
            except FileExistsError:
                continue
            except OSError:  # another file system
                with open(file, "rb") as old, open(open_private(copy, os.O_WRONLY | os.O_EXCL), "wb") as new:
                    shutil.copyfileobj(old, new)

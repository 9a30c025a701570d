"""The dump configuration of MindSpore in this process, which MindSpore reads only once."""

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

#: A variable that is set to the same path as MINDSPORE_DUMP_CONFIG. By it a child process recognises that the file was
#: written by a capture of its parent, and not by the user.
OURS = "ASCEND_DUMP_MINDSPORE_CONFIG"
#: Files that MindSpore writes only once: once per process, or once per graph when the graph is compiled.
_WRITTEN_ONCE = ("rank_*/.dump_metadata/*", "rank_*/graphs/*", "rank_*/execution_order/ms_execution_order_graph_*")

_HINT = "free some space, and give path= a directory in which only this user may write"

_armed: Optional[ArmedRun] = None


def armed() -> Optional[ArmedRun]:
    """Return the configuration that a capture has set in this process; None if there is none."""
    global _armed
    loaded = sys.modules.get("mindspore")
    if _armed is not None and (_armed.pid != os.getpid() or _armed.module is not loaded):
        _armed = None
    return _armed


def forget() -> None:
    """Drop the configuration that MindSpore has not read, so that the next capture may have other settings."""
    global _armed
    if _armed is not None:
        _armed.remove()
    _armed = None


def is_foreign(config: str) -> bool:
    """Return True if MINDSPORE_DUMP_CONFIG names a file of the user."""
    return bool(config) and config != os.environ.get(OURS)


class ArmedRun:
    """The configuration file for MindSpore, and a symbolic link to the directory of the current capture.

    MindSpore keeps the path in the configuration for the whole process. So the path names a link, which each capture
    points to its own directory. The path of the link contains only characters that MindSpore accepts, even if
    the user's path contains others.

    settings  the dump JSON without its path
    text      the whole dump JSON
    on        True while a capture is active

    The constructor writes the file and sets environment variables. Raises WriteError.
    """

    def __init__(self, module: Any, build: Any, run: RunDirectory) -> None:
        global _armed
        self.module = module
        self.pid = os.getpid()
        self.on = True
        self._scratch: Optional[Scratch] = None
        self._removed = False
        #: Directories with graphs that MindSpore created in place of the link.
        self._kept: list[Path] = []
        self.link = Path(os.path.abspath(run.beside("mindspore")))
        try:
            if not ACCEPTED.fullmatch(f"{self.link.parent}/"):
                self._scratch = Scratch()
                self.link = self._scratch.path / self.link.name
            self._set_link(run.path)
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

    def point_to(self, run: RunDirectory) -> None:
        """Point the link to this run, and link or copy the graphs of earlier runs into it.

        Raises WriteError; then the link is unchanged.
        """
        try:
            self._repair_link()
            for before in self._roots:
                _share_once_written(before, run.path)
            # The reader of dumps reads the settings from the file next to a dump.
            self._write(run)
            self._set_link(run.path)
        except OSError as error:
            raise WriteError(f"the dump cannot be prepared: {error}", hint=_HINT) from error
        self._roots.append(run.path)

    def point_away(self) -> None:
        """Point the link to a temporary directory, because MindSpore writes compiled graphs even while it is paused.

        Raises WriteError.
        """
        if self._removed:  # at the end of the process the link is removed before open captures are stopped
            return
        try:
            self._scratch = self._scratch or Scratch()
            aside = self._scratch.path / "aside"
            aside.mkdir(mode=0o700, exist_ok=True)
            self._repair_link()
            self._set_link(aside)
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

    def _repair_link(self) -> None:
        """Recreate the directory that contains the link, if the user has removed it.

        If MindSpore has created a directory in place of the link, move that directory away.
        """
        make_private_directory(self.link.parent)
        if self.link.is_dir() and not self.link.is_symlink():
            # It contains graphs, which are needed for later runs.
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

    def _set_link(self, directory: Path) -> None:
        beside = self.link.with_name(f"{self.link.name}-new")
        with located(beside) as (name, above):
            os.symlink(os.path.abspath(directory), name, target_is_directory=True, dir_fd=above)
        # The rename is atomic, so that MindSpore finds a directory at any time.
        move(beside, self.link)


def without_path(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dump JSON without its path, which is the only setting that may differ between captures."""
    common = {key: value for key, value in config["common_dump_settings"].items() if key != "path"}
    return {**config, "common_dump_settings": common}


def _share_once_written(before: Path, root: Path) -> None:
    for pattern in _WRITTEN_ONCE:
        for file in before.glob(pattern):
            copy = root / file.relative_to(before)
            make_private_directory(copy.parent)
            try:
                with located(copy) as (name, above):
                    os.link(file, name, dst_dir_fd=above)
            except FileExistsError:
                continue
            except OSError:  # for example because the directories are on different file systems
                with open(file, "rb") as old, open(open_private(copy, os.O_WRONLY | os.O_EXCL), "wb") as new:
                    shutil.copyfileobj(old, new)

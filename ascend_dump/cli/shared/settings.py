"""Command-line options for the settings of a request, generated from the fields of DumpRequest."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

import click

from ascend_dump.errors import ConfigError
from ascend_dump.request import ALIASES, CHOICES, FLAGS, LISTS, DumpRequest, plain_value, value_from_word
from ascend_dump.startup.activation import requested

__all__ = ["given_settings", "read_request", "request_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def request_options(command: _Command) -> _Command:
    """Add `--config`, an option for each field of DumpRequest, and a hidden option for each of CANN's names."""
    text = "JSON or TOML file with the same settings; options override it."
    command = click.option("--config", metavar="FILE", type=click.Path(dir_okay=False), help=text)(command)
    for option in reversed(list(_options())):
        command = option(command)
    return command


def read_request(config: Optional[str], options: Mapping[str, Any]) -> DumpRequest:
    """Create the request of a command: from the file, else from ASCEND_DUMP, else the default; options override it."""
    values = _values(options)
    base = DumpRequest.from_file(config) if config is not None else requested() or DumpRequest()
    request = DumpRequest.from_mapping({**base.to_mapping(), **values})
    # An absolute path, because child processes may run in other directories.
    return request.replace(path=Path(os.path.abspath(request.path)))


def given_settings(config: Optional[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the settings in the file and the options, as JSON values to send to another process.

    Raises ConfigError for a wrong value.
    """
    base = {} if config is None else DumpRequest.from_file(config).to_mapping()
    values = {**base, **_values(options)}
    request = DumpRequest.from_mapping(values)
    if "path" in values:
        # An absolute path, because the other process may run in another directory.
        values["path"] = os.path.abspath(request.path)
    return values


def _values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options by the names of DumpRequest's fields. Raises ConfigError if a field is given twice."""
    values: dict[str, Any] = {}
    for spelling, value in options.items():
        name = ALIASES.get(spelling, spelling)
        if value is None or value == ():
            continue
        if name in values:
            raise ConfigError(f"--{spelling} and --{name} are the same setting", hint=f"keep --{name}")
        if name == "options":
            value = dict(_option(text) for text in value)
        elif name in LISTS:
            value = [item for text in value for item in value_from_word(name, text)]
        values[name] = value
    return values


def _options() -> Iterator[Callable[[_Command], _Command]]:
    # In the docstring, a field is described by a line, and following lines with a larger indent.
    paragraphs = re.findall(r"^ {4}(\w+) {2,}(.+(?:\n {8,}.+)*)$", DumpRequest.__doc__ or "", re.MULTILINE)
    meanings = {name: " ".join(text.split()) for name, text in paragraphs}
    names = {field.name: field.name for field in dataclasses.fields(DumpRequest)}
    for spelling, name in {**names, **ALIASES}.items():
        settings: dict[str, Any] = {"hidden": spelling != name, "help": meanings.get(name), "default": None}
        if name in FLAGS:
            settings.update(is_flag=True)
        elif name in CHOICES:
            settings.update(type=click.Choice(CHOICES[name]))
        elif name in LISTS or name == "options":
            settings.update(multiple=True, metavar="NAME=VALUE" if name == "options" else "NAME")
        else:
            settings.update(metavar=name.rpartition("_")[2].upper())
        spellings = dict.fromkeys((f"--{spelling.replace('_', '-')}", f"--{spelling}"))
        yield click.option(*spellings, spelling, **settings)


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--options {text!r} is not NAME=VALUE", hint="write --options name=value, once per option")
    return name.strip(), plain_value(value.strip())

"""`ascend-dump config`: write the configuration of a dump for a framework that reads a file."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from ascend_dump.cli.check import exit_of, print_problems, situation_of, surroundings_options
from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option
from ascend_dump.cli.shared.settings import read_request, request_options
from ascend_dump.common.paths import PRIVATE_FILE, make_private_directory
from ascend_dump.common.problem import worst_first
from ascend_dump.errors import ConfigError, NotSupported, WriteError
from ascend_dump.native.languages import ConfigLanguage, Surroundings, languages

if TYPE_CHECKING:
    from ascend_dump.request import DumpRequest

__all__ = ["config", "write_settings"]


@click.command(
    short_help="Write a dump configuration for a framework.",
    epilog="Example:  ascend-dump config --for acl --path dumps --layers conv1 -o acl.json",
)
@click.option("--for", "target", type=click.Choice(list(languages())), required=True)
@request_options
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write to this file instead of stdout."
)
@click.option("--overwrite", is_flag=True, help="Replace the content of FILE.")
@surroundings_options
@json_option
def config(
    target: str,
    config: Optional[str],
    output: Optional[str],
    overwrite: bool,
    graph: Optional[str],
    dynamic_shape: bool,
    as_json: bool,
    **given: Any,
) -> Exit:
    """Write the configuration that makes a framework dump what the options select.

    It is checked first, and not written if it would be refused. The dump directory is created if missing, because CANN
    does not create it. An existing file is replaced only with --overwrite, which also reports its other keys; in an
    acl.json everything but the dump settings is kept. With --graph patterns in --layers and --watch are expanded to the
    names that they match. The exit codes are those of `check`.
    """
    language = languages()[target]
    if output is not None and not output.endswith(language.suffix):
        raise ConfigError(
            f"-o {output}: {target} takes only a file that ends in {language.suffix}",
            hint=f"name it dump{language.suffix}",
        )
    request = read_request(config, given)
    if not language.selects_ranks:
        _refuse_what_no_file_says(request)
    place = None if graph is None else Path(graph)
    situation = situation_of(language, place, dynamic_shape=dynamic_shape)
    operators = situation.operators
    built = language.build(request, names=None if operators is None else [node.name for node in operators])
    content, lost = (built, []) if output is None else _content(Path(output), language, built, overwrite=overwrite)
    make_private_directory(Path(request.path))
    on = str(request.options["on"]) if language.runtimes and "on" in request.options else None
    found = language.check(json.dumps(built).encode(), Surroundings(situation, on, place))
    problems = worst_first([*found, *language.left_out(request)])
    code = exit_of(problems)
    written = None if output is None or code == Exit.USAGE else Path(output)
    if written is not None:
        write_settings(written, content)
        if lost:
            click.echo(f"{written}: replaced, and with it {', '.join(map(repr, lost))}", err=True)
    if as_json:
        from ascend_dump.report.documents import write_document

        fields = {"for": target, "config": built, "written": written}
        write_document(sys.stdout, "config", {**fields, "problems": [problem._asdict() for problem in problems]})
    elif problems:
        print_problems(output or target, problems, err=True)
    if output is None and not as_json and code != Exit.USAGE:
        click.echo(_text(built), nl=False)
    return code


def _refuse_what_no_file_says(request: DumpRequest) -> None:
    if not request.ranks.all:
        raise NotSupported(
            "a configuration file cannot select ranks", hint="use it on those ranks only, or `ascend-dump run --ranks`"
        )
    if request.max_bytes is not None:
        raise NotSupported("CANN has no limit on the size of a dump", hint="select fewer steps or layers")
    for name in ("keep", "until"):
        if getattr(request, name) is not None:
            raise NotSupported(
                f"{name}= is what a capture does while the program runs, and no configuration file says it",
                hint="use `ascend-dump run`, ASCEND_DUMP or ascend_dump.capture, or leave it out",
            )


def _content(
    file: Path, language: ConfigLanguage, built: Mapping[str, Any], *, overwrite: bool
) -> tuple[Mapping[str, Any], list[str]]:
    """What to write into the file, beside what is kept of it; and the keys that are lost, since `overwrite` allows it.

    Raises ConfigError where something would be lost without leave.
    """
    from ascend_dump.native.cann.config.parse import read_config

    if not os.path.lexists(file):
        return built, []
    parsed = read_config(file)
    if parsed.empty or (parsed.refusal is None and parsed.value == built):
        return built, []
    if not language.shared:
        if overwrite:
            return built, [key for key in parsed.value if key not in built] if isinstance(parsed.value, dict) else []
        raise ConfigError(f"{file} exists already", hint="replace it with --overwrite, or write elsewhere")
    if parsed.refusal is not None or not isinstance(parsed.value, dict):
        reason = "it holds no object" if parsed.refusal is None else parsed.refusal.reason
        raise ConfigError(
            f"{file} exists and is no file of {language.name}: {reason}", hint="remove it or write elsewhere"
        )
    lost = [key for key in built if key in parsed.value and parsed.value[key] != built[key]]
    if lost and not overwrite:
        raise ConfigError(
            f"{file} exists and says something else under {lost[0]!r}",
            hint=f"replace {lost[0]!r} with --overwrite, or write elsewhere",
        )
    return {**parsed.value, **built}, []


def write_settings(file: Path, value: Mapping[str, Any]) -> None:
    """Replace the file at once; a new one is readable by its owner only. Raises WriteError."""
    try:
        mode = stat.S_IMODE(os.lstat(file).st_mode) if file.is_file() and not file.is_symlink() else PRIVATE_FILE
        # mkstemp creates it 0600; it stands beside the file, so that it can replace it.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                os.fchmod(descriptor, mode)
                opened.write(_text(value))
                opened.flush()
                os.fsync(descriptor)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise WriteError(
            f"{file} cannot be written: {error.strerror}", hint="free some space, or give a file in another directory"
        ) from error


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

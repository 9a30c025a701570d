"""`ascend-dump config`: write the configuration of a dump for a framework that reads a file."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

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
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "python"]),
    default="json",
    help="A file to read, or lines of Python to paste (tensorflow).",
)
@click.option("--style", metavar="STYLE", help="With --format python: session, estimator or keras.")
@click.option(
    "--standalone",
    metavar="FILE.py",
    type=click.Path(dir_okay=False),
    help="Copy a module that applies the settings under Python 3.5 and later (tensorflow); -o writes the settings.",
)
@surroundings_options
@json_option
def config(
    target: str,
    config: Optional[str],
    output: Optional[str],
    overwrite: bool,
    form: str,
    style: Optional[str],
    standalone: Optional[str],
    graph: Optional[str],
    dynamic_shape: bool,
    as_json: bool,
    **options: Any,
) -> Exit:
    """Write a configuration of a framework for the dump that the options select.

    The configuration is checked first, and not written if the framework would refuse it. The dump directory is created
    if missing, because CANN does not create it. An existing file is replaced only with --overwrite; keys that are lost
    then are reported. In an acl.json, settings that do not concern the dump are preserved. With --graph, patterns in
    --layers and --watch are expanded to names. --format python prints the same settings as lines of a program. The exit
    codes are those of `check`.
    """
    language = languages()[target]
    if standalone is not None:
        _copy_standalone(language, Path(standalone), overwrite=overwrite)
        if output is None:
            _refuse_settings(options, config, form)
            return Exit.OK
    style = _style_of(language, form, style)
    if style is not None and output is not None and not output.endswith(".py"):
        raise ConfigError(f"-o {output}: --format python writes a .py file", hint="name it dump_settings.py")
    if output is not None and not output.endswith(language.suffix):
        raise ConfigError(
            f"-o {output}: {target} takes only a file that ends in {language.suffix}",
            hint=f"name it dump{language.suffix}",
        )
    request = read_request(config, options)
    if not language.selects_ranks:
        _refuse_capture_settings(request, language, has_ranks=style is not None)
    graph_path = None if graph is None else Path(graph)
    situation = situation_of(language, graph_path, dynamic_shape=dynamic_shape)
    operators = situation.operators
    built = language.build(request, names=None if operators is None else [node.name for node in operators])
    lines = None if style is None else language.python(built, style, request.ranks)
    content: Union[str, Mapping[str, Any]] = built if lines is None else lines
    lost: list[str] = []
    if output is not None and lines is not None:
        _refuse_existing(Path(output), overwrite=overwrite)
    elif output is not None:
        content, lost = _content(Path(output), language, built, overwrite=overwrite)
    make_private_directory(Path(request.path))
    on = str(request.options["on"]) if language.runtimes and "on" in request.options else None
    problems_of_file = language.check(json.dumps(built).encode(), Surroundings(situation, on, graph_path))
    problems = worst_first([*problems_of_file, *language.left_out(request)])
    code = exit_of(problems)
    written = None if output is None or code == Exit.USAGE else Path(output)
    if written is not None:
        write_settings(written, content)
        if lost:
            click.echo(f"{written}: replaced; these keys were lost: {', '.join(map(repr, lost))}", err=True)
    if as_json:
        from ascend_dump.report.documents import write_document

        fields = {"for": target, "config": built, "python": lines, "written": written}
        write_document(sys.stdout, "config", {**fields, "problems": [problem._asdict() for problem in problems]})
    elif problems:
        print_problems(output or target, problems, err=True)
    usage = "" if code == Exit.USAGE else language.usage(built, output or "")
    if usage:
        click.echo(usage, err=True)
    if output is None and not as_json and code != Exit.USAGE:
        click.echo(_text(built if lines is None else lines), nl=False)
    return code


def _style_of(language: ConfigLanguage, form: str, style: Optional[str]) -> Optional[str]:
    """Return the style of Python lines, None if the output is a JSON file. Raises ConfigError."""
    if form == "json":
        if style is not None:
            raise ConfigError(f"--style {style} is for --format python", hint="add --format python, or leave it out")
        return None
    if not language.styles:
        raise ConfigError(
            f"--format python: {language.name} reads a file, and cannot be configured by lines of Python",
            hint="leave --format python out",
        )
    if style is not None and style not in language.styles:
        raise ConfigError(f"--style {style}: there is no such style", hint=f"give one of {', '.join(language.styles)}")
    return style or language.styles[0]


def _copy_standalone(language: ConfigLanguage, file: Path, *, overwrite: bool) -> None:
    """Copy the standalone module of a framework to a file. Raises ConfigError and WriteError."""
    if language.standalone is None:
        raise ConfigError(f"{language.name} needs no module of ours: it reads a file", hint="leave --standalone out")
    text = language.standalone.read_text(encoding="utf-8")
    if not (file.is_file() and file.read_bytes() == text.encode()):
        _refuse_existing(file, overwrite=overwrite)
        write_settings(file, text)


def _refuse_settings(options: Mapping[str, Any], config: Optional[str], form: str) -> None:
    """Raise ConfigError if settings are given without -o, where they have no effect."""
    name = next((name for name, value in options.items() if value not in (None, (), False)), None)
    if name is not None or config is not None or form != "json":
        raise ConfigError(
            f"--{name or 'config' if form == 'json' else 'format'} has no effect on what --standalone copies",
            hint="write the settings with -o dump.json, in this command or another",
        )


def _refuse_existing(file: Path, *, overwrite: bool) -> None:
    if os.path.lexists(file) and not overwrite:
        raise ConfigError(f"{file} exists already", hint="replace it with --overwrite, or write elsewhere")


def _refuse_capture_settings(request: DumpRequest, language: ConfigLanguage, *, has_ranks: bool) -> None:
    if not request.ranks.all and not has_ranks:
        lines = ", or --format python" if language.styles else ""
        raise NotSupported(
            "a configuration file cannot select ranks",
            hint=f"use it on those ranks only, or `ascend-dump run --ranks`{lines}",
        )
    if request.max_bytes is not None:
        raise NotSupported("CANN has no limit on the size of a dump", hint="select fewer steps or layers")
    for name in ("keep", "until", "label"):
        if getattr(request, name) is not None:
            raise NotSupported(
                f"{name}= is a setting of a running capture, and configuration files do not have it",
                hint="use `ascend-dump run`, ASCEND_DUMP or ascend_dump.capture, or leave it out",
            )


def _content(
    file: Path, language: ConfigLanguage, built: Mapping[str, Any], *, overwrite: bool
) -> tuple[Mapping[str, Any], list[str]]:
    """Return the new content of the file, with the keys to preserve; and the existing keys that it does not have.

    Raises ConfigError if a key would be lost or get another value without `overwrite`, and if the file is not one of
    the language.
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
        _refuse_existing(file, overwrite=overwrite)
    if parsed.refusal is not None or not isinstance(parsed.value, dict):
        reason = "it is not an object" if parsed.refusal is None else parsed.refusal.reason
        raise ConfigError(
            f"{file} exists and is no file of {language.name}: {reason}", hint="remove it or write elsewhere"
        )
    lost = [key for key in built if key in parsed.value and parsed.value[key] != built[key]]
    if lost and not overwrite:
        raise ConfigError(
            f"{file} exists and has another value of {lost[0]!r}",
            hint=f"replace {lost[0]!r} with --overwrite, or write elsewhere",
        )
    return {**parsed.value, **built}, []


def write_settings(file: Path, value: Union[str, Mapping[str, Any]]) -> None:
    """Write a file atomically. A new file is readable by its owner only. Raises WriteError."""
    try:
        mode = stat.S_IMODE(os.lstat(file).st_mode) if file.is_file() and not file.is_symlink() else PRIVATE_FILE
        # mkstemp creates a file with mode 0600. It is in the same directory, so that it can replace the file.
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


def _text(value: Union[str, Mapping[str, Any]]) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False) + "\n"

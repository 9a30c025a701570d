"""`ascend-dump config`: write the configuration of a dump for a framework that reads a file."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from ascend_dump._errors import ConfigError, NotSupported, WriteError
from ascend_dump._paths import PRIVATE_FILE, make_private_directory
from ascend_dump.cli._exit import Exit
from ascend_dump.cli._reading import json_option
from ascend_dump.cli._settings import read_request, request_options
from ascend_dump.cli.check import CHECKERS, exit_of, graph_option, print_problems, resolve, runtime_of, situation_of

if TYPE_CHECKING:
    from ascend_dump._request import DumpRequest

__all__ = ["BUILDERS", "config"]

#: Configuration format to its builder, `module:function`, which takes a DumpRequest and the known `names`.
BUILDERS = {
    "acl": "ascend_dump.native.cann.config.build:acl_config",
    "ge": "ascend_dump.native.cann.config.build:ge_options",
    "mindspore": "ascend_dump.native.mindspore.config.build:mindspore_config",
    "tensorflow": "ascend_dump.native.tensorflow.config:parameters",
    "torchair": "ascend_dump.native.torchair.config:build_options",
}


@click.command(
    short_help="Write a dump configuration for a framework.",
    epilog="Example:  ascend-dump config --for acl --path dumps --layers conv1 -o acl.json",
)
@click.option("--for", "target", type=click.Choice(list(BUILDERS)), required=True)
@request_options
@click.option(
    "--config", metavar="FILE", type=click.Path(dir_okay=False), help="JSON or TOML with the same settings; options win"
)
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write here, not to stdout.")
@graph_option
@json_option
def config(
    target: str, config: Optional[str], output: Optional[str], graph: Optional[str], as_json: bool, **given: Any
) -> Exit:
    """Write the configuration that makes a framework dump what the options say.

    It is checked before it is written; nothing is written that would be refused. The dump
    directory is created when missing, because CANN does not. Of an acl.json that exists
    already, everything beside the dump is kept. With --graph patterns in --layers and --watch
    become the names they match. Exits as `check` does.
    """
    build = resolve(BUILDERS, target)
    if target == "mindspore" and output is not None and not output.endswith(".json"):
        raise ConfigError(f"-o {output}: MindSpore takes only a file that ends in .json", hint="name it dump.json")
    request = read_request(config, given)
    _refuse_what_no_file_says(request)
    situation = situation_of(graph)
    operators = situation.operators
    built = build(request, names=None if operators is None else [node.name for node in operators])
    make_private_directory(Path(request.path))
    on = runtime_of(target, str(request.options["on"]) if target == "mindspore" and "on" in request.options else None)
    checker = resolve(CHECKERS, target)
    problems = checker(json.dumps(built).encode(), all=True, situation=situation, **on)
    code = exit_of(problems)
    written = None if output is None or code == Exit.USAGE else Path(output)
    if written is not None:
        _write(written, _merged(written, built) if target == "acl" else built)
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


def _merged(file: Path, built: Mapping[str, Any]) -> dict[str, Any]:
    """What is in the file already with the new dump in it. Raises ConfigError for a foreign file."""
    from ascend_dump.native.cann.config.parse import read_config

    if not os.path.lexists(file):
        return dict(built)
    parsed = read_config(file)
    if parsed.empty:
        return dict(built)
    if parsed.refusal is not None or not isinstance(parsed.value, dict):
        reason = "it holds no object" if parsed.refusal is None else parsed.refusal.reason
        raise ConfigError(f"{file} exists and is no acl.json: {reason}", hint="remove it or write elsewhere")
    return {**parsed.value, **built}


def _write(file: Path, value: Mapping[str, Any]) -> None:
    """Replace the file at once, readable by its owner only. Raises WriteError."""
    try:
        # mkstemp creates it 0600; it stands beside the file, so that it can replace it.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                os.fchmod(descriptor, PRIVATE_FILE)
                opened.write(_text(value))
                opened.flush()
                os.fsync(descriptor)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise WriteError(
            f"{file} cannot be written: {error.strerror}", hint="give -o a file in a writable directory"
        ) from error


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

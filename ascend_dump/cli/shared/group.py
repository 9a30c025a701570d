"""The group of verbs. Each verb has a file of its own, which is imported when the verb is used or listed."""

from __future__ import annotations

import contextlib
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.errors import FrameworkMissing

__all__ = ["VERBS", "LazyGroup"]

#: All verbs, grouped as in `--help`. The file `cli/<verb>.py` defines a click command with the name of the verb; in
#: both names `-` is replaced by `_`.
VERBS = {
    "Capture": ("demo", "run", "attach", "check", "config", "push"),
    "Read": ("ls", "show", "stats", "convert"),
    "Analyse": (
        *("overflow", "ops", "compare", "compare-weights", "triage", "trends", "replay", "watch"),
        *("report", "serve"),
    ),
    "Help": ("help", "doctor", "selftest", "explain", "completion"),
}


class LazyGroup(click.Group):
    """A group that imports `<package>.<verb>` on demand. If a verb cannot be imported, the others still work."""

    package = __package__.rpartition(".")[0]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verbs in VERBS.values() for verb in verbs if self._exists(verb)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        if not any(cmd_name in verbs for verbs in VERBS.values()) or not self._exists(cmd_name):
            return None
        try:
            module = import_module(self._module(cmd_name))
        except Exception as error:
            return _Unavailable(cmd_name, error)
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command), f"{module.__name__}.{cmd_name} is no command"
        if command.help is None:
            command.help = _docstring_in_source(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[Optional[str], Optional[click.Command], list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not args or args[0].startswith("-"):
                raise
            # click would compare with registered commands, but the commands of this group are not registered.
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            guess = f"did you mean `{near[0]}`?" if near else f"verbs: {', '.join(self.list_commands(ctx))}"
            raise click.UsageError(f"no verb {args[0]!r}; {guess}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        present = self.list_commands(ctx)
        width = max(map(len, present), default=0)
        for title, verbs in VERBS.items():
            rows = []
            for verb in verbs:
                command = self.get_command(ctx, verb) if verb in present else None
                if command is not None and not command.hidden:
                    rows.append((verb.ljust(width), command.get_short_help_str(formatter.width - width - 6)))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), code.meaning) for code in Exit])

    def _exists(self, verb: str) -> bool:
        return find_spec(self._module(verb)) is not None

    def _module(self, verb: str) -> str:
        return f"{self.package}.{verb.replace('-', '_')}"


def _docstring_in_source(command: click.Command) -> Optional[str]:
    """Return the docstring of a verb from its source file, because `python -OO` removes docstrings from functions."""
    import ast
    import inspect

    with contextlib.suppress(OSError, SyntaxError, TypeError):
        function = ast.parse(inspect.getsource(command.callback or command)).body[0]
        return ast.get_docstring(function) if isinstance(function, ast.FunctionDef) else None
    return None


class _Unavailable(click.Command):
    """A replacement for a verb whose file cannot be imported. It raises the reason when it is used."""

    def __init__(self, verb: str, error: Exception) -> None:
        missing = getattr(error, "name", None) if isinstance(error, ImportError) else None
        reason = f"needs {missing}" if missing else f"{type(error).__name__}: {error}"
        super().__init__(
            verb,
            help=f"Not available here: {reason}.",
            short_help=f"(not available: {reason})",
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )
        self._error = error
        self._reason = reason

    def invoke(self, ctx: click.Context) -> Any:
        if not isinstance(self._error, ImportError):
            raise self._error
        raise FrameworkMissing(
            f"`ascend-dump {self.name}` cannot be loaded: {self._reason}",
            hint="pip install 'ascend-dump[all]' brings every optional package",
        ) from self._error

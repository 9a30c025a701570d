"""Check an acl.json as a whole: file, adump, GE, then the settings that do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional

from ascend_dump._problem import Problem, worst_first
from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.native.cann.config import _adump_checks as reasons
from ascend_dump.native.cann.config import adump
from ascend_dump.native.cann.config._subjects import AclSubject
from ascend_dump.native.cann.config.ge_options import check_ge_options
from ascend_dump.native.cann.config.parse import Parsed, Source, read_source
from ascend_dump.native.cann.config.silent import SILENT
from ascend_dump.native.cann.config.situation import Situation

__all__ = ["check_acl_config", "check_ge_file"]

_FILE_HINTS: Mapping[int, str] = {
    AclError.INVALID_FILE: "give an existing regular file of at most 10 MiB",
    AclError.PARSE_FILE: "nest objects and arrays at most 10 deep; brackets inside texts count too",
    AclError.INVALID_DUMP_CONFIG: "write strict JSON in UTF-8: no comments, no trailing commas, no NaN",
}

#: What to do about a reason of adump, where its own words do not say it.
_HINTS = {
    reasons.NOT_FOUND: "add it",
    reasons.EMPTY: "give a value or remove the key",
    reasons.NO_SUCH_PATH: "create the directory first; ~ and $HOME are not expanded",
    reasons.NOT_A_DIRECTORY: "give a directory",
    reasons.NO_PERMISSION: "let the running user read and write it",
    reasons.INVALID_PATH: "give a path after the address, or no colon",
    reasons.BAD_CHARACTERS: "use letters, digits, - _ . / only",
    reasons.PATH_TOO_LONG: "use a shorter path",
    reasons.TOO_MANY_INTERVALS: "join neighbouring steps into ranges such as 0-99",
    reasons.BAD_INTERVAL: "write a range as 5-10",
    reasons.NOT_DIGITS: "write 0|3-5|10 without blanks; leave the key out for all steps",
    reasons.BACKWARDS: "put the lower step first",
    reasons.BLACKLIST_TOO_LONG: "keep at most 100 entries",
    reasons.RANGE_INCOMPLETE: 'give both "begin" and "end"',
}
_TYPE_HINTS = {"string": "write a text in double quotes", "array": "write a list in [ ]", "object": "write { }"}


def check_acl_config(source: Source, *, all: bool = False, situation: Optional[Situation] = None) -> list[Problem]:
    """Find what CANN would refuse in a dump configuration, or accept without doing it.

    source: a path, the text of a file (bytes, or it starts with a brace or has lines), or its decoded value.
    all: also list what adump would find after its first refusal; it stops there itself.
    situation: what is known of the dumping process; by default this process's environment.
    Errors come first, then silent findings, then warnings.
    """
    here = Situation.here() if situation is None else situation
    parsed = read_source(source)
    found = [*_refusals(parsed, here, all), *SILENT.problems(AclSubject.of(parsed, here))]
    return worst_first(found)


def check_ge_file(source: Source, *, all: bool = False, situation: Optional[Situation] = None) -> list[Problem]:
    """Check session options written as a JSON object; arguments as for `check_acl_config`."""
    parsed = read_source(source)
    reason = "" if parsed.refusal is None else parsed.refusal.reason
    if reason or not isinstance(parsed.value, dict):
        message = reason or "it holds no object of options and values"
        return [Problem("AD110", "error", message, 'write {"ge.exec.enableDump": "1", ...}')]
    return check_ge_options(parsed.value, situation=situation)


def _refusals(parsed: Parsed, here: Situation, every: bool) -> Iterator[Problem]:
    if parsed.refusal is not None:
        code, native, reason = parsed.refusal
        yield Problem(
            "AD110", "error", f"the file is refused: {reason}", _FILE_HINTS[code], "", native or str(int(code))
        )
        return
    for failure in adump.failures(parsed.value, cwd=here.cwd, planned=here.planned):
        yield _problem(failure)
        if failure.final and not every:
            return


def _problem(failure: adump.AdumpFailure) -> Problem:
    args = failure.args
    if failure.code == "EP0002":
        message, hint = f"{args['value']!r} is not allowed", f"write one of {args['expected_value'].replace('/', ', ')}"
    else:
        value = f"{args['value'][:80]!r}: " if "value" in args else ""
        message = value + args["reason"]
        hint = "change one of the two" if failure.code == "EP0005" else _hint(args["reason"])
    severity = "error" if failure.final else "warning"
    return Problem("AD110" if failure.final else "AD115", severity, message, hint, failure.where, failure.code)


def _hint(reason: str) -> str:
    for word, hint in _TYPE_HINTS.items():
        if reason.endswith((f"the {word} type", f"must be {word}")):
            return hint
    return _HINTS[reason]

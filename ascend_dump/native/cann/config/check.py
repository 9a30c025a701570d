"""Check an acl.json: first the file itself, then the rules of adump and GE, then settings that have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional

from ascend_dump.common.problem import Problem, worst_first
from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.native.cann.config._adump_rules import REFUSALS
from ascend_dump.native.cann.config._adump_subjects import AdumpSubject
from ascend_dump.native.cann.config._subjects import AclSubject
from ascend_dump.native.cann.config.ge_options import check_ge_options
from ascend_dump.native.cann.config.parse import Parsed, Source, read_source
from ascend_dump.native.cann.config.silent import SILENT
from ascend_dump.native.cann.config.situation import Situation

__all__ = ["check_acl_config", "check_ge_file"]

_FILE_HINTS: Mapping[int, str] = {
    AclError.INVALID_FILE: "give an existing regular file of at most 10 MiB",
    AclError.PARSE_FILE: "nest objects and arrays at most 10 levels deep; brackets inside texts count too",
    AclError.INVALID_DUMP_CONFIG: "write strict JSON in UTF-8: no comments, no trailing commas, no NaN",
}


def check_acl_config(source: Source, *, all: bool = False, situation: Optional[Situation] = None) -> list[Problem]:
    """Return the problems of a dump configuration: settings that CANN refuses, or accepts and ignores.

    source: a path, the file's text (bytes, or a str that begins with `{` or has several lines), or the decoded value.
    all: return all errors; otherwise only the first one, at which adump stops.
    situation: facts about the process that will dump; by default the environment of this process.
    Problems are sorted by severity: error, silent (accepted and ignored), warning.
    """
    situation = Situation.here() if situation is None else situation
    parsed = read_source(source)
    problems = [*_refusals(parsed, situation, all), *SILENT.problems(AclSubject.of(parsed, situation))]
    return worst_first(problems)


def check_ge_file(source: Source, *, all: bool = False, situation: Optional[Situation] = None) -> list[Problem]:
    """Return the problems of session options written as a JSON object; arguments as for `check_acl_config`.

    all has no effect: all problems are always returned.
    """
    parsed = read_source(source)
    reason = "" if parsed.refusal is None else parsed.refusal.reason
    if reason or not isinstance(parsed.value, dict):
        message = reason or "it is not an object of options and values"
        return [Problem("AD110", "error", message, 'write {"ge.exec.enableDump": "1", ...}')]
    return check_ge_options(parsed.value, situation=situation)


def _refusals(parsed: Parsed, situation: Situation, all_errors: bool) -> Iterator[Problem]:
    if parsed.refusal is not None:
        acl_code, native_code, reason = parsed.refusal
        yield Problem(
            "AD110",
            "error",
            f"the file is refused: {reason}",
            _FILE_HINTS[acl_code],
            "",
            native_code or str(int(acl_code)),
        )
        return
    for problem in REFUSALS.problems(AdumpSubject.of(parsed.value, situation.cwd, situation.planned)):
        yield problem
        if problem.severity == "error" and not all_errors:
            return

"""Read the settings of the simulated device's dump service: from a dump JSON, session options and the environment.

`native.cann.config` decides whether a configuration is valid. Sources: acl dump.cpp (return codes), adump dump_manager
and dump_setting, GE dump_callback and dump_properties.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple, Optional

from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.native.cann.config import Situation, check_ge_options, is_ip_path, keys
from ascend_dump.native.cann.config.adump import Settings, Verdict, judge, refused
from ascend_dump.native.cann.config.ge import GeSettings
from ascend_dump.native.cann.config.ge import judge as judge_ge
from ascend_dump.native.cann.config.parse import read_config

__all__ = ["Answer", "Arming", "ArmingError", "ExceptionDump", "read_acl", "read_environment", "read_options"]

#: Scene in ASCEND_DUMP_SCENE -> kind of exception dump.
_ENV_SCENES = {"aic_err_brief_dump": "brief", "aic_err_norm_dump": "norm", "aic_err_detail_dump": "detail"}
_SCENES = {**_ENV_SCENES, "lite_exception": "brief"}
_OP_OVERFLOW, _OPERATOR = 4, 1
_OP_LEVEL, _KERNEL_LEVEL = 1, 2
#: Name prefixes of the chips of A2 and A3, on which overflow detection has only the mode "all".
_ONE_DEBUG_MODE = ("Ascend910B", "Ascend910_93")


class ArmingError(NamedTuple):
    """An error in a configuration. code: CANN's, such as EP0001 or E10001. where: the key."""

    code: str
    message: str
    where: str = ""


class Arming(NamedTuple):
    """The settings of the dump service.

    root        the absolute path `<dump path>/<time>`, as text
    ge          GE's settings for models; None if GE refuses the configuration
    mode        the sides to dump: "input", "output" or "all"
    data        "tensor" or "stats"
    stats       CANN's names of the requested statistics; () for the usual six
    kernels     True to dump eager operators; a watcher sets it too (adump dump_config_converter.cpp:964)
    single_ops  True to dump single operators of acl
    overflow    True if eager and single operators report overflow
    watcher     True for the scene "watcher"
    by_options  True if the settings come from session options
    """

    root: str
    ge: Optional[GeSettings]
    mode: str
    data: str
    stats: tuple[str, ...] = ()
    kernels: bool = False
    single_ops: bool = False
    overflow: bool = False
    watcher: bool = False
    by_options: bool = False

    @property
    def models(self) -> bool:
        """True if GE dumps models, or checks them for overflow."""
        return self.ge is not None and (self.ge.status or self.ge.debug)


class ExceptionDump(NamedTuple):
    """The setting of an exception dump. kind: "brief", "norm" or "detail". path: its directory."""

    kind: str
    path: str


class Answer(NamedTuple):
    """The result of reading a configuration: return code, errors, new settings, and lines for CANN's own log."""

    code: int
    errors: tuple[ArmingError, ...] = ()
    arming: Optional[Arming] = None
    exception: Optional[ExceptionDump] = None
    log: tuple[str, ...] = ()


def read_acl(path: str, *, env: Mapping[str, str], cwd: str, time: str) -> Answer:
    """Read a dump JSON as aclInit and aclmdlSetDump do. time: the name of the time directory."""
    parsed = read_config(os.path.join(cwd, path))
    if parsed.empty:
        return Answer(AclError.SUCCESS)
    if parsed.refusal is not None:
        verdict = refused(parsed.refusal, path)
        return Answer(verdict.acl_error, _errors(verdict, path) or (ArmingError("", parsed.refusal.reason),))
    verdict = judge(parsed.value, env=env, cwd=cwd)
    errors = _errors(verdict, path)
    if not verdict.accepted or verdict.settings is None:
        return Answer(verdict.acl_error, errors)
    settings = verdict.settings
    dump = parsed.value["dump"]
    scene = dump.get("dump_scene", "")
    if scene in _SCENES:
        exception = ExceptionDump(_SCENES[scene], _absolute(settings.path or "./", cwd))
        return Answer(AclError.SUCCESS, errors, exception=exception)
    ge = judge_ge(parsed.value, verdict, env=env)
    log = () if ge.accepted else (f"GE refuses the configuration ({ge.error}, {ge.rule}): no model is dumped",)
    return Answer(AclError.SUCCESS, errors, _arming(verdict, settings, dump, ge.settings, cwd, time), log=log)


def _errors(verdict: Verdict, path: str) -> tuple[ArmingError, ...]:
    return tuple(ArmingError(failure.code, failure.message(path), failure.where) for failure in verdict.errors)


def _arming(
    verdict: Verdict, settings: Settings, dump: Mapping[str, str], ge: Optional[GeSettings], cwd: str, time: str
) -> Arming:
    overflow = verdict.dump_type == _OP_OVERFLOW
    watcher = dump.get("dump_scene") == "watcher"
    operator = verdict.dump_type == _OPERATOR
    return Arming(
        root=f"{_absolute(settings.path, cwd)}/{time}",
        ge=ge,
        mode="all" if overflow else settings.mode,
        data="tensor" if overflow else settings.data or "tensor",
        stats=settings.stats,
        kernels=operator and bool(settings.switch & _KERNEL_LEVEL),
        single_ops=operator
        and not watcher
        and bool(settings.switch & _OP_LEVEL)
        and dump.get("dump_op_switch") == "on",
        overflow=overflow,
        watcher=watcher,
    )


def read_options(options: Mapping[str, str], *, env: Mapping[str, str], cwd: str, soc: str, time: str) -> Answer:
    """Read the options of a session as GE does. The code is 0, or -1 if GE refuses an option.

    time: the name of the time directory. (assumption cann.overflow_modes)
    """
    problems = check_ge_options(options, situation=Situation(env=env, cwd=cwd, soc=soc))
    errors = tuple(
        ArmingError(problem.native, problem.message, problem.where)
        for problem in problems
        if problem.severity == "error"
    )
    if errors:
        return Answer(-1, errors)
    exception = None
    kind = {"1": "norm", "2": "brief"}.get(options.get(keys.ENABLE_EXCEPTION, ""))
    if kind and not env.get("NPU_COLLECT_PATH"):
        exception = ExceptionDump(kind, _absolute(env.get("ASCEND_WORK_PATH") or "./", cwd))
    log = tuple(f"{problem.where}: {problem.message}" for problem in problems)
    dump, debug = options.get(keys.ENABLE_DUMP) == "1", options.get(keys.ENABLE_DEBUG) == "1"
    mode = options.get(keys.DEBUG_MODE, "")
    debug = debug and bool(mode) and (mode == "all" or not soc.startswith(_ONE_DEBUG_MODE))
    if not dump and not debug:
        return Answer(0, exception=exception, log=log)
    layers = frozenset(options.get(keys.DUMP_LAYER, "").split()) if dump else frozenset()
    ge = GeSettings(
        status=dump,
        debug=debug,
        exception="",
        op_switch=False,
        path=options[keys.DUMP_PATH],
        step=options.get(keys.DUMP_STEP, "") if dump else "",
        mode=options.get(keys.DUMP_MODE, "output") if dump else "all",
        data="stats" if dump and options.get(keys.DUMP_DATA) == "stats" else "tensor",
        every=dump and not layers,
        unnamed=layers or None,
    )
    root = f"{_absolute(ge.path, cwd)}/{time}"
    return Answer(0, arming=Arming(root, ge, ge.mode, ge.data, by_options=True), exception=exception, log=log)


def read_environment(env: Mapping[str, str], cwd: str) -> Optional[ExceptionDump]:
    """Return the exception dump that environment variables set before any configuration, None if there is none.

    (assumption cann.exception_environment)
    """
    scene = env.get("ASCEND_DUMP_SCENE", "")
    if scene in _ENV_SCENES:
        path = env.get("ASCEND_DUMP_PATH") or env.get("ASCEND_WORK_PATH") or "./"
        return ExceptionDump(_ENV_SCENES[scene], _absolute(path, cwd))
    collect = env.get("NPU_COLLECT_PATH", "")
    return ExceptionDump("norm", _absolute(collect, cwd)) if collect else None


def _absolute(path: str, cwd: str) -> str:
    """Return the directory to which files are written: below `cwd` for a relative path.

    A path that begins with an IP address is also below `cwd`.

    (assumption cann.address_path)
    """
    if is_ip_path(path):
        return f"{cwd}/{path.partition(':')[2].lstrip('/')}"
    return path if path.startswith("/") else os.path.join(cwd, path)

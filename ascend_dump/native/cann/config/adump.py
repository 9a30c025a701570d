"""Judge a dump configuration like adump, CANN's dump service, and find the settings that adump derives from it.

Source: adump `dump_config_converter` (order of checks, conversion), and the error manager's table (messages of EP0001
to EP0005). adump and `judge` stop at the first error; `failures` continues, so that the user sees all errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional

from ascend_dump.native.cann.acl_codes import AclError
from ascend_dump.native.cann.config._access import text_of, texts_of
from ascend_dump.native.cann.config._adump_rules import REFUSALS
from ascend_dump.native.cann.config._adump_subjects import AdumpSubject
from ascend_dump.native.cann.config.keys import EXCEPTION_SCENES, SCENE_TYPES
from ascend_dump.native.cann.config.parse import JsonRefusal

__all__ = ["AdumpFailure", "Settings", "Verdict", "judge", "needs_dump", "refused"]

_OPERATOR, _OP_OVERFLOW = 1, 4
_TYPE_NAMES = {1: "tensor", 2: "aic_err_norm_dump", 3: "aic_err_brief_dump", 4: "overflow", 5: "aic_err_detail_dump"}
_SWITCHES = {"op": 1, "kernel": 2, "all": 3}
_MESSAGES = {
    "EP0001": "The content of configuration item {item} in configuration file {path} is invalid. Reason: {reason}.",
    "EP0002": "Value {value} for configuration item {item} in configuration file {path} is invalid. "
    "Expected value: {expected_value}.",
    "EP0003": "Value {value} for configuration item {item} in configuration file {path} is invalid. Reason: {reason}.",
    "EP0004": "Failed to parse file {path}. Reason: {reason}.",
    "EP0005": "Conflict of configuration items in configuration file {path}. Reason: {reason}.",
}


class AdumpFailure(NamedTuple):
    """An error that adump reports. final: False if adump only reports the error and then continues."""

    code: str
    args: Mapping[str, str]
    where: str
    final: bool = True

    def message(self, config_path: str = "-") -> str:
        return _MESSAGES[self.code].format(**self.args, path=config_path)


class Settings(NamedTuple):
    """The settings of adump's dump service for a configuration that requests a dump."""

    path: str
    mode: str
    data: str
    switch: int
    stats: tuple[str, ...]
    status: str = "on"


class Verdict(NamedTuple):
    """adump's answer to a configuration.

    acl_error    return code of aclInit or aclmdlSetDump
    need_dump    True if the configuration requests a dump
    dump_type    1 operator, 2 exception, 3 brief exception (arguments only), 4 overflow, 5 detailed exception; 0 if no
                 dump is requested
    kernel_path, kernel_data  directory and kinds of the data that kernels print; set even if no dump is requested
    """

    accepted: bool
    acl_error: int
    errors: tuple[AdumpFailure, ...] = ()
    need_dump: bool = False
    dump_type: int = 0
    settings: Optional[Settings] = None
    kernel_path: str = ""
    kernel_data: tuple[str, ...] = ()

    @property
    def type_name(self) -> str:
        return _TYPE_NAMES.get(self.dump_type, "")


def failures(subject: AdumpSubject) -> Iterator[AdumpFailure]:
    """Yield all errors that adump's checks find, in their order; adump itself stops at the first final error."""
    for hit in REFUSALS.hits(subject):
        yield AdumpFailure(hit.native, hit.arguments, hit.where, hit.severity == "error")


def judge(config: Any, *, env: Optional[Mapping[str, str]] = None, cwd: str = "", planned: str = "") -> Verdict:
    """Judge a parsed configuration.

    env: the environment; its variables can change the path of an exception dump. cwd: the directory to which relative
    paths are relative. planned: a directory that need not exist yet, see `Situation`.

    (assumption acl.refused_file)
    """
    errors = []
    for failure in failures(AdumpSubject.of(config, cwd, planned)):
        errors.append(failure)
        if failure.final:
            return Verdict(False, AclError.INVALID_DUMP_CONFIG, tuple(errors))
    dump = config.get("dump") if isinstance(config, dict) else None
    if not dump:
        return Verdict(True, AclError.SUCCESS, tuple(errors))
    kernel = text_of(dump, "dump_kernel_data")
    verdict = Verdict(
        True,
        AclError.SUCCESS,
        tuple(errors),
        kernel_path=text_of(dump, "dump_path"),
        kernel_data=tuple(kernel.split(",")) if kernel else (),
    )
    if not needs_dump(dump):
        return verdict
    dump_type = _dump_type(dump)
    if dump_type == _OPERATOR and not verdict.kernel_data:
        verdict = verdict._replace(kernel_data=("all",))
    return verdict._replace(need_dump=True, dump_type=dump_type, settings=_settings(dump, env or {}))


def refused(refusal: JsonRefusal, config_path: str = "-") -> Verdict:
    """Return the verdict on a file that cannot be read or parsed. adump reports EP0004 only for some of them."""
    failure = AdumpFailure("EP0004", {"reason": refusal.reason}, "")
    return Verdict(False, refusal.acl_error, (failure,) if refusal.native else ())


def needs_dump(dump: Mapping[str, Any]) -> bool:
    """Return True if an object `dump` requests a dump, even if it has errors."""
    on = text_of(dump, "dump_op_switch") == "on" or text_of(dump, "dump_debug") == "on"
    return bool(dump.get("dump_list")) or on or bool(text_of(dump, "dump_scene"))


def _dump_type(dump: Mapping[str, Any]) -> int:
    overflow = text_of(dump, "dump_debug") == "on"
    return SCENE_TYPES.get(text_of(dump, "dump_scene"), _OP_OVERFLOW if overflow else _OPERATOR)


def _settings(dump: Mapping[str, Any], env: Mapping[str, str]) -> Settings:
    path = text_of(dump, "dump_path")
    if text_of(dump, "dump_scene") in EXCEPTION_SCENES:
        path = env.get("ASCEND_DUMP_PATH") or env.get("ASCEND_WORK_PATH") or path
    return Settings(
        path=path,
        mode=text_of(dump, "dump_mode", "output"),
        data=text_of(dump, "dump_data"),
        switch=_SWITCHES[text_of(dump, "dump_level", "all")],
        stats=tuple(texts_of(dump, "dump_stats")),
    )

"""Register the capture that uses acl's dump interface, and turn acl's return codes into typed errors.

A process has one dump interface. `aclmdlInitDump` occupies it and `aclmdlFinalizeDump` releases it, no matter which
library calls them. A second caller of `aclmdlInitDump` gets ACL_ERROR_REPEAT_INITIALIZE, which libraries may ignore. So
each capture registers itself in this module while it uses the interface.
"""

from __future__ import annotations

from typing import Optional

from ascend_dump.errors import AdapterError, AscendDumpError, CaptureError, ConfigError, NotSupported
from ascend_dump.native.cann.acl_codes import AclError, describe

__all__ = ["claim", "holder", "refusal", "release"]

_ERRORS: dict[int, tuple[type[AscendDumpError], str]] = {
    AclError.INVALID_PARAM: (ConfigError, "AD110"),
    AclError.INVALID_FILE: (ConfigError, "AD110"),
    AclError.PARSE_FILE: (ConfigError, "AD110"),
    AclError.INVALID_DUMP_CONFIG: (ConfigError, "AD110"),
    AclError.REPEAT_INITIALIZE: (CaptureError, "AD302"),
    AclError.DUMP_ALREADY_RUN: (CaptureError, "AD302"),
    AclError.API_NOT_SUPPORT: (NotSupported, "AD203"),
    AclError.FEATURE_UNSUPPORTED: (NotSupported, "AD203"),
}
_HINTS = {
    "AD110": "`ascend-dump check` lists what is wrong with the file",
    "AD302": "another dump is on: end it with acl.mdl.finalize_dump, or stop the other capture",
    "AD203": "this CANN or this device has no such dump; see the log in ~/ascend/log",
    "AD200": "see the log of CANN in ~/ascend/log",
}

_holders: list[tuple[object, str]] = []


def claim(owner: object, user: str) -> None:
    """Register `owner` as the user of the interface. Raises CaptureError while another capture uses it.

    user: the name of the adapter or program that captures, for messages
    """
    if _holders:
        raise CaptureError(
            f"a capture by {_holders[-1][1]} is dumping through acl in this process already",
            hint="stop it first: acl has one dump interface for a process",
            code="AD302",
        )
    _holders.append((owner, user))


def release(owner: object) -> None:
    """Release the interface. Does nothing if `owner` does not use it."""
    _holders[:] = [entry for entry in _holders if entry[0] is not owner]


def holder() -> Optional[str]:
    """Return the adapter or program whose capture uses the interface, as named in `claim`; None if no capture does."""
    return _holders[-1][1] if _holders else None


def refusal(call: str, code: int, words: str = "") -> AscendDumpError:
    """Return the typed error for a return code of acl (assumption acl.init_dump_twice).

    call: the function that returned the code. words: the message of CANN, if there is one.
    """
    kind, ours = _ERRORS.get(code, (AdapterError, "AD200"))
    message = f"; CANN says: {words.strip()}" if words.strip() else ""
    return kind(f"{call} returned {describe(code)}{message}", hint=_HINTS[ours], code=ours)

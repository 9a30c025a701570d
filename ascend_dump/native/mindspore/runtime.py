"""The runtimes of MindSpore (device and jit_level), and the parsing of its versions."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from ascend_dump.errors import ConfigError

__all__ = ["JIT_LEVELS", "RUNTIMES", "Runtime", "parse_version"]

#: The names of runtimes, with their meanings.
RUNTIMES = {
    "ascend": "Ascend, jit_level O0 or O1",
    "ascend-o2": "Ascend, jit_level O2, up to MindSpore 2.5",
    "ascend-ge": "Ascend, jit_level O2 or the GE backend, since MindSpore 2.6",
    "gpu": "GPU",
    "cpu": "CPU",
}
#: The names of the runtimes by jit_level, for Ascend.
JIT_LEVELS = {"O0": "ascend", "O1": "ascend", "O2": "ascend-o2"}


class Runtime(NamedTuple):
    """A runtime of MindSpore.

    device  "Ascend", "GPU" or "CPU"
    ge      True for jit_level O2 (the GE backend), False for O0 and O1
    old_ge  True for jit_level O2 up to MindSpore 2.5, which still reads MINDSPORE_DUMP_CONFIG
    """

    device: str = "Ascend"
    ge: bool = False
    old_ge: bool = False

    @classmethod
    def named(cls, name: str) -> Runtime:
        """Return the runtime with a name of `RUNTIMES` or `JIT_LEVELS`. Raises ConfigError for another name."""
        name = JIT_LEVELS.get(name.upper(), name)
        if name not in RUNTIMES:
            raise ConfigError(
                f"{name!r} is no runtime of MindSpore",
                hint=f"give one of {', '.join((*RUNTIMES, *JIT_LEVELS))}",
                code="AD270",
            )
        if name.startswith("ascend"):
            return cls("Ascend", name != "ascend", name == "ascend-o2")
        return cls(name.upper())

    @property
    def by_kernel(self) -> bool:
        """True for Ascend with jit_level O0 or O1, under which kernels run one by one."""
        return self.device == "Ascend" and not self.ge

    @property
    def name(self) -> str:
        if self.device != "Ascend":
            return self.device.lower()
        return "ascend" if not self.ge else "ascend-o2" if self.old_ge else "ascend-ge"


def parse_version(text: object) -> Optional[tuple[int, int]]:
    """Return (major, minor) of the version at the beginning of a text; None if it does not begin with a version."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", text) if isinstance(text, str) else None
    return (int(match[1]), int(match[2])) if match else None

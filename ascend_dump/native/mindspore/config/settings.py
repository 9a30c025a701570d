"""What MindSpore makes of a dump JSON: its verdict, and the settings with defaults filled in."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

__all__ = ["DEVICE_STATISTICS", "HOST_STATISTICS", "Reading", "Refusal", "Settings"]

HOST_STATISTICS = (
    "max",
    "min",
    "avg",
    "count",
    "negative zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "md5",
    "l2norm",
    "hash",
    "hash:sha1",
    "hash:md5",
)
DEVICE_STATISTICS = ("max", "min", "avg", "l2norm")


class Refusal(NamedTuple):
    """The first line of the RuntimeError, and the key it is about."""

    message: str
    where: str = ""


class Settings(NamedTuple):
    """What the parser made of the file: defaults filled in and conflicts settled as it settles them.

    e2e tells whether that block is there, enable what it says; kernels are as they are compared.
    """

    op_debug_mode: int = 0
    dump_mode: int = 0
    path: str = ""
    net_name: str = ""
    iteration: str = "all"
    input_output: int = 0
    kernels: tuple[str, ...] = ()
    support_device: tuple[Any, ...] = ()
    saved_data: str = "tensor"
    statistic_category: tuple[str, ...] = ("max", "min", "l2norm")
    overflow_number: int = 0
    initial_iteration: int = 0
    file_format: str = "bin"
    e2e: bool = True
    enable: bool = False
    trans_flag: bool = True
    stat_calc_mode: str = "host"
    device_stat_precision_mode: str = "high"
    sample_mode: int = 0
    sample_num: int = 100
    save_kernel_args: bool = False


class Reading(NamedTuple):
    """The verdict. refusals: none when the file is accepted. warnings: what MindSpore would log.

    value: the decoded JSON, None when it is none.
    """

    settings: Settings
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    value: Any = None

    @property
    def refusal(self) -> Optional[Refusal]:
        """What MindSpore says: it stops at the first."""
        return self.refusals[0] if self.refusals else None

"""MindSpore's verdict on a dump JSON, and the settings with defaults."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from ascend_dump.native.mindspore.config.keys import DEFAULTS

__all__ = ["DumpJsonReading", "DumpJsonSettings", "Refusal"]


class Refusal(NamedTuple):
    """The first line of the RuntimeError, and the key it is about."""

    message: str
    where: str = ""


class DumpJsonSettings(NamedTuple):
    """The parsed settings, with the defaults of the parser and its solution of conflicts.

    e2e: the file has that block. enable: its switch. kernels: as they are compared.
    """

    op_debug_mode: int = DEFAULTS["op_debug_mode"]
    dump_mode: int = DEFAULTS["dump_mode"]
    path: str = DEFAULTS["path"]
    net_name: str = DEFAULTS["net_name"]
    iteration: str = DEFAULTS["iteration"]
    input_output: int = DEFAULTS["input_output"]
    kernels: tuple[str, ...] = DEFAULTS["kernels"]
    support_device: tuple[Any, ...] = DEFAULTS["support_device"]
    saved_data: str = DEFAULTS["saved_data"]
    statistic_category: tuple[str, ...] = DEFAULTS["statistic_category"]
    overflow_number: int = DEFAULTS["overflow_number"]
    initial_iteration: int = DEFAULTS["initial_iteration"]
    file_format: str = DEFAULTS["file_format"]
    e2e: bool = True
    enable: bool = DEFAULTS["enable"]
    trans_flag: bool = DEFAULTS["trans_flag"]
    stat_calc_mode: str = DEFAULTS["stat_calc_mode"]
    device_stat_precision_mode: str = DEFAULTS["device_stat_precision_mode"]
    sample_mode: int = DEFAULTS["sample_mode"]
    sample_num: int = DEFAULTS["sample_num"]
    save_kernel_args: bool = DEFAULTS["save_kernel_args"]


class DumpJsonReading(NamedTuple):
    """The verdict. refusals: empty if the file is accepted. warnings: the warnings in MindSpore's log.

    value: the decoded JSON, or None.
    """

    settings: DumpJsonSettings
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    value: Any = None

    @property
    def refusal(self) -> Optional[Refusal]:
        """The first refusal: MindSpore stops there."""
        return self.refusals[0] if self.refusals else None

"""The result of parsing a dump JSON like MindSpore: its settings, errors and warnings."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from ascend_dump.native.mindspore.config.keys import DEFAULTS

__all__ = ["DumpJsonReading", "DumpJsonSettings", "Refusal"]


class Refusal(NamedTuple):
    """An error of MindSpore. message: the first line of its RuntimeError; where: the path of the key, or ""."""

    message: str
    where: str = ""


class DumpJsonSettings(NamedTuple):
    """The settings that MindSpore uses: missing keys have its defaults, and conflicts are resolved in its way.

    kernels  results of `select.kernel_text`
    e2e      True if the file has the block `e2e_dump_settings`; enable: the key of this name in that block
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
    """The result of parsing a dump JSON.

    refusals  the errors; empty if MindSpore accepts the file
    warnings  the warnings in MindSpore's log
    value     the decoded JSON; None if it cannot be decoded
    """

    settings: DumpJsonSettings
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    value: Any = None

    @property
    def refusal(self) -> Optional[Refusal]:
        """The first error, at which MindSpore stops; None if it accepts the file."""
        return self.refusals[0] if self.refusals else None

"""The tables of settings that CANN accepts without effect.

`SILENT` is about the dump JSON, `SILENT_OPTIONS` about GE's session options.
"""

from __future__ import annotations

from ascend_dump.native.cann.config import _silent_ignored, _silent_nothing, _silent_options, _silent_surroundings
from ascend_dump.native.cann.config._subjects import AclSubject
from ascend_dump.native.rules import RuleTable

__all__ = ["SILENT", "SILENT_OPTIONS"]

SILENT = RuleTable(AclSubject.of_example, _silent_nothing.RULES, _silent_ignored.RULES, _silent_surroundings.RULES)
SILENT_OPTIONS = _silent_options.RULES

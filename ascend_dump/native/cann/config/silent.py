"""The rules for settings that CANN accepts although they have no effect, or another effect than they seem to have.

`SILENT` has the rules for the dump JSON, `SILENT_OPTIONS` those for GE's session options.
"""

from __future__ import annotations

from ascend_dump.native.cann.config import _silent_ignored, _silent_nothing, _silent_options, _silent_surroundings
from ascend_dump.native.cann.config._subjects import AclSubject
from ascend_dump.native.rules import RuleTable

__all__ = ["SILENT", "SILENT_OPTIONS"]

SILENT = RuleTable(AclSubject.of_example, _silent_nothing.RULES, _silent_ignored.RULES, _silent_surroundings.RULES)
SILENT_OPTIONS = _silent_options.RULES

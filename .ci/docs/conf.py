"""Sphinx: the pages and the reference of the public names, from what `lay_out` copies and writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from docstrings import to_rest

import ascend_dump

project = "ascend_dump"
release = ascend_dump.__version__
html_title = f"ascend_dump {release}"
html_theme = "furo"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["code.css"]
# The start page has it inside.
exclude_patterns = ["README.md"]
highlight_language = "none"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True, "exclude-members": "__new__, __init__"}
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
#: Packages whose names annotations have.
_OTHERS = "abc|collections|concurrent|enum|typing_extensions|msgspec|np|numpy|os|pandas|pathlib|polars|re|types|typing"
#: Classes of ours that only our own code gives to each other.
_OURS = "ApiCall|CapturedReports|CollectiveCall|Decorated|Disk|DumpService|Ended|Finder|GeneratorState|LaunchedCapture"
_OURS += "|Layout|Limits|MeasuredBytes|Node|NodeInfo|OfflineModel|Operator|OperatorRun|PageContent|PageCurve"
_OURS += "|Placement|Provenance|SizeLimit|Sources|Untyped|Watch"
nitpick_ignore_regex = [
    (r"py:.*", rf"({_OTHERS})\..*"),
    (r"py:.*", rf"ascend_dump\..*\.({_OURS}|_\w+)"),
    # What is imported for type checkers only keeps the name that it has there.
    (r"py:.*", r"\w+"),
]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _to_rest)


def _to_rest(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rest(lines)

"""README as a package index shows it, where nothing stands beside it: without its picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):
    """Gives the field `readme` of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        shown = re.sub(r"^!\[.*\]\((?!https:).*\)\n\n", "", text, flags=re.MULTILINE)
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}

"""`python -m ascend_dump`: the command line, if the script `ascend-dump` is not on PATH."""

from __future__ import annotations

import sys

from ascend_dump.cli import main

if __name__ == "__main__":
    sys.exit(main())

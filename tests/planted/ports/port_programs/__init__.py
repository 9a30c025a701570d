"""Networks of packages, and ports of them that are written anew: right ones, and ones with a planted fault.

The reading of answers and the table are those of `program_pairs`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "two_programs"))

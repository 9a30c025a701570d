"""What `ascend-dump run` puts first on PYTHONPATH, for interpreters that read no `.pth` of ours.

It may run in any interpreter below the launched command, so it keeps to syntax that Python 3.6
has. The sitecustomize that it hides is imported as if ours were not there.
"""

import os
import sys

try:
    from ascend_dump._activation import start
except Exception as error:  # an interpreter without ascend_dump, or too old for it
    if os.environ.get("ASCEND_DUMP"):
        where = f"{sys.executable}, ascend_dump cannot be imported there: {error!r}"
        sys.stderr.write(f"ascend-dump: ASCEND_DUMP is ignored in {where}\n")
else:
    start()

_here = os.path.dirname(os.path.abspath(__file__))
_path = list(sys.path)
_ours = sys.modules.pop(__name__)
# Without our directory the next sitecustomize on the path is found, and none twice.
sys.path[:] = [entry for entry in _path if os.path.abspath(entry) != _here]
try:
    # For its effects, as site imports it; there may be none.
    import sitecustomize  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
except ImportError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules[__name__] = _ours
finally:
    # Launchers that hand sys.path on as PYTHONPATH keep the hook alive in their children.
    sys.path.insert(0, _here)

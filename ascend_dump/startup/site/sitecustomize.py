"""The module that `ascend-dump run` puts first on PYTHONPATH, for interpreters that do not read our `.pth`.

It may run in any interpreter below the launched command, so it keeps to syntax that Python 3.6
has. The sitecustomize that it hides is imported as if ours were not there.
"""

import os
import sys


def _report(error):  # type: ignore[no-untyped-def]  # an annotation is an import in some of these interpreters
    try:
        problem = f"{sys.executable}, ascend_dump cannot be imported or started there: {error!r}"
        text = f"ascend-dump: ASCEND_DUMP is ignored in {problem}\n"
        # Data left in the buffer of a stream, since its file is full, makes the interpreter exit with code 120.
        os.write(sys.stderr.fileno(), text.encode(errors="backslashreplace"))
    except Exception:  # stderr is closed, full or missing
        return


try:
    from ascend_dump.startup.activation import start

    start()
except KeyboardInterrupt:
    raise
except BaseException as error:  # no ascend_dump there, a broken one, or another module of this name
    if os.environ.get("ASCEND_DUMP"):
        _report(error)  # type: ignore[no-untyped-call]  # as above

_directory = os.path.dirname(os.path.abspath(__file__))
_path = list(sys.path)
_ours = sys.modules.pop(__name__)
# Without our directory the next sitecustomize on the path is found, and none twice.
sys.path[:] = [entry for entry in _path if os.path.abspath(entry) != _directory]
try:
    # For its effects, as site imports it; there may be none.
    import sitecustomize  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
except ImportError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules[__name__] = _ours
finally:
    # Launchers that pass sys.path on as PYTHONPATH keep the hook alive in their children.
    sys.path.insert(0, _directory)

"""The start of `ascend-dump run` in interpreters that do not read our `.pth`: its directory is first on PYTHONPATH.

It may run in any interpreter that the launched command starts, so it uses only the syntax of Python 3.6. It hides
another sitecustomize on the path, so it imports that one at its end.
"""

import os
import sys


def _report(error):  # type: ignore[no-untyped-def]  # without annotations, because of old interpreters
    try:
        problem = f"{sys.executable}, ascend_dump cannot be imported or started there: {error!r}"
        text = f"ascend-dump: ASCEND_DUMP is ignored in {problem}\n"
        # Not through the stream: if the file is full, text that stays in its buffer makes Python exit with code 120.
        os.write(sys.stderr.fileno(), text.encode(errors="backslashreplace"))
    except Exception:  # stderr is closed, full or missing
        return


try:
    from ascend_dump.startup.activation import start

    start()
except KeyboardInterrupt:
    raise
except BaseException as error:  # ascend_dump is missing or broken, or another module has its name
    if os.environ.get("ASCEND_DUMP"):
        _report(error)  # type: ignore[no-untyped-call]  # as above

_directory = os.path.dirname(os.path.abspath(__file__))
_path = list(sys.path)
_ours = sys.modules.pop(__name__)
# Without our directory on the path, the import below finds the next sitecustomize.
sys.path[:] = [entry for entry in _path if os.path.abspath(entry) != _directory]
try:
    # Imported for its side effects, as site would do. It may not exist.
    import sitecustomize  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
except ImportError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules[__name__] = _ours
finally:
    # The directory is added again, because launchers pass sys.path on to their children as PYTHONPATH.
    sys.path.insert(0, _directory)

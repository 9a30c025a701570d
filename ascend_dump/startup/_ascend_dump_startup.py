"""The module that `ascend_dump_startup.pth` (and, from Python 3.15 on, `.start`) calls in every interpreter.

Python imports the module of a `.start` entry even if ASCEND_DUMP is not set (PEP 829). So that this costs little, the
module is at the root of site-packages, outside of any package, and imports nothing but os.
"""

import os

_called = False


def start() -> None:
    """Arm the dump that ASCEND_DUMP requests. Return at once if the variable is not set."""
    global _called
    # If lib64 is a link to lib, site reads the same .pth file twice.
    if _called or not os.environ.get("ASCEND_DUMP"):
        return
    _called = True
    try:
        from ascend_dump.startup.activation import start as activate

        activate()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The installation is broken, or another module with the name ascend_dump calls sys.exit(). Without this handler
        # site would print a traceback, or end the interpreter.
        _tell(error)


def _tell(error: BaseException) -> None:
    import sys

    try:
        text = f"ascend-dump: ASCEND_DUMP is ignored, the package cannot be imported or started: {error!r}\n"
        # Not through the stream: if the file is full, text that stays in its buffer makes Python exit with code 120.
        os.write(sys.stderr.fileno(), text.encode(errors="backslashreplace"))
    except Exception:  # stderr is closed, full or missing
        return

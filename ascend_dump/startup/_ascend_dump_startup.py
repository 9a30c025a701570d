"""The module that `ascend_dump_startup.pth` (and, from Python 3.15 on, `.start`) calls in every interpreter.

Python resolves a `.start` entry even when ASCEND_DUMP is unset (PEP 829), so this module stands
alone at the root of site-packages and imports nothing but os.
"""

import os

_called = False


def start() -> None:
    """Arm the dump that ASCEND_DUMP asks for; return at once when it is unset."""
    global _called
    # Where lib64 is a link to lib, site reads the same .pth file twice.
    if _called or not os.environ.get("ASCEND_DUMP"):
        return
    _called = True
    try:
        from ascend_dump.startup.activation import start as activate

        activate()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A broken installation, or another module of this name that calls sys.exit(): site would print a traceback,
        # or end the interpreter.
        _tell(error)


def _tell(error: BaseException) -> None:
    import sys

    try:
        text = f"ascend-dump: ASCEND_DUMP is ignored, the package cannot be imported or started: {error!r}\n"
        # Data left in the buffer of a stream, since its file is full, makes the interpreter exit with code 120.
        os.write(sys.stderr.fileno(), text.encode(errors="backslashreplace"))
    except Exception:  # stderr is closed, full or missing
        return

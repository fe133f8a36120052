"""Where a rank is in the user's code, from the stack that ``faulthandler`` wrote to a file; and
where an error came from."""

import os
import re
import sysconfig
import traceback

_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_LIBRARY = sysconfig.get_paths()["stdlib"], os.path.dirname(os.path.dirname(__file__))


def user_line(path: str | os.PathLike[str]) -> str:
    """``", at script.py:12 in step"``: the innermost frame outside libraries, or ""."""
    try:
        with open(path, errors="replace") as file:
            dump = file.read().rpartition("(most recent call first):")[2]
    except OSError:
        return ""
    return _innermost(_FRAME.findall(dump))


def raised_at(error: BaseException) -> str:
    """The same of an exception that was caught."""
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost((f.filename, f.lineno, f.name) for f in reversed(frames))


def _innermost(frames):
    for name, line, function in frames:
        if "site-packages" not in name and not name.startswith((*_LIBRARY, "<frozen")):
            cell = "ipykernel" in name or name.startswith("<ipython")
            where = f"line {line} of a cell," if cell else f"{os.path.basename(name)}:{line}"
            return f", at {where} in {function}"
    return ""

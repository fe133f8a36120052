"""Where a rank is in the user's code, from the stack that ``faulthandler`` wrote to a file."""

import os
import re
import sysconfig

_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_LIBRARY = sysconfig.get_paths()["stdlib"], os.path.dirname(os.path.dirname(__file__))


def user_line(path) -> str:
    """``", at script.py:12 in step"``: the innermost frame outside libraries, or ""."""
    try:
        with open(path, errors="replace") as file:
            dump = file.read().rpartition("(most recent call first):")[2]
    except OSError:
        return ""
    for name, line, function in _FRAME.findall(dump):
        if "site-packages" not in name and not name.startswith((*_LIBRARY, "<frozen")):
            cell = "ipykernel" in name or name.startswith("<ipython")
            where = f"line {line} of a cell," if cell else f"{os.path.basename(name)}:{line}"
            return f", at {where} in {function}"
    return ""

"""What exercises say, from the Markdown files in `texts`: tasks, hints, messages.

A file has a heading ``## name: title`` for each exercise; below it the task, the starter as a block
of code, and headings for the hints and for success. Under other headings, such as ``### messages``,
texts stand by key; those before the first exercise are for all of the file. A paragraph may be
wrapped anywhere.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "texts"
_PART, _KEY = re.compile(r"^### (.*)$", re.M), re.compile(r"^#### (.*)$", re.M)
_TASK = re.compile(r"(.*?)^```python\n(.*?)\n```$", re.M | re.S)


class Words(str):
    """A message as it is shown, in place of its key."""


def told(name: str, **facts: Any) -> dict[str, Any]:
    """The texts of an exercise by the names of its fields; facts: what ``{...}`` stands for in
    them, but in the starter and in what stands by key, which is filled when it is said."""
    texts = _all()[name]
    if facts:
        texts = {k: t.format(**facts) if _plain(k, t) else t for k, t in texts.items()}
    return dict(texts)


def _plain(field, text):
    return isinstance(text, str) and field != "starter"


@cache
def _all() -> Mapping[str, dict[str, Any]]:
    """{exercise: its texts}."""
    found = {}
    for path in sorted(FOLDER.glob("*.md")):
        head, *blocks = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)
        shared = _keyed(head)
        for block in blocks:
            heading, _, rest = block.partition("\n")
            name, _, title = heading.partition(": ")
            fields = {"title": title, **_fields(rest)}
            found[name] = fields | {"messages": shared | fields.get("messages", {})}
    return found


def general(key: str, /, **facts: Any) -> Words:
    """A message of ``general.md``, which any exercise can have, filled in."""
    return Words(_general()[key].format(**facts))


@cache
def _general() -> Mapping[str, str]:
    return _keyed(FOLDER.with_name("general.md").read_text(encoding="utf-8"))


def _fields(text):
    """{field: its text, or texts by key} of what stands under an exercise's heading."""
    task, *parts = _PART.split(text)
    prompt, starter = _TASK.match(task).groups()  # pyright: ignore[reportOptionalMemberAccess]
    fields: dict[str, Any] = {"prompt": _joined(prompt), "starter": starter}
    for field, content in zip(parts[::2], parts[1::2]):
        fields[field] = _keyed(content) or _joined(content)
    return fields


def _keyed(text):
    """{key: text} of what stands under keys."""
    _, *found = _KEY.split(text)
    return dict(zip(found[::2], map(_joined, found[1::2])))


def _joined(text):
    """Paragraphs without their line breaks."""
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))

# griffe_docstrings.py - docstrings as the reference of the site shows them: an extension of griffe, which reads them
# SPDX-License-Identifier: MIT
"""The reference takes the type of a parameter from the signature if the docstring has none.

Of names that share a description (``dtype, fill_value``) it would take type and default value of the first one for all. So they are
separated before, and each gets its own. mkdocs.yml names this file.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

# The underline of a section, and a line of names, with a type or without.
SECTION = re.compile(r"^(\w[\w ]*)\n-+$", re.MULTILINE)
NAMES = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: : optional|( : .+?)(?:, keyword-only)?)?$")
PAGE = re.compile(r"`{1,2}docs/([\w/-]+)\.md`{1,2}")


def separated(text: str) -> str:
    """Return a docstring in which each parameter without a type has a line of its own, and names of pages are links."""
    parts = SECTION.split(text)
    made = [parts[0]]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        underlined = f"{title}\n{'-' * len(title)}"
        made += [underlined, _each_alone(body) if title in ("Parameters", "Attributes") else body]
    return PAGE.sub(r"[\1](../\1.html)", "".join(made))


def _each_alone(body: str) -> str:
    """Repeat the description for each name of a group."""
    entries: list[list[str]] = []
    for line in body.splitlines():
        if entries and (line.startswith(" ") or not line):
            entries[-1].append(line)
        else:
            entries.append([line])
    lines: list[str] = []
    for head, *description in entries:
        names = NAMES.match(head)
        for name in names[1].split(", ") if names else [head]:
            lines += [name + ((names and names[2]) or ""), *description]
    return "\n".join(lines) + "\n"


class SeparateParameters(griffe.Extension):
    """Give each parameter its own type."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the docstring of a function, a class or a module."""
        if obj.docstring is not None:
            obj.docstring.value = separated(obj.docstring.value)

# test_troubleshooting.py - each message of docs/troubleshooting.md is one of the code
# SPDX-License-Identifier: MIT
"""The page quotes messages; a changed message would leave an entry that no reader finds."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
# Strings in double quotes that follow each other are one string.
STRING = r"[rbf]*\"(?:[^\"\\\n]|\\.)*\""
STRINGS = re.compile(rf"{STRING}(?:\s+{STRING})*")
PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def texts(source: str) -> list[str]:
    """Return the strings of a source file; … stands for each expression in one."""
    found = []
    for match in STRINGS.finditer(source):
        parts = re.findall(r"\"((?:[^\"\\\n]|\\.)*)\"", match[0])
        found.append(PLACEHOLDER.sub("…", "".join(parts).replace('\\"', '"')))
    return found


@cache
def texts_of_package() -> str:
    """Return all strings of the package and of its build, one a line."""
    paths = [path for path in (ROOT / "shardcodec").rglob("*.p*") if path.suffix in (".py", ".pxi", ".pyx")]
    paths.append(ROOT / "setup.py")
    return "\n".join(text for path in sorted(paths) for text in texts(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message[:40])
def test_message_is_in_the_code(message: str) -> None:
    assert message in texts_of_package(), (
        "quote the message as it is in the code, with … for each placeholder"
    )


def test_page_has_the_messages_that_users_meet_most() -> None:
    assert len(MESSAGES) >= 20
    assert len(set(MESSAGES)) == len(MESSAGES)
    assert set(re.findall(r"^```(\w+)$", PAGE, re.MULTILINE)) == {"text", "output"}  # output: of zarr


def test_each_entry_has_a_cause_and_a_cure() -> None:
    entries = re.split(r"^### ", PAGE.partition("\n## Limitations")[0], flags=re.MULTILINE)[1:]
    incomplete = [
        entry.splitlines()[0]
        for entry in entries
        if not (
            len(re.findall(r"^```(?:text|output)$", entry, re.MULTILINE)) == 1
            and "**Cause.** " in entry
            and "**Cure.** " in entry
        )
    ]
    assert not incomplete


def test_strings_are_joined_as_python_joins_them() -> None:
    source = 'f"shard {path!r}: expected "\n    f"{n:g} s, {\'a\' if b else \'c\'}"; x = "other"'
    assert texts(source) == ["shard …: expected … s, …", "other"]

# site_pages.py - the pages of the site that are not in docs/, and the links to them (a hook of mkdocs.yml)
# SPDX-License-Identifier: MIT
"""Each public module gets a page of the reference with all of its public names; some files of the checkout are pages, too.

Pages link to files of the checkout, so that the links work there too. Here they become links between pages of the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference_names import (  # mkdocs puts this folder on sys.path
    ARRAY_OF_EXAMPLES,
    MODULES,
    public_names,
    unexported_types,
)

ROOT = Path(__file__).resolve().parent.parent
# The files of the checkout that are pages, and their places in the site.
COPIED = {
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "NOTICES": "NOTICES.md",
}
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def reference_page(module: str) -> str:
    """Return the page of a module: each public name, with the place of its docstring, and the types in their results."""
    parts = [
        f"# {module}\n",
        f"Examples run in a folder with this array:\n\n```python\n{ARRAY_OF_EXAMPLES}```\n",
    ]
    for name in public_names(module):
        anchor = f"[](){{#{module}.{name}}}\n\n" if MODULES[module] != module else ""
        parts.append(f"{anchor}::: {MODULES[module]}.{name}\n")
    types = unexported_types(module)
    if types:
        parts.append("These types appear in results and fields, and are not exported:\n")
    parts += [f"::: {name}\n    options: {{ show_root_full_path: true }}\n" for name in types]
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Return the added pages by their places in the site."""
    made = {f"reference/{module}.md": reference_page(module) for module in MODULES}
    for source, place in COPIED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        made[place] = text if source.endswith(".md") else f"# Notices\n\n```text\n{text}\n```\n"
    return made


def link_in_site(page: str, target: str) -> str | None:
    """Return the link from a page of the site to the page of a linked file; None if the file is not in the site."""
    sources = {place: source for source, place in COPIED.items()}
    folder = posixpath.dirname(sources.get(page, f"docs/{page}"))
    linked = posixpath.normpath(posixpath.join(folder, target))
    place = COPIED.get(linked) or (linked.removeprefix("docs/") if linked.startswith("docs/") else None)
    return place and posixpath.relpath(place, posixpath.dirname(page) or ".")


def linked(page: str) -> list[str]:
    """Return the pages of docs/ to which one of them links, in their order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [
        posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        for target, _ in LINK.findall(text)
    ]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace ``folder/*`` in the navigation by the other pages of the folder; a folder without pages has no entry.

    They come in the order in which the README of the folder links to them.
    """
    found = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    entries = [
        next(iter(entry.items())) if isinstance(entry, dict) else (None, entry) for entry in config.nav or []
    ]
    own = {value for _, value in entries if isinstance(value, str)}
    places = {
        name: place
        for name in found
        if name.endswith("/README.md")
        for place, name in enumerate(linked(name))
    }
    names = sorted(
        {*found, *pages()} - own,
        key=lambda name: (
            not name.endswith("README.md"),
            places.get(name, len(places)),
            name.removesuffix(".md"),
        ),
    )
    nav = []
    for title, value in entries:
        if isinstance(value, str) and value.endswith("/*"):
            value = [name for name in names if name.startswith(value[:-1])]
        if value:
            nav.append({title: value} if title else value)
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to the pages of the site; a link to a file that is not in the site becomes its text."""

    def pointed(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        place = link_in_site(page.file.src_uri, target)
        return f"]({place}{anchor})" if place else f"](NOT-IN-SITE:{target})"

    moved = LINK.sub(pointed, markdown)
    return re.sub(r"\[([^]]*)\]\(NOT-IN-SITE:[^)]*\)", r"\1", moved)


@event_priority(100)  # before mkdocstrings writes the list
def on_env(env: Any, config: MkDocsConfig, files: Files) -> None:
    """Give each public name and its members their entry in objects.inv, the list for links from pages of other packages."""
    names: Any = config.plugins["mkdocstrings"].handlers.inventory  # type: ignore[attr-defined]
    for item in list(names.values()):
        anchor = item.uri.partition("#")[2]
        for module, source in MODULES.items():
            if module != source and anchor.startswith(f"{source}."):
                names.register(module + anchor.removeprefix(source), item.domain, item.role, item.uri)
    missing = [
        name for module in MODULES for one in public_names(module) if (name := f"{module}.{one}") not in names
    ]
    if missing:
        raise PluginError(f"objects.inv has no entry for {missing}")

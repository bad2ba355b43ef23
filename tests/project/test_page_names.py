# test_page_names.py - the pages name files, modules and functions that exist
# SPDX-License-Identifier: MIT
"""Each path, file, dotted name and `file:function` pair in a page is compared with the checkout."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from source_names import defined_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "docs/how-to/*.md", "bench/*.md", "tests/*/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # it names what earlier versions had
)
SUFFIXES = "c|h|md|pxd|pxi|py|pyi|pyx|toml"
FOLDERS = ("bench", "csrc", "docs", "examples", "packaging", "scripts", "shardcodec", "tests")
FILES = [
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")))
    if path.is_file()
]
# Files that a program creates.
CREATED = {"bench/README.md": {"result.md"}, "docs/how-to/libraries.md": {"conf.py"}}
LAYERS = "access|cli|drawing|format|kv|live|storage|tools|transformer|zarr_plugin"


def files(name: str) -> list[Path]:
    """Return the files that a page means by the last parts of their paths. ``*`` and NAME stand for any text."""
    pattern = re.escape(name).replace(r"\*", ".*").replace("NAME", ".*")
    return [ROOT / path for path in FILES if re.fullmatch(f"(.*/)?{pattern}", path)]


def resolves(dotted: str) -> bool:
    """Return True if a dotted name below `shardcodec` is a module, or a member of one."""
    first, *rest = dotted.split(".")
    found = importlib.import_module(first)
    for name in rest:
        if not hasattr(found, name):
            try:
                importlib.import_module(f"{found.__name__}.{name}")
            except (AttributeError, ImportError):
                return False
        found = getattr(found, name)
    return True


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    text = re.sub(r"https?://\S+", "", (ROOT / page).read_text())
    named = set(re.findall(rf"(?<![\w./<*-])[\w*][\w./*-]*\.(?:{SUFFIXES})\b(?![\w(])", text))
    missing = sorted(name for name in named - CREATED.get(page, set()) if not files(name))
    assert not missing, f"update {page}: {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_named_functions_exist(page: str) -> None:
    named = re.findall(r"`([\w./]+\.(?:py|pyx|pxi|c|h)):([\w.]+)`", (ROOT / page).read_text())
    missing = [
        f"{file}:{name}"
        for file, name in named
        if not any(name in defined_names(path) for path in files(file))
    ]
    assert not missing, f"update {page}: {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_dotted_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`(shardcodec(?:\.\w+)+)", text))
    named |= {
        f"shardcodec.{name}" for name in re.findall(rf"`((?:{LAYERS})(?:\.[a-zA-Z]\w*)+)\b(?!\.\w)", text)
    }
    missing = sorted(name for name in named if not resolves(name))
    assert not missing, f"update {page}: {missing}"


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as mkdocs and GitHub make them; only the first of equal headings has this one."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    """`make docs` refuses a page with a dead link, but only at night."""
    text = (ROOT / page).read_text(encoding="utf-8")
    dead = []
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        linked = (ROOT / page).parent / target if target else ROOT / page
        if not linked.exists() or (anchor and anchor not in anchors(linked.read_text(encoding="utf-8"))):
            dead.append(f"{target}#{anchor}")
    assert not dead, f"update {page}: {dead}"


def test_first_page_installs_as_the_readme() -> None:
    blocks = [
        re.findall(r"^```bash\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)
        for page in ("README.md", "docs/index.md")
        if (
            section := re.search(
                r"^## Install\n(.*?)^## ", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
            )
        )
    ]
    assert len(blocks) == 2 and blocks[0] and blocks[0] == blocks[1]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/how-to/start.md"])
def test_installation_begins_with_an_environment(page: str) -> None:
    """pip of Debian and Ubuntu refuses to install outside of one."""
    text = (ROOT / page).read_text(encoding="utf-8")
    environment = "python3 -m venv ~/zarr-env\nsource ~/zarr-env/bin/activate\n"
    assert 0 < text.find(environment) < text.find("pip install -e '.[cli]'")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/index.md", "docs/how-to/start.md"])
def test_pages_name_the_packages_of_debian(page: str) -> None:
    """A minimal system has a Python without `venv` and without headers, and neither make nor git: `make demo` of the README was "command not found"."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.search(r"`apt install git make gcc python3-dev python3-venv`", text)


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_blocks_of_bash(page: str) -> None:
    """The site takes a comment in a block of `console` for the prompt of root, and what stands behind it for a command."""
    languages = set(re.findall(r"^```(\w+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE))
    assert not languages & {"console", "sh", "shell"}, f"{page}: write ```bash"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_names_of_pages_are_links(page: str) -> None:
    text = re.sub(
        r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    named = re.findall(r"(?<!\[)`(?:docs/)?((?:how-to/)?[a-z0-9-]+\.md)`", text)
    plain = [name for name in named if (ROOT / "docs" / name).exists()]
    assert not plain, f"make them links: {plain}"


def test_navigation_of_the_site_has_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r"([\w.-]+\.md)$", navigation, re.MULTILINE))
    assert "how-to/*" in navigation
    assert navigation.strip("\n").splitlines()[1] == "  - Start in five minutes: how-to/start.md"
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= named


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_page_ends_with_its_limitations(page: str) -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[-1:] == ["Limitations"]
    assert headings.count("Limitations") == 1

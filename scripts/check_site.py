# check_site.py - look at every page of the built site in headless Chromium, and use its search
# SPDX-License-Identifier: MIT
"""`make check-site` runs this program: `check_site.py FOLDER`.

A page fails if it is wider than the window, on a screen or on a phone, if a request or a script of it fails, if it asks
another host for anything, or if a link of it leads nowhere. A command's comment must be in sight. The search has to find a
function and to open its page.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from playwright.sync_api import Page, Request, sync_playwright

WIDTHS = (1280, 390)
HEIGHT = 900
SEARCHED = "iter_existing"
# Chromium as root in a container, without its own requests to the network.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
WIDER = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  return [...document.querySelectorAll('article *')].filter(e => e.getBoundingClientRect().right > width + 1)
    .slice(0, 3).map(e => e.tagName + ': ' + e.textContent.trim().slice(0, 60)).concat('the page is too wide');
}"""


# Links to other places of the site, without those that a reader does not see.
LINKS = """() => [...document.querySelectorAll('article a[href]')].map(a => a.href.split('?')[0])
  .filter(href => href.startsWith(location.origin))"""
# Commands with a comment on their line, in blocks that a reader must scroll to see it.
HIDDEN = r"""() => [...document.querySelectorAll('.language-bash pre')]
  .filter(e => e.querySelector('code').scrollWidth > e.querySelector('code').clientWidth + 1)
  .flatMap(e => e.textContent.split('\n').filter(line => /^[^#\s].*\s# /.test(line)).map(line => `comment out of sight: ${line}`))"""


class Quiet(SimpleHTTPRequestHandler):
    """A file server that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def watch(page: Page, address: str, faults: list[str]) -> None:
    """Collect failed and foreign requests, and errors of scripts."""

    def asked(request: Request) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            faults.append(f"{page.url}: asks {request.url}")

    def failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the next page was opened
            faults.append(f"{page.url}: {request.url}: {request.failure}")

    page.on("request", asked)
    page.on("requestfailed", failed)
    page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
    page.on("response", lambda r: faults.append(f"{r.url}: status {r.status}") if r.status >= 400 else None)


def dead_links(page: Page, links: set[str]) -> list[str]:
    """Return the links that lead to no page, or to no place of it."""
    dead = []
    anchors: dict[str, set[str]] = {}
    for link in sorted(links):
        address, _, anchor = link.partition("#")
        if address not in anchors:
            response = page.goto(address) if address.endswith((".html", "/")) else None
            found = (
                page.evaluate("() => [...document.querySelectorAll('[id]')].map(e => e.id)")
                if response
                else []
            )
            anchors[address] = set(found)
        if anchor and unquote(anchor) not in anchors[address]:
            dead.append(f"{link}: the page has no such heading")
    return dead


def search(page: Page, address: str, faults: list[str]) -> None:
    """Search for a function and open the first result."""
    page.goto(f"{address}/index.html")
    if page.viewport_size and page.viewport_size["width"] < 1000:  # the field is behind a button
        page.locator("label[for=__search]").first.click()
    page.locator(".md-search__input").click()
    page.keyboard.type(SEARCHED, delay=30)
    result = page.locator(".md-search-result__link").first
    result.wait_for(timeout=20_000)
    result.click()
    page.wait_for_load_state()
    if SEARCHED not in page.locator("article").inner_text():
        faults.append(f"the search for {SEARCHED} opened {page.url}")


def check(folder: Path, pictures: Path | None) -> list[str]:
    """Return the faults of all pages."""
    faults: list[str] = []
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*.html") if path.name != "404.html"
    )
    with served(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for width in WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": HEIGHT})
            watch(page, address, faults)
            links: set[str] = set()
            for name in names:
                page.goto(f"{address}/{name}")
                links |= set(page.evaluate(LINKS))
                faults += [
                    f"{name}, {width} px: {fault}" for fault in page.evaluate(WIDER) + page.evaluate(HIDDEN)
                ]
                if pictures:
                    page.screenshot(path=pictures / f"{name.replace('/', '-')}-{width}.png")
            search(page, address, faults)
            faults += dead_links(page, links) if width == WIDTHS[0] else []
            page.close()
        browser.close()
    print(f"{len(names)} pages, {len(WIDTHS)} widths: {len(faults)} faults")
    return faults


def main() -> None:
    """Check the site that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=Path, help="an existing folder for a picture of each page")
    given = parser.parse_args()
    if shutil.which("chromium") is None:
        print("skipped: chromium is not installed")
        return
    if faults := check(given.folder, given.pictures):
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()

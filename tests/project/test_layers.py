# test_layers.py - which file may import or include which
# SPDX-License-Identifier: MIT
"""Layers of the package and of the C code: imports and includes go downward, and neither has a cycle."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from store_questions import questions_of_kind

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shardcodec"

# A module may import its own folder and modules on the lines above its own line, nothing below.
# Modules on one line do not import each other, unless they belong to one folder. The folder transformer/legacy_2022 has a
# line of its own: it opens zarr arrays, so it needs zarr_plugin, and no other module needs it.
LAYERS: list[tuple[str, ...]] = [
    ("errors", "arguments", "readable"),
    ("_native",),
    ("native", "mounts"),
    ("cgroups",),
    ("options", "checksum", "statistics"),
    ("compat",),
    ("build_info", "option_sources"),
    ("format", "drawing"),
    ("storage",),
    ("access",),
    ("zarr_plugin", "kv", "transformer", "live"),
    ("legacy_2022",),
    ("tools",),
    ("cli",),
    ("public", "stand_in", "without_engine", "__main__"),
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}
TOP = len(LAYERS)
# These only export the names of a surface, from any layer.
ONLY_EXPORT = {PACKAGE / "__init__.py", PACKAGE / "transformer/__init__.py"}

# The door: what tools/ and cli/ may import of the package, besides themselves. docs/architecture.md has a reason for each.
BASE = {
    "arguments",
    "build_info",
    "compat",
    "errors",
    "native",
    "option_sources",
    "options",
    "readable",
    "statistics",
}
DOOR = {
    "access.array_reader",
    "access.box_reader",
    "access.compiled_chains",
    "access.documents",
    "access.inner_chunks",
    "access.opened_shard",
    "access.placement",
    "access.read_indexes",
    "access.shard",
    "access.shard_object",
    "access.shard_layout",
    "access.shard_writer",
    "access.text_chunks",
    "drawing.array_figure",
    "drawing.figures",
    "drawing.map_figure",
    "format.attributes",
    "format.byte_document",
    "format.codecs",
    "format.dtypes",
    "format.chunk_keys",
    "format.array_document",
    "format.zarray_members",
    "format.spec",
    "format.text",
    "live.record",
    "storage.disk_cache",
    "storage.file_systems",
    "storage.files",
    "storage.kinds",
    "storage.lock_reach",
    "storage.new_object",
    "storage.renamed_store",
    "storage.retry",
    "storage.staging",
    "storage.store",
    "storage.undo_journal",
    "storage.url_stores",
    "storage.whole_file",
    "storage.worker_threads",
    "transformer.legacy_2022.open",
    "zarr_plugin.array_codecs",
}

# The folders of csrc: a file may include files of its own folder and of the folders on its line.
C_FOLDERS: dict[str, set[str]] = {
    "base": set(),
    "kernels": {"base"},
    "codecs": {"base", "kernels"},
    "chain": {"base", "kernels", "codecs"},
    "io": {"base", "kernels"},
    "plan": {"base", "kernels", "codecs", "chain", "io"},
}


class Import(NamedTuple):
    """One import statement; ``target`` is an absolute name."""

    path: Path
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.target}"


def absolute(path: Path, level: int, module: str) -> str:
    """Return the dotted name of ``from ..x import``, written in ``path``."""
    if level == 0:
        return module
    folder = path.relative_to(ROOT).with_suffix("").parts[:-level]
    return ".".join([*folder, *([module] if module else [])])


def python_imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(path, node.level, node.module or "")
            yield from (Import(path, node.lineno, f"{base}.{alias.name}") for alias in node.names)


def cython_imports(path: Path) -> Iterator[Import]:
    for line, text in enumerate(path.read_text().splitlines(), 1):
        if m := re.match(r"\s*from\s+(\.*)([\w.]*)\s+c?import\s+(.*)", text):
            base = absolute(path, len(m[1]), m[2])
            for name in re.findall(r"(\w+)(?:\s+as\s+\w+)?", m[3]):
                yield Import(path, line, f"{base}.{name}")
        elif m := re.match(r"\s*c?import\s+([\w.]+)", text):
            yield Import(path, line, m[1])


@cache
def package_imports() -> list[Import]:
    found = [i for path in PACKAGE.rglob("*.py") for i in python_imports(path)]
    return found + [i for path in PACKAGE.glob("*.pyx") for i in cython_imports(path)]


def part_of_package(dotted: str) -> str | None:
    """Return the name in LAYERS that one of our modules belongs to; None for other modules and the package itself."""
    head, *parts = dotted.split(".")
    if head != "shardcodec" or not parts:
        return None
    return "legacy_2022" if parts[:2] == ["transformer", "legacy_2022"] else parts[0]


# ---------------------------------------------------------------- Python


def test_every_module_has_a_layer() -> None:
    parts = {p.stem for p in PACKAGE.iterdir() if p.suffix in (".py", ".pyx") or (p / "__init__.py").exists()}
    assert parts - {"__init__", "binding", "csrc"} | {"legacy_2022"} == set(RANKS), "correct LAYERS"


def test_imports_go_downward_only() -> None:
    wrong = []
    for i in package_imports():
        importer = part_of_package(absolute(i.path, 1, i.path.stem))
        imported = part_of_package(i.target)
        if i.path in ONLY_EXPORT or imported in (None, "csrc", importer):
            continue
        # A name that is not a module, as in `from shardcodec import ShardSpec`, is imported from the top layer.
        if RANKS.get(imported, TOP) >= RANKS[importer]:
            wrong.append(str(i))
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    """Imports inside functions and for type checkers count too: a cycle means that two modules are one."""
    paths = [p for suffix in ("*.py", "*.pyx") for p in PACKAGE.rglob(suffix)]
    modules = {absolute(p, 1, p.stem).removesuffix(".__init__") for p in paths}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for i in package_imports():
        importer = absolute(i.path, 1, i.path.stem).removesuffix(".__init__")
        imported = i.target
        while imported and imported not in modules:
            imported = imported.rpartition(".")[0]
        # The package itself only re-exports; the test above finds modules that import from it.
        if imported not in ("", "shardcodec", importer):
            graph[importer].add(imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_tools_use_the_engine_through_a_door() -> None:
    """tools/ and cli/ could become a distribution of their own: what they need of the engine is a short list."""
    paths = [path for folder in ("tools", "cli") for path in (PACKAGE / folder).rglob("*.py")]
    wrong, used = [], set()
    for i in (i for path in paths for i in python_imports(path)):
        if part_of_package(i.target) in (None, "tools", "cli"):
            continue
        name = i.target.removeprefix("shardcodec.")
        if not (PACKAGE / name.replace(".", "/")).with_suffix(".py").exists():
            name = name.rpartition(".")[0]
        used.add(name)
        if name not in BASE | DOOR:
            wrong.append(str(i))
    assert not wrong, "\n".join(wrong)
    assert used == BASE | DOOR, f"remove from the door: {sorted((BASE | DOOR) - used)}"


def test_each_module_of_the_door_has_a_reason() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    section = page.split("### The door to the tools", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `([\w/]+)\.py` \| \S", section, re.M)) == {
        name.replace(".", "/") for name in DOOR
    }


def test_only_compat_imports_private_modules_of_zarr() -> None:
    def inside(target: str) -> bool:
        parts = target.split(".")
        return parts[0] == "zarr" and (parts[1:2] == ["core"] or any(p.startswith("_") for p in parts[1:]))

    compat = PACKAGE / "compat.py"
    wrong = [str(i) for i in package_imports() if i.path != compat and inside(i.target)]
    assert not wrong, "\n".join(wrong)


def test_only_storage_asks_for_the_kind_of_a_store() -> None:
    # The backend for xarray extends xarray's own `ZarrStore`.
    exempt = {PACKAGE / "compat.py", PACKAGE / "zarr_plugin" / "xarray_engine.py"}
    wrong = [
        f"{path.relative_to(ROOT)}:{question}"
        for path in PACKAGE.rglob("*.py")
        if PACKAGE / "storage" not in path.parents and path not in exempt
        for question in questions_of_kind(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_class_names_are_unique_in_the_package() -> None:
    """A name in an error, a test or a page then means one class."""
    nodes = [node for path in PACKAGE.rglob("*.py") for node in ast.parse(path.read_text()).body]
    names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    # the stand-in replaces the entry point under its name
    assert {name for name in names if names.count(name) > 1} == {"ShardCodecPipeline"}


def test_one_file_of_the_binding_has_what_only_tests_use() -> None:
    """A reader of the path of a read or a write meets no function that only tests call; such functions were in six files."""
    files = {
        path.name: path.read_text() for path in [*(PACKAGE / "binding").glob("*.pxi"), *PACKAGE.glob("*.pyx")]
    }
    assert [name for name, text in files.items() if re.search(r"\bsc_fault_(?!init)", text)] == [
        "for_tests.pxi"
    ]
    used = set(re.findall(r"\w+", "".join(path.read_text() for path in PACKAGE.rglob("*.py"))))
    functions = {
        (name, file) for file, text in files.items() for name in re.findall(r"^def ([a-z]\w*)", text, re.M)
    }
    only_tests = {(name, file) for name, file in functions if name not in used}
    assert only_tests == {(name, file) for name, file in functions if file == "for_tests.pxi"}


# ---------------------------------------------------------------- C


def c_code(path: Path) -> str:
    """Return the text of a C file without comments."""
    return re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.S)


C_CODE = {
    path.relative_to(ROOT / "csrc").as_posix(): c_code(path) for path in (ROOT / "csrc").rglob("*.[ch]")
}
C_INCLUDES = {
    name: set(re.findall(r'^\s*#\s*include\s+"([^"]+)"', code, re.M)) for name, code in C_CODE.items()
}


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Return one line for each cycle that a depth-first search finds."""
    found, path, done = [], [], set()

    def visit(name: str) -> None:
        if name in path:
            found.append(" -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            path.append(name)
            for other in sorted(graph.get(name, ())):
                visit(other)
            done.add(path.pop())

    for name in sorted(graph):
        visit(name)
    return found


def test_c_files_include_only_allowed_folders() -> None:
    assert {name.partition("/")[0] for name in C_CODE} == set(C_FOLDERS)
    wrong = [
        f"csrc/{name} includes {included}"
        for name, names in C_INCLUDES.items()
        for included in names
        if included not in C_CODE
        or not {included.partition("/")[0]} <= C_FOLDERS[(own := name.partition("/")[0])] | {own}
    ]
    assert not wrong, "\n".join(wrong)


def test_c_includes_have_no_cycle() -> None:
    assert not cycles(C_INCLUDES)


def test_calls_between_c_files_have_no_cycle() -> None:
    """A definition starts at the beginning of a line (.clang-format); any other mention of the name is a use."""
    definition = re.compile(r"^(sc_\w+)\(|^const struct \w+ (sc_\w+)\b.* =", re.M)
    files = {name: code for name, code in C_CODE.items() if name.endswith(".c")}
    defined = {a or b: name for name, code in files.items() for a, b in definition.findall(code)}
    assert len(defined) > 200
    uses = {
        name: {defined[word] for word in set(re.findall(r"\bsc_\w+", code)) & set(defined)} - {name}
        for name, code in files.items()
    }
    assert not cycles(uses)


def test_c_files_hold_their_mutexes_across_a_fork() -> None:
    """A child waits for ever for a mutex that another thread of its parent held at the fork (`base/sc_fork.h`)."""
    with_mutex = {name for name, code in C_CODE.items() if "PTHREAD_MUTEX_INITIALIZER" in code}
    assert with_mutex == {name for name, code in C_CODE.items() if "return sc_fork_handlers(" in code}


def test_each_folder_of_c_has_one_pxd_that_declares_its_headers() -> None:
    wrong = []
    for path in (p for p in PACKAGE.rglob("*") if p.suffix in (".pyx", ".pxi", ".pxd")):
        text, own = path.read_text(), path.stem if path.parent == PACKAGE / "csrc" else ""
        headers = set(re.findall(r'cdef extern from "([^"]+)"', text)) - {"Python.h"}
        wrong += [f"{path} declares {h}" for h in headers if h not in C_CODE or own != h.partition("/")[0]]
        imported = set(re.findall(r"^from shardcodec\.csrc\.(\w+) cimport", text, re.M))
        wrong += [f"{path} cimports {name}" for name in imported if own and name not in C_FOLDERS[own]]
    assert not wrong, "\n".join(wrong)

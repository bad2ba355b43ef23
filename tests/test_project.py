# test_project.py - rules of the project itself: layers, symbols, sizes, versions, README, sdist
# SPDX-License-Identifier: MIT
"""What no unit test sees: who imports whom, what the binary exports, whether the README tells the truth."""

from __future__ import annotations

import ast
import graphlib
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "shardcodec"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# A module may import its own layer's folder and every layer above its line in this table, nothing below.
# Modules that share a line and are no folder together do not import each other.
LAYERS: list[tuple[str, ...]] = [
    ("errors",),
    ("_native",),
    ("native",),
    ("options", "checksum", "cancel", "statistics"),
    ("compat",),
    ("build_info",),
    ("format",),
    ("storage",),
    ("access",),
    ("zarr_plugin",),
    ("kv", "transformer"),
    ("tools",),
    ("cli",),
    ("public", "stand_in"),
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}
TOP = len(LAYERS)  # shardcodec/__init__.py only re-exports, from anywhere

# The folders of csrc: a file may include its own folder and the folders that its line names.
C_FOLDERS: dict[str, set[str]] = {
    "base": set(),
    "kernels": {"base"},
    "codecs": {"base", "kernels"},
    "chain": {"base", "kernels", "codecs"},
    "io": {"base", "kernels"},
    "plan": {"base", "kernels", "codecs", "chain", "io"},
}

SOFT_LINES = 500
HARD_LINES = 700
LONG_BY_DECISION = {
    "bench/floor.c": "one program that shares nothing with what it is the measure of",
}


class Import(NamedTuple):
    """One import statement; ``target`` is absolute."""

    path: Path
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.target}"


def absolute(path: Path, level: int, module: str) -> str:
    """Resolve ``from ..x import``, written in ``path``, to a dotted name."""
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


def package_imports() -> list[Import]:
    found = [i for path in PACKAGE.rglob("*.py") for i in python_imports(path)]
    return found + [i for path in PACKAGE.glob("*.pyx") for i in cython_imports(path)]


def part_of_package(dotted: str) -> str | None:
    """Name in LAYERS that a module of ours belongs to; None for others and for the package itself."""
    head, _, rest = dotted.partition(".")
    return rest.partition(".")[0] if head == "shardcodec" and rest else None


def source_files(*suffixes: str) -> list[Path]:
    folders = ("csrc", "shardcodec", "tests", "bench", "examples", "scripts")
    return sorted(p for name in folders for p in (ROOT / name).rglob("*") if p.suffix in suffixes)


# ---------------------------------------------------------------- layers


def test_every_module_has_a_layer() -> None:
    parts = {p.stem for p in PACKAGE.iterdir() if p.suffix in (".py", ".pyx") or (p / "__init__.py").exists()}
    assert parts - {"__init__"} <= set(RANKS), "give the new module its line in LAYERS"


def test_imports_go_downwards_only() -> None:
    wrong = []
    for i in package_imports():
        importer = part_of_package(absolute(i.path, 1, i.path.stem))
        imported = part_of_package(i.target)
        if importer == "__init__" or imported in (None, "csrc", importer):
            continue
        # A name that is no module, as in `from shardcodec import ShardSpec`, reaches for the top.
        if RANKS.get(imported, TOP) >= RANKS[importer]:
            wrong.append(str(i))
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    """Imports inside functions and those for type checkers count too: they only hide that two modules are one."""
    paths = [p for suffix in ("*.py", "*.pyx") for p in PACKAGE.rglob(suffix)]
    modules = {absolute(p, 1, p.stem).removesuffix(".__init__") for p in paths}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for i in package_imports():
        importer = absolute(i.path, 1, i.path.stem).removesuffix(".__init__")
        imported = i.target
        while imported and imported not in modules:
            imported = imported.rpartition(".")[0]
        # The package itself only re-exports; who imports from it is found by the test above.
        if imported not in ("", "shardcodec", importer):
            graph[importer].add(imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_only_compat_touches_the_insides_of_zarr() -> None:
    def inside(target: str) -> bool:
        parts = target.split(".")
        return parts[0] == "zarr" and (parts[1:2] == ["core"] or any(p.startswith("_") for p in parts[1:]))

    compat = PACKAGE / "compat.py"
    wrong = [str(i) for i in package_imports() if i.path != compat and inside(i.target)]
    assert not wrong, "\n".join(wrong)


def test_importing_the_package_does_not_load_the_extension() -> None:
    # zarr imports our entry point in every process that opens an array.
    code = "import sys, shardcodec; sys.exit('shardcodec._native' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
    """Return one line for each cycle that a depth-first search meets."""
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


def test_c_includes_name_a_folder_that_the_table_allows() -> None:
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
    """A definition begins at the start of a line (.clang-format); each other mention of the name is a use."""
    definition = re.compile(r"^(sc_\w+)\(|^const struct \w+ (sc_\w+)\b.* =", re.M)
    files = {name: code for name, code in C_CODE.items() if name.endswith(".c")}
    defined = {a or b: name for name, code in files.items() for a, b in definition.findall(code)}
    assert len(defined) > 200
    uses = {
        name: {defined[word] for word in set(re.findall(r"\bsc_\w+", code)) & set(defined)} - {name}
        for name, code in files.items()
    }
    assert not cycles(uses)


def test_the_kernels_know_neither_python_nor_a_terminal() -> None:
    banned = re.compile(r"Python\.h|\b(?:printf|fprintf|puts|putchar|perror|exit|abort)\s*\(")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (ROOT / "csrc").rglob("*.[ch]")
        if not path.name.startswith("test")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if banned.search(re.sub(r"/\*.*?\*/", "", line)) and not line.lstrip().startswith(("/*", "*"))
    ]
    assert not wrong, "\n".join(wrong)


def test_memory_comes_from_one_place() -> None:
    """Or no test could make it fail."""
    taking = re.compile(
        r"(?<![\w.>])(?:malloc|calloc|realloc|strn?dup|v?asprintf|aligned_alloc|posix_memalign)\s*\("
    )
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (ROOT / "csrc").rglob("*.c")
        if path.name != "sc_alloc.c"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if taking.search(line) and not line.lstrip().startswith(("/*", "*"))
    ]
    assert not wrong, "\n".join(wrong)


C_PROGRAMS = [path for path in source_files(".c") if path.parts[-3] == "tests"]


@pytest.mark.parametrize("path", C_PROGRAMS, ids=lambda path: path.name)
def test_c_programs_of_the_tests_compile(path: Path) -> None:
    """Nothing else notices that a fuzz target was left behind by a changed prototype, until somebody wants to fuzz."""
    gcc = shutil.which("gcc") or pytest.skip("gcc is not installed")
    command = [
        gcc,
        "-std=c11",
        "-pthread",
        "-fsyntax-only",
        "-Wall",
        "-Werror",
        f"-I{ROOT / 'csrc'}",
        str(path),
    ]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


WITH_ASSEMBLY = [path for path in source_files(".c") if "__asm__(" in path.read_text()]
SPECIAL_BUILDS = [
    "-O0",
    "-O1 -fno-omit-frame-pointer -fsanitize=address,undefined",
    "-O1 -fno-omit-frame-pointer -fsanitize=undefined",
    "-O1 -fno-omit-frame-pointer -fsanitize=thread",
]


@pytest.mark.parametrize("flags", SPECIAL_BUILDS)
@pytest.mark.parametrize("path", WITH_ASSEMBLY, ids=lambda path: path.name)
def test_assembly_finds_registers_in_every_build(path: Path, flags: str) -> None:
    """The eight streams of CRC-32C had enough where addresses are constants, and no sanitizer's build could be made."""
    gcc = shutil.which("gcc") or pytest.skip("gcc is not installed")
    command = [gcc, "-std=c11", *flags.split(), f"-I{ROOT / 'csrc'}", "-S", "-o", os.devnull, str(path)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def check_platform(os_name: str, platform: str, maxsize: int) -> None:
    """What setup.py does first of all, as if on another system."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check_platform"]
    names = {"os": SimpleNamespace(name=os_name), "sys": SimpleNamespace(platform=platform, maxsize=maxsize)}
    exec(compile(tree, "setup.py", "exec"), names)
    names["check_platform"]()  # type: ignore[operator]


def test_other_systems_are_refused_with_a_reason() -> None:
    with pytest.raises(SystemExit, match=r"needs a POSIX system .*; this is win32"):
        check_platform("nt", "win32", 2**63 - 1)
    with pytest.raises(SystemExit, match="needs a 64-bit Python"):
        check_platform("posix", "linux", 2**31 - 1)
    check_platform("posix", "linux", 2**63 - 1)


# ---------------------------------------------------------------- the binary


def extension_path() -> Path:
    from shardcodec import _native

    return Path(_native.__file__)


def test_the_extension_exports_one_symbol() -> None:
    nm = shutil.which("nm") or pytest.skip("nm is not installed")
    flags = ["-gU"] if sys.platform == "darwin" else ["-D", "--defined-only"]
    listing = subprocess.run(
        [nm, *flags, extension_path()], check=True, capture_output=True, text=True
    ).stdout
    symbols = {line.split()[-1].split("@")[0].removeprefix("_") for line in listing.splitlines() if line}
    assert {s.removeprefix("_") for s in symbols} == {"PyInit__native"}


def test_tests_run_against_the_installed_package() -> None:
    import shardcodec

    assert shardcodec.__file__ is not None
    beside = Path(shardcodec.__file__).parent
    assert extension_path().parent == beside, "the package and its extension come from different places"


def test_the_wheel_carries_the_notices() -> None:
    if Path(importlib.import_module("shardcodec").__file__ or "").parent == PACKAGE:
        pytest.skip("the package is imported from the checkout, no wheel is installed")
    files = {f.name for f in importlib.metadata.files("shardcodec") or []}
    assert {"LICENSE", "NOTICES"} <= files
    assert not {f for f in files if f.endswith((".c", ".h", ".pyx", ".pxi"))}


# ---------------------------------------------------------------- files and versions


def test_no_file_is_too_long() -> None:
    tables = ("_tables.h",)
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in source_files(".py", ".pyx", ".pxi", ".pyi", ".pxd", ".c", ".h")
        if not path.name.endswith(tables) and str(path.relative_to(ROOT)) not in LONG_BY_DECISION
    }
    if long := {name: n for name, n in lengths.items() if n > SOFT_LINES}:
        warnings.warn(f"longer than {SOFT_LINES} lines: {long}", stacklevel=1)
    assert not {name: n for name, n in lengths.items() if n > HARD_LINES}


def test_every_source_file_names_its_licence() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in source_files(".c", ".h", ".pyx", ".pxi", ".pxd")
        if "SPDX-License-Identifier: MIT" not in path.read_text()
    ]
    assert not wrong, "\n".join(wrong)


def test_versions_agree() -> None:
    import shardcodec

    version = PYPROJECT["project"]["version"]
    assert shardcodec.__version__ == version
    assert importlib.metadata.version("shardcodec") == version
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert version in newest[1]


def test_entry_points_load() -> None:
    wanted = {"zarr.codecs": "sharding_indexed", "zarr.codec_pipeline": "shardcodec"}
    for group, name in wanted.items():
        (entry,) = [
            e for e in importlib.metadata.entry_points(group=group, name=name) if e.dist.name == "shardcodec"
        ]
        assert entry.load().__module__ == "shardcodec", "zarr registers a class under its module"


# ---------------------------------------------------------------- documentation


def readme() -> str:
    path = ROOT / "README.md"
    if not path.exists():
        pytest.skip("README.md is not there")
    return path.read_text()


def test_readme_code_runs(tmp_path: Path) -> None:
    """All ```python blocks, in order, as one program; ```python no-run are shown only."""
    blocks = re.findall(r"^```python\n(.*?)^```", readme(), re.M | re.S)
    assert blocks
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


RULE = re.compile(r"\b(SC|KV|ST|IS|PR)-(\d+)(?: (?:to|\.\.\.) (?:SC|KV|ST|IS|PR)-(\d+))?")
TEST_OF_RULE = re.compile(r"def test_(sc|kv|st|is|pr)(\d+)_")


def test_the_page_of_requirements_has_the_rules_that_are_cited() -> None:
    """A citation without a rule explains nothing, and a rule without a citation is not known to hold."""
    page = (ROOT / "docs/requirements.md").read_text()
    listed = [(kind, int(n)) for kind, n in re.findall(r"^- \*\*([A-Z]+)-(\d+)\*\* ", page, re.M)]
    assert listed
    assert len(listed) == len(set(listed))
    cited: dict[tuple[str, int], str] = {}
    for path in source_files(".py", ".pyx", ".pxi", ".pyi", ".pxd", ".c", ".h"):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        cited |= {(kind.upper(), int(n)): name for kind, n in TEST_OF_RULE.findall(text)}
        for kind, first, last in RULE.findall(text):
            ends = {int(first), int(last or first)}
            cited |= {(kind, n): name for n in ends}
            cited |= {rule: name for rule in listed if rule[0] == kind and min(ends) <= rule[1] <= max(ends)}
    assert {rule: name for rule, name in cited.items() if rule not in listed} == {}
    assert [rule for rule in listed if rule not in cited] == []


def test_make_commands_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^(?:\S+=\S+ )*make ([a-z-]+)", readme(), re.M))
    assert named <= targets
    assert {"demo", "test"} <= named


# ---------------------------------------------------------------- the source distribution


@pytest.mark.slow
def test_the_sdist_has_all_that_a_build_needs(tmp_path: Path) -> None:
    """Made with setuptools alone: no compiler, no Cython, no codec library."""
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules")
    shutil.copytree(ROOT, tree, ignore=ignored)
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    env = os.environ | {"PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("shardcodec-*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    needed = {
        p.relative_to(ROOT).as_posix()
        for folder in ("csrc", "shardcodec")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in (".c", ".h", ".py", ".pyi", ".pyx", ".pxi", ".pxd") or p.name.startswith("exports.")
    }
    assert needed | {"setup.py", "pyproject.toml", "LICENSE", "NOTICES", "Makefile"} <= names

# test_project.py - rules of the project itself: symbols, sizes, versions, README, source distribution
# SPDX-License-Identifier: MIT
"""Rules that no unit test checks: exported symbols, lengths of files, versions, and whether the README is correct."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "shardcodec"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

SOFT_LINES = 500
HARD_LINES = 700
LONG_BY_DECISION = {
    "bench/floor.c": "one program that shares no code with the engine, because it is its lower bound",
}


def source_files(*suffixes: str) -> list[Path]:
    folders = ("csrc", "shardcodec", "tests", "bench", "examples", "scripts")
    return sorted(p for name in folders for p in (ROOT / name).rglob("*") if p.suffix in suffixes)


# ---------------------------------------------------------------- the C code and the build


def test_c_code_uses_neither_python_nor_a_terminal() -> None:
    banned = re.compile(r"Python\.h|\b(?:printf|fprintf|puts|putchar|perror|exit|abort)\s*\(")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (ROOT / "csrc").rglob("*.[ch]")
        if not path.name.startswith("test") and path.name != "sc_check.c"  # ends debug builds with a message
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if banned.search(re.sub(r"/\*.*?\*/", "", line)) and not line.lstrip().startswith(("/*", "*"))
    ]
    assert not wrong, "\n".join(wrong)


def test_memory_is_allocated_in_one_file() -> None:
    """Otherwise no test could make an allocation fail."""
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


def test_codecs_have_no_function_of_a_name_of_the_linked_libraries() -> None:
    """A static `crc32` compiled with the bundled libraries, which have no headers, and not with zlib.h of the system."""
    declared = (
        r"(?:crc32|adler32)(?:_z|_combine\w*)?|(?:un)?compress[2_]?\w*|(?:de|in)flate\w*|(?:LZ4|ZSTD|XXH)\w+"
    )
    own = re.compile(rf"^({declared})\(", re.M)
    wrong = {
        path.name: own.findall(path.read_text())
        for path in (ROOT / "csrc/codecs").glob("*.c")
        if own.search(path.read_text())
    }
    assert not wrong


C_PROGRAMS = [path for path in source_files(".c") if path.parts[-3] == "tests"]


@pytest.fixture(scope="module")
def no_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for -I, in which each header of the codec libraries is an error, as on a machine without them."""
    folder = tmp_path_factory.mktemp("no_libraries")
    headers = re.findall(r"^#include <(.+)>", (ROOT / "csrc/codecs/sc_libs.h").read_text(), re.MULTILINE)
    libraries = [name for name in headers if not name.startswith("std")]
    assert {"lz4.h", "zlib.h", "zstd.h"} <= set(libraries)
    for name in libraries:
        (folder / name).write_text(f"#error {name} is a header of the system\n")
    return folder


@pytest.mark.parametrize("path", C_PROGRAMS, ids=lambda path: path.name)
def test_c_programs_of_the_tests_compile_without_headers_of_libraries(path: Path, no_libraries: Path) -> None:
    """A changed prototype breaks a fuzz target, and without this test only the next fuzz run would notice.

    `make test` needs a compiler alone, but a fuzz target once needed lz4.h, which was on the machine of the tests."""
    gcc = shutil.which("gcc") or pytest.skip("gcc is not installed")
    command = [
        gcc,
        "-std=c11",
        "-pthread",
        "-fsyntax-only",
        "-Wall",
        "-Werror",
        f"-I{no_libraries}",
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
def test_assembly_has_enough_registers_in_every_build(path: Path, flags: str) -> None:
    """The eight streams of CRC-32C once needed more registers than sanitizer builds have, and these did not compile."""
    gcc = shutil.which("gcc") or pytest.skip("gcc is not installed")
    command = [gcc, "-std=c11", *flags.split(), f"-I{ROOT / 'csrc'}", "-S", "-o", os.devnull, str(path)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def functions_of_setup(**names: object) -> dict[str, Any]:
    """Return the functions of setup.py, with these global names instead of its own."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    for function in tree.body:
        function.decorator_list = []
        function.returns = None
    exec(compile(tree, "setup.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("cflags", "assertions", "optimised", "debug_information"),
    [
        (None, False, True, False),
        ("", False, True, False),
        ("-O2 -g", False, True, True),
        ("-march=x86-64-v2 -pipe", False, True, False),
        ("-ggdb3 -Wall", False, True, True),
        ("-g -g0", False, True, False),
        ("-O0", False, False, False),
        ("-UNDEBUG -O2", True, True, False),
        ("-O3 -DNDEBUG=1", False, True, False),
    ],
)
def test_flags_of_packagers_keep_a_release_build(
    cflags: str | None,
    assertions: bool,
    optimised: bool,
    debug_information: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """CFLAGS once turned a release build into one with assertions, and debuginfo packages were empty."""
    gcc = shutil.which("gcc") or pytest.skip("gcc is not installed")
    monkeypatch.delenv("CPPFLAGS", raising=False)
    monkeypatch.setenv("CFLAGS", cflags) if cflags is not None else monkeypatch.delenv(
        "CFLAGS", raising=False
    )
    setup = functions_of_setup(
        os=os, re=re, shlex=shlex, ROOT=ROOT, MACOS=False, SANITIZE="", DEBUG=False, COVERAGE=False
    )
    python = (
        ["-g", "-O1"] if cflags is None else []
    )  # of a Python with other flags; setuptools drops them where CFLAGS is set
    flags = [*python, *(cflags or "").split(), *setup["compile_args"]()]
    macros = subprocess.run(
        [gcc, *flags, "-E", "-dM", "-x", "c", os.devnull], check=True, capture_output=True, text=True
    ).stdout
    assert ("#define NDEBUG" not in macros) == assertions
    assert ("#define __OPTIMIZE__" in macros) == optimised
    (tmp_path / "some.c").write_text("int f(int a) { return a; }")
    subprocess.run([gcc, *flags, "-c", "-o", tmp_path / "some.o", tmp_path / "some.c"], check=True)
    assert (b".debug_info" in (tmp_path / "some.o").read_bytes()) == debug_information
    assert ("-Wl,-S" not in setup["link_args"]()) == debug_information


def check_platform(os_name: str, platform: str, maxsize: int) -> None:
    """Run `check_platform` of setup.py as if on another system."""
    os_and_sys = {
        "os": SimpleNamespace(name=os_name),
        "sys": SimpleNamespace(platform=platform, maxsize=maxsize),
    }
    functions_of_setup(**os_and_sys)["check_platform"]()


def test_other_systems_are_refused_with_a_reason() -> None:
    with pytest.raises(SystemExit, match=r"needs a POSIX system .*; this is win32"):
        check_platform("nt", "win32", 2**63 - 1)
    with pytest.raises(SystemExit, match="needs a 64-bit Python"):
        check_platform("posix", "linux", 2**31 - 1)
    check_platform("posix", "linux", 2**63 - 1)


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler", "gcc -nostdinc"])
def test_build_without_a_compiler_ends_with_one_sentence(compiler: str) -> None:
    """pip prints the end of a failed build. It was a line of setuptools, after a minute of Cython."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext"],
        cwd=ROOT,
        env=os.environ | {"CC": compiler},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "shardcodec needs a C compiler and the headers of Python: install them with `apt install gcc"
    )


# ---------------------------------------------------------------- the binary


def extension_path() -> Path:
    from shardcodec import _native

    return Path(_native.__file__)


def test_import_does_not_load_the_extension() -> None:
    # zarr imports the entry point in every process that opens an array
    code = "import sys, shardcodec; sys.exit('shardcodec._native' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_extension_exports_one_symbol() -> None:
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
    assert extension_path().parent == beside, "the package and its extension are in different folders"


def test_wheel_contains_the_notices() -> None:
    if Path(importlib.import_module("shardcodec").__file__ or "").resolve().parent == PACKAGE:
        pytest.skip("the package is imported from the checkout; no wheel is installed")
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
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None
    assert cited[1] == version
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert version in newest[1]


def test_entry_points_load() -> None:
    wanted = {"zarr.codecs": "sharding_indexed", "zarr.codec_pipeline": "shardcodec"}
    for group, name in wanted.items():
        (entry,) = [
            e for e in importlib.metadata.entry_points(group=group, name=name) if e.dist.name == "shardcodec"
        ]
        assert entry.load().__module__ == "shardcodec", "zarr registers a class under the name of its module"


def test_type_check_has_every_imported_package() -> None:
    """pyright calls a public class of an unknown base incomplete, so `make check-public-types` needs what modules import."""
    needs = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"]["types"]]
    have = {str(re.split(r"[^\w-]", need)[0]) for need in needs}
    have |= {"shardcodec", "dask", "donfig", "numcodecs"}  # the last three come with distributed and zarr
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        for name in imported(node)
        if name not in have | sys.stdlib_module_names
    }
    assert not missing


def imported(node: ast.stmt) -> list[str]:
    """Return the packages that an import statement names, without those of relative imports."""
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [str(node.module).partition(".")[0]]
    return [alias.name.partition(".")[0] for alias in node.names] if isinstance(node, ast.Import) else []


# ---------------------------------------------------------------- documentation


def readme() -> str:
    path = ROOT / "README.md"
    if not path.exists():
        pytest.skip("there is no README.md")
    return path.read_text()


def test_readme_code_runs(tmp_path: Path) -> None:
    """All ```python blocks run in order as one program; blocks marked ```python no-run are skipped."""
    blocks = re.findall(r"^```python\n(.*?)^```", readme(), re.M | re.S)
    assert blocks
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_readme_is_short() -> None:
    """A newcomer reads it to the end; more belongs into docs/."""
    assert len(readme().split()) <= 900


RULE = re.compile(r"\b(SC|KV|ST|IS|PR)-(\d+)(?: (?:to|\.\.\.) (?:SC|KV|ST|IS|PR)-(\d+))?")
TEST_OF_RULE = re.compile(r"def test_(sc|kv|st|is|pr)(\d+)_")


def test_cited_rules_and_listed_rules_agree() -> None:
    """Every cited rule must be in docs/requirements.md, and every rule there must be cited by code or tests."""
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


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_make_commands_of_pages_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:^|`)(?:\S+=\S+ )*make ([a-z-]+)", (ROOT / page).read_text(), re.M))
    assert named <= targets
    assert {"demo", "test"} <= named


# ---------------------------------------------------------------- the source distribution


@pytest.mark.slow
def test_sdist_contains_everything_that_builds_and_tests_need(tmp_path: Path) -> None:
    """It is built with setuptools alone: no compiler, no Cython, no codec library."""
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules")
    shutil.copytree(ROOT, tree, ignore=ignored)
    shutil.copytree(ROOT / ".ci", tree / ".ci")
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
        modes = {one.name.partition("/")[2]: one.mode for one in tar if one.isfile()}
    needed = {
        p.relative_to(ROOT).as_posix()
        for folder in ("csrc", "shardcodec")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in (".c", ".h", ".py", ".pyi", ".pyx", ".pxi", ".pxd") or p.name.startswith("exports.")
    }
    assert needed | {"setup.py", "pyproject.toml", "LICENSE", "NOTICES", "Makefile"} <= modes.keys()
    copied = {
        path.relative_to(tree).as_posix()
        for folder in (".ci", "bench", "docs", "examples", "scripts", "tests")
        for path in (tree / folder).rglob("*")
        if path.is_file() and path.suffix not in (".so", ".o", ".pyc")
    }
    assert copied <= modes.keys(), "`make test` and `make nightly` need these"
    assert modes[".ci/nightly"] & modes["scripts/find-python"] & 0o100

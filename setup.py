# setup.py - how the extension is built; pyproject.toml has the metadata
# SPDX-License-Identifier: MIT
"""Build shardcodec._native: one Cython module (its text in shardcodec/binding), all of csrc/, codec libraries linked in.

Switches, all from the environment:

SHARDCODEC_LIBS      "bundled" (default): the static archive inside the blosc2 wheel; "system": libzstd,
                     liblz4 and zlib as pkg-config finds them.
SHARDCODEC_ABI3      "0": build for this interpreter only, not for the stable ABI of CPython 3.11.
SHARDCODEC_SANITIZE  "address,undefined" or "thread": a build under that sanitizer.
SHARDCODEC_DEBUG     "1": no optimisation, assertions on.
SHARDCODEC_COVERAGE  "1": gcov instrumentation.
SHARDCODEC_ENGINE    "0": build the wheel without the engine, for all platforms; zarr does the work. "1": fail if the engine cannot
                     be built. Not set: build the wheel without the engine if the engine cannot be built. A build in place
                     always has the engine.

Sanitizer and debug builds have the checks of csrc/base/sc_check.h: what is written is checked before, and read again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.modified import newer_group

ROOT = Path(__file__).resolve().parent
PYX = "shardcodec/_native.pyx"
MACOS = sys.platform == "darwin"
SYSTEM_LIBRARIES = ("libzstd", "liblz4", "zlib")
SANITIZERS = ("", "address", "undefined", "address,undefined", "thread")
NO_COMPILER = (
    "shardcodec needs a C compiler and the headers of Python: install them with `apt install gcc libc6-dev python3-dev` "
    "(Debian, Ubuntu), `dnf install gcc python3-devel` (Fedora, RHEL) or `xcode-select --install` (macOS), or install a "
    "wheel of shardcodec, which needs neither."
)


def switch(name: str, default: str, allowed: tuple[str, ...]) -> str:
    """Return the value of an environment switch; a misspelt value is an error, not the default."""
    value = os.environ.get(name) or default
    if value not in allowed:
        raise SystemExit(f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}")
    return value


LIBS = switch("SHARDCODEC_LIBS", "bundled", ("bundled", "system"))
SANITIZE = switch("SHARDCODEC_SANITIZE", "", SANITIZERS)
DEBUG = switch("SHARDCODEC_DEBUG", "0", ("0", "1")) == "1"
COVERAGE = switch("SHARDCODEC_COVERAGE", "0", ("0", "1")) == "1"
# The stable ABI has no free-threaded form before CPython 3.15, and other interpreters have none at all.
ABI3 = (
    switch("SHARDCODEC_ABI3", "1", ("0", "1")) == "1"
    and platform.python_implementation() == "CPython"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
ENGINE = switch("SHARDCODEC_ENGINE", "", ("", "0", "1"))
# Modules of the wheel without the engine.
WITHOUT_ENGINE = {
    "shardcodec": {
        "__init__", "__main__", "_native", "arguments", "build_info", "cgroups", "compat", "errors", "mounts", "native",
        "option_sources", "options", "public", "readable", "stand_in", "without_engine",
    },
    "shardcodec.cli": {"__init__", "early_stop"},
}  # fmt: skip
# The wheel without the engine has no module for this group.
ENTRY_POINTS_OF_ENGINE = "xarray.backends"


def check_platform() -> None:
    """Stop with a reason on platforms where the C code cannot work. An sdist can be made anywhere."""
    if os.name != "posix":
        raise SystemExit(
            f"shardcodec needs a POSIX system (pread, rename, byte-range locks); this is {sys.platform}"
        )
    if sys.maxsize < 2**32:
        raise SystemExit("shardcodec needs a 64-bit Python: shards and their offsets are larger than 4 GiB")


def check_compiler() -> None:
    """Stop with one sentence where no C program of Python can be compiled, before Cython has worked for a minute.

    The error of the compiler comes first, so that the sentence is the last line of the build.
    """
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = shlex.split(f"{os.environ.get('CFLAGS', '')} {os.environ.get('CPPFLAGS', '')}")
    folders = {f"-I{sysconfig.get_path(kind)}" for kind in ("include", "platinclude")}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "header.c")
        source.write_text("#include <Python.h>\n")
        try:
            subprocess.run(
                [*command, *flags, *sorted(folders), "-c", str(source), "-o", str(source.with_suffix(".o"))],
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as e:
            raise SystemExit(f"{e}\n{NO_COMPILER}") from None


def packager_flag(pattern: str) -> str | None:
    """Return the last flag of CFLAGS or CPPFLAGS that is of this form: a packager has chosen it, so a release build keeps it."""
    flags = shlex.split(f"{os.environ.get('CFLAGS', '')} {os.environ.get('CPPFLAGS', '')}")
    return next((flag for flag in reversed(flags) if re.fullmatch(pattern, flag)), None)


def keeps_debug_information() -> bool:
    return packager_flag("-g.*") not in (None, "-g0")


def release_args() -> list[str]:
    """Return the flags of a release build that a packager has not chosen.

    With CFLAGS in the environment, setuptools drops Python's own flags, and with them -DNDEBUG. Without, Python's may contain -g.
    """
    defaults = {"-O.*": "-O3", "-g.*": "-g0", "-[DU]NDEBUG(=.*)?": "-DNDEBUG"}
    return [flag for pattern, flag in defaults.items() if packager_flag(pattern) is None]


def compile_args() -> list[str]:
    """Return the flags for all C sources.

    Python's own flags come first and may contain -fwrapv. The code does not rely on it: sizes are unsigned, or
    checked with overflow built-ins. Sanitizer builds switch it off, because UBSan reports no signed overflow with it.
    """
    args = ["-std=c11", "-fvisibility=hidden", "-pthread"]
    if SANITIZE:
        return [*args, "-O1", "-g", f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all",
                "-fno-omit-frame-pointer", "-fno-wrapv", "-UNDEBUG", "-DSHARDCODEC_CHECKS"]  # fmt: skip
    if DEBUG:
        return [*args, "-O0", "-g3", "-UNDEBUG", "-DSHARDCODEC_CHECKS"]
    if COVERAGE:
        return [*args, "-O0", "-g", "--coverage", "-fprofile-update=atomic"]
    return [*args, *release_args()]


def link_args() -> list[str]:
    """Return the flags that export only the symbol PyInit__native.

    The objects of the archive export ZSTD_*, LZ4_* and so on. If these were visible, another copy of the libraries,
    loaded with RTLD_GLOBAL, would receive our calls. A version script makes them local, with every linker.
    """
    args = ["-pthread"]
    if MACOS:
        args.append(f"-Wl,-exported_symbols_list,{ROOT / 'csrc/exports.macos'}")
    else:
        args.append(f"-Wl,--version-script={ROOT / 'csrc/exports.map'}")
    if SANITIZE:
        args.append(f"-fsanitize={SANITIZE}")
    elif COVERAGE:
        args.append("--coverage")
    elif not DEBUG and not keeps_debug_information():
        # Debug sections of the archive alone would be larger than the code.
        args.append("-Wl,-S")
    return args


class Linked(NamedTuple):
    """Arguments of the compiler and the linker for the codec libraries."""

    archives: tuple[str, ...] = ()
    cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    problem: str = ""


def bundled_libraries() -> Linked:
    """Return libblosc2.a of the installed blosc2 wheel.

    The package is located, not imported: an import needs numexpr and more, and fails in a build for another
    architecture.
    """
    spec = importlib.util.find_spec("blosc2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        archive = Path(folder, "lib", "libblosc2.a")
        if archive.is_file():
            return Linked(archives=(str(archive),))
    return Linked(
        problem="shardcodec links the static library of the blosc2 wheel, but found no blosc2/lib/libblosc2.a.\n"
        "Install the build requirements of pyproject.toml, or link the system's libraries instead:\n"
        f"SHARDCODEC_LIBS=system, with pkg-config files for {', '.join(SYSTEM_LIBRARIES)}."
    )


def system_libraries() -> Linked:
    """Return libzstd, liblz4 and zlib of the system."""

    def ask(what: str) -> tuple[str, ...]:
        done = subprocess.run([tool, what, *SYSTEM_LIBRARIES], check=True, capture_output=True, text=True)
        return tuple(shlex.split(done.stdout))

    tool = os.environ.get("PKG_CONFIG", "pkg-config")
    try:
        return Linked(cflags=("-DSHARDCODEC_SYSTEM_LIBS=1", *ask("--cflags")), ldflags=ask("--libs"))
    except FileNotFoundError:
        return Linked(problem=f"SHARDCODEC_LIBS=system needs pkg-config, but {tool} was not found")
    except subprocess.CalledProcessError as e:
        return Linked(problem=f"SHARDCODEC_LIBS=system: {shlex.join(e.cmd)} failed:\n{e.stderr}")


class Part(NamedTuple):
    """A library, or a part of one, that NOTICES lists."""

    name: str
    version: str
    licence: str
    what: str
    address: str

    @property
    def purl(self) -> str:
        owner_and_name = self.address.removeprefix("https://github.com/").lower()
        return f"pkg:github/{owner_and_name}" + (f"@{self.version}" if self.version else "")


def linked_parts() -> list[Part]:
    """Return what NOTICES lists. Origins of code inside C-Blosc2 have no version there."""
    form = re.compile(r"^-{80}\n(.+?)(?: (\d[\d.]*))? \(([\w.-]+)\): (.+)\n(https://\S+)$", re.MULTILINE)
    return [Part(*(text or "" for text in found)) for found in form.findall((ROOT / "NOTICES").read_text())]


def bill_of_materials(name: str, version: str, licence: str) -> dict[str, object]:
    """Return the linked libraries in the format CycloneDX. It has no time and no random number, so that builds can be compared."""
    own = f"pkg:pypi/{name}@{version}"
    parts = linked_parts()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": own, "name": name, "version": version, "purl": own,
                "licenses": [{"expression": licence}],
            }
        },
        "components": [
            {
                "type": "library", "bom-ref": part.purl, "name": part.name,
                **({"version": part.version} if part.version else {}),
                "description": part.what, "purl": part.purl, "licenses": [{"license": {"id": part.licence}}],
                "externalReferences": [{"type": "vcs", "url": part.address}],
            }
            for part in parts
        ],
        "dependencies": [{"ref": own, "dependsOn": [part.purl for part in parts]}],
    }  # fmt: skip


@functools.cache
def libraries() -> Linked:
    """Return the linked libraries. A missing library stops a build, but not an sdist, which needs none."""
    return system_libraries() if LIBS == "system" else bundled_libraries()


def fingerprint(ext: Extension) -> str:
    """Return the name of the build folder, which depends on everything but the source files that changes the binary.

    setuptools compares only time stamps, so with one folder for all it would reuse a binary with other flags. The
    archive is identified by its content, because an isolated build puts it in a new place each time.
    """
    linked = libraries()
    facts = [
        ext.define_macros, ext.extra_compile_args, ext.extra_link_args, linked.cflags, linked.ldflags,
        [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in linked.archives],
        [os.environ.get(name) for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED", "ARCHFLAGS")],
        [d.version for d in importlib.metadata.distributions(name="cython")],
        sys.version, sysconfig.get_platform(),
    ]  # fmt: skip
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    kinds = {"abi3": ABI3, "debug": DEBUG, "coverage": COVERAGE, SANITIZE.replace(",", "-"): SANITIZE}
    return "-".join([LIBS, *(kind for kind, on in kinds.items() if on), digest])


def is_current(made: Path, headers: Path, sources: list[str]) -> bool:
    """Return whether an object file is newer than its sources and the headers that the compiler listed."""
    try:
        listed = headers.read_text().replace("\\\n", " ").partition(":")[2].split()
        written = made.stat().st_mtime_ns
        return all(os.stat(path).st_mtime_ns < written for path in [*sources, *listed])
    except OSError:  # no object yet, or a header is gone
        return False


def why_no_engine() -> str:
    """Return why a wheel of this build has no engine; empty if it has."""
    if ENGINE:
        return "" if ENGINE == "1" else "SHARDCODEC_ENGINE=0"
    if not sys.platform.startswith("linux"):
        return f"the engine is tested on Linux alone, and this is {sys.platform}; SHARDCODEC_ENGINE=1 tries to build it"
    try:
        check_platform()
        check_compiler()
    except SystemExit as error:
        return str(error)
    return ""


def leave_engine_out(distribution: Distribution) -> None:
    """Reduce the distribution to the modules that work without the engine."""
    distribution.ext_modules = []
    distribution.packages = list(WITHOUT_ENGINE)
    distribution.package_data = {"shardcodec": ["py.typed"]}
    distribution.entry_points.pop(ENTRY_POINTS_OF_ENGINE, None)


class Build(build):
    """The command `build`, with one folder for each configuration."""

    def initialize_options(self) -> None:
        super().initialize_options()
        names = [fingerprint(ext) for ext in self.distribution.ext_modules] or ["without-engine"]
        self.build_base = os.path.join("build", *names)


class BuildExt(build_ext):
    """The command `build_ext`: links the codec libraries and keeps generated C out of the source tree."""

    def run(self) -> None:
        check_platform()
        check_compiler()
        if libraries().problem:
            raise SystemExit(libraries().problem)
        for ext in self.extensions:
            self.link_libraries(ext)
            self.translate(ext)
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile on all cores; setuptools does this for several extensions, but not for the sources of one."""
        if self.force or newer_group([*ext.sources, *ext.depends], self.get_ext_fullpath(ext.name), "newer"):
            # The translated module comes first, as it takes longest.
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                ext.extra_objects = [
                    *pool.map(functools.partial(self.compile, ext), ext.sources),
                    *ext.extra_objects,
                ]
            ext.sources = []
            self.force = True
        super().build_extension(ext)

    def compile(self, ext: Extension, source: str) -> str:
        """Return the object file of one source; compile it only if it or a header that it includes is newer."""
        (made,) = self.compiler.object_filenames([source], output_dir=self.build_temp)
        headers = Path(made).with_suffix(".d")
        if not self.force and is_current(Path(made), headers, [source, "setup.py"]):
            return made
        args = [*ext.extra_compile_args, "-MMD", "-MF", str(headers)]
        if "undefined" in SANITIZE and source == ext.sources[0]:
            # UBSan finds nothing in Cython's own C, and compiling it with UBSan takes as long as all the rest.
            args.append("-fno-sanitize=undefined")
        self.compiler.compile(
            [source],
            self.build_temp,
            list(ext.define_macros),
            ext.include_dirs,
            self.debug,
            extra_postargs=args,
        )
        return made

    def link_libraries(self, ext: Extension) -> None:
        linked = libraries()
        ext.extra_compile_args += linked.cflags
        ext.extra_link_args += linked.ldflags
        ext.extra_objects += linked.archives
        if not MACOS:
            ext.libraries += ["dl", "rt", "m"]

    def translate(self, ext: Extension) -> None:
        """Run Cython once for all configurations, which differ only in options of the C compiler."""
        from Cython import __version__
        from Cython.Build import cythonize

        (module,) = cythonize(
            Extension(ext.name, [PYX], depends=ext.depends, define_macros=ext.define_macros),
            build_dir=os.path.join("build", f"cython-{__version__}"),
            compiler_directives={"language_level": "3", "freethreading_compatible": True},
        )
        ext.sources[0] = module.sources[0]


class BuildPy(build_py):
    """The command `build_py`: first removes old copies, because a wheel contains every file in the build folder."""

    def run(self) -> None:
        if not self.editable_mode:
            for path in Path(self.build_lib, "shardcodec").rglob("*.py*"):
                path.unlink()
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        if self.distribution.ext_modules:
            return found
        return [one for one in found if one[1] in WITHOUT_ENGINE[package]]


class BdistWheel(bdist_wheel):
    """The command `bdist_wheel`: a wheel with linked libraries has their bill of materials (PEP 770).

    Where the engine cannot be built it makes the wheel without it.
    """

    def initialize_options(self) -> None:
        super().initialize_options()
        # The build of a developer must not go on without the engine.
        is_editable = "editable_wheel" in self.distribution.commands
        if not is_editable and (why := why_no_engine()):
            leave_engine_out(self.distribution)
            sys.stderr.write(f"shardcodec: building the wheel without the engine: {why}\n")

    def write_wheelfile(self, wheelfile_base: str, *args: str, **named: str) -> None:
        super().write_wheelfile(wheelfile_base, *args, **named)
        if LIBS == "bundled" and self.distribution.ext_modules:
            metadata = self.distribution.metadata
            bill = bill_of_materials(metadata.name, metadata.version, metadata.license_expression)
            folder = Path(wheelfile_base, "sboms")
            folder.mkdir(exist_ok=True)
            (folder / f"{metadata.name}.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")


sources = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.c") if not path.name.startswith("test")
)
depends = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("csrc/**/*.h", "csrc/exports.*", "shardcodec/csrc/*.pxd", "shardcodec/binding/*.pxi")
    for path in ROOT.glob(pattern)
)

native = Extension(
    "shardcodec._native",
    [PYX, *sources],
    include_dirs=["csrc"],
    depends=[*depends, "setup.py"],
    define_macros=[("Py_LIMITED_API", "0x030b0000")] if ABI3 else [],
    extra_compile_args=compile_args(),
    extra_link_args=link_args(),
    py_limited_api=ABI3,
)

# `pip install -e` puts the checkout itself on the path. With setuptools' own finder, a program in the folder that contains the checkout
# would import the checkout as an empty package.
OPTIONS = {"editable_wheel": {"mode": "compat"}}
if ABI3:
    OPTIONS["bdist_wheel"] = {"py_limited_api": "cp311"}

setup(
    ext_modules=[native],
    cmdclass={"build": Build, "build_ext": BuildExt, "build_py": BuildPy, "bdist_wheel": BdistWheel},
    options=OPTIONS,
)

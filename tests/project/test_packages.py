# test_packages.py - recipes, bill of materials and release agree with pyproject.toml, NOTICES and setup.py
# SPDX-License-Identifier: MIT
"""What other package managers are told about shardcodec, read as data; `make recipes` and `make debian` run their tools."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import shardcodec

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
# The library of each name of pkg-config, as the package managers call it.
LIBRARIES = {
    "libzstd": {"zstd", "libzstd-dev"},
    "liblz4": {"lz4", "lz4-c", "liblz4-dev"},
    "zlib": {"zlib", "zlib-api", "zlib1g-dev"},
}
Bounds = dict[str, str]


class Recipe(NamedTuple):
    """What a recipe says. `runs`: lower bounds at run time; None where a tool reads them from the wheel."""

    version: str
    licence: str
    builds: Bounds
    runs: Bounds | None
    names: set[str]  # of all dependencies
    sets_system: bool


def bounds(texts: list[str]) -> Bounds:
    """Return the lower bounds in texts such as `numpy >=2.0`, `py-numpy@2.0:` or `cython3 (>= 3.1)`."""
    found = {}
    for text in texts:
        match = re.fullmatch(r"(?:py-|python3-)?([\w-]+?)3?(?: \(>= (?:1:)?| ?>=|@)([\d.]+)[:)]?", text)
        if match:
            found[match[1]] = match[2]
    return found


def conda() -> Recipe:
    recipe = yaml.safe_load((PACKAGING / "conda/recipe.yaml").read_text())
    needs = recipe["requirements"]
    oldest = re.search(r'python, "<([\d.]+)"', str(recipe["build"]["skip"]))
    assert oldest is not None
    return Recipe(
        recipe["context"]["version"],
        recipe["about"]["license"],
        bounds(needs["host"]),
        bounds(needs["run"]) | {"python": oldest[1]},
        {*needs["host"], *needs["run"]},
        recipe["build"]["script"]["env"]["SHARDCODEC_LIBS"] == "system",
    )


def spack() -> Recipe:
    text = (PACKAGING / "spack/package.py").read_text()
    calls: dict[str, list[str]] = {}
    types: dict[str, str] = {}
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and isinstance(node.args[0], ast.Constant)
        ):
            calls.setdefault(node.func.id, []).append(node.args[0].value)
            types |= {str(node.args[0].value): ast.unparse(k.value) for k in node.keywords if k.arg == "type"}
    needs = calls["depends_on"]
    return Recipe(
        calls["version"][0],
        calls["license"][0],
        bounds([need for need in needs if types[need] == "'build'"]),
        bounds([need for need in needs if "'run'" in types[need]]),
        set(needs),
        'env.set("SHARDCODEC_LIBS", "system")' in text,
    )


def easybuild() -> Recipe:
    (path,) = (PACKAGING / "easybuild").glob("*.eb")
    made: dict[str, Any] = {"SOURCE_TAR_GZ": "", "PYPI_SOURCE": "", "OS_PKG_OPENSSL_DEV": ""}
    exec(path.read_text(), made)
    assert path.stem.startswith(
        f"shardcodec-{made['version']}-{made['toolchain']['name']}-{made['toolchain']['version']}"
    )
    pairs = [*made["builddependencies"], *made["dependencies"]]
    return Recipe(
        made["version"],
        "",
        {},
        None,
        {name for name, *_ in pairs},
        "SHARDCODEC_LIBS=system" in made["preinstallopts"],
    )


def debian() -> Recipe:
    head = (PACKAGING / "debian/changelog").read_text().splitlines()[0]
    control = (PACKAGING / "debian/control").read_text()
    builds = re.search(r"^Build-Depends: (.*?)^\w", control, re.M | re.S)
    version = re.fullmatch(r"shardcodec \((.+)-\d+\) .*", head)
    licence = re.search(
        r"^Files: \*\nCopyright: .*\nLicense: (\w+)$", (PACKAGING / "debian/copyright").read_text(), re.M
    )
    assert builds and version and licence
    needs = [one.strip() for one in builds[1].split(",")]
    depends = re.search(r"^Depends: (.*?)^\w", control, re.M | re.S)
    assert depends is not None
    rules = (PACKAGING / "debian/rules").read_text()
    return Recipe(
        version[1],
        {"Expat": "MIT"}[licence[1]],
        bounds(needs),
        bounds([one.strip().replace("python3 ", "python ") for one in depends[1].split(",")]),
        set(needs),
        "export SHARDCODEC_LIBS = system" in rules,
    )


RECIPES = {"conda": conda, "spack": spack, "easybuild": easybuild, "debian": debian}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_agrees_with_the_project(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.version == PROJECT["version"]
    assert recipe.licence in ("MIT", ""), "the libraries of the system keep their own packages and licences"
    assert recipe.sets_system
    for library, names in LIBRARIES.items():
        assert names & recipe.names, f"{name} does not name {library}"
    page = (ROOT / "docs/packaging.md").read_text()
    documented = re.search(r"setuptools \(([\d.]+) or newer\) and Cython \(([\d.]+) or newer\)", page)
    assert documented is not None
    oldest = {"setuptools": documented[1], "cython": documented[2]}
    assert recipe.builds in (oldest, {})
    needs = {one.name: one.specifier for one in map(Requirement, PROJECT["dependencies"])}
    if recipe.runs is not None:
        wanted = {one: str(specifier).removeprefix(">=") for one, specifier in needs.items()}
        assert recipe.runs == wanted | {"python": PROJECT["requires-python"].removeprefix(">=")}


def test_pins_of_isolated_builds_are_not_older_than_the_documented_versions() -> None:
    pins = {
        one.name: str(one.specifier).removeprefix("==")
        for one in map(Requirement, PYPROJECT["build-system"]["requires"])
    }
    for name, oldest in conda().builds.items():
        assert Version(pins[name]) >= Version(oldest)


def test_recipes_name_the_libraries_that_the_build_looks_for() -> None:
    listed = re.search(r"^SYSTEM_LIBRARIES = \((.+)\)$", (ROOT / "setup.py").read_text(), re.M)
    assert listed is not None
    assert set(ast.literal_eval(f"({listed[1]})")) == set(LIBRARIES)


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"debian"}))
def test_recipe_that_was_not_run_says_so(name: str) -> None:
    """`make debian` builds Debian's."""
    (path,) = (path for path in (PACKAGING / name).iterdir() if path.is_file())
    assert "\n# NOT RUN: " in path.read_text()[:400]


# ---------------------------------------------------------------- the linked libraries


def from_setup(*names: str) -> dict[str, Any]:
    """Return functions and classes of setup.py, which cannot be imported."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name in names]
    made: dict[str, Any] = {"NamedTuple": NamedTuple, "re": re, "ROOT": ROOT}
    exec(compile(tree, "setup.py", "exec"), made)
    return made


SETUP = from_setup("Part", "linked_parts", "bill_of_materials")
# As build_info names them.
LINKED = {"Zstandard": "zstd", "LZ4": "lz4", "zlib-ng": "zlib-ng", "C-Blosc2": "blosc2"}


def test_notices_have_the_versions_of_the_linked_code() -> None:
    """A new pin of blosc2 brings new versions; scanners compare those of the bill of materials with their lists of faults."""
    if shardcodec.build_info()["build"]["libraries"] == "system":
        pytest.skip("this build links the libraries of the system")
    linked = {name: version for name, version in shardcodec.build_info()["libraries"].items() if version}
    parts = {part.name: part.version for part in SETUP["linked_parts"]()}
    assert {LINKED[name]: version for name, version in parts.items() if version} == linked
    assert [name for name, version in parts.items() if not version] == ["Bitshuffle", "FastLZ"]
    headings = re.findall(r"^-{80}$", (ROOT / "NOTICES").read_text(), re.M)
    assert len(parts) == len(headings), "a heading of NOTICES has another form"


def test_licence_expression_names_the_licences_of_the_linked_code() -> None:
    expression = PROJECT["license"].split(" AND ")
    assert expression[0] == "MIT"
    assert sorted(expression) == sorted({"MIT"} | {part.licence for part in SETUP["linked_parts"]()})
    assert importlib.metadata.metadata("shardcodec")["License-Expression"] == PROJECT["license"]


def test_wheel_has_the_bill_of_materials() -> None:
    """`make wheels` compares it with the schema of CycloneDX."""
    made = SETUP["bill_of_materials"](PROJECT["name"], PROJECT["version"], PROJECT["license"])
    purls = [part["purl"] for part in made["components"]]
    assert purls[0] == "pkg:github/blosc/c-blosc2@" + made["components"][0]["version"]
    assert made["dependencies"] == [{"ref": f"pkg:pypi/shardcodec@{PROJECT['version']}", "dependsOn": purls}]
    files = importlib.metadata.files("shardcodec") or []
    if not any(path.name == "NOTICES" and "licenses" in path.parts for path in files) or not any(
        path.suffix == ".so" for path in files
    ):
        pytest.skip("the package is imported from the checkout; no wheel is installed")
    in_wheel = [path for path in files if path.parent.name == "sboms"]
    if shardcodec.build_info()["build"]["libraries"] == "system":
        assert not in_wheel
        return
    assert [path.name for path in in_wheel] == ["shardcodec.cdx.json"]
    assert json.loads(in_wheel[0].read_text()) == made


# ---------------------------------------------------------------- the release


def workflow() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())
    return made


def test_release_workflow_pins_every_action_by_commit() -> None:
    text = (ROOT / ".github/workflows/wheels.yml").read_text()
    used = re.findall(r"uses: (.+)$", text, re.M)
    assert len(used) >= 8
    wrong = [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)]
    assert not wrong


def test_only_a_tag_is_published_and_with_attestations() -> None:
    jobs = workflow()["jobs"]
    publish = jobs["publish"]
    assert "refs/tags/v" in publish["if"] and publish["permissions"] == {"id-token": "write"}
    assert set(publish["needs"]) == set(jobs) - {"publish"}
    assert publish["steps"][-1]["with"]["attestations"] is True
    assert workflow()["permissions"] == {"contents": "read"}
    assert "secrets." not in (ROOT / ".github/workflows/wheels.yml").read_text()


def test_module_sets_no_variable_that_breaks_other_environments() -> None:
    """The module file once set ZARR_CODEC_PIPELINE__PATH; environments with zarr and no shardcodec then raised BadConfigError."""
    page = (ROOT / "docs/packaging.md").read_text()
    (module,) = re.findall(r"^```lua\n(.*?)^```", page, re.M | re.S)
    assert "ZARR_" not in module and "setenv" not in module and "PYTHONPATH" not in module
    assert "bin/shardcodec enable\n" in page

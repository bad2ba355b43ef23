# check_recipes.py - let the tools of conda and EasyBuild read the recipes in packaging/
# SPDX-License-Identifier: MIT
"""`make recipes` runs this program. The tools render and parse; to build, they would need the packages that they manage.

Spack is in no registry, so its recipe is only parsed, by tests/project/test_packages.py, which compares all recipes with
pyproject.toml. `make debian` builds the package for Debian.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
PYTHONS = ("3.11", "3.13")
PLATFORMS = ("linux-64", "linux-aarch64", "osx-arm64")


def conda() -> str:
    """Render the recipe for each platform and Python, as rattler-build does before it asks a channel."""
    from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

    recipe = Stage0Recipe.from_file(PACKAGING / "conda/recipe.yaml")
    compiler = {"c_compiler": ["gcc"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.17"]}
    variants = VariantConfig({"python": [f"{one}.*" for one in PYTHONS], **compiler})
    rendered = [
        one
        for platform in PLATFORMS
        for one in recipe.render(
            variants,
            RenderConfig(
                PlatformConfig(target_platform=platform, build_platform=platform, host_platform=platform)
            ),
        )
    ]
    if len(rendered) != len(PYTHONS) * len(PLATFORMS):
        raise SystemExit(f"conda: expected a package for {PYTHONS} on {PLATFORMS}, got {len(rendered)}")
    return f"conda: rattler-build renders {len(rendered)} packages"


def easybuild() -> str:
    """Parse the easyconfig, and find the easyconfig of each dependency in EasyBuild's own collection."""
    from easybuild.framework.easyconfig.parser import EasyConfigParser

    (path,) = (PACKAGING / "easybuild").glob("*.eb")
    config = EasyConfigParser(str(path)).get_config_dict()
    collection = Path(sys.prefix, "easybuild/easyconfigs")
    missing = [
        f"{name}-{version}"
        for name, version in (*config["builddependencies"], *config["dependencies"])
        if not any(collection.glob(f"{name[0].lower()}/{name}/{name}-{version}-*.eb"))
    ]
    if missing:
        raise SystemExit(f"EasyBuild: no easyconfig of {', '.join(missing)}")
    return f"EasyBuild: {path.name} parsed, its dependencies found"


def main() -> None:
    """Check all recipes; end with the first problem."""
    for check in (conda, easybuild):
        print(check(), flush=True)


if __name__ == "__main__":
    main()

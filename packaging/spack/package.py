# package.py - the package for Spack
# SPDX-License-Identifier: MIT
#
# NOT RUN: Spack is in no registry that can be reached where this project is developed. tests/project/test_packages.py parses this file
# and compares it with pyproject.toml.
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyShardcodec(PythonPackage):
    """Native engine for Zarr v3 shards: fast reads, partial writes, and files that survive a kill."""

    pypi = "shardcodec/shardcodec-0.1.0.tar.gz"

    license("MIT")

    # Placeholder: the first release sets the checksum of its sdist.
    version("0.1.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    variant("cli", default=True, description="Install what the command shardcodec needs")

    depends_on("c", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-cython@3.1:", type="build")

    depends_on("python@3.11:", type=("build", "link", "run"))
    depends_on("py-numpy@2.0:", type="run")
    depends_on("py-zarr@3.1.6:", type="run")
    depends_on("py-typer", type="run", when="+cli")

    depends_on("zstd", type=("build", "link"))
    depends_on("lz4", type=("build", "link"))
    depends_on("zlib-api", type=("build", "link"))

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        env.set("SHARDCODEC_LIBS", "system")
        env.set("SHARDCODEC_ENGINE", "1")

# test_import.py - what `import shardcodec` loads, and when the rest is loaded
# SPDX-License-Identifier: MIT
"""zarr imports the package in every process that opens an array, so the import loads little and other modules at their first use.

The import may take 30 ms more than zarr's. Times differ from run to run, so the tests look at modules; `scripts/import_time.py`
measures.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shardcodec
from shardcodec import public

pytestmark = pytest.mark.slow

PACKAGE = Path(shardcodec.__file__).parent

# zarr imports these in any case, or the pipeline needs them for its first array.
MAX_MODULES = 65

# Surfaces, tools, and what only some processes need: metadata of codecs, stores of requests, blocks of `group_writes`, codecs
# without native code.
LOADED_LATER = (
    "access.array_reader",
    "access.box_reader",
    "access.buffer.process_buffer",
    "access.read_remote",
    "access.shard",
    "access.staged",
    "cli",
    "drawing",
    "format.",
    "kv",
    "storage.object_store",
    "storage.zarr_store",
    "tools",
    "transformer",
    "zarr_plugin.chunk_state",
    "zarr_plugin.direct_access",
    "zarr_plugin.direct_methods",
)


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def loaded_by(code: str) -> set[str]:
    """Return the modules of the package that code loads, without the name of the package."""
    names = run(f"import sys, zarr; {code}; print(*(n for n in sys.modules if n.startswith('shardcodec.')))")
    return {name.removeprefix("shardcodec.") for name in names}


def test_import_alone_loads_no_layer_below() -> None:
    loaded = loaded_by("import shardcodec")
    assert loaded <= {"public", "build_info", "errors", "native", "options"}


@pytest.mark.parametrize("needs_codec", [False, True])
def test_enabling_loads_the_pipeline_and_little_else(needs_codec: bool) -> None:
    loaded = loaded_by("import shardcodec; shardcodec.enable()" + "; shardcodec.ShardingCodec" * needs_codec)
    assert "zarr_plugin.pipeline" in loaded
    assert not [n for n in loaded if n.startswith(LOADED_LATER)]
    assert len(loaded) <= MAX_MODULES


def test_reading_and_writing_files_loads_no_remote_and_no_staged_code(tmp_path: Path) -> None:
    use = f"import shardcodec; shardcodec.enable(); a = zarr.create_array({str(tmp_path)!r}, shape=(8,), chunks=(2,), shards=(4,), dtype='i4')"
    loaded = loaded_by(f"{use}; a[:] = 1; assert (a[1:7] == 1).all()")
    assert (
        not {"access.read_remote", "access.staged.read", "access.staged.write", "storage.object_store"}
        & loaded
    )


def test_lists_of_public_names_agree() -> None:
    """The names are listed for type checkers, for ``import *`` and for the import at the first use."""
    block = next(n for n in ast.parse(Path(public.__file__).read_text()).body if isinstance(n, ast.If))
    imports = [n for n in block.body if isinstance(n, ast.ImportFrom)]
    assert {alias.name: f".{n.module}" for n in imports for alias in n.names} == public.MODULES
    assert set(public.__all__) == set(public.MODULES) <= set(dir(shardcodec)) & set(shardcodec.__all__)
    assert all(getattr(shardcodec, name) is not None for name in shardcodec.__all__)
    assert len(set(shardcodec.__all__)) == len(shardcodec.__all__)


def test_no_name_is_replaced_by_a_module() -> None:
    """The import of a module stores the module in the package, under a name that a function may have."""
    modules = {path.stem for path in PACKAGE.iterdir()}
    code = "import shardcodec.tools, shardcodec.kv, shardcodec.transformer"
    for name in sorted(modules & set(public.__all__)):
        (kind,) = run(f"{code}; print(type(shardcodec.{name}).__name__)")
        assert kind == "function", name


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        shardcodec.no_such_name  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name"):
        from shardcodec import no_such_name  # noqa: F401


FIRST_USE = """
import sys, threading
import shardcodec
sys.setswitchinterval(1e-6)
names = [n for n in shardcodec.__all__ if n not in vars(shardcodec)]
found, start = [], threading.Barrier(8)
def use(offset):
    start.wait()
    found.append({n: getattr(shardcodec, n) for n in names[offset:] + names[:offset]})
threads = [threading.Thread(target=use, args=(3 * i,)) for i in range(8)]
for t in threads: t.start()
for t in threads: t.join()
assert len(found) == 8 and all(one[n] is found[0][n] for one in found for n in names)
"""


def test_first_use_from_several_threads() -> None:
    run(FIRST_USE)


SLOW = """
import sys, threading, time
class Slow:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "zarr.api":
            time.sleep(0.5)
sys.meta_path.insert(0, Slow)
import shardcodec
used = {}
def use(name):
    used[name] = getattr(shardcodec, name)
first = threading.Thread(target=use, args=("enable",))
first.start()
time.sleep(0.2)
use("ShardCodecPipeline")
first.join()
assert len(used) == 2 and "shardcodec.stand_in" not in sys.modules, used
"""


def test_first_uses_that_import_different_modules_of_zarr() -> None:
    """One thread had begun to import zarr, and another one zarr.abc.codec: each waited for the other, and one got an error."""
    run(SLOW)


FORKED = """
import os, pickle
import numpy as np, zarr, shardcodec
shardcodec.enable()
array = zarr.create_array({store!r}, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
data = pickle.dumps(array)
child = os.fork()
if not child:
    with shardcodec.group_writes():
        array[:] = np.arange(8)
    assert (pickle.loads(data)[1:7] == np.arange(1, 7)).all()
    assert (shardcodec.open_array({store!r})[2:5] == [2, 3, 4]).all()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert type(array.async_array.codec_pipeline) is shardcodec.ShardCodecPipeline
"""


def test_first_use_in_a_forked_child(tmp_path: Path) -> None:
    run(FORKED.format(store=str(tmp_path / "a.zarr")))

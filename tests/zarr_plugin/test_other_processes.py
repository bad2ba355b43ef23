# test_other_processes.py - processes that are started later use shardcodec too
# SPDX-License-Identifier: MIT
"""`enable` also reaches the processes that are started later, by environment variables, and gives the environment back.

zarr chooses the pipeline in the process that opens an array. So after `enable()` in the main program, four workers that wrote rows
of one shard lost 1,152 of 4,096 elements with `spawn` and 2,176 with `forkserver`, without a word.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import venv
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers import python_environment, run_checked, run_python

import shardcodec
from shardcodec.option_sources import RECORD

PIPELINE, ENABLED = "ZARR_CODEC_PIPELINE__PATH", "ZARR_SHARDCODEC__ENABLED"
THREADS, ORDER = "ZARR_SHARDCODEC__THREADS", "ZARR_SHARDCODEC__ORDER"
PATH = "shardcodec.ShardCodecPipeline"
OTHER = "zarr.core.codec_pipeline.BatchedCodecPipeline"

# A child that says what it has.
SHOW = """
import json, os, zarr
array = zarr.create_array({}, shape=(4,), chunks=(2,), dtype="u1")
names = [n for n in os.environ if n.startswith(("ZARR_", "SHARDCODEC_"))]
print(json.dumps([type(array.async_array.codec_pipeline).__name__, zarr.config.get("shardcodec", None), sorted(names)]))
"""


def variables() -> dict[str, str]:
    """Return the variables of zarr and of shardcodec."""
    return {name: value for name, value in os.environ.items() if name.startswith(("ZARR_", "SHARDCODEC_"))}


def linked_environment(folder: Path, *, without: str = "-") -> str:
    """Make an environment with what this one has installed, without the packages whose names begin so; return its Python."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Debian names folders that are not there
    for installed in filter(Path.is_dir, map(Path, importlib.import_module("site").getsitepackages())):
        for entry in installed.iterdir():
            if not entry.name.startswith(without) and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return str(folder / "bin" / "python")


def run_foreign(python: str, folder: Path, **environment: str) -> str:
    """Run a program that uses zarr alone, in another environment, where a warning is an error; return what it printed."""
    command = [python, "-I", "-W", "error", "-c", FOREIGN, str(folder / "a")]
    env = {**os.environ, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Begin without such variables, and check that none is left."""
    with pytest.MonkeyPatch.context() as patch:  # not that of the tests, some of which undo it
        for name in variables():
            patch.delenv(name)
        yield
        shardcodec.disable()
        assert variables() == {}


# ---- no way to start a process loses elements

WAYS = ("fork", "spawn", "forkserver", "executor", "subprocess", "mpiexec", "dask", "torch")
NEEDS = {"mpiexec": "mpi4py", "dask": "distributed", "torch": "torch"}


def written_by(
    way: str, folder: Path, *arguments: str, python: str = sys.executable, **environment: str
) -> tuple[set[str], int]:
    """Return the pipelines of the workers of `row_writers`, and the number of lost elements."""
    if way in NEEDS and importlib.util.find_spec(NEEDS[way]) is None:
        pytest.skip(f"{NEEDS[way]} is not installed")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if way == "mpiexec" and shutil.which("mpiexec", path=path) is None:
        pytest.skip("mpiexec is not installed")
    program = Path(__file__).parents[1] / "row_writers.py"
    command = [python, "-P", str(program), way, str(folder), *arguments]
    env = python_environment(PATH=path, **environment)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(result["pipelines"]) == 4
    return set(result["pipelines"]), result["lost"]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_no_element_is_lost_after_one_enable_in_the_main_program(tmp_path: Path, way: str) -> None:
    assert written_by(way, tmp_path, "enable") == ({"ShardCodecPipeline"}, 0)


ONE_WAY = [way if way == "spawn" else pytest.param(way, marks=pytest.mark.nightly) for way in WAYS]


@pytest.mark.slow
@pytest.mark.parametrize("way", ONE_WAY)
def test_no_element_is_lost_by_handles_that_write(tmp_path: Path, way: str) -> None:
    """With no call of `enable`, and nothing in the environment."""
    assert written_by(way, tmp_path, "handle") == ({"Array"}, 0)


@pytest.mark.slow
@pytest.mark.parametrize("way", ONE_WAY)
def test_no_element_is_lost_in_an_environment_where_shardcodec_is_enabled(tmp_path: Path, way: str) -> None:
    """With no call at all, after `shardcodec enable --for env`."""
    pytest.importorskip("typer")
    venv.create(tmp_path / "env", symlinks=True)
    python = str(tmp_path / "env" / "bin" / "python")
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [python, "-P", "-m", "shardcodec", "enable", "--for", "env", "threads=1"]
    env = python_environment(PYTHONPATH=paths)
    told = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert told.stdout == f"wrote {tmp_path}/env/etc/zarr/shardcodec.yaml\n", told.stderr
    result = written_by(way, tmp_path, python=python, PYTHONPATH=paths)
    assert result == ({"ShardCodecPipeline"}, 0)


# ---- the environment, and what it was before


def test_enable_sets_variables_and_disable_removes_them() -> None:
    shardcodec.enable(threads=2, order="lexicographic")
    told = {ENABLED: "True", THREADS: "2", ORDER: "lexicographic"}
    assert variables() == told | {RECORD: json.dumps(told, sort_keys=True)}
    shardcodec.disable()
    assert variables() == {}


def test_children_false_sets_none() -> None:
    with shardcodec.enable(children=False, threads=2):
        assert variables() == {}
        with shardcodec.enable():
            assert variables().keys() == {ENABLED, RECORD}
        assert variables() == {}
        assert zarr.config.get("codec_pipeline.path") == PATH


def test_blocks_that_end_in_any_order_restore_the_variables() -> None:
    first, second = shardcodec.enable(threads=1), shardcodec.enable(threads=2, order="lexicographic")
    assert os.environ[THREADS] == "2"
    second.__exit__(None, None, None)
    assert os.environ[THREADS] == "1" and ORDER not in os.environ
    third = shardcodec.enable(threads=3)
    first.__exit__(None, None, None)
    assert os.environ[THREADS] == "3"
    third.__exit__(None, None, None)
    assert variables() == {}


def test_variable_of_the_user_wins_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PIPELINE, OTHER)
    monkeypatch.setenv(THREADS, "7")
    with pytest.warns(RuntimeWarning) as said:
        shardcodec.enable(threads=2, order="lexicographic")
    # arrays that other tests have left open may be named, too
    texts = [str(one.message) for one in said if " in the environment stays" in str(one.message)]
    assert [text.split(" in the environment stays")[0] for text in texts] == [
        f"{PIPELINE}={OTHER}",
        f"{THREADS}=7",
    ]
    assert {one.filename for one in said} == {__file__}
    assert os.environ[PIPELINE] == OTHER and os.environ[THREADS] == "7"
    assert os.environ[ORDER] == "lexicographic"
    assert zarr.config.get("codec_pipeline.path") == PATH  # in this process the call wins
    shardcodec.disable()
    assert variables() == {PIPELINE: OTHER, THREADS: "7"}
    monkeypatch.undo()


def test_equal_variable_of_the_user_is_kept_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {PIPELINE: PATH, ENABLED: "yes"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*in the environment stays")
        with shardcodec.enable():
            assert variables() == told
    assert variables() == told
    monkeypatch.undo()


def test_warning_that_is_an_error_undoes_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``python -W error`` the call raised, and the pipeline and the variables stayed."""
    monkeypatch.setenv(THREADS, "7")
    config = zarr.config.get("codec_pipeline.path")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*in the environment stays")
        with pytest.raises(RuntimeWarning, match="in the environment stays"):
            shardcodec.enable(threads=2)
    assert variables() == {THREADS: "7"} and zarr.config.get("codec_pipeline.path") == config
    monkeypatch.undo()


def test_variable_that_the_user_changes_meanwhile_stays() -> None:
    call = shardcodec.enable(threads=2)
    os.environ[THREADS] = "5"
    call.__exit__(None, None, None)
    assert variables() == {THREADS: "5"}
    del os.environ[THREADS]


def test_child_has_the_options() -> None:
    with shardcodec.enable(threads=2, cache="2MiB", strict=False, cache_dir="/tmp/x"):
        done = run_checked(
            SHOW + "from shardcodec.option_sources import current_options; print(current_options())"
        )
    shown, options = done.stdout.splitlines()
    assert json.loads(shown)[0] == "ShardCodecPipeline"
    for text in ("threads=2", "cache=2097152", "strict=False", "cache_dir='/tmp/x'"):
        assert text in options


# ---- an environment with zarr and without shardcodec

# Another program, which uses zarr alone.
FOREIGN = """
import importlib.util, sys, zarr
assert importlib.util.find_spec("shardcodec") is None
for make in ({"shards": (4,)}, {}, {"zarr_format": 2}):
    array = zarr.create_array({}, shape=(8,), chunks=(2,), dtype="u1", **make)
    array[1:5] = 7
    assert array[...].tolist() == [0, 7, 7, 7, 7, 0, 0, 0]
zarr.create_group({}).create_array("a", shape=(), dtype="f4")
assert zarr.open_array(sys.argv[1], mode="r")[...].tolist() == [1, 2, 3]
print(zarr.config.get("codec_pipeline.path"), type(array.async_array.codec_pipeline).__name__)
"""


def test_environment_without_shardcodec_notices_nothing(tmp_path: Path) -> None:
    """`enable` set zarr's own variable: zarr without shardcodec raised BadConfigError (KeyError in 3.1) for every array.

    The files of `shardcodec enable` did so too: that of the user in each other environment, that of the environment after
    ``pip uninstall``.
    """
    pytest.importorskip("typer")
    zarr.create_array(tmp_path / "a", data=np.array([1, 2, 3], dtype="u1"))
    foreign = linked_environment(tmp_path / "foreign", without="shardcodec")
    python = linked_environment(tmp_path / "env")
    plain = run_foreign(foreign, tmp_path)
    with shardcodec.enable(threads=2, order="lexicographic"):
        assert run_foreign(foreign, tmp_path) == plain
    home = {"HOME": str(tmp_path)}
    env = python_environment(**home)
    for scope in ("env", "user"):
        command = [python, "-P", "-m", "shardcodec", "enable", "--for", scope, "threads=2"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done.stderr + done.stdout
        shown = subprocess.run(
            [python, "-P", "-c", SHOW], env=env, capture_output=True, text=True, check=True, timeout=60
        )
        assert json.loads(shown.stdout)[0] == "ShardCodecPipeline"
        assert run_foreign(foreign, tmp_path, **home) == plain
    for entry in (tmp_path / "env").glob("lib/python*/site-packages/shardcodec*"):
        entry.unlink()  # as pip uninstall does it
    assert run_foreign(python, tmp_path, **home) == plain


def test_array_is_sent_to_an_environment_without_shardcodec(tmp_path: Path) -> None:
    """As dask sends it to a worker. The pickled pipeline named a class of shardcodec: the worker ended, and the result never came."""
    zarr.create_array(tmp_path / "a", data=np.array([1, 2, 3], dtype="u1"))
    with shardcodec.enable(children=False):
        array = zarr.open_array(tmp_path / "a", mode="r")
    (tmp_path / "pickled").write_bytes(pickle.dumps(array))
    assert pickle.loads(pickle.dumps(array)) == array
    code = (
        "import pickle, sys; array = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(array[...].tolist(), type(array.async_array.codec_pipeline).__name__)"
    )
    said = []
    for python in (linked_environment(tmp_path / "foreign", without="shardcodec"), sys.executable):
        command = [python, "-I", "-W", "error", "-c", code, str(tmp_path / "pickled")]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=python_environment()
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split("] ")[1].strip())
        assert done.stdout.startswith("[1, 2, 3]")
    assert said[0] != "ShardCodecPipeline" == said[1]


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        ({ENABLED: "1"}, PATH),
        ({ENABLED: "false"}, None),
        ({ENABLED: "True", PIPELINE: OTHER}, OTHER),
        ({PIPELINE: OTHER, ENABLED: "yes"}, OTHER),
        ({PIPELINE: PATH, ENABLED: "no"}, PATH),
        ({"aa.yaml": f"codec_pipeline: {{path: {OTHER}}}", "bb.yaml": "shardcodec: {enabled: true}"}, PATH),
        ({"bb.yaml": "shardcodec: {enabled: true}", "cc.yaml": f"codec_pipeline: {{path: {OTHER}}}"}, OTHER),
        ({"bb.yaml": "shardcodec: {enabled: true}", "cc.yaml": "shardcodec: {enabled: false}"}, None),
        ({"bb.yaml": f"codec_pipeline: {{path: {OTHER}}}", ENABLED: "True"}, PATH),
        ({"bb.yaml": "shardcodec: {enabled: true}", PIPELINE: OTHER}, OTHER),
    ],
)
def test_last_of_the_sources_chooses_the_pipeline(
    tmp_path: Path, said: dict[str, str], chosen: str | None
) -> None:
    """Variables win over files. Of two variables, the one that names a pipeline wins."""
    names = {name: value for name, value in said.items() if not name.endswith(".yaml")}
    for name in said.keys() - names.keys():
        (tmp_path / name).write_text(said[name])
    code = SHOW + textwrap.dedent("""
        from shardcodec.option_sources import PIPELINE_KEY, selector_of_new_process, source_of
        print(source_of(PIPELINE_KEY), selector_of_new_process(), sep="|")
    """)
    done = run_checked(code, ZARR_CONFIG=str(tmp_path), **names)
    shown, sources = done.stdout.splitlines()
    source, selector = sources.split("|")
    assert (json.loads(shown)[0] == "ShardCodecPipeline") == (chosen == PATH)
    assert selector == (source if chosen == PATH else "None") and source != "a call in this process"
    assert (source == "default") == (chosen is None)


def test_flag_that_is_none_is_named() -> None:
    done = run_python(SHOW, **{ENABLED: "perhaps"})
    assert done.returncode == 1
    assert "zarr.config shardcodec:enabled: expected true or false, got 'perhaps'" in done.stderr


def test_call_in_a_child_that_names_another_pipeline_wins() -> None:
    code = """
        import zarr
        class Mine(zarr.abc.codec.CodecPipeline): pass
        Mine.__module__ = "mine"
        zarr.registry.register_pipeline(Mine)
        zarr.config.set({"codec_pipeline.path": "mine.Mine"})
        assert zarr.registry.get_pipeline_class() is Mine
        import shardcodec, warnings
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            shardcodec.open_arrays()
        assert "has replaced the pipeline of environment variable ZARR_SHARDCODEC__ENABLED" in str(said[0].message)
    """
    with shardcodec.enable():
        run_checked(code)


# ---- a child that calls enable and disable itself


def test_child_may_change_what_it_has_inherited() -> None:
    """Its own calls replace the variables of the parent for grandchildren, and give them back."""
    code = f"""
        import os, warnings
        import shardcodec
        warnings.simplefilter("error")
        inherited = {{n: v for n, v in os.environ.items() if n.startswith(("ZARR_", "SHARDCODEC_"))}}
        with shardcodec.enable(threads=3):
            assert os.environ["{THREADS}"] == "3" and os.environ["{ORDER}"] == "lexicographic"
        assert inherited == {{n: v for n, v in os.environ.items() if n.startswith(("ZARR_", "SHARDCODEC_"))}}
        assert len(inherited) == 4
    """
    with shardcodec.enable(threads=2, order="lexicographic"):
        run_checked(code)


@pytest.mark.parametrize("calls_enable", [False, True])
def test_disable_in_a_child_undoes_what_it_has_inherited(calls_enable: bool) -> None:
    """As in a forked child, which has the parent's calls."""
    code = (
        "import shardcodec, zarr\n"
        + "shardcodec.enable(threads=3, strict=True)\n" * calls_enable
        + "shardcodec.disable()\n"
        + SHOW
    )
    with shardcodec.enable(threads=2):
        shown = json.loads(run_checked(code).stdout)
    assert shown[0] != "ShardCodecPipeline" and shown[1:] == [None, []]


@pytest.mark.parametrize("before", ["", "zarr.create_array({}, shape=(1,), dtype='u1')"])
def test_disable_after_the_first_array_of_a_child(before: str) -> None:
    """The entry point that the first array loads selects the pipeline; once, not again."""
    code = f"import zarr\n{before}\nimport shardcodec\nshardcodec.disable()\n" + SHOW
    with shardcodec.enable():
        shown = json.loads(run_checked(code).stdout)
    assert shown[0] != "ShardCodecPipeline" and shown[1:] == [None, []]


def test_disable_in_a_child_keeps_the_variables_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "5")
    with shardcodec.enable():
        shown = json.loads(run_checked("import shardcodec\nshardcodec.disable()\n" + SHOW).stdout)
    assert shown[0] != "ShardCodecPipeline" and shown[1:] == [{"threads": 5}, [THREADS]]
    monkeypatch.undo()


def test_record_that_is_no_record_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "x", "[1]", '{"HOME": 3}', '{"A": null}'):
        monkeypatch.setenv(RECORD, text)
        run_checked("import shardcodec; shardcodec.enable(); shardcodec.disable()")
    monkeypatch.undo()


# ---- threads and forks


def test_variables_are_never_absent_while_another_call_begins_or_ends() -> None:
    """A thread may start a process at any moment."""
    code = f"""
        import os, sys, threading
        import shardcodec
        sys.setswitchinterval(1e-6)
        shardcodec.enable(threads=1)
        stop, absent = threading.Event(), []
        def look():
            while not stop.is_set():
                if os.environ.get("{ENABLED}") != "True" or os.environ.get("{THREADS}") not in ("1", "2"):
                    absent.append(1)
        def call():
            for _ in range(200):
                with shardcodec.enable(threads=2):
                    pass
        looking = threading.Thread(target=look)
        looking.start()
        calling = [threading.Thread(target=call) for _ in range(3)]
        for t in calling: t.start()
        for t in calling: t.join()
        stop.set()
        looking.join()
        assert not absent
        for _ in range(20):
            if not (child := os.fork()):
                with shardcodec.enable(threads=4):
                    os._exit(os.environ["{THREADS}"] != "4")
            assert os.waitpid(child, 0)[1] == 0
        shardcodec.disable()
        assert not [n for n in os.environ if n.startswith("ZARR_")]
    """
    run_checked(code)


# ---- a forkserver that runs already

FORKSERVER = """
import multiprocessing, os, sys, warnings

def work():
    pass

if __name__ == "__main__":
    import shardcodec

    context = multiprocessing.get_context("forkserver")
    if sys.argv[1] == "after":
        shardcodec.enable()
    process = context.Process(target=work)
    process.start()
    process.join()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        shardcodec.enable()
    print(*[f"{os.path.basename(one.filename)}: {one.message}" for one in said], sep="\\n")
"""


@pytest.mark.parametrize("is_started", ["before", "after"])
def test_forkserver_that_runs_already_is_reported(tmp_path: Path, is_started: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(FORKSERVER))
    command = [sys.executable, "-P", str(program), is_started]
    done = subprocess.run(
        command, env=python_environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    if is_started == "before":
        assert done.stdout.startswith("program.py: the forkserver of multiprocessing (process ")
    else:
        assert done.stdout == "\n"

# test_command.py - the command `shardcodec`: output, exit codes, signals
# SPDX-License-Identifier: MIT
"""Reports go to standard output, everything else to standard error; exit codes tell programs what happened."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import typer
import zarr
from helpers import create, letters, letters_spec, python_environment, shard_path
from servers.http_objects import serving

import shardcodec
from shardcodec.__main__ import main
from shardcodec.cli import COMMANDS
from shardcodec.cli.app import app, run
from shardcodec.cli.early_stop import EarlyStop
from shardcodec.cli.exit_code import ExitCode
from shardcodec.cli.progress import ProgressKind
from shardcodec.cli.run_command import run_command
from shardcodec.cli.stop_requests import StopRequests
from shardcodec.tools.monitor import Monitor, Stopped

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def array(tmp_path: Path) -> Any:
    array = create(tmp_path / "a.zarr")
    array[...] = 1
    return array


def command(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "shardcodec", *arguments],
        env=python_environment(),
        capture_output=True,
        text=True,
        check=False,
        **how,
    )


def test_text_for_readers(array: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(array.store.root)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = dict(line.strip().split(maxsplit=1) for line in out.splitlines()[1:])
    assert lines["array"] == "16 x 24 int32, fill value -1"
    assert lines["shards"].startswith("4 of 4, ")
    assert lines["order"] == "morton (4 shards)"


def test_findings_have_exit_code_1(array: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shard_path(array).write_bytes(b"torn")
    assert run(["inspect", str(array.store.root)]) == 1
    out = capsys.readouterr().out
    assert str(shard_path(array)) in out and "1 shard\n" in out
    assert run(["verify", str(array.store.root)]) == 1
    assert "\n1 finding\n" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "text"), [
    (["inspect"], "PATH"),
    (["inspect", "{}", "--no-such-option"], "--no-such-option"),
    (["inspect", "{}", "--memory", "much"], "expected a size such as 512MiB"),
    (["inspect", "{}", "--threads", "0"], "--threads"),
    (["inspect", "{}", "--json", "--jsonl"], "expected one of --json and --jsonl"),
    (["inspect", "{}", "--progress", "loud"], "--progress"),
    (["inspect", "{}", "--storage-option", "region"], "expected NAME=VALUE"),
    (["inspect", "{}", "--storage-option", "region=x"], "expected them only with a URL"),
    (["inspect", "{}", "--only", "b"], "is an array or a shard"),
    (["no-such-command"], "no-such-command"),
])  # fmt: skip
def test_wrong_use_has_exit_code_2(
    array: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert run([one.format(array.store.root) for one in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and text in " ".join(err.split())


def test_missing_path_has_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(tmp_path / "none")]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("shardcodec: ") and "expected a zarr group" in err


def test_shard_with_the_metadata_of_its_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shard").write_bytes(letters())
    (tmp_path / "zarr.metadata").write_text(json.dumps(letters_spec().to_metadata((8, 8))))
    arguments = ["inspect", str(tmp_path / "shard"), "--metadata", str(tmp_path / "zarr.metadata"), "--json"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["arrays"][0]["stored"]["n_chunks"] == 4


def test_plain_progress_is_on_standard_error(
    array: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardcodec.cli.progress.PAUSE", 0.0)
    assert run(["inspect", str(array.store.root), "--progress", "plain"]) == 0
    assert re.search(r"4 of 4 shards", capsys.readouterr().err)


def test_program_and_module_run_the_same_command(array: Any) -> None:
    done = command("inspect", str(array.store.root))
    assert done.returncode == 0, done.stderr
    assert "4 of 4" in done.stdout


@pytest.fixture
def without_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shardcodec, "cli", sys.modules["shardcodec.cli"])  # main imports another module
    for name in [name for name in sys.modules if name.startswith("shardcodec.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)


@pytest.mark.usefixtures("without_typer")
@pytest.mark.parametrize(("argument", "status"), [("inspect", 3), ("--help", 0)])
def test_without_typer_the_way_to_install_it_is_told(
    argument: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["shardcodec", argument])
    assert main() == status
    out, err = capsys.readouterr()
    assert err == "shardcodec: its commands need typer (extra cli); install it with: pip install typer\n"
    assert ("--json" in out) == ("--version" in out) == (status == 0)
    assert (f"Commands: {', '.join(COMMANDS)}\n" in out) == (status == 0)


@pytest.mark.usefixtures("without_typer")
def test_version_needs_no_typer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["shardcodec", "--version"])
    assert main() == 0
    assert capsys.readouterr() == (f"shardcodec {shardcodec.__version__}\n", "")


def test_version_is_printed_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    told = f"shardcodec {shardcodec.__version__}\n"
    assert run(["--version"]) == 0
    assert capsys.readouterr() == (told, "")
    done = command("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")
    assert run(["--help"]) == 0
    assert re.search(r"^ +--version ", capsys.readouterr().out, re.MULTILINE)


COMPLETIONS = """
set -eu
eval "$(_SHARDCODEC_COMPLETE=source_bash shardcodec)"
complete -p shardcodec > /dev/null
for line; do
    mapfile -t -d '|' words < <(printf '%s|' "$line")
    COMP_WORDS=(shardcodec "${words[@]}") COMP_CWORD=${#words[@]}
    _shardcodec_completion shardcodec
    echo "${COMPREPLY[@]}"
done
"""


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    """The shell starts the program without arguments; without a command the program prints the installation."""
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    program = tmp_path / "shardcodec"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m shardcodec "$@"\n')
    program.chmod(0o755)
    env = python_environment()
    expected = {
        "": COMMANDS,
        "r": ("repair", "run-part"),
        "inspect|--progress|": tuple(ProgressKind),
        "--vers": ("--version",),
    }
    done = subprocess.run(
        [bash, "-c", COMPLETIONS, "bash", *expected],
        env={**env, "PATH": f"{tmp_path}{os.pathsep}{env['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [tuple(line.split()) for line in done.stdout.splitlines()] == list(expected.values())


def test_reader_that_ends_early_is_not_an_error_of_the_interpreter(array: Any) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "shardcodec", "inspect", str(array.store.root)],
            env=python_environment(), stdout=write_end, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(write_end)
    assert done.returncode == 3 and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_error_of_an_object_store_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    with serving() as objects:
        url = objects.url
    assert run(["inspect", f"{url}/a.zarr", "--storage-option", 'retry_config={"max_retries": 0}']) == 3
    err = capsys.readouterr().err
    assert err.startswith("shardcodec: ") and "Traceback" not in err


def test_unexpected_error_is_not_taken_for_findings(capsys: pytest.CaptureFixture[str]) -> None:
    def work(monitor: Monitor) -> ExitCode:
        raise RuntimeError("a fault in the program")

    with pytest.raises(typer.Exit) as end:
        run_command(work, ProgressKind.NONE)
    assert end.value.exit_code == 3
    assert "Traceback" in capsys.readouterr().err


def child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)],
        env=python_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_stops_after_the_current_shard(number: int) -> None:
    done = child(f"""
        import os
        import sys
        import typer
        from shardcodec.cli.progress import ProgressKind
        from shardcodec.cli.run_command import run_command

        def work(monitor):
            os.kill(os.getpid(), {int(number)})
            print("the shard is finished")
            while True:
                monitor.check()

        try:
            run_command(work, ProgressKind.NONE)
        except typer.Exit as end:
            sys.exit(end.exit_code)
    """)
    assert done.returncode == 130, done.stderr
    assert done.stdout == "the shard is finished\n"
    assert "stopping after the current shard" in done.stderr


@pytest.mark.parametrize(
    ("name", "more"),
    [("compact", ["--order", "lexicographic"]), ("repair", ["--dry-run"])],
)
def test_report_of_a_stopped_command(
    array: Any,
    name: str,
    more: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(monitor: Any, n: int = 1) -> None:
        raise Stopped

    monkeypatch.setattr(Monitor, "advance", stop)
    assert run([name, str(array.store.root), *more, "--json", "--progress", "none"]) == 130
    found = json.loads(capsys.readouterr().out)
    assert (found["n_shards"], found["is_complete"]) == (1, False)


@pytest.mark.parametrize("name", ["compact", "repair"])
def test_array_that_cannot_be_read_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = zarr.create_group(tmp_path / "g.zarr", zarr_format=3)
    group.create_array("plain", shape=(4,), chunks=(2,), dtype="u1")
    path, new = str(tmp_path / "g.zarr"), str(tmp_path / "new.zarr")
    assert run([name, path, "--dry-run"]) == 0
    # repair works on chunks without shards, too
    assert ("plain: skipped: it is not sharded" in capsys.readouterr().out) == (name == "compact")
    (tmp_path / "g.zarr/x").mkdir()
    (tmp_path / "g.zarr/x/zarr.json").write_text("{bad")
    assert run([name, path, "--dry-run"]) == 1
    assert "x: unreadable, skipped: " in capsys.readouterr().out
    assert run([name, path, "--to", new, "--json"]) == 1
    left = {one["name"]: one for one in json.loads(capsys.readouterr().out)["left_arrays"]}
    assert left["x"]["is_unreadable"] and left["x"]["problem"]
    assert name == "repair" or not left["plain"]["is_unreadable"]
    assert (tmp_path / "new.zarr/x/zarr.json").read_text() == "{bad"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [["run-part", "job.json", "0"], ["inspect", "a.zarr"], ["--json"]])
def test_signal_while_the_command_starts_ends_it(number: int, arguments: list[str]) -> None:
    done = child(f"""
        import os
        import sys
        from shardcodec.__main__ import main

        class Signal:
            def find_spec(self, name, path=None, target=None):
                if name == "zarr":
                    os.kill(os.getpid(), {int(number)})

        assert "zarr" not in sys.modules
        sys.meta_path.insert(0, Signal())
        sys.argv = ["shardcodec", *{arguments!r}]
        sys.exit(main())
    """)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_second_signal_ends_the_process_at_once() -> None:
    done = child("""
        import os
        import signal
        import time
        from shardcodec.cli.stop_requests import StopRequests

        with StopRequests() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            while not stop.requested:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                time.sleep(1)
    """)
    assert done.returncode == 130, done.stderr


def test_handlers_are_restored_after_a_command(array: Any) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert run(["inspect", str(array.store.root), "--json"]) == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    old = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(old)
    assert old == -1


@pytest.mark.parametrize("block", [EarlyStop, StopRequests])
def test_ignored_signal_stays_ignored(block: Any) -> None:
    """Shells start background jobs with SIGINT ignored; Ctrl-C is then for the program in the foreground."""
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with block():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, old)


def test_no_signal_is_no_request() -> None:
    with StopRequests() as stop:
        assert not stop.requested
    assert not stop.requested


def commands_in_pages() -> list[str]:
    lines = (
        line
        for page in (ROOT / "docs").rglob("*.md")
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    )
    return sorted({line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?shardcodec ", line)})


def test_pages_have_commands() -> None:
    assert len(commands_in_pages()) > 10


@pytest.mark.parametrize("line", commands_in_pages())
def test_command_in_a_page_has_valid_arguments(line: str) -> None:
    """The command is parsed, not run: its paths and its scheduler do not exist."""
    name, *arguments = shlex.split(line, comments=True)[1:]
    group: Any = typer.main.get_command(app)
    assert group.commands[name].make_context(name, arguments).params


def test_list_of_commands_is_that_of_the_program() -> None:
    assert [one.name for one in app.registered_commands if not one.hidden] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_example_of_the_help_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The examples use `images.zarr`, a group with the array `level0`."""
    assert run([name, "--help"]) == 0
    text = capsys.readouterr().out
    examples = re.findall(r"^ +shardcodec (.*)$", text, re.MULTILINE)
    assert examples, f"the help of {name} has no example"
    import zarr

    monkeypatch.chdir(tmp_path)
    group = zarr.create_group("images.zarr")
    create(group.store, name="level0")[...] = 1
    if name in ("run-part", "status"):
        assert run(["plan", "images.zarr", "new.zarr", "plan.json"]) == 0
    if name == "status":
        assert run(["run-part", "plan.json", "0"]) == 0
    for example in examples:
        assert example.split()[0] == name
        assert run(example.split()) == 0, example
        assert capsys.readouterr().out

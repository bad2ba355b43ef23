# test_enable.py - the commands `shardcodec enable` and `shardcodec disable`
# SPDX-License-Identifier: MIT
"""One file in a folder of zarr's configuration lets every program use shardcodec. No other file is ever changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import zarr
from helpers import run_python

import shardcodec
from shardcodec.cli import enable as module
from shardcodec.cli.app import run
from shardcodec.option_sources import source_of

PIPELINE = "shardcodec.ShardCodecPipeline"
OPTIONS = ["threads=3", "locking=cluster", "cache=2MiB", "strict=no"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder for zarr's configuration, in another home; it does not exist yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".config" / "zarr"
    monkeypatch.setattr(zarr.config, "paths", [str(tmp_path / "etc"), str(folder)])
    for name in os.environ:
        if name.startswith("ZARR_"):
            monkeypatch.delenv(name)
    return folder


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_file_gives_pipeline_and_options_to_a_new_process(folder: Path) -> None:
    assert run(["enable", "--for", "user", *OPTIONS]) == 0
    code = """
        import json, zarr
        from shardcodec.__main__ import describe
        array = zarr.create_array({}, shape=(4,), chunks=(2,), dtype="u1")
        print(json.dumps([type(array.async_array.codec_pipeline).__name__, describe()]))
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    pipeline, facts = json.loads(done.stdout)
    source = f"file {folder}/shardcodec.yaml"
    assert (pipeline, facts["pipeline_source"]) == ("ShardCodecPipeline", source)
    options = facts["options"]
    assert [options[choice.split("=")[0]]["value"] for choice in OPTIONS] == [3, "cluster", 2 << 20, False]
    assert {options[choice.split("=")[0]]["source"] for choice in OPTIONS} == {source}
    assert options["order"]["source"] == "default"


def test_both_commands_are_idempotent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "shardcodec.yaml"
    assert run(["enable", "--for", "user", "threads=3"]) == 0
    assert lines(capsys)[0] == f"wrote {file}"
    first = file.stat()
    assert run(["enable", "--for", "user", "threads=3"]) == 0
    assert lines(capsys)[0] == f"{file} is there already" and file.stat() == first
    assert run(["enable", "--for", "user", "order=lexicographic"]) == 0
    assert lines(capsys)[0] == f"replaced {file}"
    assert "threads" not in file.read_text() and os.listdir(folder) == ["shardcodec.yaml"]
    assert run(["disable", "--for", "user"]) == 0 == run(["disable", "--for", "user"])
    assert lines(capsys) == [f"removed {file}", f"{file} is not there"]
    assert os.listdir(folder) == []


def test_dry_run_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "shardcodec.yaml"
    assert run(["enable", "--for", "user", "threads=3", "--dry-run"]) == 0
    assert lines(capsys)[0] == f"would write {file}:" and not folder.exists()
    run(["enable", "--for", "user"])
    before = file.read_bytes()
    capsys.readouterr()
    assert (
        run(["enable", "--for", "user", "threads=3", "--dry-run"])
        == 0
        == run(["disable", "--for", "user", "--dry-run"])
    )
    told = lines(capsys)
    assert told[0] == f"would replace {file}:" and told[-1] == f"would remove {file}"
    assert file.read_bytes() == before


FOREIGN = [b"", b"[", b"\xff", b"codec_pipeline:\n  path: x\n", b"added by hand"]


@pytest.mark.parametrize("text", FOREIGN)
@pytest.mark.parametrize("command", [["enable"], ["disable"], ["enable", "--dry-run"]])
def test_foreign_file_is_named_and_stays(
    folder: Path, capsys: pytest.CaptureFixture[str], text: bytes, command: list[str]
) -> None:
    file = folder / "shardcodec.yaml"
    if text == b"added by hand":
        assert run(["enable", "--for", "user", "threads=3"]) == 0
        text = file.read_bytes() + b"array:\n  order: F\n"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text)
    assert run([*command, "--for", "user"]) == 3
    assert str(file) in capsys.readouterr().err
    assert file.read_bytes() == text


def test_folder_that_cannot_be_written_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.parent.mkdir()
    folder.touch()  # a file in place of the folder; root may write everywhere
    assert run(["enable", "--for", "user"]) == 3
    assert str(folder) in capsys.readouterr().err


def test_folder_that_zarr_does_not_read_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["enable", "--for", "system"]) == 3
    assert "zarr reads its configuration only from" in capsys.readouterr().err


def test_malformed_file_beside_it_is_named(folder: Path) -> None:
    """zarr cannot be imported then; the command once ended in a traceback."""
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("[")
    for command in ("enable", "disable", ""):
        code = f"import sys; sys.argv[1:] = {command.split()!r}; from shardcodec.__main__ import main; sys.exit(main())"
        done = run_python(code)
        assert done.returncode in (1, 3) and "Traceback" not in done.stderr
        assert str(folder / "mine.yaml") in done.stderr


@pytest.mark.parametrize(
    "arguments", [["threads"], ["threads=0"], ["colour=red"], ["--for", "all"], ["--user"]]
)
def test_invalid_arguments_write_nothing(folder: Path, arguments: list[str]) -> None:
    assert run(["enable", "--for", "user", *arguments]) == 2
    assert not folder.exists()


def test_setting_that_wins_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    (folder / "zz.yaml").write_text("codec_pipeline:\n  path: other.Pipeline\n")
    run(["enable", "--for", "user"])
    assert f"which wins: file {folder}/zz.yaml" in lines(capsys)[1]
    monkeypatch.setenv("ZARR_CODEC_PIPELINE__PATH", "another.Pipeline")
    run(["enable", "--for", "user"])
    assert "which wins: environment variable ZARR_CODEC_PIPELINE__PATH" in lines(capsys)[1]


def test_environment_in_which_zarr_does_not_find_the_package_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every array would be an error there."""
    monkeypatch.setattr(module, "entry_points", lambda group: [])
    assert run(["enable", "--for", "user"]) == 3
    assert "does not find shardcodec" in capsys.readouterr().err and not folder.exists()


def test_source_of_a_setting_is_the_call_that_came_last(folder: Path) -> None:
    key = "codec_pipeline.path"
    assert source_of(key) == "default"
    with shardcodec.enable():
        assert source_of(key).startswith("environment variable ZARR_SHARDCODEC__ENABLED, by enable()")
    with shardcodec.enable(children=False):
        assert source_of(key) == "a call in this process"
    assert source_of("codec-pipeline.path") == "default"

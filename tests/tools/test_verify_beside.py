# test_verify_beside.py - verify documents and objects that belong to no array; manifests with hashes
# SPDX-License-Identifier: MIT
"""The exit code of `verify` is 0 only if all that is stored was checked.

A coordinate's attributes that were not JSON, consolidated metadata of an older state, and a truncated table were not noticed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import bytes_of_files, checked, quiet
from servers.http_objects import serving
from tool_sources import edit

from shardcodec.access.opened_shard import NativeShard
from shardcodec.cli.app import run
from shardcodec.tools import verify
from shardcodec.tools.verify import beside_arrays
from shardcodec.tools.verify.hashed_object import HashedObject


def hierarchy(path: Path, zarr_format: Any = 3, *, consolidated: bool = True) -> None:
    with quiet():
        group = zarr.create_group(path, zarr_format=zarr_format, attributes={"title": "t"})
        sub = group.create_group("sub", attributes={"x": [1, 2]})
        for parent, name in ((group, "plain"), (sub, "b")):
            how: dict[str, Any] = {"fill_value": np.nan, "attributes": {"units": "m"}}
            parent.create_array(name, shape=(9, 5), chunks=(4, 4), dtype="f8", **how)[...] = 1
        if consolidated:
            zarr.consolidate_metadata(path, zarr_format=zarr_format)


def kinds(path: Path, **how: Any) -> dict[str, int]:
    return dict(verify(path, **how).kinds)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_whole_hierarchy_is_checked_completely(zarr_format: int, tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr", zarr_format)
    report = verify(tmp_path / "g.zarr")
    assert (report.kinds, report.n_unchecked) == ({}, 0)
    assert report.n_documents == (9 if zarr_format == 2 else 4)
    assert run(["verify", str(tmp_path / "g.zarr")]) == 0


@pytest.mark.parametrize(("zarr_format", "name"), [
    (2, ".zattrs"), (2, "plain/.zattrs"), (2, "sub/.zattrs"), (2, "sub/.zgroup"), (2, ".zmetadata"), (3, "sub/zarr.json"),
])  # fmt: skip
def test_document_that_is_not_json_is_found(zarr_format: int, name: str, tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr", zarr_format)
    file = tmp_path / "g.zarr" / name
    file.write_bytes(file.read_bytes()[:-3])
    report = verify(tmp_path / "g.zarr")
    assert report.kinds["unreadable"] == 1
    node = str(file.parent) if name.endswith(("zarr.json", ".zgroup")) else str(file)
    assert [one.shard for one in report.shards if one.findings[0].kind == "unreadable"] == [node]


@pytest.mark.parametrize(("name", "members"), [
    ("sub/zarr.json", {"attributes": 5}), ("plain/zarr.json", {"attributes": [1]}),
])  # fmt: skip
def test_document_with_wrong_members_is_found(name: str, members: dict[str, Any], tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr", consolidated=False)
    edit(tmp_path / "g.zarr" / name, **members)
    assert kinds(tmp_path / "g.zarr") == {"unreadable": 1}


def test_command_that_consolidates_runs_in_a_shell(tmp_path: Path) -> None:
    """Its quotes were those of the shell and of Python at once: `NameError: name 'g' is not defined`."""
    folder = tmp_path / "it's mine.zarr"
    hierarchy(folder)
    with quiet():
        zarr.open_group(folder, mode="r+", use_consolidated=False)["plain"].attrs["units"] = "km"
    command = str(verify(folder)).partition("consolidate the metadata: `python ")[2].partition("`")[0]
    subprocess.run(f"{shlex.quote(sys.executable)} {command}", shell=True, check=True)
    assert verify(folder).kinds == {}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("what", ["attributes", "new array", "removed array"])
def test_consolidated_metadata_of_an_older_state_are_found(
    what: str, zarr_format: Any, tmp_path: Path
) -> None:
    hierarchy(tmp_path / "g.zarr", zarr_format)
    with quiet():
        group = zarr.open_group(tmp_path / "g.zarr", mode="r+", use_consolidated=False)
        if what == "attributes":
            group["plain"].attrs["units"] = "km"
        elif what == "new array":
            group.create_array("new", shape=(2,), chunks=(2,), dtype="i4")
        else:
            shutil.rmtree(tmp_path / "g.zarr/plain")
    report = verify(tmp_path / "g.zarr")
    assert report.kinds == {"stale metadata": 1} and "consolidate" in str(report)
    detail = report.shards[0].findings[0].detail
    assert {
        "attributes": "has other content",
        "new array": "is not in it",
        "removed array": "does not exist",
    }[what] in detail
    with quiet():
        zarr.consolidate_metadata(tmp_path / "g.zarr", zarr_format=zarr_format)
    assert kinds(tmp_path / "g.zarr") == {}


def test_other_spelling_of_equal_metadata_is_equal(tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr")
    file = tmp_path / "g.zarr/zarr.json"
    document = json.loads(file.read_text())
    plain = document["consolidated_metadata"]["metadata"]["plain"]
    plain["chunk_key_encoding"] = {"name": "default"}
    plain.pop("storage_transformers", None)
    file.write_text(json.dumps(document))
    assert kinds(tmp_path / "g.zarr") == {}


def test_other_objects_are_compared_with_a_manifest_or_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hierarchy(tmp_path / "g.zarr")
    table = tmp_path / "g.zarr/sub/table.parquet"
    table.write_bytes(b"PAR1" * 1000)
    report = verify(tmp_path / "g.zarr")
    assert [part.name for part in report.unchecked] == ["sub/table.parquet"] and report.n_findings == 0
    assert run(["verify", str(tmp_path / "g.zarr")]) == 5
    text = capsys.readouterr().out
    assert "not checked: sub/table.parquet" in text and "--manifest" in text
    assert run(["verify", str(tmp_path / "g.zarr"), "--exclude", "@objects"]) == 0
    for name in ("m", "m.sha256"):
        manifest = str(tmp_path / name)
        verify(tmp_path / "g.zarr", manifest=manifest)
        again = verify(tmp_path / "g.zarr", since=manifest)
        assert (again.n_findings, again.n_unchecked, again.n_other_objects) == (0, 0, 1)
        table.write_bytes(b"PAR1" * 999)
        assert kinds(tmp_path / "g.zarr", since=manifest) == {"different": 1}
        table.unlink()
        assert kinds(tmp_path / "g.zarr", since=manifest) == {"missing object": 1}
        assert verify(tmp_path / "g.zarr", since=manifest, exclude="@objects").n_findings == 0
        table.write_bytes(b"PAR1" * 1000)


def test_objects_of_the_other_hierarchy_are_checked(tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr")
    (tmp_path / "g.zarr/notes").write_text("n")
    shutil.copytree(tmp_path / "g.zarr", tmp_path / "h.zarr")
    report = verify(tmp_path / "g.zarr", against=tmp_path / "h.zarr")
    assert (report.n_findings, report.n_unchecked, report.n_other_objects) == (0, 0, 1)


def test_store_that_cannot_list(tmp_path: Path) -> None:
    """Nodes are those of the consolidated metadata, whose documents are compared; other objects are not known."""
    hierarchy(tmp_path / "g.zarr")
    with serving() as objects:
        objects.blobs |= {f"/{name}": data for name, data in bytes_of_files(tmp_path).items()}
        url = f"{objects.url}/g.zarr"
        report = verify(url)
        assert (report.kinds, report.n_unchecked, report.n_documents) == ({}, 1, 4)
        assert "cannot list" in report.unchecked[0].reason
        assert verify(url, exclude="@objects").n_unchecked == 0
        objects.blobs["/g.zarr/plain/c/0/1"] = objects.blobs["/g.zarr/plain/c/0/1"][:9]
        document = json.loads(objects.blobs["/g.zarr/sub/zarr.json"])
        objects.blobs["/g.zarr/sub/zarr.json"] = json.dumps(document | {"attributes": {"x": 3}}).encode()
        assert verify(url).kinds == {"decode error": 1, "stale metadata": 1}
        del objects.blobs["/g.zarr/sub/b/zarr.json"]
        report = verify(url)
        assert report.kinds == {"decode error": 1, "stale metadata": 1, "unreadable": 1}
        assert "consolidate the metadata" not in str(report)  # they have the last copy of the document


STRANGE = ("plain text", "new\nline", "back\\slash", "carriage\rreturn", " leading", "ü", "*star")


def sha256sum(folder: Path, manifest: Path) -> subprocess.CompletedProcess[bytes]:
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not installed")
    return subprocess.run(
        ["sha256sum", "-c", "--strict", str(manifest)], cwd=folder, capture_output=True, check=False
    )


def files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


@pytest.mark.parametrize("level", ["index", "checksum", "decode"])
def test_sha256sum_takes_the_manifest(level: Any, tmp_path: Path) -> None:
    folder, manifest = tmp_path / "g.zarr", tmp_path / "m.sha256"
    hierarchy(folder, consolidated=False)
    checked(folder, name="shards")[...] = np.arange(384).reshape(16, 24)
    for name in STRANGE:
        (folder / name).write_text(name)
    with open(os.fsencode(folder) + b"/not utf-8 \xff", "wb") as file:
        file.write(b"1")
    assert verify(folder, level=level, manifest=manifest).n_findings == 0
    done = sha256sum(folder, manifest)
    assert done.returncode == 0, done
    assert len(manifest.read_bytes().splitlines()) >= files(folder)
    report = verify(folder, level=level, since=manifest)
    assert (report.kinds, report.n_unchecked) == ({}, 0)
    file = folder / "shards/c/0/0"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert sha256sum(folder, manifest).returncode == 1
    assert kinds(folder, level=level, since=manifest)["different"] == 1
    file.unlink()
    assert kinds(folder, level=level, since=manifest) == {"missing shard": 1}


@pytest.mark.parametrize("start", ["", "./"])
def test_lines_of_sha256sum_itself_are_taken(start: str, tmp_path: Path) -> None:
    """Names of `find . -type f`, with `./`, were those of another target."""
    folder, manifest = tmp_path / "g.zarr", tmp_path / "m.sha256"
    hierarchy(folder)
    (folder / "new\nline").write_text("1")
    names = [f"{start}{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file()]
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not installed")
    manifest.write_bytes(
        subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, check=True).stdout
    )
    report = verify(folder, since=manifest)
    assert (report.kinds, report.n_unchecked) == ({}, 0)


def test_changed_new_and_missing_objects_are_named(tmp_path: Path) -> None:
    """A new chunk, and a new document, were not named: their own checks found nothing, and no line was compared."""
    folder, manifest = tmp_path / "g.zarr", tmp_path / "m.sha256"
    hierarchy(folder, consolidated=False)
    (folder / "plain/c/0/1").unlink()
    verify(folder, manifest=manifest)
    (folder / "note.txt").write_text("new")
    shutil.copyfile(folder / "plain/c/0/0", folder / "plain/c/0/1")
    checked(folder, name="later")[...] = 1
    document = folder / "plain/zarr.json"
    document.write_text(document.read_text() + " ")
    (folder / "plain/c/0/0").unlink()
    report = verify(folder, since=manifest)
    assert report.kinds == {"different": 1, "missing shard": 1}
    names = {part.name for part in report.unchecked}
    assert {"note.txt", "plain/c/0/1", "later/zarr.json", "later/c/0/0"} <= names
    assert "plain/c/1/0" not in names and report.n_unchecked == len(names)
    text = str(report)
    assert "not compared of plain: plain/c/0/1: the manifest has no hash of it" in text
    assert "not compared of later: later/c/0/0 and 4 more: the manifest has no hash of them" in text
    assert "not checked: note.txt" in text and text.count("not compared") == 2


def test_text_of_another_target_is_refused(tmp_path: Path) -> None:
    """Each of its lines was a finding."""
    folder, manifest = tmp_path / "g.zarr", tmp_path / "m.sha256"
    hierarchy(folder)
    verify(folder, manifest=manifest)
    with pytest.raises(ValueError, match="expected a manifest of the same target"):
        verify(folder / "plain", since=manifest)
    assert verify(folder, only="plain", since=manifest).n_findings == 0


def test_damaged_objects_have_no_line(tmp_path: Path) -> None:
    folder, manifest = tmp_path / "g.zarr", tmp_path / "m.sha256"
    hierarchy(folder)
    (folder / "plain/c/0/0").write_bytes(b"1")
    assert verify(folder, manifest=manifest).n_findings == 1
    assert b"plain/c/0/0" not in manifest.read_bytes() and b"plain/c/0/1" in manifest.read_bytes()


def test_other_text_is_no_manifest(tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr")
    (tmp_path / "m.sha256").write_text("precious\n")
    with pytest.raises(ValueError, match="line 1: expected a manifest"):
        verify(tmp_path / "g.zarr", since=tmp_path / "m.sha256")
    with pytest.raises(ValueError, match="expected a new file or an old manifest"):
        verify(tmp_path / "g.zarr", manifest=tmp_path / "m.sha256")


class Counting(NativeShard):
    """Counts the bytes that are read."""

    n_read = 0

    def range(self, offset: int, nbytes: int) -> bytes:
        self.n_read += nbytes
        return super().range(offset, nbytes)

    def checksums(self, ranges: Any, max_nbytes: int) -> Any:
        self.n_read += int(ranges[:, 1].sum())
        return super().checksums(ranges, max_nbytes)


@pytest.mark.parametrize("level", ["checksum", "decode"])
@pytest.mark.parametrize("block_nbytes", [1 << 12, 1 << 30])
def test_objects_are_read_once(block_nbytes: int, level: Any, tmp_path: Path) -> None:
    """The check and the hash share the reads; only the index of a large shard is read again."""
    import hashlib

    from shardcodec.options import resolve
    from shardcodec.tools.chunk_check import ChunkCheck, Level
    from shardcodec.tools.hierarchy import find_arrays
    from shardcodec.tools.survey import survey

    checked(tmp_path / "a.zarr", shape=(256, 240), chunks=(256, 240))[...] = np.arange(256 * 240).reshape(
        256, 240
    )
    (array,) = find_arrays(tmp_path / "a.zarr")
    file = tmp_path / "a.zarr/c/0/0"
    view = Counting(None, str(file))
    hashed = HashedObject(view, block_nbytes)
    report = survey(hashed, "", ChunkCheck.of_array(array, resolve()), Level(level))
    assert report.is_whole
    assert hashed.sha256() == hashlib.sha256(file.read_bytes()).hexdigest()
    n_index = array.shard_spec.index_nbytes
    assert view.nbytes <= view.n_read <= view.nbytes + 2 * n_index
    hashed.close()


@pytest.mark.parametrize("target", ["nowhere", "itself"])
def test_other_object_that_cannot_be_read_is_a_finding(target: str, tmp_path: Path) -> None:
    """A link to nothing ended the run, and one to itself even the listing, so nothing behind it was checked."""
    hierarchy(tmp_path / "g.zarr")
    (tmp_path / "g.zarr" / "itself").symlink_to(target)
    (tmp_path / "g.zarr" / "note.txt").write_text("kept")
    report = verify(tmp_path / "g.zarr", manifest=tmp_path / "m.sha256")
    assert report.kinds == {"unreadable": 1}
    (shard,) = report.shards
    assert shard.shard == str(tmp_path / "g.zarr" / "itself") and "itself" in shard.findings[0].detail
    assert b"note.txt" in (tmp_path / "m.sha256").read_bytes()


def test_failing_read_of_another_object_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: HashedObject) -> str:
        raise OSError(5, "Input/output error")

    hierarchy(tmp_path / "g.zarr")
    (tmp_path / "g.zarr" / "note.txt").write_text("kept")
    monkeypatch.setattr(beside_arrays.HashedObject, "sha256", fail)
    assert "unreadable" in kinds(tmp_path / "g.zarr", manifest=tmp_path / "m.sha256", level="index")

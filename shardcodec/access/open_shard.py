# open_shard.py - open one shard of any store
# SPDX-License-Identifier: MIT
"""`shardcodec.open_shard`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

from ..arguments import checked
from ..format.spec import ShardSpec
from ..options import OptionChoices
from .shard import Shard
from .store_object import shard_object

__all__ = ["open_shard"]


@checked
def open_shard(
    store: Any,
    key: str | None,
    spec: ShardSpec,
    *,
    mode: Literal["r", "r+"] = "r",
    storage_options: Mapping[str, Any] | None = None,
    **choices: Unpack[OptionChoices],
) -> Shard:
    """Open one shard, which may be absent. The object is opened at the first read, so errors of its bytes come then.

    Parameters
    ----------
    store : path-like, URL, bytes-like, or zarr store
        A folder, or the file of the shard if `key` is None or ""; the same as a URL, such as ``s3://bucket/a``; the bytes
        of a shard; any zarr store or `StorePath`.
    key : str or None
        Name of the object in the folder or store, such as ``"a/c/0/1"``. For bytes, only a name in errors.
    spec : ShardSpec
        The encoding of the shard; `ShardSpec.from_metadata` makes it from a ``zarr.json``.
    mode : {"r", "r+"}
        Read only, or read and write. Bytes are not changed: `Shard.tobytes` returns the new bytes.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    **choices
        Options for this shard, as in `shardcodec.options`.

    Returns
    -------
    Shard

    Raises
    ------
    TypeError
        `store` or `spec` is of another kind, an option is unknown, or `storage_options` come without a URL.
    ValueError
        `mode` or an option is invalid; the store is read-only, but `mode` is "r+"; a zarr store comes without a key; the
        URL is malformed or names no object, its store refuses the options, or the key has a null byte.
    UnsupportedError
        Codecs follow the sharding and hide the inner chunks, or the spec exceeds a limit of the engine.
    ImportError
        No package is installed that can open the URL.

    Examples
    --------
    >>> spec = shardcodec.ShardSpec.from_metadata(json.loads(Path("a.zarr/zarr.json").read_text()))
    >>> shard = shardcodec.open_shard("a.zarr", "c/0/0", spec)
    >>> shard.state().sum(), shard.read_chunks([(0, 0), (0, 1)]).shape
    """
    target = shard_object(store, key, storage_options)
    if mode != "r":
        target.store.check_writable()
    return Shard(target, spec, mode, choices)

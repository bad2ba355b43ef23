"""The Zarr v3 shard format: pure functions and plain data; no files, no stores, no clock."""

"""What the bytes of a shard mean: pure functions and plain data; no files, no stores, no clock."""

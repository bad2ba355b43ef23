"""Arrays of the 2022 format: their metadata, a view of them as arrays of zarr 3, and their conversion."""

"""Arrays of the 2022 format: parse their metadata, open them as arrays of zarr 3, and convert them."""

"""The way into zarr-python: a codec pipeline and a codec."""

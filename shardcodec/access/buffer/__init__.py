"""The buffered writes of `group_writes`."""

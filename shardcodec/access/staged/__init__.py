"""Reads and writes in which codecs take part that are not native."""

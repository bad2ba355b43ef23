"""The work: reading, writing, placement."""

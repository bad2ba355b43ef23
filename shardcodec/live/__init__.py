"""Frames of a running instrument: streams into arrays, and readers that follow them."""

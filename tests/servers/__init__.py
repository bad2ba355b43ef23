# SPDX-License-Identifier: MIT
"""Servers for tests: each on loopback, and stopped with the tests."""

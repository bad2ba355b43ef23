# SPDX-License-Identifier: MIT
"""Servers for tests: each on loopback, ended with the tests."""

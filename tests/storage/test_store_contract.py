# test_store_contract.py - the contract of stores, on every kind
# SPDX-License-Identifier: MIT
"""Runs `store_contract.StoreContract`."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("store_contract")

from store_contract import StoreContract  # noqa: E402 - its assertions are rewritten


class TestStores(StoreContract):
    """All kinds of stores."""

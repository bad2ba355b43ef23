# pairs.py - products of parameters of which each pair of values is tested by day
# SPDX-License-Identifier: MIT
"""A fault that two parameters cause together is found by day, one that needs three at night."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["pairs"]


def pairs(names: str, *axes: Sequence[Any], ids: Any = str) -> pytest.MarkDecorator:
    """Parametrize a test with the product of three axes, of which by day those run that have each pair of values of two axes.

    Parameters
    ----------
    names : str
        Three names with commas between them.
    *axes : sequence
        The values of each name; the last axis is the shortest.
    ids : callable
        Returns the name of a value.
    """
    first, second, last = axes
    assert len(last) <= min(len(first), len(second)), "each pair would need another order of the axes"
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(
                a,
                b,
                c,
                id="-".join(map(ids, (a, b, c))),
                marks=[pytest.mark.nightly] * ((i + j) % len(last) != k),
            )
            for (i, a), (j, b), (k, c) in itertools.product(*map(enumerate, axes))
        ],
    )

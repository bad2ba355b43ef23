# conftest.py - how hard the property tests try
# SPDX-License-Identifier: MIT
"""Hypothesis profiles, chosen by the environment variable HYPOTHESIS_PROFILE.

======  ==========================================================================================
quick   a few examples each: for sanitizers, under which everything is many times slower, and for the older of
        two interpreters in CI
dev     100 random examples: the default
ci      the same 100 every time (default where CI is set): a commit is judged by what it changed
long    2,000 random examples: for a night, or after a change of the engine
======  ==========================================================================================
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("quick", max_examples=10, derandomize=True, deadline=None)
settings.register_profile("dev", max_examples=100, deadline=None)
settings.register_profile("ci", max_examples=100, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

# test_capped.py - the first items of many, and the number of all
# SPDX-License-Identifier: MIT

from __future__ import annotations

import pickle

from shardcodec.tools.capped import LISTED, NAMED, Capped, Named
from shardcodec.tools.report import to_json


def test_the_first_items_are_listed_and_all_are_counted() -> None:
    found = Capped.of([0], 2)
    assert (found, found.n, found.n_more, found.text()) == ([0], 1, 0, "0")
    for i in range(1, 5):
        found.add(i)
    assert (found, found.n, found.n_more) == ([0, 1], 5, 3)
    assert found.text() == "0, 1 and 3 more" and found.text("; ", ", and ") == "0; 1, and 3 more"


def test_a_full_list_has_no_more_items() -> None:
    exact = Capped.of(range(NAMED))
    assert exact.n_more == 0 and "more" not in exact.text()
    assert Capped.of(range(NAMED + 1)).text().endswith("19 and 1 more")
    assert (Capped().most, Named().most) == (LISTED, NAMED)


def test_what_workers_return_is_added_up_in_their_order() -> None:
    """The list stays as long as it may be, also if a worker has listed more than there is room for."""
    found = Capped.of("ab", 3)
    for items in ("", "cde", "f"):
        sent = pickle.loads(pickle.dumps(Capped.of(items, 3)))
        found.merge(sent)
    assert (found, found.n) == (["a", "b", "c"], 6)
    assert to_json(found) == ["a", "b", "c"]

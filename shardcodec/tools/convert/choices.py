# choices.py - the layout that the user wants, and the choices for each array
# SPDX-License-Identifier: MIT
"""`Choices`: shapes and codecs of new arrays, for one array or as rules for many. `choices_of_arrays`: the choices for each array.

A rule has a shape, sizes of some axes by name, a size in bytes, or leaves the shapes to `advise`. It is for all arrays, or for those that
a pattern names.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ...compat import READS_SHARDS_OF_STRUCTS
from ...format.codecs import CodecLike
from ...readable import format_nbytes
from ..advise.access_pattern import AccessPattern, fitting_access
from ..advise.advise import advise
from ..advise.report import Proposal
from ..conventions.ome_zarr import axes_of_levels
from ..node_selection import is_match
from ..targets import ArrayTarget
from .source import Ints, SourceArray, SourceTree

__all__ = [
    "ALL",
    "AUTO",
    "ArrayChoices",
    "Choices",
    "Kind",
    "LayoutRule",
    "choices_of_arrays",
    "chunks_of_source",
]

# Size of an inner chunk of a source without chunks.
CHUNK_NBYTES = 1 << 20
# Arrays of a group that are smaller have no shards, unless all are.
SMALL_NBYTES = 1 << 20

NO_SHARDS_OF_STRUCTS = (
    "this version of zarr cannot read shards of structs itself; --shards makes them all the same"
)

Kind = Literal["chunks", "shards"]
Axes = tuple[str | None, ...]
AUTO = "auto"
# The pattern of a rule for all arrays.
ALL = "*"


@dataclass(frozen=True)
class LayoutRule:
    """A rule for the inner chunks or the shards of arrays.

    Attributes
    ----------
    kind : {"chunks", "shards"}
    value : tuple of int, mapping, int or "auto"
        A shape; sizes by names of axes; of shards also a size in bytes; or the shape that `advise` proposes.
    arrays : str
        Pattern of the paths of its arrays; `ALL` for a rule that arrays need not fit.
    """

    kind: Kind
    value: Ints | Mapping[str, int] | int | str
    arrays: str = ALL


@dataclass(frozen=True)
class Choices:
    """The choices of the user for the new arrays; None means that convert chooses.

    Attributes
    ----------
    chunks : tuple of int or None
        Shape of an inner chunk. By default that of the source, so that encoded chunks can be moved.
    shards : int, tuple of int, or None
        Shape of a shard, or its largest size in bytes, decoded.
    codecs : sequence of Codec or None
        Codecs of an inner chunk. By default those of the source.
    like : ArrayTarget or None
        An array whose shapes and codecs are taken, as far as the others are not given.
    rules : tuple of LayoutRule
        Shapes for some of the arrays; those of one array have none.
    accesses : tuple of str
        How programs read the arrays, for shapes that `advise` proposes.
    has_shards : bool
        False for an array without shards.
    """

    chunks: Ints | None = None
    shards: int | Ints | None = None
    codecs: tuple[CodecLike, ...] | None = None
    like: ArrayTarget | None = None
    rules: tuple[LayoutRule, ...] = ()
    accesses: tuple[str, ...] = ()
    has_shards: bool = True

    def of_kind(self, kind: Kind) -> list[LayoutRule]:
        """Return the rules for chunks or for shards, that of all arrays first."""
        value = self.chunks if kind == "chunks" else self.shards
        general = [] if value is None else [LayoutRule(kind, value)]
        return [*general, *(rule for rule in self.rules if rule.kind == kind)]


class ArrayChoices(NamedTuple):
    """The choices for one array. kept: why it keeps its layout; empty if it does not."""

    choices: Choices
    kept: str = ""


def choices_of_arrays(tree: SourceTree, choices: Choices) -> dict[str, ArrayChoices]:
    """Return the choices for each array; raise `ValueError` for an unknown name of an axis or an array."""
    rules = _Rules(tree, choices)
    rules.check()
    resolved: dict[str, ArrayChoices] = {}
    unfit: dict[str, ValueError] = {}
    for source in tree.arrays:
        try:
            resolved[source.name] = rules.of(source)
        except ValueError as error:  # a small array has no shards, so a rule for shards need not fit it
            unfit[source.name] = error
            resolved[source.name] = rules.of(source, has_shards=False)
    arrays = [source for source in tree.arrays if source.shape]
    one_chunk = {source.name: _is_one_chunk(source, resolved[source.name].choices) for source in arrays}
    small = {source.name: _nbytes(source) < SMALL_NBYTES for source in arrays}
    for source in filter(rules.may_lose_shards, arrays):
        # if all arrays of the group are small, the user means them
        is_exempt = any(kind[source.name] and not all(kind.values()) for kind in (one_chunk, small))
        if is_exempt and (source.name in unfit or not resolved[source.name].kept):
            unfit.pop(source.name, None)
            why = (
                f"it is small, {format_nbytes(_nbytes(source))}" if small[source.name] else "it is one chunk"
            )
            resolved[source.name] = ArrayChoices(rules.plain(has_shards=False), why)
    for misfit in unfit.values():
        raise misfit
    for source in () if READS_SHARDS_OF_STRUCTS else arrays:
        chosen = resolved[source.name].choices
        if source.dtype.kind == "V" and source.bytes is None and rules.are_silent_on_shards(source):
            why = resolved[source.name].kept or NO_SHARDS_OF_STRUCTS
            resolved[source.name] = ArrayChoices(replace(chosen, has_shards=False), why)
    return resolved


def chunks_of_source(source: SourceArray) -> Ints:
    """Return the chunks of the source; without chunks, compact ones of about 1 MiB."""
    if source.chunks is not None:
        return source.chunks
    shape = [max(1, n) for n in source.shape]
    while math.prod(shape) * source.dtype.itemsize > CHUNK_NBYTES and max(shape) > 1:
        axis = shape.index(max(shape))
        shape[axis] = -(-shape[axis] // 2)
    return tuple(shape)


def _is_one_chunk(source: SourceArray, choices: Choices) -> bool:
    chunks = choices.chunks or chunks_of_source(source)
    return len(chunks) == len(source.shape) and all(map(operator.ge, chunks, source.shape))


def _nbytes(source: SourceArray) -> int:
    return math.prod(source.shape) * source.dtype.itemsize


class _Rules:
    """The rules, and the arrays that they fit."""

    def __init__(self, tree: SourceTree, choices: Choices) -> None:
        self._arrays, self._choices = [source for source in tree.arrays if source.shape], choices
        self._names = [*(source.name for source in tree.arrays), *tree.verbatim]
        levels = axes_of_levels(tree.groups)
        self._axes: dict[str, Axes] = {}
        for source in self._arrays:
            names = tuple(source.dimension_names or ())
            if not any(names):
                names = levels.get(source.name, ())
            self._axes[source.name] = names if len(names) == len(source.shape) else ()
        self._rules = {kind: choices.of_kind(kind) for kind in ("chunks", "shards")}
        self._like = choices.like.layout if choices.like is not None else None
        self._has_like = any(map(self._is_like, self._arrays))
        # rules for all arrays, by kind: does any array fit, and one that is not the coordinate of an axis?
        general = [rule for rules in self._rules.values() for rule in rules if rule.arrays == ALL]
        self._is_for_any, self._is_for_others = {}, {}
        for rule in general:
            fitting = [source for source in self._arrays if not self._obstacle(rule, source)]
            self._is_for_any[rule.kind] = bool(fitting)
            self._is_for_others[rule.kind] = not all(map(self._is_index, fitting))

    def check(self) -> None:
        """Raise `ValueError` for a rule whose names no array has."""
        for rule in (*self._rules["chunks"], *self._rules["shards"]):
            if rule.arrays != ALL and not any(is_match(name, rule.arrays) for name in self._names):
                raise ValueError(
                    f"{rule.kind}: expected the path of an array, or a pattern of paths, got {rule.arrays!r}; there are "
                    f"{', '.join(sorted(self._names))}"
                )
            if isinstance(rule.value, Mapping):
                self._check_axes(rule, rule.value)
            if rule.value == AUTO and not any(map(self._accesses, self._arrays)):
                raise ValueError(
                    f"{rule.kind} of 'auto': expected an access (--access) that fits the axes of an array, got "
                    f"{list(self._choices.accesses)}"
                )

    def _check_axes(self, rule: LayoutRule, sizes: Mapping[str, int]) -> None:
        names = [name for name in self._axes if is_match(name, rule.arrays)]
        known = {axis for name in names for axis in self._axes[name] if axis is not None}
        if unknown := sorted(sizes.keys() - known):
            there = f"there are {', '.join(sorted(known))}" if known else "no axis has a name"
            raise ValueError(f"{rule.kind}: expected the name of an axis, got {unknown[0]!r}; {there}")

    def _rule(self, kind: Kind, source: SourceArray) -> tuple[LayoutRule | None, str]:
        """Return the rule for an array, and why there is none."""
        fitting = [rule for rule in self._rules[kind] if is_match(source.name, rule.arrays)]
        if not fitting:
            return None, f"no rule for {kind} names it" if self._rules[kind] else ""
        rule = fitting[-1]
        why = self._obstacle(rule, source)
        if rule.arrays == ALL:
            if why and not self._is_for_any[kind]:
                why = ""  # the shape is wrong, and the layout says so
            elif not why and not isinstance(rule.value, int) and self._is_for_others[kind]:
                why = "it is the coordinate of its axis" if self._is_index(source) else ""
        elif rule.arrays == source.name and isinstance(rule.value, tuple):
            why = ""
        return (None, why) if why else (rule, "")

    def _obstacle(self, rule: LayoutRule, source: SourceArray) -> str:
        """Return why a rule does not fit an array; empty if it fits."""
        value, ndim = rule.value, len(source.shape)
        if isinstance(value, tuple) and len(value) != ndim:
            return f"{rule.kind} of {value}: expected {ndim} axes, got {len(value)}"
        if isinstance(value, Mapping) and not value.keys() & set(self._axes[source.name]):
            return f"it has no axis {' or '.join(value)}"
        if value == AUTO and not self._accesses(source):
            return "no access fits its axes and elements"
        return ""

    def _is_index(self, source: SourceArray) -> bool:
        """Return True for the coordinate of an axis, which has the name of the axis."""
        return self._axes[source.name] == (source.name.rpartition("/")[2],)

    def _accesses(self, source: SourceArray) -> list[AccessPattern]:
        if source.bytes is not None or min(source.shape, default=0) < 1:
            return []
        axes = self._axes[source.name]
        given = (fitting_access(text, source.shape, axes) for text in self._choices.accesses)
        return [access for access in given if access is not None]

    def plain(self, **changes: Any) -> Choices:
        """Return the choices without shapes."""
        return replace(self._choices, chunks=None, shards=None, rules=(), accesses=(), **changes)

    def may_lose_shards(self, source: SourceArray) -> bool:
        """Return True for an array without shards that no rule names."""
        rules = [rule for kind in ("chunks", "shards") for rule in self._rules[kind] if rule.arrays != ALL]
        is_named = any(is_match(source.name, rule.arrays) for rule in rules)
        return source.shard_shape is None and not is_named

    def are_silent_on_shards(self, source: SourceArray) -> bool:
        """Return True for an array without shards, if the user has not asked for any."""
        return source.shard_shape is None and not self._rules["shards"] and self._choices.like is None

    def of(self, source: SourceArray, *, has_shards: bool = True) -> ArrayChoices:
        """Return the choices for one array, as if it were not small; without `has_shards` no rule for shards counts."""
        misfit = self._misfit_of_like(source)
        plain = self.plain(like=None) if misfit else self.plain()
        if not source.shape:
            return ArrayChoices(plain, misfit)
        chunks, no_chunks = self._rule("chunks", source)
        shards, no_shards = self._rule("shards", source) if has_shards else (None, "")
        if no_chunks and shards is not None and isinstance(shards.value, int):
            shards = None  # a size fits all arrays, also those that the rules for chunks leave
        why = no_chunks or no_shards or misfit
        if why and chunks is None and shards is None and plain.like is None:
            return ArrayChoices(plain, why)
        return ArrayChoices(self._shapes(plain, source, chunks, shards))

    def _is_like(self, source: SourceArray) -> bool:
        return self._like is not None and len(self._like.shape) == len(source.shape)

    def _misfit_of_like(self, source: SourceArray) -> str:
        if self._like is None or self._is_like(source):
            return ""
        if not self._has_like:
            return ""  # the other array is wrong, and the layout says so
        return f"like of {self._like.shape}: expected {len(source.shape)} axes, got {len(self._like.shape)}"

    def _shapes(
        self, plain: Choices, source: SourceArray, chunks: LayoutRule | None, shards: LayoutRule | None
    ) -> Choices:
        base = chunks_of_source(source)
        proposal: Proposal | None = None
        new = plain
        if chunks is not None and chunks.value == AUTO:
            proposal = self._proposal(source, None)
            new = replace(new, chunks=proposal.chunk_shape)
        elif chunks is not None:
            new = replace(new, chunks=self._sides(source, chunks.value, base))
        inner = new.chunks or base
        if shards is None:
            if not self._rules["shards"]:
                return new
            old = source.shard_shape
            is_fit = old is not None and not any(n % size for n, size in zip(old, inner, strict=True))
            return replace(new, shards=old) if is_fit else replace(new, has_shards=False)
        if shards.value == AUTO:
            proposal = proposal or self._proposal(source, inner)
            return replace(new, shards=proposal.shard_shape)
        if isinstance(shards.value, Mapping):
            old = source.shard_shape or inner
            sides = tuple(n if n % size == 0 else size for n, size in zip(old, inner, strict=True))
            sides = self._sides(source, shards.value, sides)
            return replace(new, shards=self._of_whole_chunks(source, sides, inner))
        assert not isinstance(shards.value, str)
        return replace(new, shards=shards.value)

    def _sides(self, source: SourceArray, value: Any, base: Ints) -> Ints:
        """Return a shape; the sides that a rule does not name are those of `base`."""
        if not isinstance(value, Mapping):
            return tuple(value)
        axes = self._axes[source.name]
        return tuple(value.get(axis, n) for axis, n in zip(axes, base, strict=True))

    def _of_whole_chunks(self, source: SourceArray, sides: Ints, inner: Ints) -> Ints:
        """Return the sides of a shard; one that spans all of its axis is rounded up to whole inner chunks."""
        rounded = tuple(-(-side // size) * size for side, size in zip(sides, inner, strict=True))
        for axis, (side, whole) in enumerate(zip(sides, rounded, strict=True)):
            if side != whole and side < source.shape[axis]:
                name, size = self._axes[source.name][axis], inner[axis]
                near = dict.fromkeys((whole - size or whole, whole))
                raise ValueError(
                    f"shards: expected a multiple of the inner chunk, {size}, along the axis {name} of {source.place}, got {side}; "
                    f"choose {' or '.join(map(str, near))}, or inner chunks that divide {side} (--chunks {name}=N)"
                )
        return rounded

    def _proposal(self, source: SourceArray, chunk: Ints | None) -> Proposal:
        try:
            report = advise(source.shape, source.dtype, self._accesses(source), chunk_shape=chunk)
        except ValueError as error:
            raise ValueError(f"array {source.place}: {error}") from error
        return report.proposals[0]

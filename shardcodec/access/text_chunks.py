# text_chunks.py - native codecs of chunks whose elements have any length
# SPDX-License-Identifier: MIT
"""`TextCodecs`: text and bytes of any length, staged like other chunks without a fixed size, but in native code.

The engine decodes and checks many chunks in threads without the GIL, and puts elements directly into the array of the caller:

    StringDType    NumPy's own function packs the bytes into the element
    objects        one object is made for each element, from a copy of its bytes
    places         two numbers, address and size of a copy: for `read_arrow`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import ShardError
from .compiled_chains import staged_shard, staged_whole
from .staged.read import Piece, codec_error

if TYPE_CHECKING:
    from .._native import Chain
    from ..format.spec import ChainSpec
    from ..format.text import TextArray

__all__ = ["PLACE", "TextCodecs", "as_texts", "text_chain"]

Array = np.ndarray[Any, Any]
Ints = tuple[int, ...]
Boxes = Sequence[tuple[Array, Sequence[int], Sequence[int]]]

# An element as the address and the size of its bytes. A field, because numpy copies such elements without looking at them.
PLACE = np.dtype([("place", "V16")])

# Chunks of one call, for each thread, if elements need memory besides the array of the caller.
CHUNKS_PER_THREAD = 4


class TextCodecs:
    """Native codecs of chunks of text or bytes, of any shape; see `staged.read.ChunkCodecs`.

    spec: the encoding of a chunk, with one byte in place of each element. fill: an array of rank 0, whose data type is that of
    the elements in memory. skips_fill: chunks that equal the fill value need not be stored.
    """

    one_by_one = True

    def __init__(self, spec: ChainSpec, is_text: bool, fill: Array, *, skips_fill: bool = True) -> None:
        from ..format.chain import lower  # here, for the same reason as in `inner_chunks`

        self._is_text = is_text
        self._skips_fill = skips_fill
        self._chain: Chain = native.load().Chain(**lower(spec.with_shape((1,) * spec.ndim)))
        self._arena: Any = None  # the memory of places
        self._kept: Any = None
        self.fill = fill
        self.input_dtype: np.dtype[Any] = fill.dtype

    @classmethod
    def of(cls, array: TextArray, spec: ChainSpec) -> TextCodecs:
        """Return the codecs of the chunks of an array; `spec` is the encoding of its objects."""
        fill = np.empty((), array.dtype)
        fill[()] = array.fill_value
        return cls(spec.inner or spec, array.is_text, fill)

    @classmethod
    def of_places(cls, array: TextArray, spec: ChainSpec) -> TextCodecs:
        """Return codecs that decode to places, for one read. The memory belongs to them."""
        stored = array.fill_value.encode() if array.is_text else array.fill_value
        bytes_of_fill = np.frombuffer(stored or b"\0", np.uint8)
        address = bytes_of_fill.__array_interface__["data"][0]
        fill = np.array([address, len(stored)], np.uint64).view(PLACE).reshape(())
        codecs = cls(spec.inner or spec, array.is_text, fill)
        codecs._arena = native.load().TextArena()
        codecs._kept = bytes_of_fill
        return codecs

    def joined(self, places: Array) -> tuple[Array, Array]:
        """Return the offsets and the bytes of texts, from places that these codecs have made; in C order."""
        offsets = np.empty(places.size + 1, np.int64)
        native.load().text_offsets(places, offsets)
        data = np.empty(int(offsets[-1]), np.uint8)
        native.load().join_texts(places, data)
        return offsets, data

    def decode(self, chunks: Sequence[Any], shapes: Sequence[Ints]) -> list[Array]:
        """Decode buffers to new arrays of these shapes."""
        arrays = [np.empty(shape, self.fill.dtype) for shape in shapes]
        work = [
            (data, shape, _all_of(array)) for data, shape, array in zip(chunks, shapes, arrays, strict=True)
        ]
        try:
            self._read(work, 1, None)
        except ShardError as error:
            error.shard = None  # the number of the chunk
            raise
        return arrays

    def decode_to(self, pieces: Sequence[Piece], out: Array, n_threads: int, cancel: Any) -> None:
        """Decode pieces and put their selected elements into the array, several chunks at the same time."""
        boxes = [piece.cuts.boxes(piece.position or 0, out) for piece in pieces]
        is_direct = all(box is not None for box in boxes) and self.fill.dtype.kind != "O"
        step = len(pieces) if is_direct else CHUNKS_PER_THREAD * max(1, n_threads)
        for first in range(0, len(pieces), step):
            chosen = slice(first, first + step)
            self._decode_some(pieces[chosen], boxes[chosen], out, n_threads, cancel)

    def _decode_some(
        self, pieces: Sequence[Piece], boxes: Sequence[Boxes | None], out: Array, n_threads: int, cancel: Any
    ) -> None:
        work = []
        whole: list[Array | None] = []
        for piece, own in zip(pieces, boxes, strict=True):
            shape = piece.cuts.shape_at(piece.position)
            chunk = np.empty(shape, self.fill.dtype) if own is None else None
            whole.append(chunk)
            work.append((piece.data, shape, own if chunk is None else _all_of(chunk)))
        try:
            self._read(work, n_threads, cancel)
        except ShardError as error:
            number, error.shard = error.shard, None
            piece = pieces[number if isinstance(number, int) else 0]
            raise codec_error(error, piece.item, piece.position) from error
        for piece, chunk in zip(pieces, whole, strict=True):
            if chunk is not None:
                piece.cuts.scatter(piece.position or 0, chunk, out)

    def _read(self, work: Sequence[tuple[Any, Ints, Any]], n_threads: int, cancel: Any) -> None:
        engine = native.load()
        how = {"is_text": self._is_text, "n_threads": n_threads, "cancel": cancel}
        if self.fill.dtype.kind != "O":
            engine.read_texts(self._chain, work, arena=self._arena, **how)
            return
        arena = engine.TextArena()
        places = [[np.empty(view.shape, PLACE) for view, *_ in boxes] for _, _, boxes in work]
        found = [
            (data, shape, [(place, *rest) for place, (_, *rest) in zip(own, boxes, strict=True)])
            for own, (data, shape, boxes) in zip(places, work, strict=True)
        ]
        engine.read_texts(self._chain, found, arena=arena, **how)
        for own, (_, _, boxes) in zip(places, work, strict=True):
            for place, (view, *_) in zip(own, boxes, strict=True):
                engine.make_texts(place, view, is_text=self._is_text)

    def encode(self, chunks: Sequence[Array], write_empty: bool) -> list[Any]:
        """Encode arrays of any shape."""
        return [native.load().encode_texts(self._chain, chunk, is_text=self._is_text) for chunk in chunks]

    def is_fill(self, chunk: Array) -> bool:
        """Return True if all elements of a chunk equal the fill value."""
        return self._skips_fill and bool(native.load().all_texts_equal(chunk, self.fill[()]))


def _all_of(array: Array) -> Boxes:
    return [(array, (0,) * array.ndim, (1,) * array.ndim)]


def text_chain(spec: ChainSpec, stage: TextCodecs) -> Chain:
    """Return the chain of objects of texts; `spec` has one byte in place of each element."""
    return staged_whole(spec.shape, stage) if spec.inner is None else staged_shard(spec, stage)


# numpy writes a missing text as a word, such as "None" or "nan", and so does zarr for an array of objects or a list. It keeps an
# array of a StringDType with missing texts as it is: its codec stores "" for None and refuses others, where it gets whole chunks (it
# stores words where chunks are merged, in shards, and in Zarr v2). It refuses objects of pandas.


def as_texts(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return the elements of a write as texts or bytes of a data type.

    TypeError: an element is missing, and zarr stores no empty text in its place.
    """
    if not isinstance(value, np.ndarray):
        if not hasattr(value, "dtype") or isinstance(value, np.generic):
            return np.asarray(value, dtype)
        try:
            value = np.asarray(value.astype(dtype=dtype, order="A"))
        except (AttributeError, TypeError):  # as the `astype` of pandas does
            value = np.asarray(value, object)
            _refuse_missing(value)
    texts: Array
    na = getattr(value.dtype, "na_object", "")
    if isinstance(na, str) or dtype.kind != "T":  # a text of fixed length has no other form for a missing one
        texts = value.astype(dtype, copy=False)
        return texts
    objects: Array = value.astype(object)
    if na is None:
        objects[np.array([element is None for element in objects.flat], bool).reshape(objects.shape)] = ""
    _refuse_missing(objects)
    texts = objects.astype(dtype)
    return texts


def _refuse_missing(values: Array) -> None:
    for position, element in enumerate(values.reshape(-1).tolist()):
        if not isinstance(element, str | bytes) and _is_missing(element):
            at = tuple(map(int, np.unravel_index(position, values.shape)))
            raise TypeError(
                f"value: expected a text at {at}, got {element!r}; fill missing texts before they are stored"
            )


def _is_missing(element: Any) -> bool:
    """Return True for None, for a number or a time that is not equal to itself, and for `pandas.NA`."""
    try:
        return element is None or bool(element != element)
    except TypeError:
        return True

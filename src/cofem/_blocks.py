"""How much is done at once: block sizes, and how to go through something long in blocks.

Every size that bounds memory or keeps work in the cache is here, under one name. A module may choose a size
of its own only where it was measured for that one place.
"""

from __future__ import annotations

from collections.abc import Iterator

#: Numbers of a long vector that are worked on at once: few enough for the cache, enough that a call costs
#: little.
CACHE_BLOCK = 2**16
#: Numbers in a batch of vectors that is pushed through an operator, or made from one, at once (32 MiB).
BATCH_NUMBERS = 2**22
#: Length of vectors from which on memory counts more than time: arrays that would save a pass are not kept.
LONG_VECTOR = 2**20
#: Entries (N * D) up to which an operator is written out rather than probed.
SMALL_MATRIX = 2**22
#: Numbers in columns of Phi that are written out beside it, at most (128 MiB).
WRITTEN_OUT = 2**24
#: Bytes of a chunk of rows that is read from disk: large enough for BLAS, small enough for any memory.
CHUNK_BYTES = 2**26


def blocks(length: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover ``range(length)`` in order.

    Examples
    --------
    >>> list(blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def vectors_at_once(length: int, numbers: int = BATCH_NUMBERS) -> int:
    """Return how many vectors of `length` hold no more than so many numbers together; at least one.

    Examples
    --------
    >>> vectors_at_once(2**20), vectors_at_once(2**30), vectors_at_once(10, numbers=35)
    (4, 1, 3)
    """
    return max(1, numbers // length)

"""Which texts answer a query: BM25 (the Lucene variant) by `bm25s`, which needs numpy alone and no downloads.

Why BM25 and not plain TF-IDF: it does not reward a text for repeating a word, nor for being long.
Why not the library's own tokenizer and `retrieve`: its vocabulary follows the order of a set of strings,
which differs from process to process, and its top-k leaves equal scores in any order. Here the vocabulary
follows the texts, scores are summed token by token in double precision and rounded; callers break ties by place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import bm25s
import numpy

# Far coarser than the error of a sum, far finer than any difference that means something.
DECIMALS = 9


class Ranking:
    """An index of texts, each given as its tokens. Immutable once made; safe to use from several threads."""

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        # The library sets its own logger to DEBUG when imported.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        self._size = len(texts)
        self._vocabulary: dict[str, int] = {}
        known = self._vocabulary
        ids = [[known.setdefault(token, len(known)) for token in text] for text in texts]
        self._bm25 = None
        if known:
            self._bm25 = bm25s.BM25(method="lucene", dtype="float64", backend="numpy", csc_backend="numpy")
            self._bm25.index((ids, dict(known)), create_empty_token=False, show_progress=False)

    def scores(self, query: Mapping[str, float]) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.float64]]:
        """How well each text answers a query of tokens with weights; 0 when it has none of them."""
        total = numpy.zeros(self._size)
        for token in sorted(query):
            index = self._vocabulary.get(token)
            if index is not None and self._bm25 is not None:
                total += query[token] * self._bm25.get_scores([index])
        return numpy.round(total, DECIMALS)

"""Semantic similarity of images by their captions: CIDEr, BLEU and ROUGE-L between captions, and the mean of the three.

Captions are compared word by word, in lower case and without punctuation, and only with captions of their language.
The score of two images is the mean over all such pairs of a caption of each.

>>> captions = ["a red fox", "a fox", "a red bus", "ein Fuchs"]
>>> scores = SemanticScores(captions, owner=[0, 1, 2, 1], languages=["en", "en", "en", "de"])
>>> scores("rouge-l", [0], [0, 1, 2])
array([[1.       , 0.8      , 0.6666667]], dtype=float32)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sodeep._core.checks import check_choice
from sodeep.datasets.types import Array

ORDERS = (1, 2, 3, 4)
"""Lengths n of the n-grams of CIDEr and BLEU."""

PAIRS = 2**21
"""How many pairs of captions are scored at a time."""


@dataclass(frozen=True)
class Captions:
    """M captions as numbers; indexing takes some of them.

    Attributes:
        words: (M, L), the words of each, -1 where there are no more.
        counts: for each n, sparse (M, G): how often each n-gram occurs.
        rarity: for each n, (G,): log(images / images with this n-gram).
    """

    words: Array
    counts: tuple[Any, ...]
    rarity: tuple[Array, ...]

    @classmethod
    def read(cls, texts: Sequence[str], owner: Array, languages: Sequence[str]) -> Captions:
        """The captions of images. Words of two languages differ, however they are spelt."""
        lists = [
            [(language, word) for word in re.findall(r"\w+", text.lower())]
            for text, language in zip(texts, languages, strict=True)
        ]
        length = np.array([len(words) for words in lists])
        words = np.full((len(lists), length.max(initial=0)), -1, dtype=np.int32)
        words[np.arange(words.shape[1]) < length[:, None]] = _numbers(lists)
        counts = tuple(_counts(lists, n) for n in ORDERS)
        return cls(words, counts, tuple(_rarity(table, owner) for table in counts))

    @property
    def length(self) -> Array:
        """Words of each."""
        length: Array = (self.words >= 0).sum(1)
        return length

    def __getitem__(self, rows: Array) -> Captions:
        return Captions(self.words[rows], tuple(table[rows] for table in self.counts), self.rarity)


def _numbers(lists: Sequence[Sequence[Any]]) -> list[int]:
    """The items of all lists as numbers from 0, the same for equal items."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(thing, len(numbers)) for things in lists for thing in things]


def _counts(lists: Sequence[Sequence[Any]], n: int) -> Any:
    grams = [[tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in lists]
    columns = np.array(_numbers(grams), dtype=np.int32)
    starts = np.cumsum([0, *map(len, grams)])
    shape = (len(lists), int(columns.max(initial=-1)) + 1)
    table = sparse.csr_array((np.ones(len(columns), dtype=np.float32), columns, starts), shape)
    table.sum_duplicates()
    return table


def _rarity(counts: Any, owner: Array) -> Array:
    images, document = np.unique(owner, return_inverse=True)
    members = sparse.csr_array((np.ones(len(owner)), (document, np.arange(len(owner)))))
    rarity: Array = np.log(len(images) / (members @ counts > 0).sum(0)).astype(np.float32)
    return rarity


def cider(x: Captions, y: Captions) -> Any:
    """CIDEr (Vedantam et al., CVPR 2015, eq. 2 and 3): mean over n = 1 to 4 of the cosine of their n-grams' tf-idf.

    This is the formula without stemming, and without what makes it CIDEr-D: clipping, a penalty for length and a factor
    of 10. Captions of less than four words have 0 for the missing n.
    """
    cosines = (
        _unit(left.multiply(rarity)) @ _unit(right.multiply(rarity)).T
        for left, right, rarity in zip(x.counts, y.counts, x.rarity, strict=True)
    )
    return sum(cosines) / len(ORDERS)


def _unit(rows: Any) -> Any:
    """Sparse rows divided by their length; rows of zeros as they are."""
    length = np.sqrt(rows.multiply(rows).sum(1))
    return rows.multiply(1 / np.where(length > 0, length, 1)[:, None]).tocsr()


def bleu(candidates: Captions, references: Captions) -> Any:
    """Sentence BLEU (Papineni et al., ACL 2002), as sacrebleu has it with ``effective_order=True``.

    BLEU = min(1, exp(1 - r / c)) exp(mean over n of log p_n), with c and r the words of candidate and reference, and
    p_n the fraction of the candidate's n-grams that are in the reference, none counted more often than there. n is up
    to 4, or c if that is less. The first p_n without a match counts half a match, the next a quarter, and so on;
    without a common word BLEU is 0.
    """
    i, j = _with_a_common_word(candidates, references)
    c, r = candidates.length[i], references.length[j]
    log_precision, unmatched = np.zeros(len(i)), np.zeros(len(i))
    for n, left, right in zip(ORDERS, candidates.counts, references.counts, strict=True):
        matches = left[i].minimum(right[j]).sum(1)
        unmatched += matches == 0
        matches = np.where(matches > 0, matches, 0.5**unmatched)
        log_precision += np.where(c >= n, np.log(matches / np.maximum(c - n + 1, 1)), 0)
    score = np.exp(np.minimum(0, 1 - r / c) + log_precision / np.minimum(c, len(ORDERS)))
    return sparse.csr_array((score, (i, j)), (len(candidates.words), len(references.words)))


def symmetric_bleu(x: Captions, y: Captions) -> Any:
    """BLEU, the mean of both directions: of two captions neither is the reference."""
    return (bleu(x, y) + bleu(y, x).T) / 2


def rouge_l(x: Captions, y: Captions) -> Any:
    """ROUGE-L (Lin, 2004), F1 of the longest common subsequence: 2 LCS(x, y) / (words of x + words of y)."""
    i, j = _with_a_common_word(x, y)
    longest = np.zeros((y.words.shape[1] + 1, len(i)), dtype=np.int16)  # common to x so far and y up to each word
    for a in x.words.T[:, i]:
        before = longest.copy()
        for k, b in enumerate(y.words.T[:, j]):
            same = (a == b) & (a >= 0)
            longest[k + 1] = np.where(same, before[k] + 1, np.maximum(before[k + 1], longest[k]))
    score = 2 * longest[-1] / (x.length[i] + y.length[j])
    return sparse.csr_array((score, (i, j)), (len(x.words), len(y.words)))


def mean_score(x: Captions, y: Captions) -> Any:
    """The mean of CIDEr, BLEU and ROUGE-L, all in [0, 1] (Li et al., NeurIPS 2022, appendix C)."""
    return (cider(x, y) + symmetric_bleu(x, y) + rouge_l(x, y)) / 3


def _with_a_common_word(x: Captions, y: Captions) -> tuple[Array, Array]:
    """Rows of x and of y; all other pairs score 0."""
    i, j = (x.counts[0] @ y.counts[0].T).nonzero()
    return i, j


TEXT_SCORES: dict[str, Callable[[Captions, Captions], Any]] = {
    "cider": cider,
    "bleu": symmetric_bleu,
    "rouge-l": rouge_l,
    "mean": mean_score,
}
"""Scores of captions (A) with captions (B) by name: sparse (A, B), in [0, 1], the same from y to x as from x to y."""


class SemanticScores:
    """Scores of images by their captions.

    Called with the name of a score and the indices of images (P,) and of others (Q,), it gives float32 (P, Q), in
    [0, 1]: the mean over all pairs of a caption of each in one language, 0 where there is no such pair.

    Args:
        captions: M texts.
        owner: (M,) index of the image of each.
        languages: (M,) language of each; None: all the same.
    """

    def __init__(self, captions: Sequence[str], owner: ArrayLike, languages: Sequence[str] | None = None) -> None:
        owner = np.asarray(owner)
        languages = [""] * len(captions) if languages is None else languages
        self.captions = Captions.read(captions, owner, languages)
        one, every = np.ones(len(owner), dtype=np.float32), np.arange(len(owner))
        self.captions_of = sparse.csr_array((one, (owner, every)))
        language = np.unique(languages, return_inverse=True)[1]
        self.languages_of = self.captions_of @ sparse.csr_array((one, (every, language)))  # how many captions in each

    def __call__(self, name: str, images: ArrayLike, others: ArrayLike) -> Array:
        """See the class.

        Raises:
            ValueError: no such score.
        """
        check_choice(name, TEXT_SCORES, "name")
        images, others = np.asarray(images), np.asarray(others)
        pairs = self.captions_of[images].nnz * self.captions_of[others].nnz
        chunks = max(1, min(pairs // PAIRS, len(images)))
        return np.concatenate([self._scores(name, some, others) for some in np.array_split(images, chunks)])

    def _scores(self, name: str, images: Array, others: Array) -> Array:
        left, right = self.captions_of[images], self.captions_of[others]
        scores = TEXT_SCORES[name](self.captions[left.indices], self.captions[right.indices])
        total = (_grouped(left) @ scores @ _grouped(right).T).toarray()
        pairs = (self.languages_of[images] @ self.languages_of[others].T).toarray()
        return np.asarray(total / np.maximum(pairs, 1), dtype=np.float32)


def _grouped(captions_of: Any) -> Any:
    """Sparse (images, their captions one after the other)."""
    count = captions_of.nnz
    return sparse.csr_array((captions_of.data, np.arange(count), captions_of.indptr), (captions_of.shape[0], count))

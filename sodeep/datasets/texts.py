"""Static features of texts: they are computed before training, and no loss changes them. None needs a network.

* "tf-idf": of words, word pairs and character n-grams.
* "wordllama": mean of the word vectors that lie in the package wordllama, in many languages and of 256 numbers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sodeep._core.checks import check_choice
from sodeep._core.extras import missing, needed
from sodeep.datasets.types import Array

TEXT_FEATURES = {"tf-idf": "tf-idf of n-grams", "wordllama": "wordllama vectors"}
"""Text features -> their names in reports. The first is the default."""


def static_vectors(text_features: str | None, texts: Sequence[str] | None, name: str) -> Array | None:
    """The word vectors of texts, if `text_features` is "wordllama"; else None, and the task counts n-grams.

    Args:
        text_features: one of `TEXT_FEATURES`, or None for the first.
        texts: those of the data, if they have any.
        name: of the data, for the message.

    Raises:
        ValueError: an unknown kind, or data without texts.
    """
    if text_features is None:
        return None
    check_choice(text_features, TEXT_FEATURES, "text_features")
    if texts is None:
        raise ValueError(f"`text_features` must not be given for data without texts, got {text_features!r} for {name}.")
    return wordllama_vectors(texts) if text_features == "wordllama" else None


def tf_idf(texts: Sequence[str], train: Array, width: int = 128) -> Array:
    """Main directions (N, up to `width`) of tf-idf, fitted on the texts of `train`."""
    with needed("sklearn", "Turning texts into tf-idf"):
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

    rows = np.asarray(texts, dtype=object)
    counts = []
    for analyzer, ngrams in (("word", (1, 2)), ("char_wb", (2, 5))):
        vectorizer = TfidfVectorizer(analyzer=analyzer, ngram_range=ngrams, min_df=2, sublinear_tf=True)
        try:
            vectorizer.fit(rows[train])
        except ValueError:  # no term occurs twice
            raise _no_words() from None
        counts.append(vectorizer.transform(rows))
    reduced = []
    for table in counts:
        if table.shape[1] < 2:
            raise _no_words()
        svd = TruncatedSVD(min(width // 2, table.shape[1] - 1, len(train) - 1), random_state=0)
        svd.fit(table[train])
        reduced.append(svd.transform(table).astype(np.float32))
    return np.concatenate(reduced, axis=1)


def _no_words() -> ValueError:
    return ValueError("The texts must have words in common for tf-idf, got none. Is another column that of the texts?")


def wordllama_vectors(texts: Sequence[str]) -> Array:
    """Mean (N, 256) of the vectors of the pieces of words in each text; zeros for an empty one.

    The two files of the package are read directly: its own loader looks for one of them on a network.
    """
    import safetensors.numpy

    weights, pieces = (
        _wordllama_file(name) for name in ("l2_supercat_256.safetensors", "l2_supercat_tokenizer_config.json")
    )
    with needed("tokenizers", "`text_features` wordllama"):
        from tokenizers import Tokenizer

    vectors = safetensors.numpy.load_file(weights)["embedding.weight"].astype(np.float32)
    tokenizer: Any = Tokenizer.from_file(str(pieces))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    result = np.zeros((len(texts), vectors.shape[1]), dtype=np.float32)
    for row, tokens in zip(result, tokenizer.encode_batch(list(texts), add_special_tokens=False), strict=True):
        if tokens.ids:
            row[:] = vectors[np.minimum(tokens.ids, len(vectors) - 1)].mean(0)
    return result


def _wordllama_file(name: str) -> Path:
    """Where a file of the package lies; the package itself, which has dependencies of its own, is not imported."""
    feature = "`text_features` wordllama"
    package = importlib.util.find_spec("wordllama")
    if package is None:
        raise missing("wordllama", feature)
    for folder in package.submodule_search_locations or ():
        for path in Path(folder).rglob(name):
            return path
    raise FileNotFoundError(
        f"{feature} needs {name} in the package wordllama, got a version without it. "
        "Install one with it: pip install wordllama==0.4.0.post1"
    )

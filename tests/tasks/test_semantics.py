"""Semantic scores of captions: against sacrebleu, rouge-score and plain loops."""

import re
from collections import Counter

import numpy as np
import pytest

from sodeep.tasks import semantics
from sodeep.tasks.semantics import TEXT_SCORES, Captions, SemanticScores, bleu, cider, rouge_l


def sentences(n, seed=0, longest=9):
    """Captions of 1 to `longest` words, some of them twice; few words, so that many are common."""
    rng = np.random.default_rng(seed)
    words = ["red", "blau", "été", "x", "heart", "face", "7", "cat", "with", "and"]
    return [" ".join(rng.choice(words, rng.integers(1, longest + 1))) for _ in range(n)]


def read(texts, owner=None, languages=None):
    owner = np.arange(len(texts)) if owner is None else owner
    return Captions.read(texts, owner, languages or [""] * len(texts))


def test_bleu_is_that_of_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    metric = sacrebleu.BLEU(effective_order=True, tokenize="none")
    texts = sentences(60)
    own = read(texts)
    expected = [[metric.sentence_score(x, [y]).score / 100 for y in texts] for x in texts]
    np.testing.assert_allclose(bleu(own, own).toarray(), expected, atol=1e-6)


def test_rouge_l_is_that_of_rouge_score():
    rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer")

    class Words:
        def tokenize(self, text):
            return text.split()

    metric = rouge_scorer.RougeScorer(["rougeL"], tokenizer=Words())
    texts = sentences(60)
    own = read(texts)
    expected = [[metric.score(y, x)["rougeL"].fmeasure for y in texts] for x in texts]
    np.testing.assert_allclose(rouge_l(own, own).toarray(), expected, atol=1e-6)


def grams(text, n):
    words = text.split()
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def test_cider_against_loops():
    texts = sentences(40)
    owner = np.arange(40) // 2

    def vector(text, n):
        counts = grams(text, n)
        found = {}
        for gram, count in counts.items():
            images = {owner[i] for i, other in enumerate(texts) if gram in grams(other, n)}
            found[gram] = count / sum(counts.values()) * np.log(20 / len(images))  # eq. 1
        return found

    def cosine(x, y):
        lengths = [np.sqrt(sum(value**2 for value in v.values())) for v in (x, y)]
        return sum(x[gram] * y.get(gram, 0) for gram in x) / np.prod(lengths) if all(lengths) else 0.0

    vectors = [[vector(text, n) for text in texts] for n in (1, 2, 3, 4)]
    expected = [[np.mean([cosine(v[i], v[j]) for v in vectors]) for j in range(40)] for i in range(40)]
    own = read(texts, owner)
    np.testing.assert_allclose(cider(own, own).toarray(), expected, atol=1e-6)
    assert len(np.unique(np.round(expected, 6))) > 100


@pytest.mark.parametrize("name", TEXT_SCORES)
def test_images_have_the_mean_over_pairs_in_one_language(name, monkeypatch):
    monkeypatch.setattr(semantics, "PAIRS", 20)  # an image or two at a time
    texts = sentences(40, longest=4)
    rng = np.random.default_rng(1)
    owner = np.concatenate([np.arange(12), rng.integers(0, 12, 28)])
    languages = rng.choice(["en", "de", "fr"], 40)
    scores = SemanticScores(texts, owner, languages)
    # the words of each language apart, so that this asks nothing of `languages`
    own = read([" ".join(x + word for word in text.split()) for x, text in zip(languages, texts, strict=True)], owner)
    pairs = TEXT_SCORES[name](own, own).toarray()
    images, others = np.array([3, 0, 11, 3]), np.array([2, 3, 7, 7, 1])
    expected = np.zeros((4, 5))
    for i, p in enumerate(images):
        for j, q in enumerate(others):
            same = [
                pairs[a, b]
                for a in np.flatnonzero(owner == p)
                for b in np.flatnonzero(owner == q)
                if languages[a] == languages[b]
            ]
            expected[i, j] = np.mean(same) if same else 0
    found = scores(name, images, others)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(scores(name, others, images), found.T, atol=1e-6)
    assert 0 < found.max() <= 1
    assert found.min() >= 0


@pytest.mark.parametrize("name", TEXT_SCORES)
def test_case_and_punctuation_do_not_count(name):
    texts = ["the Big Red Fox!", "the big, red fox", "...", "", "Été"]
    scores = SemanticScores(texts, range(5))(name, range(5), range(5))
    expected = np.zeros((5, 5))
    expected[:2, :2] = 1
    expected[4, 4] = {"cider": 1 / 4, "mean": 3 / 4}.get(name, 1)  # a single word has no longer n-grams
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.parametrize("name", TEXT_SCORES)
def test_words_of_two_languages_differ(name):
    scores = SemanticScores(["piano", "piano", "piano forte"], [0, 1, 2], ["fr", "it", "it"])
    found = scores(name, [0, 1], [1, 2])
    assert found[0].tolist() == [0, 0]
    assert (found[1] > 0).all()


def test_the_mean_is_of_the_three_others():
    texts = sentences(30)
    scores = SemanticScores(texts, np.arange(30) // 2)
    every = np.arange(15)
    three = [scores(name, every, every) for name in ("cider", "bleu", "rouge-l")]
    np.testing.assert_allclose(scores("mean", every, every), np.mean(three, axis=0), atol=1e-6)


def test_no_images():
    assert SemanticScores(["a", "b"], [0, 1])("bleu", [], [0, 1]).shape == (0, 2)


def test_an_unknown_score_names_the_choices():
    expected = "`name` must be one of cider, bleu, rouge-l, mean, got 'meteor'."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        SemanticScores(["a"], [0])("meteor", [0], [0])

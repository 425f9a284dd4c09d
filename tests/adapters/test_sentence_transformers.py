"""Losses for sentence-transformers, on a tiny model with random weights: their values, and in its trainer."""

import itertools
import re

import pytest
import torch

import sodeep
from sodeep.adapters.sentence_transformers import InBatchLoss, ScoredPairsLoss

WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]
pytestmark = pytest.mark.filterwarnings("ignore")  # those of sentence-transformers are not ours to mend


@pytest.fixture
def model():
    """A mean of word vectors."""
    tokenizers = pytest.importorskip("tokenizers")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    words = {word: i for i, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return sentence_transformers.SentenceTransformer(
        modules=[modules.StaticEmbedding(tokenizer, embedding_dim=6)], device="cpu"
    )


def columns(model, *texts):
    preprocess = getattr(model, "preprocess", None) or model.tokenize
    return [preprocess(list(column)) for column in texts]


PAIRS = [f"{one} {other}" for one, other in itertools.pairwise(WORDS)]
"""Seven texts of two words."""


def test_scored_pairs(model):
    one, other, gold = WORDS[:7], PAIRS, torch.rand(7)
    a, b = (torch.from_numpy(model.encode(texts)) for texts in (one, other))
    loss = sodeep.SpearmanLoss(sodeep.laplace_rank)
    value = ScoredPairsLoss(model, loss)(columns(model, one, other), gold.unsqueeze(1))
    torch.testing.assert_close(value, loss(torch.cosine_similarity(a, b), gold))
    value.backward()
    assert all(weight.grad.abs().sum() > 0 for weight in model.parameters())


@pytest.mark.parametrize("negatives", [0, 2])
def test_negatives_in_the_batch(model, negatives):
    texts = [WORDS[:7], PAIRS, PAIRS[::-1], WORDS[1:]][: 2 + negatives]
    anchors, *candidates = (torch.from_numpy(model.encode(column)) for column in texts)
    scores = sodeep.pairwise_scores(anchors, torch.zeros(7), torch.cat(candidates), torch.zeros(7 * (1 + negatives)))[0]
    relevant = torch.eye(7, 7 * (1 + negatives), dtype=torch.bool)
    for loss in (sodeep.SmoothAPLoss(), sodeep.RecallAtKLoss((1, 2)), sodeep.MAPLoss(sodeep.load_sorter("set"))):
        value = InBatchLoss(model, loss, scale=2.0)(columns(model, *texts))
        torch.testing.assert_close(value, loss(2 * scores, relevant))
        assert value.requires_grad


def test_too_few_columns(model):
    message = "`sentence_features` must be two columns of texts, got 1 column."
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        ScoredPairsLoss(model, sodeep.SpearmanLoss(sodeep.laplace_rank))(columns(model, WORDS), torch.ones(8))


def train(model, loss, data, folder):
    pytest.importorskip("accelerate")
    datasets = pytest.importorskip("datasets")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        str(folder), max_steps=20, per_device_train_batch_size=16, learning_rate=0.1, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no", warmup_steps=0,
    )  # fmt: skip
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model, arguments, train_dataset=datasets.Dataset.from_dict(data), loss=loss
    )
    trainer.train()


def test_in_the_trainer_of_pairs(model, tmp_path, generator):
    order = [torch.randperm(8, generator=generator).tolist() for _ in range(8)]
    pairs = [(WORDS[i], WORDS[j]) for i, row in enumerate(order) for j in row[:4] if i != j]
    gold = [1 - abs(WORDS.index(one) - WORDS.index(other)) / 8 for one, other in pairs]
    one, other = (list(column) for column in zip(*pairs, strict=True))

    def spearman():
        a, b = (torch.from_numpy(model.encode(texts)) for texts in (one, other))
        return sodeep.spearman_corr(torch.cosine_similarity(a, b), torch.tensor(gold)).item()

    before = spearman()
    loss = ScoredPairsLoss(model, sodeep.SpearmanLoss(sodeep.laplace_rank))
    train(model, loss, {"sentence1": one, "sentence2": other, "score": gold}, tmp_path)
    assert spearman() > before + 0.4


def test_in_the_trainer_of_anchors(model, tmp_path):
    def hits():
        scores = model.similarity(model.encode(WORDS[:7]), model.encode(PAIRS[::-1]))
        return sodeep.reciprocal_rank(scores, torch.eye(7).bool()).mean().item()

    before = hits()  # each word is to find the pair at the other end of the list
    train(
        model,
        InBatchLoss(model, sodeep.SmoothAPLoss(tau=0.1)),
        {"anchor": WORDS[:7], "positive": PAIRS[::-1]},
        tmp_path,
    )
    assert hits() > before

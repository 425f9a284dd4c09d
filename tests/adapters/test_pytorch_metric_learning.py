"""Losses of sodeep inside pytorch-metric-learning: miners, reducers, distances, memory, and its numbers."""

from functools import partial

import pytest
import torch

import sodeep

pytest.importorskip("pytorch_metric_learning")

from pytorch_metric_learning import distances, losses, miners, reducers, regularizers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

from sodeep.adapters.pytorch_metric_learning import CrossBatchMemory, MetricLearningLoss

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
"""The last item has no positive."""


@pytest.fixture
def embeddings(generator):
    return torch.randn(8, 5, generator=generator, dtype=torch.float64).requires_grad_()


def values_of(loss, embeddings, **options):
    scores, relevant = sodeep.pairwise_scores(embeddings, LABELS, **options)
    return loss(scores, relevant, reduction="none")


def is_same(value, expected, *inputs):
    """Equal in value and in gradient."""
    gradients = (torch.autograd.grad(x, inputs, retain_graph=True) for x in (value, expected))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("loss", [sodeep.SmoothAPLoss(), sodeep.MAPLoss(sodeep.laplace_rank), sodeep.NTXentLoss()])
def test_the_mean_is_that_of_an_embedding_loss(embeddings, loss):
    is_same(MetricLearningLoss(loss)(embeddings, LABELS), sodeep.EmbeddingLoss(loss)(embeddings, LABELS), embeddings)


def test_reducers_get_the_values_of_the_rows(embeddings):
    loss = sodeep.SmoothAPLoss()
    values = values_of(loss, embeddings)[:7]  # that of the last is undefined
    adapted = partial(MetricLearningLoss, loss)
    is_same(adapted(reducer=reducers.SumReducer())(embeddings, LABELS), values.sum(), embeddings)
    threshold = values.detach().median().item()
    chosen = values[values > threshold]
    assert 0 < len(chosen) < 7
    reducer = reducers.ThresholdReducer(low=threshold)
    is_same(adapted(reducer=reducer)(embeddings, LABELS), chosen.mean(), embeddings)
    weights = torch.arange(4.0, dtype=torch.float64)
    weighted = adapted(reducer=reducers.ClassWeightedReducer(weights))(embeddings, LABELS)
    is_same(weighted, (weights[LABELS[:7]] * values).mean(), embeddings)
    given = adapted(reducer=reducers.DoNothingReducer())(embeddings, LABELS)["loss"]
    assert given["indices"].tolist() == list(range(7))
    torch.testing.assert_close(given["losses"], values)


@pytest.mark.parametrize(
    ("distance", "similarity"),
    [
        (distances.DotProductSimilarity(normalize_embeddings=False), "dot"),
        (distances.LpDistance(normalize_embeddings=False), "euclidean"),
    ],
)
def test_distances(embeddings, distance, similarity):
    loss = sodeep.TripletLoss()
    value = MetricLearningLoss(loss, distance=distance)(embeddings, LABELS)
    is_same(value, values_of(loss, embeddings, similarity=similarity).nanmean(), embeddings)


def test_a_regularizer_is_added(embeddings):
    regularizer = regularizers.LpRegularizer()
    value = MetricLearningLoss(sodeep.NTXentLoss(), embedding_regularizer=regularizer)(embeddings, LABELS)
    plain = MetricLearningLoss(sodeep.NTXentLoss())(embeddings, LABELS)
    torch.testing.assert_close(value, plain + embeddings.norm(dim=1).mean())


@pytest.mark.parametrize("miner", [miners.MultiSimilarityMiner(), miners.TripletMarginMiner()])
def test_miners(embeddings, miner):
    mined = miner(embeddings, LABELS)
    loss = sodeep.MultiSimilarityLoss(epsilon=None)
    expected = sodeep.EmbeddingLoss(loss)(embeddings, LABELS, mined)
    is_same(MetricLearningLoss(loss)(embeddings, LABELS, mined), expected, embeddings)
    is_same(MetricLearningLoss(loss)(embeddings, indices_tuple=mined), expected, embeddings)


def test_a_reference_set(embeddings, generator):
    references = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(6) % 4
    value = MetricLearningLoss(sodeep.SmoothAPLoss())(embeddings, LABELS, ref_emb=references, ref_labels=labels)
    expected = sodeep.EmbeddingLoss(sodeep.SmoothAPLoss())(embeddings, LABELS, references, labels)
    is_same(value, expected, embeddings)


def test_the_memory(embeddings):
    """Theirs holds the batch itself too, which as references has no gradient there."""
    theirs = CrossBatchMemory(MetricLearningLoss(sodeep.NTXentLoss()), embedding_size=5, memory_size=32).double()
    ours = sodeep.EmbeddingLoss(sodeep.NTXentLoss(), memory=sodeep.EmbeddingMemory(32, 5)).double()
    for shift in range(3):
        labels = (LABELS + shift) % 4
        rows = embeddings.detach() + shift
        torch.testing.assert_close(theirs(rows, labels), ours(rows, labels))
    CrossBatchMemory(losses.NTXentLoss(), embedding_size=5)
    with pytest.raises(Exception, match="CrossBatchMemory not supported for ArcFaceLoss"):
        CrossBatchMemory(losses.ArcFaceLoss(4, 5), embedding_size=5)


def test_several_losses(embeddings):
    ours, theirs = MetricLearningLoss(sodeep.SmoothAPLoss()), losses.NTXentLoss()
    value = losses.MultipleLosses([ours, theirs])(embeddings, LABELS)
    is_same(value, ours(embeddings, LABELS) + theirs(embeddings, LABELS), embeddings)


def test_a_loss_that_is_no_mean_over_lists(embeddings):
    loss = sodeep.HistogramLoss()
    is_same(MetricLearningLoss(loss)(embeddings, LABELS), sodeep.EmbeddingLoss(loss)(embeddings, LABELS), embeddings)


def test_no_defined_row(embeddings):
    with pytest.warns(sodeep.UndefinedListWarning, match="every value is NaN"):
        value = MetricLearningLoss(sodeep.SmoothAPLoss())(embeddings, torch.arange(8))
    value.backward()
    assert value.item() == 0
    assert not embeddings.grad.any()


def test_what_is_no_loss():
    with pytest.raises(
        TypeError, match=r"^`loss` must be a loss on scores such as SmoothAPLoss\(\), got 'smooth-ap'\.$"
    ):
        MetricLearningLoss("smooth-ap")
    with pytest.raises(ValueError, match="labels"):
        MetricLearningLoss(sodeep.SmoothAPLoss())(torch.eye(4))


def test_their_numbers_are_those_of_retrieval_metrics(embeddings):
    """No tie: every rank is that of one item."""
    rows, labels = embeddings.detach().float()[:7], LABELS[:7]
    calculator = AccuracyCalculator(
        include=("mean_average_precision_at_r", "r_precision", "precision_at_1"),
        knn_func=CustomKNN(distances.CosineSimilarity()),
    )
    theirs = calculator.get_accuracy(rows, labels)
    ours = sodeep.retrieval_metrics(rows, labels, metrics=["mAP@R", "R-precision", "R@1"])
    expected = [theirs[name] for name in ("mean_average_precision_at_r", "r_precision", "precision_at_1")]
    assert list(ours.values()) == pytest.approx(expected)

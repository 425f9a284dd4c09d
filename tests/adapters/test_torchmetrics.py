"""The torchmetrics form: accumulated, gathered, in a collection; and beside the metrics of torchmetrics."""

import pickle
import re

import pytest
import torch

import sodeep

torchmetrics = pytest.importorskip("torchmetrics")
retrieval = pytest.importorskip("torchmetrics.retrieval")
RankingMetric = pytest.importorskip("sodeep.adapters.torchmetrics").RankingMetric
pytestmark = [
    pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef` will save all targets"),
    pytest.mark.filterwarnings("ignore::sodeep.UndefinedMetricWarning"),
]
N = 60


@pytest.fixture
def items(generator):
    """Scores above 0, grades and queries of 60 items; the last query has no relevant item."""
    scores = torch.rand(N, generator=generator)
    grades = torch.randint(4, (N,), generator=generator)
    queries = torch.randint(6, (N,), generator=generator)
    return scores, grades.masked_fill(queries == 5, 0), queries


def updated(metric, *tensors, size=7, **named):
    for part in torch.arange(len(tensors[0])).split(size):
        metric.update(*(x[part] for x in tensors), **{name: x[part] for name, x in named.items()})
    return metric


def test_spearman_is_theirs(items):
    scores, grades, _ = items
    ours, theirs = RankingMetric(sodeep.spearman_corr), torchmetrics.SpearmanCorrCoef()
    expected = updated(theirs, scores, grades.float()).compute()
    torch.testing.assert_close(updated(ours, scores, grades).compute(), expected)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RankingMetric(sodeep.average_precision), retrieval.RetrievalMAP("skip")),
        (RankingMetric(sodeep.reciprocal_rank), retrieval.RetrievalMRR("skip")),
        (RankingMetric(sodeep.recall_at_k, k=3), retrieval.RetrievalRecall("skip", top_k=3)),
        (RankingMetric(sodeep.hit_rate_at_k, k=3), retrieval.RetrievalHitRate("skip", top_k=3)),
        (RankingMetric(sodeep.r_precision), retrieval.RetrievalRPrecision("skip")),
    ],
)
def test_retrieval_is_theirs(items, ours, theirs):
    scores, grades, queries = items
    relevant = grades > 1
    for metric in (ours, theirs):
        metric.reset()
        updated(metric, scores, relevant, indexes=queries)
    torch.testing.assert_close(ours.compute(), theirs.compute())


@pytest.mark.parametrize("k", [None, 3])
def test_ndcg_is_theirs(items, k):
    scores, grades, queries = items
    scores = scores.round(decimals=1)  # both average over the orders of tied items
    ours = RankingMetric(sodeep.ndcg, gain="linear", k=k)
    theirs = retrieval.RetrievalNormalizedDCG("skip", top_k=k)
    values = [updated(metric, scores, grades, indexes=queries).compute() for metric in (ours, theirs)]
    torch.testing.assert_close(*values)


def test_where_they_differ():
    """As the module says: what torchmetrics makes of cosines, and of queries without a relevant item."""
    pytest.importorskip("torchmetrics", minversion="1.9")
    scores, relevant = torch.tensor([-0.1, -0.5, -0.9, 0.3]), torch.tensor([True, False, False, False])
    queries = torch.tensor([0, 0, 0, 1])
    ours, theirs = RankingMetric(sodeep.average_precision), retrieval.RetrievalMAP()
    assert ours(scores, relevant, indexes=queries) == 1
    assert theirs(scores, relevant, indexes=queries) == 0


def test_rows_are_lists_or_embeddings(generator):
    scores = torch.randn(9, 5, generator=generator)
    relevant = torch.rand(9, 5, generator=generator) < 0.6
    relevant[:, 0] = True
    metric = updated(RankingMetric(sodeep.average_precision), scores, relevant, size=4)
    torch.testing.assert_close(metric.compute(), sodeep.average_precision(scores, relevant).mean())
    labels = torch.arange(9) % 3
    metric = updated(RankingMetric(sodeep.retrieval_metrics, metrics=("mAP", "R@1")), scores, labels, size=4)
    expected = sodeep.retrieval_metrics(scores, labels, metrics=("mAP", "R@1"))
    assert {name: value.item() for name, value in metric.compute().items()} == pytest.approx(expected)


def test_repeated_items_count_once(items):
    scores, grades, _ = items
    index = torch.tensor([*range(N), 3, 0])
    metric = updated(RankingMetric(sodeep.spearman_corr), scores[index], grades[index], index=index)
    torch.testing.assert_close(metric.compute(), sodeep.spearman_corr(scores, grades))


def test_processes_are_reduced(items):
    """Process 1 has other rows, and fewer; what torchmetrics gathers of it is given here."""
    scores, grades, queries = items
    relevant = grades > 1
    metrics = []
    for rows in (slice(0, 50), slice(50, N)):
        metrics.append(RankingMetric(sodeep.average_precision))
        updated(metrics[-1], scores[rows], relevant[rows], indexes=queries[rows])

    def gathered(x, group):
        states = [name for name in metrics[0]._reductions if getattr(metrics[0], name)]
        names = [name for name in states if torch.equal(torch.cat(getattr(metrics[0], name)), x)]
        return [x, *(torch.cat(getattr(metrics[1], name)) for name in names)]

    first = metrics[0]
    first.distributed_available_fn, first.dist_sync_fn = lambda: True, gathered
    expected = sodeep.average_precision(scores, relevant, group=queries).nanmean()
    torch.testing.assert_close(first.compute(), expected)
    assert len(first.preds) == 8  # its own again


def test_in_a_collection(items):
    scores, grades, _ = items
    collection = torchmetrics.MetricCollection(
        {
            "spearman": RankingMetric(sodeep.spearman_corr),
            "nDCG@3": RankingMetric(sodeep.ndcg, k=3),
            "theirs": torchmetrics.SpearmanCorrCoef(),
        }
    )
    updated(collection, scores, grades.float())
    found = pickle.loads(pickle.dumps(collection)).compute()
    torch.testing.assert_close(found["spearman"], found["theirs"])
    torch.testing.assert_close(found["nDCG@3"], sodeep.ndcg(scores, grades, k=3))


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric RankingMetric")  # said by torchmetrics too
def test_without_a_batch():
    with pytest.raises(ValueError, match=r"^`update` must be called before `compute`, got no batch\.$"):
        RankingMetric(sodeep.ndcg).compute()


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (TypeError, lambda m: RankingMetric("map"), "`metric` must be a function of two tensors, got 'map'."),
        (
            ValueError,
            lambda m: m.update(torch.ones(3), torch.ones(2)),
            "`target` must be a tensor with a row for each of `preds`, got a tensor of shape (2,) and dtype float32.",
        ),
        (
            ValueError,
            lambda m: m.update(torch.ones(2), torch.ones(2), indexes=torch.zeros(2)),
            "`indexes` must be given with every batch or with none. To begin anew, call reset().",
        ),
    ],
)
def test_bad_input(error, call, message):
    metric = RankingMetric(sodeep.spearman_corr)
    metric.update(torch.ones(2), torch.ones(2))
    with pytest.raises(error, match="^" + re.escape(message) + "$"):
        call(metric)

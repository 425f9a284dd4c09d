"""docs/migrating.md: both sides of every row of its tables are run, where the other package is installed."""

import argparse
import re
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import sodeep

PAGE = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text()


def rows(section):
    """The rows of a section's table: code there, code here, what is said of their values."""
    text = re.search(rf"^## From {re.escape(section)}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    found = re.findall(r"^\| `(.*)` \| `(.*)` \| (.*) \|$", text, re.MULTILINE)
    assert len(found) == text.count("\n| `")
    return [pytest.param(*row, id=f"{row[0].split('(')[0]}-{number}") for number, row in enumerate(found)]


def check(there, here, said, names):
    """What the page says of the values holds."""
    with warnings.catch_warnings():  # of the other package, and of lists that are undefined on purpose
        warnings.simplefilter("ignore")
        a, b = (
            torch.as_tensor(eval(code, {"sodeep": sodeep, "torch": torch, **names})).double() for code in (there, here)
        )
    if said.startswith("the same"):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    elif said.startswith("nearly the same, to 1%"):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=0)
    else:
        assert said.startswith("differ")
        with pytest.raises(AssertionError):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.fixture
def lists():
    """What the page calls these names."""
    n = 30
    scores = torch.randn(n)
    query = torch.arange(n) // 5
    relevant = (torch.rand(n) < 0.4) & (query > 0)  # one query has none
    outputs = torch.rand(n, 3)
    return {
        "n": n,
        "scores": scores,
        "chances": scores.sigmoid(),
        "tied": scores.round(),
        "relevant": relevant,
        "query": query,
        "grades": torch.randint(0, 4, (n,)),
        "target": torch.randn(n),
        "outputs": outputs,
        "labels": torch.rand(n, 3) < 0.4,
    }


# ---- the code of 2019 ------------------------------------------------------------------------------------------------


class SumOfGRU(nn.Module):
    """The smallest network of 2019, "grus"."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.GRU(1, 4, 1, batch_first=True, bidirectional=True)

    def forward(self, scores):
        return self.lstm(scores.unsqueeze(-1))[0].sum(-1)


def exact_sorter(scores):
    """The "exa" of 2019: sigmoids of all differences, over the standard deviation of a matrix that is half zeros."""
    ranks = []
    for row in scores:
        n = len(row)
        upper = torch.triu(row[None, :] - row[:, None], diagonal=1)
        slope = 6.8 / upper.std()
        above = torch.sigmoid(slope * (row[None, :] - row[:, None]))  # [i, j]: is j above i?
        ranks.append((above.sum(1) - 0.5 + 1) / n)
    return torch.stack(ranks)


def losses_of_2019():
    """Its losses, written from their description, with its arguments."""

    def sorter_of(kind, weights=None):
        if kind == "exa":
            return exact_sorter
        network = SumOfGRU()
        network.load_state_dict(weights)
        return network

    def load_sorter(path):
        checkpoint = torch.load(path, weights_only=False)
        return checkpoint["args_dict"].model_type, checkpoint["state_dict"]

    def spearman(kind, weights=None, lbd=0.0):
        def loss(scores, target):
            exact = torch.tensor([1.0 + sum(y > x for y in target.tolist()) for x in target.tolist()])
            found = sorter_of(kind, weights)(scores[None])[0]
            return ((found - exact / len(exact)) ** 2).mean() + lbd * (scores - target).abs().mean()

        return loss

    def map_ranking(kind, weights=None):
        def loss(outputs, labels):
            return sorter_of(kind, weights)(outputs.T)[labels.T].sum()

        return loss

    def both_ways(term):
        return lambda kind, weights: (
            lambda s: sum(term(sorter_of(kind, weights)(x), i) for x in (s, s.T) for i in range(len(s)))
        )

    def hard(ranks, i):
        others = torch.cat([ranks[i, :i], ranks[i, i + 1 :]])
        return (1 / len(ranks) + ranks[i, i] - others.min()).relu()

    return {
        "load_sorter": load_sorter,
        "SpearmanLoss": spearman,
        "MapRankingLoss": map_ranking,
        "RankLoss": both_ways(lambda ranks, i: ranks[i, i]),
        "RankHardLoss": both_ways(hard),
    }


@pytest.mark.parametrize(("there", "here", "said"), rows("the SoDeep code of 2019"))
def test_2019(there, here, said, lists, tmp_path):
    path = tmp_path / "best_model.pth.tar"
    arguments = argparse.Namespace(model_type="grus", seq_len=30)
    torch.save({"args_dict": arguments, "state_dict": SumOfGRU().state_dict()}, path)
    names = {"path": path, "rank_fn": sodeep.import_sodeep2019(path), "s": torch.randn(30, 30)}
    check(there, here, said, {**lists, **names, "eye": torch.eye(30, dtype=torch.bool), **losses_of_2019()})


# ---- other packages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("there", "here", "said"), rows("torchsort"))
def test_torchsort(there, here, said, lists):
    torchsort = pytest.importorskip("torchsort")

    def soft_rank(scores):
        return torchsort.soft_rank(-scores, regularization_strength=0.001)

    def spearmanr(scores, target):
        return torch.corrcoef(torch.stack([soft_rank(scores[None])[0], soft_rank(target[None])[0]]))[0, 1]

    check(there, here, said, {**lists, "torchsort": torchsort, "soft_rank": soft_rank, "spearmanr": spearmanr})


@pytest.mark.parametrize(("there", "here", "said"), rows("softtorch"))
def test_softtorch(there, here, said, lists):
    softtorch = pytest.importorskip("softtorch")
    scores, target = lists["scores"], lists["target"]

    def soft_rank(scores):
        return softtorch.rank(scores, dim=-1)

    def gradient(rank_fn):
        along_lists = rank_fn if isinstance(rank_fn, nn.Module) else partial(rank_fn, dim=-1)
        leaf = scores.clone().requires_grad_()
        return torch.autograd.grad(sodeep.spearman_loss(leaf, target, rank_fn=along_lists), leaf)[0]

    names = {"softtorch": softtorch, "soft_rank": soft_rank, "gradient": gradient}
    check(there, here, said, {**lists, **names, "tau": scores.std(correction=0).item() / 6.8})


@pytest.mark.parametrize(("there", "here", "said"), rows("pytorch-metric-learning"))
def test_pytorch_metric_learning(there, here, said):
    names = {name: pytest.importorskip(f"pytorch_metric_learning.{name}") for name in ("losses", "miners", "distances")}
    embeddings = normalize(torch.randn(24, 8, dtype=torch.float64))
    names["labels"] = torch.arange(6).repeat(4)
    names["lonely"] = torch.tensor([0] * 3 + [1] * 4 + [2] * 5 + [3] * 6 + [4] + [5] * 5)
    names["normalized_softmax"] = names["losses"].NormalizedSoftmaxLoss(6, 8).double()
    first, second = embeddings.split(12)
    check(there, here, said, {**names, "embeddings": embeddings, "first": first, "second": second, "n": 12})


@pytest.mark.parametrize(("there", "here", "said"), rows("torchmetrics"))
def test_torchmetrics(there, here, said, lists):
    pytest.importorskip("torchmetrics")
    import torchmetrics.functional.classification
    import torchmetrics.functional.retrieval
    import torchmetrics.retrieval

    names = {"functional": torchmetrics.functional, "retrieval": torchmetrics.retrieval}
    check(there, here, said, {**lists, **names})

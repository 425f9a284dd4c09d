"""Any callable `scores (..., n) -> ranks (..., n)`, 1 = highest, plugs into every rank loss."""

import torch

import sodeep


def pairwise_rank(scores, tau=0.1):
    """One plus a soft count of the items above; an item counts itself as one half."""
    above = torch.sigmoid((scores.unsqueeze(-2) - scores.unsqueeze(-1)) / tau)
    return above.sum(-1) + 0.5


class TinySorter(torch.nn.Module):
    """A module works as well; this one has one parameter, fitted to the exact ranks below."""

    def __init__(self):
        super().__init__()
        self.log_tau = torch.nn.Parameter(torch.tensor(0.0))

    def forward(self, scores):
        """Ranks of `scores` along the last axis."""
        return pairwise_rank(scores, self.log_tau.exp())


def main(steps=100):
    """Fit TinySorter, then print the error and the optimisation score of each rank function."""
    torch.manual_seed(0)
    tiny = TinySorter()
    optimizer = torch.optim.Adam(tiny.parameters(), lr=0.1)
    for _ in range(steps):
        scores = torch.randn(16, 50)
        optimizer.zero_grad()
        (tiny(scores) - sodeep.exact_rank(scores)).abs().mean().backward()
        optimizer.step()
    rank_fns = {
        "pairwise_rank": pairwise_rank,
        "TinySorter": tiny.requires_grad_(False),
        "exact forward, soft backward": sodeep.straight_through(pairwise_rank),
        "laplace_rank": sodeep.laplace_rank,
    }
    scores, target = torch.randn(256, 100), torch.randn(256, 100)
    for name, rank_fn in rank_fns.items():
        loss = sodeep.spearman_loss(scores, target, rank_fn=rank_fn)
        error, score = sodeep.rank_error(rank_fn, scores), sodeep.optimization_score(rank_fn)[30]
        print(f"{name:<30} error {error:.4f}   optimisation score {score:.3f}   loss {loss:.4f}")


if __name__ == "__main__":
    main()

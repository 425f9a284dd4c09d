"""Documents ordered for queries: nDCG trained on groups of unequal length, from a csv table.

    python examples/ranking.py [TABLE.csv]

The table has a column `group` (a query, a user), a column `relevance`, 0 or more, and columns of numbers to predict the
order from. Without one, a table is made up whose features also tell how easy a query is: that helps to predict grades,
and not to order documents.
"""

import sys

import torch

import sodeep
from sodeep.datasets.generated import queries
from sodeep.datasets.ranking import read_group_table
from sodeep.datasets.splits import split_of_groups


def main(path=None, epochs=20, seed=0):
    """Train on whole groups, and print the mean nDCG@10 over the groups of the test split."""
    torch.manual_seed(seed)
    table = queries(seed) if path is None else read_group_table(path)
    split = split_of_groups(table.split, table.group, table.relevance, seed)  # 60 : 20 : 20, no group in two of them
    features = torch.tensor(table.features, dtype=torch.float32)
    relevance = torch.tensor(table.relevance, dtype=torch.float32)
    train, test = (torch.tensor((split == part).nonzero()[0]) for part in ("train", "test"))
    features = features[:, features[train].std(0) > 0]  # a feature that does not vary says nothing
    features = (features - features[train].mean(0)) / features[train].std(0)

    net = torch.nn.Sequential(torch.nn.Linear(features.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    # any rank function fits in the place of laplace_rank: a trained sorter, sodeep.load_sorter("set"), is one
    loss = sodeep.NDCGLoss(sodeep.laplace_rank)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)
    sampler = sodeep.GroupBatchSampler(table.group[train], max_items=200, seed=seed)  # of groups of like length

    for epoch in range(epochs + 1):
        if epoch in (0, epochs):
            with torch.no_grad():
                ndcg = sodeep.ndcg(net(features[test]).squeeze(-1), relevance[test], k=10, group=table.group[test])
            print(f"after {epoch} epochs: nDCG@10 {ndcg.nanmean():.3f} over {len(ndcg)} groups")
        for batch in sampler:
            rows = train[batch]
            optimizer.zero_grad()
            loss(net(features[rows]).squeeze(-1), relevance[rows], group=table.group[rows]).backward()
            optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Scores judged by their order: Spearman's correlation trained directly, with a little of the values.

    python examples/memorability.py

The data are synthetic: scores that depend on features through a bent function, with noise, and some blunders, which
pull a squared error more than an order. Ranks leave the scale of the predictions open; `value_weight` adds the error
of the values, so that predictions mean what the scores mean.
"""

import torch

import sodeep


def draw(n, generator):
    """Features (n, 10) and scores (n,) in [0, 1]."""
    features = torch.randn(n, 10, generator=generator)
    noise = 0.5 * torch.randn(n, generator=generator)
    noise *= torch.where(torch.rand(n, generator=generator) < 0.1, 8, 1)  # a tenth are blunders
    return features, torch.sigmoid(features[:, 0] + torch.sin(2 * features[:, 1]) + noise)


def main(steps=400, seed=0):
    """Train on batches of 100, and print Spearman's correlation and the mean absolute error on new data."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    features, scores = draw(1000, generator)
    test_features, test_scores = draw(1000, generator)
    net = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    # any rank function fits in the place of laplace_rank: a trained sorter, sodeep.load_sorter("set"), is one
    loss = sodeep.SpearmanLoss(sodeep.laplace_rank, value_weight=0.5)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(steps + 1):
        if step in (0, steps):
            with torch.no_grad():
                predicted = net(test_features).squeeze(-1)
            spearman = float(sodeep.spearman_corr(predicted, test_scores))
            error = float((predicted - test_scores).abs().mean())
            print(f"after {step} steps: Spearman {spearman:.3f}, mean absolute error {error:.3f}")
        batch = torch.randint(len(scores), (100,), generator=generator)
        optimizer.zero_grad()
        loss(net(features[batch]).squeeze(-1), scores[batch]).backward()  # the batch is one list
        optimizer.step()


if __name__ == "__main__":
    main()

"""Regression judged by Spearman correlation: one small net, trained with MSE and with ranks, handcrafted and learned.

    python examples/spearman_regression.py                              # with the sorter that ships with sodeep
    python examples/spearman_regression.py --sorter my.safetensors      # with one of your own

The data are scikit-learn's diabetes records: 442 patients, 10 measurements, disease progression after a year.
"""

import click
import torch
from sklearn.datasets import load_diabetes

import sodeep


def train(loss, x, y, epochs, seed):
    """A small net trained with `loss(predictions, targets)` on batches of 64."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss(net(x[batch]).squeeze(-1), y[batch]).backward()
            optimizer.step()
    return net.eval()


@click.command()
@click.option("--sorter", default="set", show_default=True, help="A shipped name or a file.")
@click.option("--seeds", default=5, show_default=True)
@click.option("--epochs", default=60, show_default=True)
def main(sorter, seeds, epochs):
    """Print the test Spearman of each loss, seed by seed."""
    x, y = (torch.tensor(a, dtype=torch.float32) for a in load_diabetes(return_X_y=True))
    x, y = x / x.std(0), (y - y.mean()) / y.std()
    losses = {
        "mse": torch.nn.MSELoss(),
        "spearman, laplace_rank": sodeep.SpearmanLoss(sodeep.laplace_rank),
        f"spearman, {sorter}": sodeep.SpearmanLoss(sodeep.load_sorter(sorter)),
    }
    results = {name: [] for name in losses}
    for seed in range(seeds):
        shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        test, rest = shuffled[:111], shuffled[111:]  # a quarter to test on, another split for each seed
        for name, loss in losses.items():
            net = train(loss, x[rest], y[rest], epochs, seed)
            with torch.no_grad():
                results[name].append(float(sodeep.spearman_corr(net(x[test]).squeeze(-1), y[test])))
    for name, values in results.items():
        spread = torch.tensor(values)
        per_seed = " ".join(f"{v:.3f}" for v in values)
        click.echo(f"{name:<28} {spread.mean():.3f} ± {spread.std(correction=0):.3f}   ({per_seed})")


if __name__ == "__main__":
    main()

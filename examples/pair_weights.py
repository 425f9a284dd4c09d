"""Draw the weight of a pair in the gradient of each loss, against the similarity of the pair.

A query has relevant items around similarity 0.6 and others around 0.2, both spread widely. One curve a loss: the
size of its pair weights, as a part of the largest, for the relevant items (left) and for the others (right).

    python examples/pair_weights.py weights.png
"""

from functools import partial

import click
import matplotlib
import matplotlib.pyplot as plt
import torch

from sodeep import laplace_rank, losses, pair_weights

LOSSES = {  # hinges dashed, log-sum-exps solid, ranks and distributions dotted
    "Contrastive": (losses.contrastive_loss, "--"),
    "Triplet, all": (losses.triplet_loss, "--"),
    "Triplet, semi-hard": (partial(losses.triplet_loss, mining="semihard"), "--"),
    "NCA, T = 0.1": (partial(losses.nca_loss, temperature=0.1), "-"),
    "NT-Xent": (losses.nt_xent_loss, "-"),
    "Binomial deviance": (losses.binomial_deviance_loss, "-"),
    "Multi-Similarity": (losses.multi_similarity_loss, "-"),
    "Histogram, 20 bins": (partial(losses.histogram_loss, num_bins=20), ":"),
    "Smooth-AP, tau = 0.05": (partial(losses.smooth_ap_loss, tau=0.05), ":"),
    "nDCG, Laplace ranks": (partial(losses.ndcg_loss, rank_fn=laplace_rank), ":"),
}


@click.command()
@click.argument("path", default="pair_weights.png")
def main(path: str) -> None:
    """Save the figure to PATH."""
    # evenly spaced quantiles of two normal distributions, not draws, so that the curves are smooth
    normal = torch.special.ndtri(torch.linspace(0.005, 0.995, 1000, dtype=torch.float64))
    scores = torch.cat([0.6 + 0.12 * normal, 0.2 + 0.15 * normal])
    relevant = torch.arange(2000) < 1000

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for name, (loss, style) in LOSSES.items():
        weights = pair_weights(loss, scores, relevant).abs()
        for axis, side in zip(axes, (relevant, ~relevant), strict=True):
            axis.plot(scores[side], weights[side] / weights[side].max(), style, label=name)
    for axis, title in zip(axes, ("Relevant items: pulled up", "Other items: pushed down"), strict=True):
        axis.set(title=title, xlabel="similarity to the query")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("weight / largest weight")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)
    click.echo(f"Wrote {path}")


if __name__ == "__main__":
    matplotlib.use("Agg")
    main()

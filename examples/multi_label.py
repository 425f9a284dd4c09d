"""Several labels an example, judged by mean average precision: cross-entropy, with the average precision beside it.

    python examples/multi_label.py

Average precision ranks the examples of a label, so a list is a label: scores (examples, labels) are transposed to
(labels, examples). Labels that no example of a batch has are left out of the mean.
"""

import torch
from sklearn.datasets import make_multilabel_classification

import sodeep


def mean_average_precision(scores, labels):
    """Mean over the labels of the exact average precision."""
    return float(sodeep.average_precision(scores.detach().T, labels.T).nanmean())


def main(epochs=30, map_weight=1.0, seed=0):
    """Train on 1,000 examples, and print the mean average precision on 1,000 others before and after.

    `map_weight` is that of the average precision beside cross-entropy.
    """
    torch.manual_seed(seed)
    x, labels = make_multilabel_classification(2000, n_features=40, n_classes=10, n_labels=2, random_state=seed)
    x, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(labels, dtype=torch.bool)
    x = (x - x[:1000].mean(0)) / x[:1000].std(0)
    net = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

    for epoch in range(epochs + 1):
        if epoch in (0, epochs):
            print(f"after {epoch} epochs: mAP {mean_average_precision(net.eval()(x[1000:]), labels[1000:]):.3f}")
        net.train()
        for batch in torch.randperm(1000).split(100):
            scores = net(x[batch])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels[batch].float())
            loss = loss + map_weight * sodeep.map_loss(scores.T, labels[batch].T, rank_fn=sodeep.laplace_rank)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()

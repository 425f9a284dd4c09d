"""Retrieval with any encoder: images find others of their class, among images that were not trained on.

    python examples/retrieval.py

Any loss of `sodeep.losses` fits in the place of SmoothAPLoss, any network in that of the encoder. The data are the
digits of scikit-learn. With many classes, test on classes never seen in training instead; ten are too few for that.
"""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import sodeep


def evaluate(encoder, images, labels):
    """Hit rate at 1 and mAP@R, each image searched among all others."""
    with torch.no_grad():
        scores, relevant = sodeep.pairwise_scores(encoder.eval()(images), labels)
    encoder.train()
    return float(sodeep.hit_rate_at_k(scores, relevant, k=1).mean()), float(sodeep.map_at_r(scores, relevant).mean())


def main(epochs=6, seed=0):
    """Train on half of the images, and print both metrics on the other half before and after."""
    torch.manual_seed(seed)
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    seen = torch.arange(len(labels)) % 2 == 0
    encoder = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1024, 64),
    )  # fmt: skip
    # 10 classes with 10 images each; positives are found by their labels, so the order in a batch does not matter
    sampler = sodeep.BalancedBatchSampler(labels[seen], classes_per_batch=10, samples_per_class=10, seed=seed)
    loader = DataLoader(TensorDataset(images[seen], labels[seen]), batch_sampler=sampler)
    loss = sodeep.EmbeddingLoss(sodeep.SmoothAPLoss(tau=0.05))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)

    print("before: hit rate at 1 {:.3f}, mAP@R {:.3f}".format(*evaluate(encoder, images[~seen], labels[~seen])))
    for _ in range(epochs):
        for batch, batch_labels in loader:
            optimizer.zero_grad()
            loss(encoder(batch), batch_labels).backward()
            optimizer.step()
    print("after:  hit rate at 1 {:.3f}, mAP@R {:.3f}".format(*evaluate(encoder, images[~seen], labels[~seen])))


if __name__ == "__main__":
    main()

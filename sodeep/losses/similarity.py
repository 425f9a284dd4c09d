"""Similarities of all pairs of embeddings (cosine, dot product, minus distance), and which pairs are relevant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import FIND_THE_STEP, check_choice, check_device, check_finite, describe, ordinary, readable
from sodeep._core.labels import as_labels, label_tensor, same_label
from sodeep._core.precision import full_precision, wide_dtype, working_dtype
from sodeep._core.ties import tie_equal_rows


def unit_rows(x: Tensor) -> Tensor:
    """Rows scaled to length 1; a zero row stays zero, with a finite gradient."""
    # The cosine does not depend on the scale, so neither does its gradient: the largest entry may be divided out as
    # a constant, and squares of huge or tiny entries neither overflow nor vanish.
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest < torch.finfo(x.dtype).tiny
    scaled = x / largest.masked_fill(zero, 1)
    unit: Tensor = scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).masked_fill(zero, 1)
    return unit


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    unit = unit_rows(x)
    return unit @ (unit if y is x else unit_rows(y)).T


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.T


def _euclidean(x: Tensor, y: Tensor) -> Tensor:
    # |x|² + |y|² − 2xy is a matrix product, but in float32 its rounding puts equal rows at a distance of 1e-3 of their
    # length. float64 resolves 1e-7; what is below its rounding is 0, with gradient 0 where the root has none.
    wide = wide_dtype(x)
    a, b = x.to(wide), y.to(wide)
    sizes = a.square().sum(-1, keepdim=True) + b.square().sum(-1)
    squares = sizes - 2 * a @ b.T
    same = squares <= 16 * torch.finfo(wide).eps * sizes
    return -squares.masked_fill(same, 1).sqrt().masked_fill(same, 0).to(x.dtype)


SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": _euclidean,
}


def check_rows(embeddings: object, name: str, like: Tensor | None = None, like_name: str = "") -> None:
    """Rows of any values, as wide as those of `like` if given."""
    if not isinstance(embeddings, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor of shape (n, d), got {type(embeddings).__name__}.")
    if not embeddings.is_floating_point():
        raise TypeError(f"`{name}` must be real floating point, got {describe(embeddings)}.")
    if embeddings.ndim != 2 or embeddings.shape[1] == 0:
        raise ValueError(f"`{name}` must have shape (n, d), one row an item, got shape {tuple(embeddings.shape)}.")
    if like is not None:
        width = like.shape[1]
        if embeddings.shape[1] != width:
            raise ValueError(
                f"`{name}` must have the width of `{like_name}` ({width}), got shape {tuple(embeddings.shape)}."
            )
        check_device(embeddings, like, name, like_name)


def check_finite_rows(embeddings: Tensor, name: str, remedy: str = "Drop those rows") -> None:
    """Raise if a row holds NaN or infinity."""
    check_finite(embeddings, name=name, remedy=f"{remedy}, or {FIND_THE_STEP}")


def check_embeddings(embeddings: object, name: str, like: Tensor | None = None, like_name: str = "") -> None:
    """Rows to compare, with those of `like` if given."""
    check_rows(embeddings, name, like, like_name)
    check_finite_rows(embeddings, name)  # type: ignore[arg-type]


def similarities(x: Tensor, y: Tensor, similarity: str) -> Tensor:
    """Similarities (n, m) of checked rows, in float32 or wider; equal rows have equal ones."""
    dtype = working_dtype(x, y)
    wide = ordinary(x).to(dtype)
    other = wide if y is x else ordinary(y).to(dtype)
    return tie_equal_rows(SIMILARITIES[similarity](wide, other), wide, other)


def relevance(given: Tensor, ref_labels: Any, n: int, m: int, two_sets: bool) -> Tensor:
    """Which pairs are relevant, (n, m) bool, from labels of both sides or from a matrix given as the first.

    The first are a tensor on the device of the embeddings, the others in any form.
    """
    if ref_labels is not None:
        references = label_tensor(ref_labels, "ref_labels").to(given.device)
        return same_label(as_labels(given, "labels", n), as_labels(references, "ref_labels", m, "ref_embeddings"))
    if two_sets:
        if given.shape != (n, m) or given.dtype != torch.bool:
            raise ValueError(
                "`ref_labels` must be given with `ref_embeddings`, got None. Or give `labels` as a boolean relevance "
                f"matrix of shape ({n}, {m}); it is {describe(given)}."
            )
        return given
    if given.shape == (n, n) and given.dtype == torch.bool and n > 1:
        if readable(given) and not torch.equal(given, given.T):
            raise ValueError(
                f"`labels` as a boolean matrix of shape ({n}, {n}) must be symmetric: which rows are relevant to each "
                "other. Multi-hot labels of as many classes as rows go in as numbers: labels.int(). A relevance that "
                "is not symmetric goes in with ref_embeddings=embeddings."
            )
        return given
    row_labels = as_labels(given, "labels", n)
    return same_label(row_labels, row_labels)


@full_precision
def similarities_to(x: Tensor, sets: list[Tensor | None], similarity: str) -> list[Tensor]:
    """Similarities of `x` to each of `sets`, None being `x` itself.

    One product a set: rows of the past have no gradient, which one product of all of them would compute.
    """
    if similarity == "cosine" and len(sets) > 1:  # every row is brought to unit length once, not once a set
        dtype = working_dtype(x, *(y for y in sets if y is not None))
        x, similarity = unit_rows(x.to(dtype)), "dot"
        sets = [y if y is None else unit_rows(y.to(dtype)) for y in sets]
    return [similarities(x, x if y is None else y, similarity) for y in sets]


def drop_diagonal(x: Tensor, first: int = 0) -> Tensor:
    """(n, m) without the entry first + i of row i, as (n, m − 1).

    Without its first entry a flattened square reads as n − 1 rows of n + 1, and the diagonal is their last column.
    """
    n, m = x.shape
    if n < m:
        left, square, right = torch.split_with_sizes(
            x, [first, n, m - first - n], 1
        )  # whose gradient is put together in one piece
        return torch.cat([left, drop_diagonal(square), right], 1)
    return x.flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1) if n > 1 else x[:, :0]


@full_precision
def pairwise_scores(
    embeddings: Tensor,
    labels: Any,
    ref_embeddings: Tensor | None = None,
    ref_labels: Any = None,
    similarity: str = "cosine",
) -> tuple[Tensor, Tensor]:
    """Similarity and relevance of every row to every other row, or to every row of a reference set.

    Args:
        embeddings: (n, d) floating point, not necessarily normalised: the queries.
        labels: of the n rows. Whole numbers, floats, bools or strings (n,) or (n, 1), in a tensor, an array or a list;
            or multi-hot (n, c) of 0 and 1: rows that share a label are relevant to each other, a row without any to
            none; or a boolean relevance matrix, (n, n) and symmetric, or (n, m) of any kind with `ref_embeddings` and
            no `ref_labels`. Boolean multi-hot labels with c = n would read as such a matrix: give them as numbers.
            Moved to the device of `embeddings` if need be. Floats are compared exactly.
        ref_embeddings: (m, d), the rows to search in; None for `embeddings` itself.
        ref_labels: of the m rows, in the form of `labels`.
        similarity: "cosine"; "dot"; or "euclidean", which is minus the distance. The cosine to a zero row is 0. At
            distance 0 the gradient is 0. Distances resolve 1e-7 of the rows' length: below that they are 0.

    Returns:
        ``scores``, ``relevant``: floating point and bool, (n, m). Without a reference set, or when `ref_embeddings`
        is the very tensor `embeddings`, self pairs are left out by index: (n, n - 1), row i without column i. Equal
        rows stay; they are real pairs, with equal scores wherever they stand. Scores are float32, or float64 if an
        input is, also under autocast.

    Raises:
        TypeError: embeddings that are not floating point tensors; labels that are neither numbers nor strings.
        ValueError: wrong shapes, NaN or infinite embeddings, NaN labels, labels of two kinds, embeddings on two
            devices, `ref_labels` without `ref_embeddings`.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
        >>> scores, relevant = pairwise_scores(embeddings, ["cat", "dog", "cat"])
        >>> scores
        tensor([[0., 1.],
                [0., 0.],
                [1., 0.]])
        >>> relevant
        tensor([[False,  True],
                [False, False],
                [ True, False]])
    """
    check_choice(similarity, SIMILARITIES, "similarity")
    check_embeddings(embeddings, "embeddings")
    if ref_embeddings is None:
        if ref_labels is not None:
            raise ValueError("`ref_embeddings` must be given with `ref_labels`, got None.")
        references = embeddings
    else:
        check_embeddings(ref_embeddings, "ref_embeddings", embeddings, "embeddings")
        references = ref_embeddings
    given = label_tensor(labels).to(embeddings.device)
    relevant = relevance(given, ref_labels, len(embeddings), len(references), ref_embeddings is not None)
    scores = similarities(embeddings, references, similarity)
    return (drop_diagonal(scores), drop_diagonal(relevant)) if references is embeddings else (scores, relevant)

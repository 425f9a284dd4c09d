"""Losses: each a pure function ``x_loss(scores, target, *, ...)`` and a thin Module ``XLoss(...)`` over it.

Where each is, its formula in the docstring of the function:

* `rank`: `spearman_loss`, `map_loss`, `recall_loss`: on any rank function.
* `ndcg`: `ndcg_loss`, `reciprocal_rank_loss`, `precision_at_k_loss`: the top of a list, on any rank function.
* `kendall`: `kendall_loss`: pairs in the wrong order, on any rank function.
* `smooth_ap`: `smooth_ap_loss`, `sup_ap_loss`, `recall_at_k_loss`: average precision and recall by soft comparisons.
* `quantized_ap`: `quantized_ap_loss`, `fast_ap_loss`: average precision by histograms.
* `svm_ap`: `svm_ap_loss`: average precision by the worst ranking that the scores favour.
* `asp`: `asp_loss`: average semantic precision, for graded similarities.
* `listwise`: `list_net_loss`, `list_mle_loss`, `softmax_loss`: the distribution that the scores define over a list.
* `ranknet`: `rank_net_loss`, `lambda_rank_loss`: a logistic loss of each pair of different relevance.
* `contrastive`: `contrastive_loss`, `triplet_loss`: margins on pairs and triplets.
* `nt_xent`: `nt_xent_loss`, `n_pairs_loss`, `nca_loss`: a softmax over the list.
* `multi_similarity`: `lifted_structure_loss`, `binomial_deviance_loss`, `bin_lifted_loss`, `multi_similarity_loss`:
  pairs weighted by their similarity.
* `histogram`: `histogram_loss`: the overlap of two distributions of similarities.
* `embedding`: `EmbeddingLoss`, any of these on ``(embeddings, labels)``; `cross_modal`: `CrossModalLoss`, between two
  sets of embeddings; `similarity`: `pairwise_scores`; `memory`: `EmbeddingMemory`.
* `pair_weights`: `pair_weights`, `contributing_pairs`: the gradient of a loss, pair by pair.

What all of them share is said here, once. The arguments:

* ``scores`` (..., N), floating point, higher = better: a similarity or a prediction for each item of a list. The last
  axis is the list, one a query; leading axes are batch. A query is not among its own items: leave it out by index, as
  `pairwise_scores` does, not by its similarity, since duplicates are items too.
* ``relevant`` (..., N), boolean or 0 and 1: P are the relevant real items of a list, N the other real items. Losses
  that learn an order have a ``target``, or ``semantic`` scores, of the same shape in its place: floating point or whole
  numbers, of which equal ones have no order. Losses of learning to rank have ``relevance``, which may be graded.
* ``where`` (..., N), boolean, True = a real item: the others are as if deleted, whatever they hold. None: all are real.
* ``group``: an id for each item, where all tensors are flat, (n,): the items of one id are a list, as in
  `sodeep.groups`.
* ``weight`` (..., N), at least 0, of some losses: what a relevant item counts, None = all the same. With clicks as
  relevance, one over the chance that the item was looked at takes out the bias of its position (Joachims, Swaminathan,
  Schnabel. Unbiased Learning-to-Rank with Biased Feedback. WSDM 2017). It gets no gradient.
* ``reduction``: "mean" over the defined lists, or "none": a value for each, (...), NaN where undefined. ``nanmean()``
  of the values is the mean, and ``(weights * values).nansum()`` a weighted sum with a finite gradient.
* ``return_stats``: also return `ListStats`: how many lists there were, and how many were defined.

The result is a scalar, float64 for float64 scores and float32 otherwise, also under autocast. A list is defined when it
has what the loss needs: an item in P for ranking losses, one in P and one in N for pair losses, if the loss does not
say otherwise. An undefined list is left out of the mean; when every list is, the loss is a zero that keeps the graph,
with an `UndefinedListWarning`. So a batch is the mean of its lists (`histogram_loss` alone is a statistic of the whole
batch), the order of lists and items plays no role, and tied scores are treated alike.

Errors are a TypeError for scores that are not floating point or a `where` that is not boolean; a ValueError for shapes
or devices that differ, a real item that is NaN or infinite, a `relevant` that holds more than 0 and 1, and an option
outside of its range or choices.

A Module ``XLoss(...)`` takes the options of ``x_loss`` and is called with its tensors, ``where`` the third. A rank
function that is a Module becomes a submodule, which ``.to(device)`` moves, and is frozen: the loss has no trainable
parameters but those that it was given, as the temperature of `NTXentLoss` may be, or a ``tau`` in
``functools.partial(laplace_rank, tau=tau)``, which is its parameter ``rank_fn_tau``. `EmbeddingLoss` and
`CrossModalLoss` make a loss on embeddings of any loss on scores.

Example:
    >>> import torch
    >>> scores = torch.tensor([[0.9, 0.2, 0.4], [0.3, 0.8, 0.1]])
    >>> relevant = torch.tensor([[False, True, False], [False, False, False]])
    >>> loss, stats = smooth_ap_loss(scores, relevant, return_stats=True)
    >>> print(f"{loss:.4f} over {stats.defined} of {stats.total} queries")
    0.6667 over 1 of 2 queries
"""

import types as _types
import typing as _typing

from sodeep.losses._base import ListStats as ListStats, UndefinedListWarning as UndefinedListWarning
from sodeep.losses.asp import ASPLoss as ASPLoss, asp_loss as asp_loss
from sodeep.losses.contrastive import (
    ContrastiveLoss as ContrastiveLoss,
    TripletLoss as TripletLoss,
    contrastive_loss as contrastive_loss,
    triplet_loss as triplet_loss,
)
from sodeep.losses.cross_modal import CrossModalLoss as CrossModalLoss
from sodeep.losses.embedding import EmbeddingLoss as EmbeddingLoss
from sodeep.losses.histogram import HistogramLoss as HistogramLoss, histogram_loss as histogram_loss
from sodeep.losses.kendall import KendallLoss as KendallLoss, kendall_loss as kendall_loss
from sodeep.losses.listwise import (
    ListMLELoss as ListMLELoss,
    ListNetLoss as ListNetLoss,
    SoftmaxLoss as SoftmaxLoss,
    list_mle_loss as list_mle_loss,
    list_net_loss as list_net_loss,
    softmax_loss as softmax_loss,
)
from sodeep.losses.memory import EmbeddingMemory as EmbeddingMemory
from sodeep.losses.multi_similarity import (
    BinLiftedLoss as BinLiftedLoss,
    BinomialDevianceLoss as BinomialDevianceLoss,
    LiftedStructureLoss as LiftedStructureLoss,
    MultiSimilarityLoss as MultiSimilarityLoss,
    bin_lifted_loss as bin_lifted_loss,
    binomial_deviance_loss as binomial_deviance_loss,
    lifted_structure_loss as lifted_structure_loss,
    multi_similarity_loss as multi_similarity_loss,
)
from sodeep.losses.ndcg import (
    NDCGLoss as NDCGLoss,
    PrecisionAtKLoss as PrecisionAtKLoss,
    ReciprocalRankLoss as ReciprocalRankLoss,
    ndcg_loss as ndcg_loss,
    precision_at_k_loss as precision_at_k_loss,
    reciprocal_rank_loss as reciprocal_rank_loss,
)
from sodeep.losses.nt_xent import (
    NCALoss as NCALoss,
    NPairsLoss as NPairsLoss,
    NTXentLoss as NTXentLoss,
    n_pairs_loss as n_pairs_loss,
    nca_loss as nca_loss,
    nt_xent_loss as nt_xent_loss,
)
from sodeep.losses.pair_weights import (
    ContributingPairs as ContributingPairs,
    contributing_pairs as contributing_pairs,
    pair_weights as pair_weights,
)
from sodeep.losses.quantized_ap import (
    FastAPLoss as FastAPLoss,
    QuantizedAPLoss as QuantizedAPLoss,
    fast_ap_loss as fast_ap_loss,
    quantized_ap_loss as quantized_ap_loss,
)
from sodeep.losses.rank import (
    MAPLoss as MAPLoss,
    RecallLoss as RecallLoss,
    SpearmanLoss as SpearmanLoss,
    SpearmanStats as SpearmanStats,
    map_loss as map_loss,
    recall_loss as recall_loss,
    spearman_loss as spearman_loss,
)
from sodeep.losses.ranknet import (
    LambdaRankLoss as LambdaRankLoss,
    RankNetLoss as RankNetLoss,
    lambda_rank_loss as lambda_rank_loss,
    rank_net_loss as rank_net_loss,
)
from sodeep.losses.similarity import pairwise_scores as pairwise_scores
from sodeep.losses.smooth_ap import (
    RecallAtKLoss as RecallAtKLoss,
    SmoothAPLoss as SmoothAPLoss,
    SupAPLoss as SupAPLoss,
    recall_at_k_loss as recall_at_k_loss,
    smooth_ap_loss as smooth_ap_loss,
    sup_ap_loss as sup_ap_loss,
)
from sodeep.losses.svm_ap import SVMAPLoss as SVMAPLoss, svm_ap_loss as svm_ap_loss

if not _typing.TYPE_CHECKING:  # which go by the imports
    __all__ = sorted(k for k, value in globals().items() if k[0] != "_" and not isinstance(value, _types.ModuleType))

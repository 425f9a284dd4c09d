"""Every sorter that ships is as good as its card says, and behaves as a loss needs it to.

The files are those of pretrained/ beside this folder: a copy of this file beside a folder of new ones tests them.
"""

import json
import re
from pathlib import Path

import pytest
import torch

import sodeep
from sodeep.generators import draw

FOLDER = Path(__file__).parents[2] / "pretrained"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.safetensors"))}
CARDS = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}

every_file = pytest.mark.parametrize("name", FILES)


@pytest.fixture
def sorter(name):
    return sodeep.load_sorter(FILES[name])


@pytest.fixture
def card(name):
    """What the card says of the sorter itself; the handcrafted ranks follow it."""
    return CARDS[name]["results"][0]


def length(sorter):
    return sorter.seq_len or 60


def lists(sorter, count=16):
    return torch.randn(count, length(sorter), generator=torch.Generator().manual_seed(3))


def test_every_file_has_its_card_and_its_place_in_the_readme():
    assert FILES
    assert CARDS.keys() == FILES.keys()
    readme = (FOLDER / "README.md").read_text()
    assert re.findall(r"^\| \*\*(.*?)\*\* \|", readme, re.MULTILINE) == list(FILES)


@every_file
def test_card_is_of_this_file(name, sorter, card):
    assert card["name"] == name
    assert CARDS[name]["weights"] == sum(p.numel() for p in sorter.parameters())
    assert CARDS[name]["bytes"] == FILES[name].stat().st_size
    assert CARDS[name]["n"] == (sorter.seq_len or 100)
    assert CARDS[name]["training"]["steps"] == sorter.trained["steps"]
    lengths = card["errors"].keys()
    assert lengths == {str(sorter.seq_len)} if sorter.seq_len else len(lengths) > 1


@every_file
def test_error_at_each_length_is_that_of_the_card(name, sorter, card):
    for n, stated in ((int(n), stated) for n, stated in card["errors"].items()):
        count = max(4, min(256, 256 * 1000 // n))  # the lists of sodeep.evaluation.evaluate
        scores = draw(sodeep.SODEEP2019, count, n, torch.Generator().manual_seed(1234))
        assert sodeep.rank_error(sorter, scores) == pytest.approx(stated, rel=0.05), f"n = {n}"


@every_file
def test_error_on_each_distribution_is_that_of_the_card(name, sorter, card):
    for distribution, stated in card["by_distribution"].items():
        scores = draw({distribution: 1.0}, 256, CARDS[name]["n"], torch.Generator().manual_seed(1234))
        assert sodeep.rank_error(sorter, scores) == pytest.approx(stated, rel=0.05, abs=1e-6), distribution


@every_file
def test_its_config_can_be_trained_again(name, sorter):
    config = sodeep.TrainConfig(**sorter.trained["config"]).resolve()
    assert (config.sorter, config.seq_len, config.steps) == (
        sorter.name,
        sorter.seq_len,
        CARDS[name]["training"]["steps"],
    )


@every_file
def test_optimization_score_is_that_of_the_card(name, sorter, card):
    stated = card["optimization_score"]["30"]
    assert sodeep.optimization_score(sorter, n=CARDS[name]["n"], steps=(30,))[30] == pytest.approx(stated, abs=0.005)


@pytest.mark.parametrize("n", range(2, 10))
def test_free_scores_of_short_lists_reach_their_order(n):
    assert sodeep.optimization_score(sodeep.load_sorter(FILES["set"]), n=n, steps=(100,))[100] >= 0.97


def test_short_lists_in_long_padding():
    """The real items count, not the places: the gradient of a short list is that of the list alone."""
    sorter = sodeep.load_sorter(FILES["set"])
    scores = torch.randn(10, 300, generator=torch.Generator().manual_seed(5))
    order = torch.rand(scores.shape, generator=torch.Generator().manual_seed(6)).argsort(-1)
    where = order < torch.arange(10)[:, None]  # 0 to 9 real items
    padded = scores.masked_fill(~where, float("nan")).requires_grad_()
    (sorter(padded, where=where) * scores).sum().backward()
    for row in range(1, 10):
        alone = scores[row, where[row]].clone().requires_grad_()
        (sorter(alone) * scores[row, where[row]]).sum().backward()
        torch.testing.assert_close(padded.grad[row, where[row]], alone.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(padded.grad[~where], torch.zeros(int((~where).sum())), rtol=0, atol=0)


def test_a_list_of_one_item_has_rank_one_and_no_gradient():
    sorter = sodeep.load_sorter(FILES["set"])
    scores = torch.tensor([[0.3], [-1e6], [0.0]], requires_grad=True)
    ranks = sorter(scores)
    ranks.sum().backward()
    torch.testing.assert_close(ranks, torch.ones(3, 1), rtol=0, atol=0)
    torch.testing.assert_close(scores.grad, torch.zeros(3, 1), rtol=0, atol=0)


def test_lengths_it_is_known_for():
    """None of them warns; what lies beyond does."""
    sorter = sodeep.load_sorter(FILES["set"])
    assert sorter.trained_lengths == (2, 1000)
    assert sorter.known_lengths == (2, 10_000)
    for n in (1, 2, 1000, 10_000):
        sorter(torch.zeros(n))
    with pytest.warns(UserWarning, match=r"^`scores` has a list of 10001 items, and this set sorter is known to work "):
        sorter(torch.zeros(10_001))


@every_file
def test_scale_and_offset_do_not_matter(name, sorter):
    scores = lists(sorter).double()
    ranks = sorter(scores)
    for scale, offset in ((1e-3, 0), (1e4, 0), (1, 1000), (1e4, -1e6)):
        torch.testing.assert_close(sorter(scores * scale + offset), ranks, rtol=0, atol=1e-3 * scores.shape[-1])


@every_file
def test_gradient_is_finite_and_reaches_every_score(name, sorter):
    scores = lists(sorter).requires_grad_()
    sodeep.spearman_loss(scores, lists(sorter).flip(-1), rank_fn=sorter).backward()
    assert bool(scores.grad.isfinite().all())
    assert float((scores.grad == 0).float().mean()) < 0.01


@every_file
def test_nothing_is_learned_through_it(name, sorter):
    assert sorter.frozen
    assert not any(p.requires_grad for p in sorter.parameters())


@every_file
def test_constant_and_tied_lists(name, sorter):
    n = length(sorter)
    tied = torch.tensor([0.0, 1.0, 1.0, 2.0]).repeat(n // 4 + 1)[None, :n]
    for scores in (torch.full((1, n), 0.3), tied):
        leaf = scores.clone().requires_grad_()
        ranks = sorter(leaf)
        ranks.square().sum().backward()
        assert bool(ranks.isfinite().all())
        assert bool(leaf.grad.isfinite().all())
        if sorter.reads_masks:  # permutation-equivariant: equal scores cannot have different ranks
            for value in scores.unique():
                group = ranks[scores == value]
                torch.testing.assert_close(group, group[:1].expand_as(group), rtol=0, atol=1e-3)
    if sorter.reads_masks:
        torch.testing.assert_close(sorter(torch.full((1, n), 0.3)), torch.full((1, n), (n + 1) / 2))


@every_file
def test_masked_items_change_nothing(name, sorter):
    if sorter.seq_len is not None:
        pytest.skip("it takes full lists only")
    scores = lists(sorter)
    where = torch.rand(scores.shape, generator=torch.Generator().manual_seed(4)) < 0.7
    leaf = scores.masked_fill(~where, float("nan")).requires_grad_()
    ranks = sorter(leaf, where=where)
    ranks.square().sum().backward()
    for row in range(len(scores)):
        alone = scores[row, where[row]].clone().requires_grad_()
        expected = sorter(alone)
        expected.square().sum().backward()
        torch.testing.assert_close(ranks[row, where[row]], expected, rtol=0, atol=1e-2)
        torch.testing.assert_close(
            leaf.grad[row, where[row]], alone.grad, rtol=1e-2, atol=1e-2 * alone.grad.abs().max()
        )
    assert bool((ranks[~where] == 0).all())
    assert bool((leaf.grad[~where] == 0).all())


@every_file
def test_a_sorter_of_one_length_refuses_others(name, sorter):
    if sorter.seq_len is None:
        pytest.skip("it takes any length")
    n = sorter.seq_len
    scores, where = torch.zeros(2, n), torch.ones(2, n, dtype=torch.bool)
    message = (
        f"`scores` must have lists of {n} items, the length this {sorter.name} sorter was built for, got {n - 1} real "
        "items. Leave a shorter last batch out (drop_last=True), use a sorter for any length such as 'set', or train "
        f"one: sodeep train-sorter --sorter {sorter.name} --seq-len {n - 1}"
    )
    for call in (lambda: sorter(scores[:, 1:]), lambda: sorter(scores, where=where.index_fill(1, torch.tensor(0), 0))):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            call()
    torch.testing.assert_close(sorter(scores, where=where), sorter(scores))

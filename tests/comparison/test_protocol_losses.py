"""A user's loss with ranges: names that are taken, choices that cannot be kept, and how it is called."""

import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sodeep.comparison.losses_by_name import loss_by_name


class Embeddings(nn.Module):
    """Takes embeddings and labels, which its argument names do not say."""

    ranges = {"scale": (0.1, 1.0)}  # noqa: RUF012

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if y.ndim != 1:
            raise ValueError("labels are (n,)")
        return self.scale * (x @ x.T).mean()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An importable module `mine`."""
    made = types.ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", made)
    return made


def _declaring(ranges: dict[str, Any]) -> type:
    return type("Loss", (nn.MSELoss,), {"ranges": ranges})


@pytest.mark.parametrize("name", ["lr", "weight_decay", "weight"])
def test_range_with_a_taken_name_is_refused(module: Any, name: str) -> None:
    module.Loss = _declaring({name: (0.1, 1.0)})
    with pytest.raises(ValueError, match=f"must declare ranges of its own, got '{name}'"):
        loss_by_name("mine:Loss")


@pytest.mark.parametrize("choice", [torch.mean, (1, 2), torch.ones(1)])
def test_choice_that_a_run_cannot_keep_is_refused(module: Any, choice: object) -> None:
    module.Loss = _declaring({"form": [choice, "a"]})
    with pytest.raises(ValueError, match="Choices are strings, numbers, True, False or None"):
        loss_by_name("mine:Loss")


def test_call_of_a_class_with_ranges_is_found_by_trying(module: Any) -> None:
    module.Loss = Embeddings
    assert loss_by_name("mine:Loss").signature == "embeddings"

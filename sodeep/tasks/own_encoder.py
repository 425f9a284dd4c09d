"""A user's encoder of images, texts or features in place of the small ones: how it is built and what it is given.

    def build():
        net = torchvision.models.resnet18(weights="DEFAULT")
        net.fc = torch.nn.Linear(512, 128)
        net.transform = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
        return net

`build` takes no arguments and returns an ``nn.Module`` that turns a batch of inputs into vectors (B, d). It is called
anew for each training. The module may have

* ``transform``: a ``PIL.Image`` in colour -> a tensor. Images are then read from their files at their own size, as they
  are needed. Of texts: a string -> a tensor, of one shape for all, such as the numbers of its words. Without it the
  encoder is given what the small ones are: images as uint8 (B, C, H, W), n-grams as int32 (B, L), features (B, d).
* ``train_transform``: the same for images in training; without it `transform`.
* ``parameter_groups(lr)``: the groups of the optimiser, a list of dicts with "params" and, if other than `lr`, "lr".
* ``backbone`` and ``head``, one after the other: where no weight of the backbone is trained (``requires_grad``), what
  it gives is computed once and kept in the cache folder, and only the head is trained.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sodeep._core.by_name import attribute, name_of
from sodeep._core.cache import cached_rows
from sodeep._core.checks import check_at_least, check_choice, describe
from sodeep._core.precision import PRECISIONS
from sodeep._core.progress import Progress
from sodeep.datasets.image_features import PretrainedImages, image_checksum
from sodeep.datasets.image_files import ImageFiles, Inputs, together
from sodeep.datasets.types import Array, CrossModalData, RetrievalData, Source
from sodeep.tasks.encoders import as_input, chunks_of

Build = Callable[[], nn.Module]


class OwnEncoder(nn.Module):
    """A user's encoder, run in chunks or in lower precision if asked for.

    Args:
        net: turns inputs (B, ...) into vectors (B, d).
        chunk_size: inputs at a time in training. What is computed inside is not kept but computed again for the
            gradient, so that memory is that of one chunk. None: all of a batch.
        precision: of `PRECISIONS`; below float32 under autocast, for both training and evaluation.

    Returns:
        (B, d) float32.
    """

    def __init__(self, net: nn.Module, chunk_size: int | None = None, precision: str = "float32") -> None:
        super().__init__()
        self.net = net
        self.chunk_size = chunk_size
        self.precision = precision

    @property
    def chunk(self) -> int:
        """Inputs that an evaluation takes at a time."""
        return self.chunk_size or 64

    def forward(self, inputs: Tensor) -> Tensor:
        """The vectors of inputs."""
        dtype = PRECISIONS[self.precision]
        with torch.autocast(inputs.device.type, dtype, enabled=dtype is not torch.float32):
            if self.chunk_size is None or not (self.training and torch.is_grad_enabled()):
                vectors: Tensor = self.net(inputs)
            else:
                parts = torch.split(inputs, self.chunk_size)
                vectors = torch.cat([checkpoint(self.net, part, use_reentrant=False) for part in parts])
        return vectors.float()

    def parameter_groups(self, rate: float) -> list[dict[str, Any]]:
        """Groups of an optimiser with the learning rate of each: the user's, or all weights as one."""
        own = getattr(self.net, "parameter_groups", None)
        if own is None:
            return [{"params": [*self.net.parameters()], "lr": rate}]
        groups = own(rate)
        if not isinstance(groups, list) or not all(isinstance(group, dict) and "params" in group for group in groups):
            raise TypeError(
                '`parameter_groups` of the encoder must return a list of dicts with "params", as an optimiser of '
                f"torch takes them, got {describe(groups)}."
            )
        return [{"lr": rate, **group, "params": [*group["params"]]} for group in groups]


class Headed(nn.Module):
    """A user's encoder, and a linear layer on its vectors.

    Returns:
        (B, width), of inputs (B, ...).
    """

    def __init__(self, encoder: OwnEncoder, features: int, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(features, width)

    @property
    def chunk(self) -> int:
        """As of `OwnEncoder`."""
        return self.encoder.chunk

    def forward(self, inputs: Tensor) -> Tensor:
        """The scores of inputs."""
        scores: Tensor = self.head(self.encoder(inputs))
        return scores


class Encoder:
    """What makes an `OwnEncoder` for a task, and what that is given.

    Args:
        given: ``module:attribute``, or the callable itself.
        chunk_size: see `OwnEncoder`.
        precision: see `OwnEncoder`.
        workers: processes that read images; see `ImageFiles`.
        argument: that gave it, for messages.

    Attributes:
        width: of its vectors, known after `inputs` or `text_inputs`.
    """

    width: int

    def __init__(
        self,
        given: str | Build,
        chunk_size: int | None = None,
        precision: str | None = None,
        workers: int | None = None,
        argument: str = "encoder",
    ) -> None:
        self.argument = argument
        self.build, self.name = _build_of(given, argument)
        self.chunk_size = None if chunk_size is None else check_at_least(chunk_size, 1, "chunk_size")
        self.precision = check_choice(precision or "float32", PRECISIONS, "precision")
        self.workers = check_at_least(workers or 0, 0, "workers")
        self.frozen = False

    @property
    def source(self) -> str:
        """The code of the module that it is in; empty where that is not to be had."""
        module = inspect.getmodule(self.build)
        try:
            return "" if module is None else inspect.getsource(module)
        except (OSError, TypeError):  # made in a shell
            return ""

    @property
    def title(self) -> str:
        """In the name of the data: what changes a result."""
        chunks = "" if self.chunk_size is None else f" in chunks of {self.chunk_size}"
        return self.name + chunks + (f" in {self.precision}" if self.precision != "float32" else "")

    def model(self) -> OwnEncoder:
        """A new one, of the head alone where the backbone is frozen."""
        net = self._new()
        return OwnEncoder(net.head if self.frozen else net, self.chunk_size, self.precision)  # type: ignore[arg-type]

    def inputs(self, items: Array, files: Sequence[Source] | None, name: str) -> Inputs:
        """What the encoder is given of images or features: these, their files, or what a frozen backbone makes of them.

        Args:
            items: images, uint8 (N, H, W[, 3]), or features (N, d).
            files: of the images, if they come from any.
            name: of the data, for messages.

        Raises:
            ValueError: a transform for data without images; an encoder that gives no vectors, or has nothing to train.
        """
        items = np.asarray(items)
        found: Inputs = as_input(items)
        net = self._new()
        transform = getattr(net, "transform", None)
        if transform is not None:
            if items.dtype != np.uint8:
                raise ValueError(
                    f"`{self.argument}` must not have a transform for data without images, got {self.name} with one "
                    f"for {name}."
                )
            found = ImageFiles(
                items if files is None else files, transform, getattr(net, "train_transform", None), self.workers
            )
        return self._of_frozen(net, found, transform, partial(image_checksum, items, files))

    def text_inputs(self, texts: Sequence[str] | None, otherwise: Tensor, name: str) -> Tensor:
        """What the encoder is given of texts: what its transform makes of them; without one, `otherwise` (N, ...).

        Args:
            texts: N; None: the data have features in their place.
            otherwise: what the small encoders are given.
            name: of the data, for messages.

        Raises:
            ValueError: as of `inputs`; tensors of unequal shape.
        """
        net = self._new()
        transform = getattr(net, "transform", None)
        found = otherwise
        if transform is not None:
            if texts is None:
                raise ValueError(
                    f"`{self.argument}` must not have a transform for data without texts, got {self.name} with one for "
                    f"{name}."
                )
            found = together([_tensor_of(transform(text)) for text in texts], "texts", "Cut and pad them in it.")
        inputs = self._of_frozen(net, found, None, partial(image_checksum, found.numpy(), None))
        assert isinstance(inputs, Tensor)
        return inputs

    def _of_frozen(self, net: nn.Module, found: Inputs, transform: object, checksum: Callable[[str], str]) -> Inputs:
        """The inputs, or what a frozen backbone makes of them; `checksum` is one of the inputs and of a text."""
        backbone, head = getattr(net, "backbone", None), getattr(net, "head", None)
        if isinstance(backbone, nn.Module) and isinstance(head, nn.Module) and not _is_trained(backbone):
            self.frozen = True
            file = f"encoder-{checksum(self._code(backbone, transform))}.npy"
            found = torch.from_numpy(cached_rows(file, len(found), partial(self._computed, backbone, found)))
            net = head
        if not _is_trained(net):
            raise ValueError(
                f"`{self.argument}` must have weights to train, got {self.name} without a parameter that "
                "requires_grad. Give it a trainable head, or compute its features and compare losses on these."
            )
        self.width = self._checked_width(net, found)
        return found

    def _code(self, backbone: nn.Module, transform: object) -> str:
        """All that the features of a frozen backbone depend on, but the images: its code, weights and precision."""
        digest = hashlib.sha256()
        for name, value in backbone.state_dict().items():
            digest.update(name.encode())
            digest.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        shown = re.sub(r" at 0x[0-9a-f]+", "", repr(transform))
        return "\n".join([digest.hexdigest(), self.precision, shown, self.source])

    @torch.no_grad()
    def _computed(self, backbone: nn.Module, items: Inputs) -> Iterator[Array]:
        """What the backbone gives for all items, with a progress line."""
        net = OwnEncoder(backbone, None, self.precision).eval()
        progress = Progress(f"{self.name} of {len(items)} items")
        done = 0
        for inputs in chunks_of(items, torch.arange(len(items)), net.chunk):
            yield net(inputs).contiguous().numpy()
            done += len(inputs)
            progress.update(done / len(items))
        progress.close()

    def _new(self) -> nn.Module:
        net = self.build()
        if not isinstance(net, nn.Module):
            raise TypeError(f"`{self.argument}` must return a torch.nn.Module, got {describe(net)} from {self.name}.")
        return net

    def _checked_width(self, net: nn.Module, items: Inputs) -> int:
        """The width of the vectors, after a check that two inputs become two of them."""
        few = torch.arange(min(2, len(items)))
        inputs = next(chunks_of(items, few, 2))
        training = net.training
        with torch.no_grad():
            vectors = OwnEncoder(net, None, self.precision).eval()(inputs)
        net.train(training)
        if vectors.ndim != 2 or len(vectors) != len(few):
            raise ValueError(
                f"`{self.argument}` must turn inputs {tuple(inputs.shape)} into vectors ({len(few)}, d), got shape "
                f"{tuple(vectors.shape)} from {self.name}."
            )
        return int(vectors.shape[1])


def _is_trained(net: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in net.parameters())


def _build_of(given: str | Build, argument: str) -> tuple[Build, str]:
    """The callable, and its name."""
    if isinstance(given, str):
        module, colon, rest = given.partition(":")
        if not (module and colon and rest):
            raise ValueError(f"`{argument}` must be module:callable, got {given!r}.")
        return attribute(module, rest, argument), given
    if not callable(given):
        raise TypeError(
            f"`{argument}` must be module:callable, or a callable without arguments that returns an nn.Module, got "
            f"{describe(given)}."
        )
    if isinstance(given, nn.Module):
        raise TypeError(f"`{argument}` must be a callable that builds the module anew for each training, got a module.")
    return given, name_of(given)


def _tensor_of(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"`transform` of the encoder must turn a text into a tensor, got {describe(value)}.")
    return value


def image_inputs(
    data: RetrievalData | CrossModalData, encoder: Encoder | None, pretrained: PretrainedImages | None
) -> tuple[Inputs, str]:
    """What is encoded of the images or features of a data set, and what the name of the data says of it, ", ..."."""
    if encoder is not None:
        return encoder.inputs(data.items, data.files, data.name), f", {encoder.title}"
    if pretrained is not None:
        return pretrained.features, f", {pretrained.title}"
    return as_input(data.items), ""


def own_encoders(
    given: str | Build | None,
    text_encoder: str | Build | None,
    image_features: str | None,
    chunk_size: int | None,
    precision: str | None,
    workers: int | None,
) -> tuple[Encoder | None, Encoder | None]:
    """As `own_encoder`, of images and of texts."""
    if text_encoder is None:
        return own_encoder(given, image_features, chunk_size, precision, workers), None
    if given is None and workers is not None:
        raise ValueError("`encoder` must be given with `workers`, got None. Name yours: module:callable.")
    texts = Encoder(text_encoder, chunk_size, precision, argument="text_encoder")
    return (None if given is None else own_encoder(given, image_features, chunk_size, precision, workers)), texts


def own_encoder(
    given: str | Build | None,
    image_features: str | None,
    chunk_size: int | None,
    precision: str | None,
    workers: int | None,
) -> Encoder | None:
    """The `Encoder` that the options of a task ask for; None without `encoder`, which the others need."""
    if given is None:
        for name, value in (("chunk_size", chunk_size), ("precision", precision), ("workers", workers)):
            if value is not None:
                raise ValueError(f"`encoder` must be given with `{name}`, got None. Name yours: module:callable.")
        return None
    if image_features is not None:
        raise ValueError(
            f"`image_features` must not be given with an encoder of your own, got {image_features!r}. Give one of them."
        )
    return Encoder(given, chunk_size, precision, workers)

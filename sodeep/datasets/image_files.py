"""Images that are read from their files as they are needed, through the transform of a user's encoder."""

from __future__ import annotations

import multiprocessing
import pickle
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sodeep._core.checks import describe
from sodeep.datasets.images import open_image
from sodeep.datasets.types import Array, Source

Transform = Callable[[Any], Any]
"""A ``PIL.Image`` in colour -> a tensor, of one shape for all images."""

_Key = tuple[int, int]
"""An image, and the seed of what its transform draws."""

EVALUATION = -1
"""In place of a seed: the image is read for an evaluation."""


class _Images(Dataset[Tensor]):
    """One image at a time; what its transform draws depends on its seed alone, not on the process that reads it."""

    def __init__(
        self, sources: Sequence[Source] | Array, transform: Transform, train_transform: Transform | None
    ) -> None:
        self.sources = sources
        self.transform = transform
        self.train_transform = transform if train_transform is None else train_transform

    def __getitem__(self, key: _Key) -> Tensor:
        place, seed = key
        image = self._open(place)
        if seed == EVALUATION:
            return self._apply(self.transform, image, "transform")
        state = random.getstate()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random.seed(seed)
            try:
                return self._apply(self.train_transform, image, "train_transform")
            finally:
                random.setstate(state)

    def _open(self, place: int) -> Any:
        if not isinstance(self.sources, np.ndarray):
            return open_image(self.sources[place])
        from PIL import Image

        return Image.fromarray(self.sources[place]).convert("RGB")

    def _apply(self, transform: Transform, image: Any, name: str) -> Tensor:
        result = transform(image)
        if not isinstance(result, Tensor):
            raise TypeError(
                f"`{name}` of the encoder must turn a PIL.Image into a tensor, got {describe(result)}. End it with one "
                "that does, such as torchvision's ToTensor()."
            )
        return result


def _together(images: list[Tensor]) -> Tensor:
    return together(images, "images", "Resize or crop them in it.")


def together(items: list[Tensor], name: str, remedy: str) -> Tensor:
    """What a transform made of items, as one tensor."""
    shapes = {tuple(item.shape) for item in items}
    if len(shapes) > 1:
        shown = " and ".join(map(str, sorted(shapes)[:2]))
        raise ValueError(f"`transform` of the encoder must give all {name} one shape, got {shown}. {remedy}")
    return torch.stack(items)


class ImageFiles:
    """Images by their numbers, as a tensor of them would give, but read when they are asked for.

    Args:
        sources: files of the images, or the images themselves, uint8 (N, H, W[, 3]).
        transform: makes the tensor of an image.
        train_transform: the same in training; None: `transform`.
        workers: processes that read the batches to come (``DataLoader``); 0: read in this one.
    """

    def __init__(
        self,
        sources: Sequence[Source] | Array,
        transform: Transform,
        train_transform: Transform | None = None,
        workers: int = 0,
    ) -> None:
        self.images = _Images(sources, transform, train_transform)
        self.workers = workers
        self.device = torch.device("cpu")
        self._loaders: dict[str, tuple[DataLoader[Tensor], list[list[_Key]]]] = {}
        self._read: tuple[Array, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.images.sources)

    def to(self, device: torch.device) -> ImageFiles:
        """Give the images on this device from now on."""
        self.device = device
        self._loaders = {}  # whose memory is pinned for a device
        return self

    def chunks(self, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        """The images of each part, numbers (n,), for an evaluation."""
        yield from self._loaded("evaluation", ([(int(i), EVALUATION) for i in part] for part in parts))

    def ahead(
        self, batches: Iterable[Array], seed: Sequence[int], images_of: Callable[[Array], Array] | None = None
    ) -> Iterator[Array]:
        """The same batches, each when its images are read; `batch` gives them. `images_of` are their numbers."""
        batches = list(batches)
        numbers = batches if images_of is None else [images_of(batch) for batch in batches]
        seeds = np.random.default_rng([*seed, 1]).integers(2**62, size=sum(map(len, numbers)))
        keys = iter(seeds.tolist())
        loaded = self._loaded("training", ([(int(i), next(keys)) for i in some] for some in numbers))
        for batch, images in zip(batches, loaded, strict=True):
            self._read = batch, images
            yield batch

    def batch(self, batch: Array) -> Tensor:
        """The images of the batch that `ahead` gave last, as in training."""
        if self._read is None or self._read[0] is not batch:
            raise RuntimeError("a batch must be taken as `ahead` gives it")
        return self._read[1]

    def _loaded(self, purpose: str, keys: Iterable[list[_Key]]) -> Iterator[Tensor]:
        """The images of each list of keys. Its processes stay: an evaluation comes in the middle of an epoch."""
        if purpose not in self._loaders:
            self._loaders[purpose] = self._new_loader()
        loader, order = self._loaders[purpose]
        order[:] = keys
        try:
            for images in loader:
                yield images.to(self.device, non_blocking=True)
        except Exception:  # of an image, or of a process that died: the others are of no more use
            self._loaders.pop(purpose, None)
            raise

    def _new_loader(self) -> tuple[DataLoader[Tensor], list[list[_Key]]]:
        """A loader, and the keys of the batches that it gives when it is run through."""
        order: list[list[_Key]] = []
        processes: dict[str, Any] = {}
        if self.workers:
            self._check_sent()
            modules = {self.images.transform.__module__, self.images.train_transform.__module__}
            processes = {"multiprocessing_context": _start_method(modules), "persistent_workers": True}
        sampler: Any = order
        loader = DataLoader(
            self.images,
            batch_sampler=sampler,
            num_workers=self.workers,
            collate_fn=_together,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # else the loader draws from the one that training draws from
            **processes,
        )
        return loader, order

    def _check_sent(self) -> None:
        """Raise if another process cannot have the transforms."""
        try:
            pickle.dumps((self.images.transform, self.images.train_transform))
        except Exception as error:  # of whatever is in them
            raise ValueError(
                f"`workers` must be 0 for a transform that no other process can have, got {self.workers} ({error}). "
                "Define it at the top level of a file, or leave workers out."
            ) from None


def _start_method(modules: Collection[str]) -> str:
    """How processes begin: never as a copy of this one, whose threads may hold locks.

    Those of a server that has imported the modules once start at once; where there is no server (Windows), each imports
    them anew.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", __name__, *sorted(modules)])
    return "forkserver"


Inputs = Tensor | ImageFiles
"""What an encoder is given: the inputs of all items, or images that are read as they are needed."""


def read_ahead(
    items: Inputs, batches: Iterable[Array], seed: Sequence[int], images_of: Callable[[Array], Array] | None = None
) -> Iterator[Array]:
    """The batches; where images are read as they are needed, each when its own are there (`ImageFiles.ahead`)."""
    return items.ahead(batches, seed, images_of) if isinstance(items, ImageFiles) else iter(batches)


def inputs_of(items: Inputs, batch: Array, where: Tensor) -> Tensor:
    """The inputs of a batch that `read_ahead` gave; `where` are the numbers of its items."""
    return items.batch(batch) if isinstance(items, ImageFiles) else items[where]

"""Sorters from repositories of the Hugging Face Hub, without a network: a cache on disk, and the Hub's errors."""

import re

import pytest
import torch

import sodeep
from sodeep._core.extras import MissingPackageError
from sodeep.comparison.losses_by_name import loss_by_name

COMMIT = "0" * 40


@pytest.fixture
def hub():
    return pytest.importorskip("huggingface_hub")


@pytest.fixture
def sorter():
    return sodeep.build_sorter("gru-sum")


@pytest.fixture
def cache(hub, tmp_path, monkeypatch):
    """The folder of a repository, user/name, in the cache of a machine that is offline."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "cache/models--user--name"
    (folder / "refs").mkdir(parents=True)
    for branch in ("main", "old"):
        (folder / "refs" / branch).write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    return folder / "snapshots" / COMMIT


def fails(error, message, name):
    with pytest.raises(error, match="^" + re.escape(message) + "$"):
        sodeep.load_sorter(name)


def test_a_folder_is_what_is_loaded(tmp_path, sorter):
    training = {"errors": {"validation": 0.0123}}
    folder = sodeep.save_pretrained(tmp_path / "new/folder", sorter, training, torch.float16)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "model.safetensors"]
    text = (folder / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: sodeep\n")
    assert "# A gru-sum sorter\n\nA network that maps the scores of a list (of any length) to" in text
    assert "Mean |rank error| / n on the validation lists: 0.0123. `model.safetensors` holds" in text
    (folder / "README.md").write_text("Mine.")
    sodeep.save_pretrained(folder, sorter)
    assert (folder / "README.md").read_text() == "Mine."
    loaded = sodeep.load_sorter(folder)
    scores = torch.randn(2, 5)
    assert torch.equal(loaded(scores), sorter(scores))
    assert loaded.source == str(folder)


def test_a_repository_is_read_from_the_cache(cache, sorter):
    sodeep.save_pretrained(cache, sorter)
    sodeep.save_sorter(cache / "small.safetensors", sodeep.build_sorter("mlp", 3, hidden=2))
    scores = torch.randn(2, 5)
    for name in ("hf://user/name", "hf://user/name@old", f"hf://user/name@{COMMIT}/model.safetensors"):
        loaded = sodeep.load_sorter(name)
        assert torch.equal(loaded(scores), sorter(scores))
        assert (loaded.source, loaded.frozen) == (name, True)
    assert sodeep.load_sorter("hf://user/name/small.safetensors").name == "mlp"
    assert set(loss_by_name("spearman:hf://user/name").ranges) == {"value_weight"}


def test_offline_and_not_in_the_cache(cache):
    name = "hf://user/other"
    message = (
        f"{name} is not on this machine, and the Hub cannot be reached. Look at the connection and at "
        "HF_HUB_OFFLINE, or get the file by other means and give its path."
    )
    fails(FileNotFoundError, message, name)


def test_a_file_of_the_hub_is_checked_as_any_other(cache, sorter):
    path = sodeep.save_pretrained(cache, sorter) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(f"{path} is not a sorter file: ") + "its tensors"):
        sodeep.load_sorter("hf://user/name")
    torch.save(sorter.state_dict(), path)
    with pytest.raises(ValueError, match=re.escape(f"{path} is not a sorter file: ") + ".*pickle"):
        sodeep.load_sorter("hf://user/name")


class Response:
    status_code, headers, request = 404, {}, None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "RepositoryNotFoundError",
            "hf://user/name@old is not on the Hub: there is no repository user/name that you can see. Look at its "
            "name; for a private one log in: hf auth login.",
        ),
        (
            "GatedRepoError",
            "hf://user/name@old is open only to those that its page lets in. Ask there, then log in: hf auth login.",
        ),
        ("RevisionNotFoundError", "hf://user/name@old is not on the Hub: user/name has no revision 'old'."),
        (
            "RemoteEntryNotFoundError",
            "hf://user/name@old is not on the Hub: user/name has no file model.safetensors. For another one give "
            "hf://user/name/FILE.safetensors.",
        ),
        ("HfHubHTTPError", "hf://user/name@old could not be fetched: 500 Server Error"),
    ],
)
def test_errors_of_the_hub(hub, monkeypatch, kind, message):
    def refuse(repo, file, revision):
        assert (repo, file, revision) == ("user/name", "model.safetensors", "old")
        raise getattr(hub.errors, kind)("500 Server Error\n\nand more", response=Response())

    monkeypatch.setattr(hub, "hf_hub_download", refuse)
    fails(OSError, message, "hf://user/name@old")


@pytest.mark.parametrize("name", ["hf://name", "hf://user/name@", "hf://user/na me", "hf://user/name@a@b"])
def test_names_that_are_none(name):
    fails(ValueError, f"`name_or_path` must be like hf://user/name or hf://user/name@revision, got {name!r}.", name)


def test_a_name_that_the_hub_refuses(hub):
    message = "`name_or_path` must name a repository, got 'hf://-user/name'. "
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        sodeep.load_sorter("hf://-user/name")


def test_without_huggingface_hub(uninstall):
    uninstall("huggingface_hub")
    message = (
        "`name_or_path` hf://user/name needs huggingface-hub, which is not installed. Install it: pip install "
        'huggingface-hub, or in a clone of sodeep: pip install ".[hub]"'
    )
    fails(MissingPackageError, message, "hf://user/name")

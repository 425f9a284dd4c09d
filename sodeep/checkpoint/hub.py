"""Sorter files in repositories of the Hugging Face Hub, named ``hf://user/name``."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from sodeep._core.extras import needed

HUB = "hf://"

FILE = "model.safetensors"
"""The sorter file of a repository, or of a folder that is to become one."""

_NAME = re.compile(
    r"hf://(?!.*(?:^|/)\.\.(?:/|@|$))(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^/@]+))?(/(?P<file>[^/@].*))?"
)


def download(name: str) -> Path:
    """The file that ``hf://user/name``, with ``@revision`` or ``/file`` after it, means, in huggingface_hub's cache.

    Nothing but that file is fetched, and it is only stored: whoever reads it must check it.

    Raises:
        ValueError: a name of another form.
        MissingPackageError: huggingface_hub is not installed.
        FileNotFoundError: no such repository, revision or file; offline, and not in the cache.
        OSError: the Hub gives another error.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"`name_or_path` must be like hf://user/name or hf://user/name@revision, got {name!r}.")
    repo, revision, file = match["repo"], match["revision"], match["file"] or FILE
    with needed("huggingface_hub", f"`name_or_path` {name}"):
        import huggingface_hub
        from huggingface_hub import errors
    try:
        return Path(huggingface_hub.hf_hub_download(repo, file, revision=unquote(revision) if revision else None))
    except errors.HFValidationError as error:
        raise ValueError(f"`name_or_path` must name a repository, got {name!r}. {_first_line(error)}") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise FileNotFoundError(
            f"{name} is not on this machine, and the Hub cannot be reached. Look at the connection and at "
            "HF_HUB_OFFLINE, or get the file by other means and give its path."
        ) from None
    except errors.GatedRepoError:
        raise FileNotFoundError(
            f"{name} is open only to those that its page lets in. Ask there, then log in: hf auth login."
        ) from None
    except errors.RepositoryNotFoundError:
        raise FileNotFoundError(
            f"{name} is not on the Hub: there is no repository {repo} that you can see. Look at its name; for a "
            "private one log in: hf auth login."
        ) from None
    except errors.RevisionNotFoundError:
        raise FileNotFoundError(f"{name} is not on the Hub: {repo} has no revision {revision!r}.") from None
    except errors.EntryNotFoundError:
        raise FileNotFoundError(
            f"{name} is not on the Hub: {repo} has no file {file}. For another one give hf://{repo}/FILE.safetensors."
        ) from None
    except errors.HfHubHTTPError as error:
        raise OSError(f"{name} could not be fetched: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]

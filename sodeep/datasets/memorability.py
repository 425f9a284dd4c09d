"""Memorability data: items and a score each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sodeep._core.checks import check_choice, user_path
from sodeep.datasets.features import features_layout
from sodeep.datasets.layouts import FolderLayout, Layout, StrPath
from sodeep.datasets.tables import Table, alike, column_names, read_csv, read_text, split_column
from sodeep.datasets.types import Array, MemorabilityData


@dataclass(frozen=True)
class ScoredTable:
    """Rows with a score each, and texts, numbers or both to predict it from."""

    scores: Array
    """float64 (n,)."""
    features: Array | None
    """float32 (n, d), one column for each of `names`."""
    names: list[str]
    texts: list[str] | None
    split: Array | None = None
    """(n,) of "train", "val" and "test", where the table has a column of that name."""


def read_table(
    path: StrPath, *, target: str | None = None, text: str | None = None, predictors: Sequence[str] | None = None
) -> ScoredTable:
    r"""A csv table with a column of scores, and one of texts, columns of numbers or both to predict them from.

    Cells may be separated by commas, semicolons, tabs or bars. A column "split" of train, val (or dev) and
    test assigns the rows.

    Args:
        path: the file; its first line names the columns.
        target: the column of scores. None: "score".
        text: the column of texts. None: "text", if there is one.
        predictors: the columns of numbers. None: all the others.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such columns, no rows, or a cell that is not a finite number; the message says which.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(f"{folder}/my.csv").write_text("score;age;text\n0.7;41;a red door\n0.2;38;rain\n")
        ...     table = read_table(f"{folder}/my.csv")
        >>> table.scores, table.features, table.texts
        (array([0.7, 0.2]), array([[41.], [38.]], dtype=float32), ['a red door', 'rain'])
    """
    path = user_path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"`path` must be a csv table with a column {target or 'score'}, got '{path}', which is not there."
        )
    given = {"target": [target], "text": [text], "predictors": predictors or []}
    named = {name: argument for argument, names in given.items() for name in names if name is not None}
    for argument, names in given.items():
        for name in names:
            if name is not None and named[name] != argument:
                raise ValueError(f"`{named[name]}` must be another column than `{argument}`, got {name!r} for both.")
    table = read_csv(path, {"score", "text", *named})
    for name, argument in named.items():
        if table.names and name not in table.names:
            near = alike(name, table.names)
            hint = "" if near is None else f" Is it {near!r}?"
            raise ValueError(f"`{argument}` must be in '{path}', got {name!r} for {table.description}.{hint}")
    score = target or "score"
    text = "text" if text is None and "text" in table.names and score != "text" else text
    split = split_column(table) if "split" not in named else None
    taken = {score, text, "split" if split is not None else None}
    features = [name for name in table.names if name not in taken] if predictors is None else list(predictors)
    if score in features:
        raise ValueError(f"`predictors` must be other columns than that of the scores, got {score!r}.")
    if not table.rows or score not in table.names or not (features or text):
        near = alike("score", table.names) if score not in table.names else None
        hint = "" if near is None else f" Is it {near!r}? Say so: target={near!r} (--target {near})."
        if near is None and table.rows and score not in table.names:
            hint = " Which column holds the scores? Say so: target=NAME (--target NAME)."
        raise ValueError(
            f"`path` must be a csv table with a column {score} and a column text, columns of numbers or both, "
            f"got {table.description if table.rows else 'no rows'} in '{path}'.{hint}"
        )
    scores = np.array(table.numbers(score))
    remedy = ""
    if predictors is None:
        remedy = (
            " Name the columns of numbers: predictors=[NAME] (--predictor NAME), or that of texts: text=NAME "
            "(--text NAME)."
        )
    numbers = np.array([table.numbers(name, remedy) for name in features], dtype=np.float32).T if features else None
    return ScoredTable(scores, numbers, features, None if text is None else table.texts(text), split)


def table_data(
    path: Path, *, target: str | None = None, text: str | None = None, predictors: Sequence[str] | None = None
) -> MemorabilityData:
    """The table of `read_table` as data of the memorability task."""
    table = read_table(path, target=target, text=text, predictors=predictors)
    name = path.stem if target is None else f"{path.stem}, {target}"
    return MemorabilityData(name, table.scores, table.texts, table.features, table.split)


TABLE = Layout(
    "your own .csv (or .tsv) with a column score, and a column text, columns of numbers or both to predict it from "
    "(and split, of train, val and test)",
    lambda path: path.suffix in (".csv", ".tsv") and path.is_file(),
    table_data,
)


@dataclass(frozen=True)
class ScoredItems:
    """Files with a human score each."""

    names: list[str]
    scores: list[float]
    annotations: list[int] | None
    """How many people a score is the mean of, where the file says."""
    captions: list[str] | None
    """What each shows in words, where the file says or one of captions was given; several captions end to end."""
    split: Array | None = None
    """(n,) of "train", "val" and "test", where the file has a column of that name."""


_MEDIAEVAL = "the MediaEval benchmark, task 'Predicting Media Memorability', on request from its organisers"


def read_mediaeval(
    path: StrPath, captions: StrPath | None = None, *, term: str = "short", normalized: bool = False
) -> ScoredItems:
    """Memorability scores of videos, from a csv of MediaEval: ground-truth_dev-set.csv (2018), train_scores.csv (2021).

    Args:
        path: the csv. Columns of 2018 and 2019: video, short-term_memorability, nb_short-term_annotations, and the same
            for long-term. Of 2021: video_id, scores_raw_short_term, scores_normalized_short_term, scores_raw_long_term.
        captions: dev-set_video-captions.txt (2018: a video and its caption in each line, separated by a tab,
            hyphens for spaces) or train_text_descriptions.csv (2021: video_id, description; several for a video; of
            Memento10k, video_id and description_0 to description_4). None: the columns description_0 and so on of
            `path`, if any.
        term: "short" or "long".
        normalized: the scores of 2021 corrected for the time between the two showings.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the columns are missing, a score is no number, or a video has no caption.
    """
    check_choice(term, ("short", "long"), "term")
    path = user_path(path)
    layout = FolderLayout(path.parent, [path.name], _MEDIAEVAL)
    version = "normalized" if normalized else "raw"
    columns = {} if normalized else {f"{term}-term_memorability": "video"}
    columns[f"scores_{version}_{term}_term"] = "video_id"
    table = read_csv(path, columns.values())
    column = next((c for c, name in columns.items() if c in table.names and name in table.names), None)
    if column is None:
        wanted = " or ".join(f"{name} and {c}" for c, name in columns.items())
        got = table.description if table.names else "an empty file"
        raise layout.wrong(f"{path.name} must have the columns {wanted}", got)
    names = table.texts(columns[column])

    def numbers(column: str) -> list[float]:
        values = []
        for name, cell in zip(names, table.texts(column), strict=True):
            try:
                values.append(float(cell))
            except ValueError:
                values.append(math.nan)
            if not math.isfinite(values[-1]):
                raise layout.wrong(f"{path.name}: {column} must be a number", f"{cell!r} for {name}")
        return values

    scores = numbers(column)
    counts = f"nb_{term}-term_annotations"
    annotations = [int(count) for count in numbers(counts)] if counts in table.names else None
    split = split_column(table)
    if captions is None:
        described = _descriptions(table) if _described(table.names) else None
        return ScoredItems(names, scores, annotations, described, split)
    texts = _video_captions(user_path(captions))
    silent = [name for name in names if name not in texts]
    if silent:
        raise layout.wrong(f"{Path(captions).name} must have a caption for every video", f"none for {silent[0]}")
    return ScoredItems(names, scores, annotations, [texts[name] for name in names], split)


def _video_captions(path: Path) -> dict[str, str]:
    """Video -> its captions end to end."""
    layout = FolderLayout(path.parent, [path.name], _MEDIAEVAL)
    expected = (
        f"{path.name} must have lines of a video, a tab and its caption, or the columns video_id and description, or "
        "description_0, description_1 and so on"
    )
    texts: dict[str, str] = {}
    if path.suffix == ".csv":
        table = read_csv(path, ("video_id",))
        if "video_id" not in table.names or not _described(table.names):
            raise layout.wrong(expected, table.description if table.names else "an empty file")
        pairs = list(zip(table.texts("video_id"), _descriptions(table), strict=True))
    else:
        pairs = []
        for line in filter(str.strip, read_text(path).splitlines()):
            video, tab, caption = line.partition("\t")
            if not tab:
                raise layout.wrong(expected, repr(line[:60]))
            pairs.append((video, caption.replace("-", " ")))
    for video, caption in pairs:
        texts[video] = f"{texts[video]} {caption}" if video in texts else caption
    return texts


def _descriptions(table: Table) -> list[str]:
    """The captions in each row, end to end."""
    captions = zip(*(table.texts(name) for name in _described(table.names)), strict=True)
    return [" ".join(filter(None, texts)) for texts in captions]


def _described(names: Iterable[str]) -> list[str]:
    """Of the columns, those with captions."""
    return [name for name in names if re.fullmatch(r"description(_\d+)?", name)]


_MEDIAEVAL_2018 = ("ground-truth_dev-set.csv", "dev-set_video-captions.txt")

_MEDIAEVAL_PARTS = {"train": ("train", "training_set"), "val": ("dev", "dev_set"), "test": ("test", "test_set")}
"""Split -> how the names of its files begin, from 2021 on, and the folder they may lie in."""


def _mediaeval_files(path: Path) -> dict[str, tuple[Path, Path | None]]:
    """Split -> its files of scores and of captions; none: `path` is of another layout."""
    if path.is_file():  # all of Memento10k in one
        names = column_names(path, ("video_id",))[0] if path.suffix == ".csv" else []
        return {"train": (path, None)} if {"video_id", "description_0"} <= {*names} else {}
    if all((path / name).is_file() for name in _MEDIAEVAL_2018):
        return {"train": (path / _MEDIAEVAL_2018[0], path / _MEDIAEVAL_2018[1])}
    files: dict[str, tuple[Path, Path | None]] = {}
    for split, (part, folder) in _MEDIAEVAL_PARTS.items():
        for place in (path, path / folder):
            scores, captions = (place / f"{part}_{name}.csv" for name in ("scores", "text_descriptions"))
            if scores.is_file() and captions.is_file():  # the scores of a test are kept back at first
                files[split] = (scores, captions)
    return files if "train" in files else {}


def _mediaeval(path: Path) -> MemorabilityData:
    files = _mediaeval_files(path)
    if "val" in files and "test" not in files:
        files["test"] = files.pop("val")
    scores, captions = files["train"]
    memento = (captions or scores).suffix == ".csv" and "description_0" in column_names(captions or scores)[0]
    parts = [read_mediaeval(*pair, normalized=memento) for pair in files.values()]
    split = parts[0].split if len(parts) == 1 else np.repeat([*files], [len(part.names) for part in parts])
    return MemorabilityData(
        "Memento10k, normalized scores, from captions" if memento else "MediaEval, short term, from captions",
        np.array([score for part in parts for score in part.scores]),
        texts=[text for part in parts for text in part.captions or ()],
        split=split,
    )


MEDIAEVAL = Layout(
    f"a folder with {' and '.join(_MEDIAEVAL_2018)}; or with train_scores.csv and train_text_descriptions.csv, and "
    "the same of dev and test if there are any, also in training_set/, dev_set/ and test_set/; or a .csv of "
    f"Memento10k with its scores, description_0 and so on, and split: {_MEDIAEVAL}",
    lambda path: bool(_mediaeval_files(path)),
    _mediaeval,
)

_SENTENCES = "sentence_memorability_data.csv"

_NOT_PREDICTORS = ("", "sentence", "target_hr", "fpr", "dprime", "acc", "condition")
"""Of the table's columns: the texts, the human scores and how the sentences were chosen; the other eleven predict."""


def _sentences(path: Path) -> MemorabilityData:
    """Sentences, the accuracy at which people recognised them, and eleven measures of the words."""
    file = path if path.is_file() else path / _SENTENCES
    table = read_csv(file, ("sentence", "acc"))
    predictors = [name for name in table.names if name not in _NOT_PREDICTORS]
    return MemorabilityData(
        "sentence memorability",
        np.array(table.numbers("acc")),
        texts=table.texts("sentence"),
        features=np.array([table.numbers(name) for name in predictors], dtype=np.float32).T,
    )


def _is_sentences(path: Path) -> bool:
    file = path if path.is_file() else path / _SENTENCES
    if file.suffix != ".csv" or not file.is_file():
        return False
    wanted = {"sentence", "acc", "mean_mem"}
    return wanted <= set(column_names(file, wanted)[0])


SENTENCES = Layout(
    f"{_SENTENCES} with columns sentence, acc and predictors, github.com/thomashikaru/sentence_memorability_share",
    _is_sentences,
    _sentences,
)

MEMORABILITY: dict[str, Layout] = {
    "sentence memorability": SENTENCES,
    "MediaEval": MEDIAEVAL,
    "table": TABLE,
    "features": features_layout(
        "memorability",
        lambda name, arrays, split: MemorabilityData(name, arrays["scores"], features=arrays["features"], split=split),
    ),
}
"""What ``sodeep compare memorability --data`` may be."""

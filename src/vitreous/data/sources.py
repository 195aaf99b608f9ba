"""Where image sets come from: `load` takes a name, a folder, a parquet or npz file, a table or a Hub repository."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitreous.data.arrays import read_npz
from vitreous.data.folders import check_text, files_below, read_folder
from vitreous.data.images import SPLITS, ImageSet
from vitreous.data.originals import read_originals
from vitreous.data.shards import PARTIAL, check_complete, read_parquet
from vitreous.data.tables import TABLES, read_table
from vitreous.files import full_path, path_of
from vitreous.messages import did_you_mean, first_line

log = logging.getLogger("vitreous")

HUB = {
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
}
CONVERTED = "refs/convert/parquet"  # the branch to which the Hub converts public sets of other files
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar")
NAMED = ("digits", *HUB)  # these names mean the sets, even if there is a folder of that name


def load(source: str | Path | ImageSet, *, skip_broken: bool = False, fetch: bool = True) -> ImageSet:
    """Find an image set; one that is given is returned, with `skip_broken` if asked for. Files are decoded later.

    source: digits, mnist, fashion-mnist, cifar10, cifar100; `hf:owner/name` or `hf:owner/name/folder` on the Hub; a
    parquet file; a CSV table; an npz file of arrays; or a folder: of parquet files, of the original files of MNIST or
    CIFAR, or of class folders with images, under train, val and test or next to val and test. `photos.csv:breed` takes
    the labels from that column, for sources with columns. A `Path` is always a file or folder. Names are also looked up
    under $VITREOUS_DATA. fetch: whether a set that is not on this machine may be downloaded. Raises TypeError for
    something that is neither name nor path, ValueError for one under which there is nothing to train on.
    """
    if isinstance(source, ImageSet):
        return replace(source, skip_broken=True) if skip_broken else source
    if not isinstance(source, str | Path):
        raise TypeError(
            f"data is a {type(source).__name__}: give a name, a path or an ImageSet, which vt.ImageSet.from_dataset "
            "and from_arrays make"
        )
    place, label = split_source(source)
    with _told() as warnings:
        found = _find(place, label, fetch)
    source = _join_source(found.source, label)
    return replace(found, source=source, label=label, skip_broken=skip_broken, warnings=tuple(warnings))


def _find(place: str | Path, label: str | None, fetch: bool) -> ImageSet:
    name = place if isinstance(place, str) else ""
    path, kept = path_of(place), _kept(name)
    if name in NAMED and path.is_dir() and not (kept and kept.samefile(path)):
        log.warning("%s is the set of that name; for the folder here give ./%s", name, name)
    if name == "digits":
        return _without_columns(_digits(), label)
    if name in HUB:
        return _from_path(kept or _download(HUB[name], fetch), name, name, label)
    if name.startswith("hf:"):
        return _from_path(_download(name.removeprefix("hf:"), fetch), path.name, name, label)
    if place and path.exists():
        full = full_path(path)
        check_text(full)
        return _from_path(full, _called(full), str(full), label)
    if kept and path.name == name:
        return _from_path(kept, name, name, label)
    if "://" in name:
        raise ValueError(
            f"'{name}' is a URL, which is not taken: copy its files here or mount it as a folder, and give that; of "
            "the Hub, hf:owner/name"
        )
    raise ValueError(
        f"'{_join_source(place, label)}' is not a file or folder here, nor a known set: {did_you_mean(name, NAMED)}"
        f"give a path, {', '.join(NAMED)} or hf:owner/name"
    )


@contextmanager
def _told() -> Iterator[list[str]]:
    """The warnings that this thread gives while inside."""
    told: list[str] = []

    def listen(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING and record.thread == threading.get_ident():
            told.append(record.getMessage())
        return True

    log.addFilter(listen)
    try:
        yield told
    finally:
        log.removeFilter(listen)


def absolute(source: str) -> str:
    """DATA with any path made absolute, so that it is valid from any folder."""
    place, label = split_source(source)
    if place in NAMED or not path_of(place).exists():
        return source
    return _join_source(full_path(path_of(place)), label)


def lies_within(path: Path, source: str) -> bool:
    """Whether a path lies within the file or folder that DATA is on this machine, if it is neither built in nor
    fetched."""
    place, _ = split_source(source)
    home = path_of(place) if place not in NAMED and path_of(place).exists() else _kept(str(place))
    return home is not None and path.resolve().is_relative_to(home.resolve())


def split_source(source: str | Path) -> tuple[str | Path, str | None]:
    """Split DATA into its place and the label column after a colon, if there is one."""
    if isinstance(source, Path) or path_of(source).exists() or source.partition(":")[2].startswith("//"):  # a URL
        return source, None
    hub = "hf:" if source.startswith("hf:") else ""
    place, colon, column = source.rpartition(":")
    if hub or not (place and path_of(place).exists()):  # else a colon in the path is none before a column
        place, colon, column = source.removeprefix(hub).partition(":")
    return hub + place, column if colon else None


def gone(source: str) -> str | None:
    """The absolute path that DATA is, if nothing is there, as when it has moved; else None."""
    place = split_source(source)[0]
    return place if Path(place).is_absolute() and not Path(place).exists() else None


def _join_source(place: str | Path, label: str | None) -> str:
    """DATA, as `split_source` splits it."""
    return str(place) if label is None else f"{place}:{label}"


def _called(path: Path) -> str:
    """The name of a set: that of its file, or of the folder if the file's name says nothing."""
    if path.is_file() and path.stem.lower() not in {*SPLITS, "labels", "metadata"}:
        return path.stem
    return (path.parent if path.is_file() else path).name or "data"  # the root has none


def _without_columns(image_set: ImageSet, label: str | None) -> ImageSet:
    if label is not None:
        raise ValueError(f"{image_set.source} has no columns, as parquet files and tables do: leave out ':{label}'")
    return image_set


def _from_path(path: Path, name: str, source: str, label: str | None) -> ImageSet:
    """Recognise what a file or folder holds by the names in it. label: the label column, if one is asked for."""
    if path.is_file():
        if path.suffix == ".parquet":
            return read_parquet(path.parent, [Path(path.name)], name, source, label)
        if path.suffix.lower() in TABLES:
            return read_table(path, name, source, label)
        if path.suffix.lower() == ".npz":
            return _without_columns(read_npz(path, name, source), label)
        if path.name.lower().endswith(ARCHIVES):
            raise ValueError(f"{path} is an archive: unpack it first, and give its folder")
        raise ValueError(f"{path} is no parquet file, table (.csv, .tsv) or .npz: give one, or a folder")
    found = [file.relative_to(path) for file in sorted(path.rglob("*.parquet")) if file.is_file()]
    if files := [file for file in found if not any(part.startswith(".") for part in file.parts)]:
        try:
            check_complete(files, source)
            return read_parquet(path, files, name, source, label)
        except ValueError as error:
            if not files_below(path):
                raise
            raise ValueError(f"{error}; for the images in {path} to be read, move {files[0]} out of it") from error
    return _without_columns(read_originals(path, name, source) or read_folder(path, name, source), label)


def _kept(name: str) -> Path | None:
    """The user's own copy of a set; the digits are built in."""
    root = os.environ.get("VITREOUS_DATA")
    folder = path_of(root or "") / name
    return folder if root and name not in ("", "digits") and folder.is_dir() else None


def _digits() -> ImageSet:
    """1,797 handwritten digits, 8x8 gray, from scikit-learn; a stratified fifth, of the same writers, is for test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)  # levels 0..16 to 0..255
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    train, test = np.sort(train), np.sort(test)
    test_pair = (pixels[test], labels[test])
    return ImageSet.from_arrays(pixels[train], labels[train], test=test_pair, name="digits")


def _download(repo: str, fetch: bool) -> Path:
    """Fetch the parquet files of a Hub dataset, once: owner/name, or owner/name/folder for a part of it.

    Where it has none, those that the Hub has made of its files.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RevisionNotFoundError

    owner, _, rest = repo.partition("/")
    name, _, folder = rest.partition("/")
    if not owner or not name:
        raise ValueError(f"'hf:{repo}' is not a Hub dataset: write hf:owner/name")
    pattern = f"{folder}/*.parquet" if folder else "*.parquet"
    options = {"repo_type": "dataset", "allow_patterns": [pattern], "local_files_only": not fetch}
    failed = None
    for revision in (None, CONVERTED):
        try:
            root = Path(snapshot_download(f"{owner}/{name}", revision=revision, **options), folder)
        except RevisionNotFoundError:  # it is not converted
            continue
        except Exception as error:  # anything from no network to no such repository
            failed = failed or error
            continue
        if files := list(root.rglob("*.parquet")):
            if any(file.parent.name.startswith(PARTIAL) for file in files):
                log.warning("hf:%s: the Hub's conversion stops after some GB, so not all its images are here", repo)
            return root
    if failed is None:
        raise ValueError(
            f"the dataset {repo} has no parquet files, nor has the Hub made any of its files: download its images and "
            "give their folder"
        )
    reason = first_line(failed)
    if not fetch:
        raise ValueError(
            f"the dataset hf:{repo} is not on this machine ({reason}): name DATA, as the run has it, to fetch it"
        ) from failed
    raise ValueError(
        f"cannot download the dataset {repo} ({reason}): check its name and the network; if its page asks for it, "
        "log in with 'hf auth login' and accept its terms; or put its files into a folder and give that, for a "
        "named set as $VITREOUS_DATA/<name>"
    ) from failed

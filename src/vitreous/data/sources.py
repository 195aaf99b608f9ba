"""Where image sets come from: `load` takes a name, a folder, a parquet file or a Hub repository."""

import difflib
import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitreous.data.images import ImageSet, Split, match_labels
from vitreous.data.originals import read_originals
from vitreous.data.parquet import SPLITS, check_complete, read_parquet
from vitreous.data.stores import FileImages, as_text
from vitreous.files import first_line, path_of

log = logging.getLogger("vitreous")

HUB = {
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
}
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
IMAGE_SUFFIXES |= {".ppm", ".pgm", ".pbm", ".avif", ".jp2"}
UNREAD = {".heic", ".heif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raw", ".svg"}  # pictures, but not for Pillow


def load(source: str | Path, *, skip_broken: bool = False, fetch: bool = True) -> ImageSet:
    """Find a set of images. Files are decoded later, by `decode`.

    source: digits, mnist, fashion-mnist, cifar10, cifar100; `hf:owner/name` or `hf:owner/name/folder` of the
    Hub; a parquet file; or a folder: of parquet files, of the original files of MNIST or CIFAR, or of class
    folders with images, directly or under train, val and test. A `Path` is always a file or folder. A name is looked
    for under $VITREOUS_DATA, too. fetch: whether the network may be asked for a set that is not kept here.
    """
    name = source if isinstance(source, str) else ""
    path = path_of(source)
    if name == "digits":
        image_set = _digits()
    elif name in HUB:
        image_set = _from_path(_kept(name) or _download(HUB[name], fetch), name, name)
    elif name.startswith("hf:"):
        image_set = _from_path(_download(name.removeprefix("hf:"), fetch), path.name, name)
    elif source and path.exists():
        _check_text(path.resolve())
        image_set = _from_path(path, path.resolve().name.removesuffix(".parquet"), str(path.resolve()))
    elif name and path.name == name and (kept := _kept(name)):
        image_set = _from_path(kept, name, name)
    else:
        known = ["digits", *HUB]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ValueError(
            f"'{source}' is no file or folder here and no known set: {hint}"
            f"give a path, {', '.join(known)} or hf:owner/name"
        )
    return replace(image_set, skip_broken=skip_broken)


def _from_path(path: Path, name: str, source: str) -> ImageSet:
    """Recognise what a file or folder holds by the names in it."""
    if path.is_file():
        if path.suffix != ".parquet":
            raise ValueError(f"{path} is not a parquet file: give one, or a folder of images")
        return read_parquet(path.parent, [Path(path.name)], name, source)
    found = [file.relative_to(path) for file in sorted(path.rglob("*.parquet"))]
    if files := [file for file in found if not any(part.startswith(".") for part in file.parts)]:
        try:
            check_complete(files, source)
            return read_parquet(path, files, name, source)
        except ValueError as error:
            if not files_below(path):
                raise
            raise ValueError(f"{error}; for the images in {path} to be read, move {files[0]} out of it") from error
    return read_originals(path, name, source) or _folder(path, name, source)


def _kept(name: str) -> Path | None:
    """The user's own copy of a set."""
    root = os.environ.get("VITREOUS_DATA")
    return Path(root, name) if root and Path(root, name).is_dir() else None


def _digits() -> ImageSet:
    """1,797 handwritten digits, 8x8 gray, from scikit-learn; every fifth, stratified, is the test split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)  # levels 0..16 to 0..255
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    train, test = np.sort(train), np.sort(test)
    test_pair = (pixels[test], labels[test])
    return ImageSet.from_arrays(pixels[train], labels[train], test=test_pair, name="digits")


def _download(repo: str, fetch: bool) -> Path:
    """Fetch the parquet files of a Hub dataset, once: owner/name, or owner/name/folder for a part of it."""
    from huggingface_hub import snapshot_download

    owner, _, rest = repo.partition("/")
    name, _, folder = rest.partition("/")
    if not owner or not name:
        raise ValueError(f"'hf:{repo}' is not a Hub dataset: write hf:owner/name")
    pattern = f"{folder}/*.parquet" if folder else "*.parquet"
    options = {"repo_type": "dataset", "allow_patterns": [pattern], "local_files_only": not fetch}
    try:
        root = snapshot_download(f"{owner}/{name}", **options)
    except Exception as error:  # from no network to no such repository
        reason = first_line(error)
        if not fetch:
            raise ValueError(f"the dataset {repo} is not kept here ({reason}): name it as DATA to fetch it") from error
        raise ValueError(
            f"cannot download the dataset {repo} ({reason}): connect to the network, or put its files into a "
            f"folder and give that, for a named set as $VITREOUS_DATA/<name>"
        ) from error
    if not any(Path(root, folder).rglob("*.parquet")):
        raise ValueError(f"the dataset {repo} has no parquet files: download its images and give their folder")
    return Path(root, folder)


def _folder(root: Path, name: str, source: str) -> ImageSet:
    """Class folders with images, directly or under train, val and test. Classes go by their sorted names."""
    folders = {"train": root}
    inside = _subfolders(root)
    splits_of = {key: SPLITS[key.lower()] for key in inside if key.lower() in SPLITS}
    train = [key for key, split in splits_of.items() if split == "train"]
    if train and not any(_has_images(inside[key]) for key in train):  # else it is a class, as in CIFAR-100
        folders = {split: inside[key] for key, split in splits_of.items()}
        if len(folders) < len(splits_of):
            raise ValueError(f"{root} has several folders for one split: {', '.join(splits_of)}: keep one of each")
        if ignored := [key for key in inside if key not in splits_of]:
            log.warning("%s: beside train, these folders are left out: %s", source, ", ".join(ignored))
    elif inside and len(splits_of) == len(inside):
        raise ValueError(f"{root} has {', '.join(inside)} but no train/<class> folders: add them")

    class_names, splits = tuple(_subfolders(folders["train"])), {}
    if not class_names:
        raise ValueError(f"{folders['train']} has no class folders: sort the images into <class>/ folders")
    for split, folder in folders.items():
        paths, words = [], []
        for class_name, class_folder in _subfolders(folder).items():
            _check_text(class_folder)
            files = files_below(class_folder)
            if not files and split == "train":
                raise ValueError(f"{class_folder} holds no images: add some, or remove the folder")
            paths += files
            words += [class_name] * len(files)
        if paths:
            splits[split] = Split(FileImages(paths), match_labels(words, class_names, f"{source}: {split}"))
        else:
            log.warning("%s: %s has no images in class folders: left out", source, folder.name)
    return ImageSet(name, source, class_names, **splits)


def _check_text(path: Path) -> None:
    """Recipes, records and reports are UTF-8, and name their data and its classes."""
    if as_text(path) != str(path):
        raise ValueError(f"{as_text(path)} is a name that is not UTF-8: rename it")


def _subfolders(folder: Path) -> dict[str, Path]:
    """By name, sorted; hidden ones and the litter of archives left out."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    return {name: folder / name for name in names if not name.startswith((".", "__"))}


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.iterdir())


def files_below(folder: Path) -> list[str]:
    """All images in a folder and below it, sorted; hidden ones left out, linked folders read once.

    Warns of pictures that are there and cannot be read.
    """
    files, unread, seen = [], [], set()
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        if (real := os.path.realpath(root)) in seen:  # by another link, or in a loop
            folders.clear()
            continue
        seen.add(real)
        names = sorted(name for name in names if not name.startswith("."))
        files += [f"{root}{os.sep}{name}" for name in names if Path(name).suffix.lower() in IMAGE_SUFFIXES]
        unread += [name for name in names if Path(name).suffix.lower() in UNREAD]
    if unread:
        log.warning(
            "%s: pictures of a kind that is not read are left out (%d, such as %s): convert them to JPEG or PNG",
            as_text(folder), len(unread), as_text(unread[0]),
        )  # fmt: skip
    return files

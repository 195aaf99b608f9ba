"""Image sets in folders, one folder per class, and the suffixes of image files."""

import logging
import os
from importlib.util import find_spec
from pathlib import Path

from vitreous.data.images import SPLITS, ImageSet, Split, match_labels, split_in
from vitreous.data.stores import FileImages, as_text
from vitreous.extras import pip_line
from vitreous.messages import shorten

log = logging.getLogger("vitreous")

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
IMAGE_SUFFIXES |= {".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".avif", ".jp2", ".j2k", ".j2c", ".jpx", ".jpf"}
LEFTOVERS = {"__macosx", "__pycache__", "lost+found", "$recycle.bin", "system volume information"}  # and no classes
LEFTOVERS |= {"@eadir", "#recycle", "@recycle"}  # thumbnails and bins of network storage
HEIC = {".heic", ".heif", ".hif"}
UNREAD = {".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw"}
UNREAD |= {".raw", ".svg", ".jxl", ".tga", ".psd", ".exr", ".hdr", ".eps", ".ico", ".fits"}  # pictures of other kinds
UNREAD |= {".czi", ".nd2", ".lif", ".lsm", ".oib", ".oif", ".vsi", ".svs", ".ndpi", ".scn", ".dcm", ".npy"}
(IMAGE_SUFFIXES if find_spec("pillow_heif") else UNREAD).update(HEIC)  # of extra heic


def read_folder(root: Path, name: str, source: str) -> ImageSet:
    """Class folders with images: under train, val and test; or training classes next to val and test; or alone.

    Classes are in sorted order.
    """
    inside = _subfolders(root)
    named = [key for key in inside if key.lower() in SPLITS]
    classes_too = [key for key in named if _has_images(inside[key])]  # classes named like a split, as in CIFAR-100
    for key in classes_too:
        within = _subfolders(inside[key]).keys()
        if within and (within & inside.keys() or len(named) > 1 or len(inside) == 1):
            raise ValueError(f"{inside[key]} has images beside folders of classes: move them")
    splits_of = {key: SPLITS[key.lower()] for key in named if key not in classes_too}
    if "train" in splits_of.values():
        for key in classes_too:
            log.warning("%s: %s has no class folders, so its images have no labels: left out", source, key)
        if ignored := [key for key in inside if key not in named]:
            log.warning("%s: beside train, these folders are left out: %s", source, ", ".join(ignored))
    elif inside and len(named) == len(inside):
        _check_no_arrow(root)
        raise ValueError(
            f"{root} has {', '.join(inside)} but no train/<class> folders: add them, or give a table (.csv)"
        )
    else:
        for key in classes_too:
            log.warning("%s: %s holds images, not class folders, so it is taken for a class of this name", source, key)
    if len(set(splits_of.values())) < len(splits_of):
        raise ValueError(f"{root} has several folders for one split: {', '.join(splits_of)}: keep one of each")

    folders = {"train": root} | {split: inside[key] for key, split in splits_of.items()}
    classes = {split: _subfolders(folder) for split, folder in folders.items()}
    classes["train"] = {key: folder for key, folder in classes["train"].items() if folder not in folders.values()}
    class_names, splits = tuple(classes["train"]), {}
    if not class_names:
        _check_no_arrow(root)
        raise ValueError(
            f"{folders['train']} has no class folders: sort the images into <class>/ folders, or give a table (.csv)"
        )
    if _has_images(root):
        log.warning("%s: images that lie beside its folders are left out", as_text(root))
    files_of = {}  # each training class
    for split, folder in folders.items():
        paths, words = [], []
        for class_name, class_folder in classes[split].items():
            check_text(class_folder)
            files = files_below(class_folder)
            if not files and split == "train":
                _check_no_arrow(class_folder)
                raise ValueError(f"{class_folder} holds no images: add some, or remove the folder")
            if split == "train":
                files_of[class_folder] = files
            paths += files
            words += [class_name] * len(files)
        if paths:
            splits[split] = Split(FileImages(paths, root=root), match_labels(words, class_names, f"{source}: {split}"))
        else:
            log.warning("%s: %s has no images in class folders: left out", source, folder.name)
    _check_classes(root, files_of, source)
    return ImageSet(name, source, class_names, **splits)


def check_outside(path: Path, image_set: ImageSet) -> None:
    """Raises ValueError for a path inside a set's folder that would be read as a class or as images the next time."""
    images, path = image_set.train.images, path.resolve()
    if not isinstance(images, FileImages) or images.root is None or images.columns:  # a table names its images
        return
    root = images.root.resolve()
    if not path.is_relative_to(root):
        return
    named = {name.lower(): folder for name, folder in _subfolders(root).items() if name.lower() in SPLITS}
    splits = {SPLITS[name] for name, folder in named.items() if not _has_images(folder)}  # else it is a class
    inside = path.relative_to(root).parts
    if "train" not in splits or (inside and inside[0].lower() in SPLITS):
        raise ValueError(
            f"{path} lies within the data, of which it would become a part: name another folder with --out"
        )


def check_apart(path: Path, files: list[Path]) -> None:
    """Raises ValueError for a folder of images that are to be explained; and for one beside or within such a folder,
    where all of these seem to be classes, so that what is written there would be read as images the next time."""
    place = path.resolve()
    folders = {folder for file in files for folder in (file.parent.resolve(), file.resolve().parent)}
    if place in folders:
        raise ValueError(f"{path} holds images that are to be explained: name another folder with --out")
    for folder in folders:
        within = place.is_relative_to(folder)
        if (within or place.parent == folder.parent) and _has_classes(folder.parent, but=place):
            where = f"within {folder}, the folder of a class" if within else "beside the folders of classes"
            raise ValueError(f"{path} lies {where}, of which it would become a part: name another folder with --out")


def check_text(path: Path) -> None:
    """Raises ValueError for a name that is not UTF-8: recipes, records and reports are, and name the data's classes."""
    if as_text(path) != str(path):
        raise ValueError(f"{as_text(path)} is a name that is not UTF-8: rename it")


def _check_no_arrow(root: Path) -> None:
    """Raises ValueError for a folder without images that holds what the `datasets` library saves."""
    if next(root.rglob("*.arrow"), None):
        raise ValueError(
            f"{root} holds arrow files, as datasets' save_to_disk leaves them: write each split as parquet, as by "
            "load_from_disk(...)['train'].to_parquet('set/train.parquet'), and give that folder"
        )


def _check_classes(root: Path, files_of: dict[Path, list[str]], source: str) -> None:
    """Raises ValueError where folders within training classes show that these are no classes, or hold images for
    testing; warns where that may be so.

    files_of: the images of each class, by its folder.
    """
    names, inner = {folder.name for folder in files_of}, {}
    for folder, files in files_of.items():
        name, place, within = folder.name, folder, _folders_of(files, folder)
        if within == {name}:  # as an archive is unpacked into a folder of its name
            place, within = folder / name, _folders_of(files, folder / name)
        held = sorted(key for key in within if SPLITS.get(key.lower()) in ("val", "test"))
        if held and within <= {"", *(key for key in within if key.lower() in SPLITS)}:
            way_out = f"move them to {root / held[0] / name}, or rename the folder"
            raise ValueError(
                f"{place / held[0]} lies below a class, so its images would be trained on: "
                f"{way_out if len(files_of) > 1 else f'give {place}'}"
            )
        if "" not in within:
            inner[place] = within
    divided = {place.name: within for place, within in inner.items()}
    for place, within in inner.items():
        # subjects 1, 2, 3 below each of the classes 1, 2, 3 are no classes
        alike = sorted(key for key in within & (names - {place.name}) if within.isdisjoint(divided.get(key, ())))
        if not alike:
            continue
        said = (
            f"{place} has no images but folders called like other classes, {shorten(alike, 5)}: if they are for "
            f"testing, make it {root / 'test'}; if it is a class, rename them"
        )
        if len(alike) == len(within):
            raise ValueError(said)
        log.warning("%s", said)
    if len(inner) < min(2, len(files_of)) or len(shared := sorted(set.intersection(*inner.values()))) < 2:
        return
    splits = {split_in(name) for name in divided}
    if "train" in splits and "" not in splits and len(splits) > 1:
        raise ValueError(
            f"{root}: {', '.join(divided)} hold the same folders, {shorten(shared, 5)}, so they are splits and no "
            "classes: make these train/<class> and test/<class>"
        )
    where, way_out = "each of several classes", "move them up, or give a table (.csv)"
    if len(files_of) == 1:
        where, way_out = "its only folder", f"give {next(iter(inner))}"
    log.warning("%s: %s lie below %s: if they are the classes, %s", source, shorten(shared, 10), where, way_out)


def _folders_of(files: list[str], folder: Path) -> set[str]:
    """The subfolders of a folder in or below which its files lie; "" for files in itself."""
    parts = (file[len(f"{folder}{os.sep}") :].partition(os.sep) for file in files)
    return {first if sign else "" for first, sign, _ in parts}


def _subfolders(folder: Path) -> dict[str, Path]:
    """Subfolders by name, sorted; hidden ones and leftovers of archives are left out."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    return {name: folder / name for name in names if not _left_out(name)}


def _left_out(name: str) -> bool:
    return name.startswith(".") or name.lower() in LEFTOVERS


def _has_classes(folder: Path, but: Path) -> bool:
    """Whether a folder has several subfolders besides `but`, each with images."""
    try:
        others = [other for other in _subfolders(folder).values() if other != but]
        return len(others) > 1 and all(map(_has_images, others))
    except OSError:  # may not be read: no data of ours, such as the homes of all users
        return False


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in IMAGE_SUFFIXES and path.name[0] != "." for path in folder.iterdir())


def files_below(folder: Path) -> list[str]:
    """All image files in a folder and below it, sorted; hidden ones are left out, linked folders read once.

    Warns about pictures of kinds that are not read.
    """

    def refuse(error: OSError) -> None:  # else an unreadable folder would count as empty
        raise error

    files, unread, seen = [], [], set()
    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if not _left_out(name))
        if (real := os.path.realpath(root)) in seen:  # another link to it, or a loop
            folders.clear()
            continue
        seen.add(real)
        names = sorted(name for name in names if not name.startswith("."))
        files += [f"{root}{os.sep}{name}" for name in names if Path(name).suffix.lower() in IMAGE_SUFFIXES]
        unread += [name for name in names if Path(name).suffix.lower() in UNREAD]
    if unread:
        install = f"; for HEIC, {pip_line('heic')}" if any(Path(name).suffix.lower() in HEIC for name in unread) else ""
        log.warning(
            "%s: pictures of a kind that is not read are left out (%d, such as %s): convert them to JPEG or PNG%s",
            as_text(folder), len(unread), as_text(unread[0]), install,
        )  # fmt: skip
    return files

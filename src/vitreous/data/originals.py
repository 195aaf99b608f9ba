"""The original files of MNIST (idx) and CIFAR (binary version, python version)."""

import gzip
import os
import pickle
import zlib
from pathlib import Path

import numpy as np

from vitreous.data.images import ImageSet

ARRAY_MODULES = ("numpy", *(f"numpy.{core}.{part}" for core in ("core", "_core") for part in ("multiarray", "numeric")))


def read_originals(root: Path, name: str, source: str) -> ImageSet | None:
    """The set whose original files are in a folder or a direct subfolder, or where torchvision puts them, in NAME/raw;
    None if there are none. Raises ValueError for several."""
    inside = sorted(path for path in root.iterdir() if path.is_dir() and os.access(path, os.X_OK))
    found = {}
    for folder in [root, *inside, *(path / "raw" for path in inside)]:  # a closed one is named when read as a class
        for read in (_idx, _cifar_binary, _cifar_python):
            if folder not in found and (parts := read(folder)):
                found[folder] = parts
        if root in found:
            break
    if len(found) > 1:
        raise ValueError(f"{root} holds several sets, {', '.join(map(str, found))}: name one of these folders")
    if not found:
        return None
    ((train, test, class_names),) = found.values()
    return ImageSet.from_arrays(*train, test=test, class_names=class_names, name=name, source=source)


def _idx(folder: Path):
    """train-images-idx3-ubyte and the three other files, gzipped or not. Source: yann.lecun.com/exdb/mnist.

    As archives unpack them, too: with a dot before idx, or each in a folder of its own name.
    """
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    if next(folder.glob("*ubyte*"), None) is None:  # one look, as there may be many images
        return None
    files = [file for name in names for file in _idx_files(folder, name)[:1]]
    if not files:
        return None
    if len(files) < 4:
        raise ValueError(f"{folder} holds {len(files)} of the files {', '.join(names)}: add the others")
    images, labels, test_images, test_labels = map(_read_idx, files)
    return (images, labels), (test_images, test_labels), None


def _idx_files(folder: Path, name: str) -> list[Path]:
    pattern = name.replace("-idx", "[-.]idx") + "*"
    found = sorted(folder.glob(pattern)) + sorted(folder.glob(f"{name}/{pattern}"))
    return [file for file in found if file.is_file()]


def _read_idx(file: Path) -> np.ndarray:
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
        zeros, kind, dims = int.from_bytes(content[:2]), content[2], content[3]
        if zeros or kind != 8:  # 8: unsigned bytes
            raise ValueError("its first bytes are not those of one")
        shape = np.frombuffer(content, ">u4", dims, offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dims).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError, zlib.error) as error:
        raise ValueError(f"{file} is not an idx file of bytes, or a damaged one: {error}") from error


def _cifar_binary(folder: Path):
    """Rows of one label byte (CIFAR-100: two, coarse and fine) and 3,072 pixels: red, green, blue planes."""
    if (folder / "test_batch.bin").exists() or (folder / "data_batch_1.bin").exists():
        *train, test = _all_of(folder, *(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")
        names, head = folder / "batches.meta.txt", 1
    elif (folder / "train.bin").exists():
        *train, test = _all_of(folder, "train.bin", "test.bin")
        names, head = folder / "fine_label_names.txt", 2
    else:
        return None

    def rows(*files: Path) -> tuple[np.ndarray, np.ndarray]:
        content = np.concatenate([np.fromfile(file, np.uint8) for file in files])
        if content.size % (head + 3072):
            raise ValueError(f"{files[0]} is not whole rows of {head + 3072} bytes: fetch it again")
        content = content.reshape(-1, head + 3072)
        return content[:, head:].reshape(-1, 3, 32, 32), content[:, head - 1]

    return rows(*train), rows(test), names.read_text().split() if names.exists() else None


def _cifar_python(folder: Path):
    """Pickled dictionaries: data, uint8 (N, 3072), and labels (CIFAR-100: fine_labels)."""
    if (folder / "test_batch").is_file() or (folder / "data_batch_1").is_file():
        *train, test, meta = _all_of(folder, *(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta")
        labels, names = b"labels", b"label_names"
    elif (folder / "meta").exists() and (folder / "train").is_file():
        *train, test, meta = _all_of(folder, "train", "test", "meta")
        labels, names = b"fine_labels", b"fine_label_names"
    else:
        return None

    def rows(*files: Path) -> tuple[np.ndarray, np.ndarray]:
        batches = [_unpickle(file, b"data", labels) for file in files]
        pixels, numbers = map(np.concatenate, zip(*batches, strict=True))
        return pixels.reshape(-1, 3, 32, 32), numbers

    return rows(*train), rows(test), [name.decode() for name in _unpickle(meta, names)[0]]


def _all_of(folder: Path, *names: str) -> list[Path]:
    if missing := [name for name in names if not (folder / name).exists()]:
        raise ValueError(f"{folder} lacks {', '.join(missing)} of the original files: add what is missing")
    return [folder / name for name in names]


class _ArraysOnly(pickle.Unpickler):
    """Loads plain values and numpy arrays, and refuses everything else that a pickle could call."""

    def find_class(self, module: str, name: str):
        if module not in ARRAY_MODULES or name not in ("_reconstruct", "ndarray", "dtype", "_frombuffer"):
            raise pickle.UnpicklingError(f"it calls {module}.{name}, which no data needs")
        return super().find_class(module, name)


def _unpickle(file: Path, *keys: bytes) -> list:
    """The values of some keys in a pickled dictionary."""
    with file.open("rb") as stream:
        try:
            content = _ArraysOnly(stream, encoding="bytes").load()
            return [content[key] for key in keys]
        except Exception as error:  # other or damaged pickles raise nearly anything
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{file} is not an original CIFAR file: {reason}: fetch it again") from error

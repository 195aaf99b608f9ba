"""Load weights from any supported source into our ViT: `load_weights`.

A source is a file or folder, `hf:owner/name` on the Hub, or one of our own models: a run folder, a bundle, a shipped
name. Its tensors are renamed by the map of the library that wrote them, every one is accounted for, and their
preprocessing is loaded with them.
"""

import difflib
import hashlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from vitreous.files import path_of, read_json
from vitreous.messages import first_line, one_line, shorten
from vitreous.model import ViT, ViTConfig
from vitreous.model.positions import resample_positions
from vitreous.preprocess import Preprocess
from vitreous.weights import from_google, from_huggingface, from_timm, from_torchvision, from_vitreous
from vitreous.weights.bundle import CONFIG, WEIGHTS, Bundle, check_named, find_bundle, read_config
from vitreous.weights.maps import Description, Weights, merged_name, to_ours
from vitreous.weights.tensor_files import SUFFIXES, read_tensors

LAYOUTS = (from_vitreous, from_timm, from_huggingface, from_torchvision, from_google)
PREPROCESSING = "preprocessor_config.json"
AS_IMAGENET = "its 1,000 classes have no names and are taken for those of ImageNet"


class Report(NamedTuple):
    """What happened to each tensor of a file: it is either in `loaded` or in `left_out`."""

    source: str
    layout: str
    """The library whose names the file uses."""
    loaded: dict[str, str]
    """Name in the file -> name in our model, which queries, keys and values of some layouts share."""
    left_out: dict[str, str]
    """Name in the file -> why."""
    new_head: str
    """Why the head is new; empty if it is the file's own."""
    grids: tuple[tuple[int, int], tuple[int, int]] | None
    """The position grids of the file and of the model, if they differ: positions that are weights are resampled."""
    preprocess: Preprocess
    named: bool
    """Whether the file names the classes of its head."""
    imagenet: bool
    """Whether the classes of its head, 1,000 without names, are taken for ImageNet's. Others are numbered."""

    def lines(self) -> list[str]:
        """A summary for the user."""
        count = len(self.loaded)
        lines = [f"{self.source}: {count} of {count + len(self.left_out)} tensors loaded, named as {self.layout} does"]
        for reason in dict.fromkeys(self.left_out.values()):
            names = [name for name, why in self.left_out.items() if why == reason]
            lines.append(f"left out: {shorten(names)}: {reason}")
        if self.new_head:
            lines.append(f"new head, whose logits all start at 0: {self.new_head}")
        if self.imagenet:
            lines.append(AS_IMAGENET)
        if self.grids:
            old, new = (f"{rows} x {columns}" for rows, columns in self.grids)
            told = f"positions resampled from a grid of {old} to {new}"
            resampled = "positions" in self.loaded.values()
            lines.append(told if resampled else f"positions computed for a grid of {new}; the weights knew {old}")
        p = self.preprocess
        lines.append(
            f"images: {p.image_size[0]} x {p.image_size[1]}, {p.fit} of {p.crop_fraction:g}, {p.interpolation}, "
            f"mean {shorten(map('{:g}'.format, p.mean))}, std {shorten(map('{:g}'.format, p.std))}"
        )
        return lines


@torch.inference_mode(False)
def load_weights(
    source: os.PathLike[str] | str,
    *,
    arch: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    revision: str | None = None,
) -> tuple[Bundle, Report]:
    """Read a checkpoint of timm, Hugging Face, torchvision, Google or our own into our model.

    arch: timm's or torchvision's name of the architecture, for a file without a config.json next to it; if given, no
    config.json is read. image_size: overrides the checkpoint's; learned positions are resampled to it. num_classes: a
    number other than the checkpoint's makes a new head (paper, section 3.2); required for a checkpoint without a head.
    revision: branch, tag or commit of a Hub repository.

    The model is in evaluation mode, its weights float32. Raises ValueError, in one line, for anything else.
    """
    file = find_weights(source, revision)
    tensors = read_tensors(file)
    weights = {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}
    layout = recognise(file, weights)
    said = describe(file, weights, layout, arch)
    ours, loaded, left_out = _match(file, weights, layout, said.model)
    has_head = any(map(in_head, ours))

    other_head = said.other_head or ("one number" if said.model.num_classes == 1 else "")
    if num_classes is None and has_head and other_head:
        raise ValueError(
            f"{file} has a head for {other_head}, whose answers are not one class: only `vitreous embed` and "
            "`vitreous train --from` can use it"
        )
    classes = said.model.num_classes if num_classes is None else num_classes
    new_head = ""
    if not has_head:
        if num_classes is None:
            raise ValueError(
                f"{file} has no head, so that it answers nothing: `vitreous embed` and `vitreous train --from` need "
                "none; in Python, give num_classes, those of a new one"
            )
        new_head = f"{classes} classes; the file has none"
    elif classes != said.model.num_classes:
        new_head = f"{classes} classes in place of {said.model.num_classes}"
    changes = {"image_size": said.preprocess.image_size if image_size is None else image_size, "num_classes": classes}
    changes |= {"head_hidden": 0} if new_head else {}
    try:
        config = said.model.changed(**changes)
        preprocess = Preprocess.model_validate(said.preprocess.model_dump() | {"image_size": config.image_size})
    except ValidationError as error:
        raise ValueError(f"{file}: {one_line(error)}") from error
    if preprocess.channels != config.channels:
        raise ValueError(
            f"{file}: images get {preprocess.channels} channels, but the model reads {config.channels}: give mean and "
            "std of each in its config"
        )

    with torch.random.fork_rng([]):  # for a new head; the caller's draws stay as they are
        model = ViT(config).float()  # whatever the caller has made the default
    state = {name: value for name, value in ours.items() if not (new_head and in_head(name))}
    grids = (said.model.grid, config.grid) if config.grid != said.model.grid else None
    if grids and "positions" in state:
        prefix, patches = state["positions"].tensor_split([config.placed_prefix], dim=1)
        state["positions"] = torch.cat([prefix, resample_positions(patches, config.grid, said.model.grid)], dim=1)
    model.load_state_dict(state, strict=False)  # all names are accounted for
    left_out |= {name: "a new head takes its place" for name, home in loaded.items() if home not in state}
    loaded = {name: home for name, home in loaded.items() if home in state}
    named = bool(said.class_names) and not new_head
    imagenet = not said.class_names and not new_head and classes == 1000
    unnamed = imagenet_classes() if imagenet else tuple(map(str, range(classes)))
    names = said.class_names if named else unnamed
    if len(names) != classes:
        raise ValueError(
            f"{file}: {len(names)} class names for a head of {classes} classes: name each of them once in its {CONFIG}"
        )
    report = Report(os.fspath(source), layout.NAME, loaded, left_out, new_head, grids, preprocess, named, imagenet)
    temperature, calibrated_on = (1.0, None) if new_head else (said.temperature, said.calibrated_on)
    return Bundle(model.eval(), preprocess, names, temperature, calibrated_on), report


def imagenet_classes() -> tuple[str, ...]:
    """The 1,000 classes of ILSVRC 2012 in the order of their WordNet ids, each as its words in WordNet 3.0.

    Two of them are called crane there; here they say which. Source: Russakovsky et al. 2015, arXiv 1409.0575.
    """
    return tuple(Path(__file__).with_name("imagenet.txt").read_text().splitlines())


def find_weights(source: os.PathLike[str] | str, revision: str | None = None) -> Path:
    """The weight file of a source, downloaded from the Hub if needed. Raises ValueError if there is no single one."""
    if isinstance(source, str) and source.startswith("hf:"):
        return _download(source.removeprefix("hf:"), revision)
    if revision is not None:
        raise ValueError(f"revision '{revision}' belongs to a repository of the Hub, hf:owner/name, not to '{source}'")
    check_named(source)
    path = path_of(source)
    if path.is_file():
        return path
    try:
        return find_bundle(source) / WEIGHTS
    except ValueError as error:
        if not path.is_dir():
            raise ValueError(f"{error}; others' weights are a file, a folder or hf:owner/name") from error
        if (path / "recipe.yaml").is_file() and not (path / "model").is_dir():  # a run, or the folder of its folds
            raise
    for file in (path / "model" / WEIGHTS, path / WEIGHTS, path / "pytorch_model.bin"):
        if file.is_file():
            return file
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if len(files) != 1:
        found = f"several weight files: {shorten(file.name for file in files)}" if files else "no weight file"
        one = "one of them, or " if files else ""
        raise ValueError(f"{path} holds {found}: give {one}a folder with {WEIGHTS} and {CONFIG}")
    return files[0]


def weights_digest(source: os.PathLike[str] | str, revision: str | None = None) -> str:
    """SHA-256 of the weight file of a source, in hexadecimal."""
    with find_weights(source, revision).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(repo: str, revision: str | None) -> Path:
    """Fetch weights and configs of a Hub repository, or take them from its cache. Raises ValueError."""
    from huggingface_hub import snapshot_download

    if repo.count("/") != 1 or not all(repo.split("/")):
        raise ValueError(f"'hf:{repo}' is not a repository of the Hub: write hf:owner/name")
    for name in (WEIGHTS, "pytorch_model.bin"):  # the second is fetched only where the first is missing
        try:
            root = snapshot_download(repo, revision=revision, allow_patterns=[name, CONFIG, PREPROCESSING])
        except Exception as error:  # anything from no network to no such repository
            reason = first_line(error)
            raise ValueError(
                f"cannot download {repo} ({reason}): check its name and the network; if its page asks for it, log in "
                "with 'hf auth login' and accept its terms; or give a folder that has its files"
            ) from error
        if Path(root, name).is_file():
            return Path(root, name)
    raise ValueError(f"hf:{repo} has neither {WEIGHTS} nor pytorch_model.bin: download its weights and give the file")


def recognise(file: Path, weights: Weights) -> ModuleType:
    """The layout that these names belong to. Raises ValueError if there is none."""
    for layout in LAYOUTS:
        if any(mark in name for name in weights for mark in layout.MARKS):
            return layout
    raise ValueError(
        f"{file} is not a ViT of {', '.join(layout.NAME for layout in LAYOUTS)}: its tensors are {shorten(weights)}"
    )


def describe(file: Path, weights: Weights, layout: ModuleType, arch: str | None) -> Description:
    """Describe a checkpoint by the given architecture, its config.json or, for Google's files, its shapes."""
    head = weights.get(layout.HEAD, weights.get(from_torchvision.NEW_HEAD))
    classes = len(head) if head is not None and head.ndim == 2 else 0
    known = getattr(layout, "ARCHITECTURES", {})
    if arch is not None:
        if arch not in known:
            near = difflib.get_close_matches(arch, known, n=3, cutoff=0.5)
            way = f"use {' or '.join(near or list(known)[:3])}" if known else "give none"
            raise ValueError(f"{file} has the names of {layout.NAME}, which has no architecture '{arch}' here: {way}")
        return layout.from_architecture(arch, classes)
    if layout is from_google:
        try:
            return from_google.from_weights(weights)
        except ValueError as error:
            raise ValueError(f"{file}: {one_line(error)}") from error
    path = file.with_name(CONFIG)
    config = _read_json(path)
    likely = sorted(known, key=lambda name: name not in file.name)  # what the file is named after comes first
    way = f"put its {CONFIG} beside it" + (f", or give its architecture: --arch {shorten(likely)}" if known else "")
    if config is None:
        raise ValueError(f"{file} does not say its number of heads, its epsilon or how images are normalised: {way}")
    if "preprocess" in config:  # ours is complete, whatever the tensor names
        return read_config(file.parent)
    try:
        if "architecture" in config and layout is from_timm:
            return from_timm.from_config(config, classes)
        if "model_type" in config and layout is from_huggingface:
            return from_huggingface.from_config(config, _read_json(file.with_name(PREPROCESSING)), classes)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not say what it should: {type(error).__name__} {error}") from error
    except ValueError as error:
        said = one_line(error)
        place = f"{file.parent}/" if said.startswith(PREPROCESSING) else f"{path}: "  # the other file names itself
        raise ValueError(f"{place}{said}") from error
    raise ValueError(f"{path} is not a config of {layout.NAME}, whose names {file.name} has: {way}")


def _read_json(file: Path) -> dict[str, Any] | None:
    """None if there is no such file. Raises ValueError for a file without a JSON object."""
    try:
        content = read_json(file)
    except FileNotFoundError:
        return None
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no JSON object but {type(content).__name__}")
    return content


def _match(
    file: Path, weights: Weights, layout: ModuleType, config: ViTConfig
) -> tuple[Weights, dict[str, str], dict[str, str]]:
    """Account for every tensor of the file and of a model of this config.

    Returns the weights under our names, name in the file -> our name, and name in the file -> why it is left out.
    Raises ValueError for any mismatch.
    """
    with torch.device("meta"):
        expected = ViT(config).state_dict()
    pairs = [(ours, name) for ours, name in layout.pairs(config, weights) if merged_name(ours) in expected]
    homes = {name: merged_name(ours) for ours, name in pairs}
    headless = not any(in_head(homes[name]) for name in weights.keys() & homes.keys())
    missing = [name for name, home in homes.items() if name not in weights and not (headless and in_head(home))]
    missing += sorted(expected.keys() - set(homes.values()))
    if layout is from_google:
        weights = {name: from_google.to_torch(name, value) for name, value in weights.items()}
    ours = to_ours(weights, pairs)
    misfits = {name: reason for name, value in ours.items() if (reason := _misfit(value, expected.get(name)))}
    known = from_huggingface.left_out if layout is from_huggingface else lambda name: None
    others = [name for name in weights if name not in homes]
    left_out = {name: why for name in others if (why := known(name))}
    unexpected = [name for name in others if name not in left_out]
    if missing or unexpected or misfits:
        faults = [f"missing {shorten(missing)}"] if missing else []
        faults += [f"unexpected {shorten(unexpected)}"] if unexpected else []
        faults += [shorten(f"{name} {reason}" for name, reason in misfits.items())] if misfits else []
        raise ValueError(f"{file} does not fit its config or architecture: {'; '.join(faults)}: give the right one")
    loaded = {name: homes[name] for name in weights if name in homes}
    return ours, loaded, left_out


def _misfit(value: Tensor, expected: Tensor | None) -> str:
    """Why a tensor does not fit its place; empty if it does."""
    if expected is None:
        return "has no queries, keys and values of its shape to stand with"
    if value.shape != expected.shape:
        return f"is {tuple(value.shape)}, expected {tuple(expected.shape)}"
    if value.is_floating_point() != expected.is_floating_point():
        return f"is {value.dtype}, expected {expected.dtype}"
    if not torch.isfinite(value).all():
        return "is not finite: it holds NaN or infinity"
    return ""


def in_head(name: str) -> bool:
    """Whether a tensor of our model belongs to its head."""
    return name.startswith("head.")

"""A trained model on disk: a folder with its weights and everything else that its predictions need.

`model.safetensors`, and `config.json` with the model, its preprocessing, its class names, its temperature, and
which images that was fitted on.
"""

import hashlib
import json
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitreous.device import pick_device
from vitreous.files import path_of, replace_file, write_json
from vitreous.messages import one_line
from vitreous.model import ViT, ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.weights.maps import Description, read_temperature
from vitreous.weights.tensor_files import read_tensors

WEIGHTS, CONFIG = "model.safetensors", "config.json"
SHIPPED = Path(__file__).parents[3] / "models"  # in a checkout


@dataclass(frozen=True)
class Bundle:
    """A model with its preprocessing, class names and temperature. `save` and `load` are inverses.

    Raises ValueError for parts that do not fit together.
    """

    model: ViT
    preprocess: Preprocess
    class_names: tuple[str, ...]
    temperature: float = 1.0
    """Divides the logits before the softmax; fitted on held-out images after training."""
    calibrated_on: str | None = None
    """The `digest_of` the images that the temperature was fitted on, if they are known."""

    def __post_init__(self) -> None:
        config, preprocess = self.model.config, self.preprocess
        if isinstance(self.class_names, str | set | frozenset):  # a set has another order in each process
            kind = type(self.class_names).__name__
            raise ValueError(f"class_names is a {kind}: give a list of names, in the order of the outputs")
        object.__setattr__(self, "class_names", tuple(map(str, self.class_names)))
        if preprocess.shape != (shape := (config.channels, *config.image_size)):
            made, read = (" x ".join(map(str, each)) for each in (preprocess.shape, shape))
            raise ValueError(f"preprocessing makes images of {made}, the model reads {read}: give this model's own")
        if len(self.class_names) != config.num_classes:
            raise ValueError(
                f"{len(self.class_names)} class names for a model of {config.num_classes} classes: name each of them "
                "once, in the order of its outputs"
            )

    def __repr__(self) -> str:
        config = self.model.config
        return (
            f"Bundle(ViT of {sum(w.numel() for w in self.model.parameters()):,} parameters, images "
            f"{config.channels} x {config.image_size[0]} x {config.image_size[1]}, {len(self.class_names)} classes)"
        )

    @property
    def unwrapped(self) -> ViT:
        """The model, without the wrapper of `torch.compile`."""
        return getattr(self.model, "_orig_mod", self.model)

    def digest(self) -> str:
        """SHA-256 of the weights and everything else that predictions depend on, 64 hex digits; equal for equal
        models."""
        digest = hashlib.sha256(json.dumps(self._config(), sort_keys=True).encode())
        for name, value in sorted(self.unwrapped.state_dict().items()):
            digest.update(name.encode() + value.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def save(self, folder: Path | str, dtype: torch.dtype | None = None) -> None:
        """Write the bundle, each file atomically. dtype: of floating-point weights (default: unchanged).

        Raises ValueError for weights that the dtype cannot hold, and for a model that `load` could not bring back.
        """
        model = self.unwrapped
        if not is_plain(model):
            raise ValueError(
                f"model is a {type(model).__name__} that differs from vt.ViT(model.config), as which it would be "
                "read: give a plain ViT, after torch's prune.remove, say, or save its state_dict() yourself"
            )
        folder = path_of(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {
            name: (value.to(dtype) if dtype and value.is_floating_point() else value).contiguous().cpu()
            for name, value in model.state_dict().items()
        }
        if dtype is not None and (beyond := not_finite(weights)):
            raise ValueError(
                f"'{beyond}' has values that {str(dtype).removeprefix('torch.')} cannot hold: keep float32"
            )
        replace_file(folder / WEIGHTS, lambda path: save_file(weights, path))
        self.save_config(folder)

    def save_config(self, folder: Path) -> None:
        """Write everything but the weights."""
        known = {"calibrated_on": self.calibrated_on} if self.calibrated_on else {}
        write_json(folder / CONFIG, self._config() | known)

    def _config(self) -> dict[str, Any]:
        return {
            "model": self.model.config.model_dump(mode="json"),
            "preprocess": self.preprocess.model_dump(mode="json", exclude_none=True),
            "class_names": list(self.class_names),
            "temperature": self.temperature,
        }

    @torch.inference_mode(False)  # in which weights that are moved could no longer be trained, or explained
    def to(self, device: str) -> torch.device:
        """Move the model to a device, and return that. `auto`: the GPU that it is on, else as for `pick_device`."""
        own = next(self.model.parameters()).device
        where = pick_device(str(own) if device == "auto" and own.type != "cpu" else device)
        self.model.to(where)
        return where

    @staticmethod
    def of(run: "Trained") -> "Bundle":
        """The bundle of a run, or the one given. Raises ValueError if there is none, TypeError for anything else."""
        if isinstance(run, Bundle):
            return run
        if not isinstance(run, str | os.PathLike):
            raise TypeError(f"run is a {type(run).__name__}: give a run, its folder or a Bundle")
        return Bundle.load(find_bundle(run))

    @staticmethod
    @torch.inference_mode(False)
    def load(folder: os.PathLike[str] | str) -> "Bundle":
        """Read a bundle from its folder or that of its run; the model is in evaluation mode, its weights float32.

        Raises ValueError on any mismatch.
        """
        folder = path_of(folder)
        if not any((folder / name).exists() for name in (CONFIG, WEIGHTS)):
            folder = find_bundle(folder)
        said = read_config(folder)
        try:
            weights = read_tensors(folder / WEIGHTS)
        except FileNotFoundError as error:
            raise ValueError(f"{folder} has no {WEIGHTS}: give a folder with {WEIGHTS} and {CONFIG}") from error
        with torch.random.fork_rng([]):  # the weights drawn are replaced, and the caller's draws stay as they are
            model = ViT(said.model).float()  # whatever the caller has made the default
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:  # which names what is missing, unexpected or of another shape
            told = textwrap.shorten(str(error), 300)
            raise ValueError(f"{folder / WEIGHTS} does not fit its config: {told}") from error
        if broken := not_finite(weights):
            raise ValueError(f"{folder / WEIGHTS} is damaged: '{broken}' has values that are no finite numbers")
        try:
            return Bundle(model.eval(), said.preprocess, said.class_names, said.temperature, said.calibrated_on)
        except ValueError as error:
            raise ValueError(f"{folder / CONFIG}: {error}") from error


Trained = os.PathLike[str] | str | Bundle
"""What asks a model: a run or its folder, a bundle's folder, the name of a shipped bundle, or a loaded `Bundle`, as
`load_weights` makes one of other libraries' weights."""


def read_config(folder: Path) -> Description:
    """A bundle without its weights. Raises ValueError for a missing or invalid file."""
    file = folder / CONFIG
    try:
        config = json.loads(file.read_bytes())
        model, preprocess = ViTConfig.model_validate(config["model"]), Preprocess.model_validate(config["preprocess"])
        names, temperature = config["class_names"], read_temperature(config, "temperature")
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError(f"class_names is {textwrap.shorten(json.dumps(names), 60)}: give a list of strings")
        return Description(model, preprocess, tuple(names), temperature, calibrated_on=config.get("calibrated_on"))
    except FileNotFoundError as error:
        raise ValueError(f"{folder} has no {CONFIG}: give a folder with {WEIGHTS} and {CONFIG}") from error
    except KeyError as error:
        raise ValueError(f"{file} does not describe a model: it has no {error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} does not describe a model: {one_line(error)}") from error


def is_plain(model: ViT) -> bool:
    """Whether this is the ViT that its config describes: only that can be read back from config and weights.

    Batch norm that several GPUs share while they train is the same function and has the same weights.
    """
    with torch.device("meta"):
        described = ViT(model.config)
    shapes, expected = ({name: w.shape for name, w in m.state_dict().items()} for m in (model, described))
    parts = str(model).replace("SyncBatchNorm(", "BatchNorm2d(")
    return type(model) is ViT and parts == str(described) and shapes == expected


def find_bundle(run: os.PathLike[str] | str) -> Path:
    """The bundle of a run folder, a bundle folder, or the name of a shipped bundle. Raises ValueError for others."""
    check_named(run)
    if str(run).startswith("hf:"):
        raise ValueError(f"{run} is of another library: in Python, give vitreous.weights.load_weights({str(run)!r})[0]")
    if "://" in str(run):
        raise ValueError(f"'{run}' is a URL, which is not taken: download the model first, and give its file or folder")
    run = path_of(run)
    ours = any((run / name).exists() for name in ("recipe.yaml", "evaluation.json", "fold-1"))
    for folder in (run / "model", run, *([] if ours else [SHIPPED / run])):
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            return folder
    shipped = sorted(p.parent.name for p in SHIPPED.glob(f"*/{CONFIG}"))
    if (run / "fold-1").is_dir():
        raise ValueError(
            f"{run} is a cross-validation, whose models are for judging: train one in the same way without --folds, "
            f"or name one of its folds, such as {run / 'fold-1'}"
        )
    if run.is_dir():
        way_out = "train it to the end, end it with --finish, or use another run"
        raise ValueError(f"{run} holds no trained model (model/{WEIGHTS}): {way_out}")
    names = f", or one of {', '.join(shipped)}" if shipped else ""
    raise ValueError(f"no model '{run}' here: give a run folder, or a folder with {WEIGHTS} and {CONFIG}{names}")


def check_named(run: os.PathLike[str] | str) -> None:
    """Raises ValueError for an empty name, which as a path would be the current folder, and TypeError for a Bundle."""
    if isinstance(run, Bundle):
        raise TypeError("a Bundle has no folder: save it, bundle.save('FOLDER'), and give that")
    if not os.fspath(run):
        raise ValueError("the name of the run is empty: give a run, a shipped name or a folder, as . for this one")


def is_shipped(run: os.PathLike[str] | str) -> bool:
    """Whether a name refers to a shipped bundle; a local run or bundle of the same name takes precedence."""
    try:
        return find_bundle(run).resolve().parent == SHIPPED.resolve()
    except ValueError:  # not a bundle: weights of another library, or a cross-validation
        return False


def find_record(run: Trained) -> Path | None:
    """The folder with the recipe and training record of a run, of its `model/`, or of a shipped model, if there is
    one; a loaded `Bundle` has none."""
    if isinstance(run, Bundle):
        return None
    folder = find_bundle(run) if is_shipped(run) else path_of(run)
    if (folder / "recipe.yaml").is_file():
        return folder
    place = folder.absolute().parent if folder.is_file() else folder.absolute()
    for home in (place, place.parent) if place.name == "model" else (place,):
        if (home / "recipe.yaml").is_file() and (home / "data.json").is_file():  # else another program's, maybe
            return home
    return None


def not_finite(weights: dict[str, Tensor]) -> str | None:
    """The name of a tensor with a value that is not finite, if there is one."""
    return next((name for name, value in weights.items() if not value.isfinite().all()), None)

"""A run in progress: built from a recipe and its data, trained, saved and restored."""

import copy
import hashlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from vitreous.data.check import summary
from vitreous.data.divide import groups_of
from vitreous.data.images import ImageSet
from vitreous.data.loaders import Batches
from vitreous.data.stores import even_rows
from vitreous.device import pick_precision
from vitreous.evaluation import learnt_hashes
from vitreous.files import write_csv
from vitreous.metrics import watched
from vitreous.model import ViT
from vitreous.prediction import eval_batch_size, split_logits
from vitreous.preprocess import Preprocess
from vitreous.recipe import Recipe, make_recipe
from vitreous.train.checkpoint import load_checkpoint, random_state, save_checkpoint
from vitreous.train.engine import Engine
from vitreous.train.folder import check_same_recipe
from vitreous.train.loop import Diverged, Hooks, Parts, train_loop
from vitreous.train.optim import EMA, make_optimizers
from vitreous.train.order import steps_per_epoch
from vitreous.train.probe import Head, fit_head
from vitreous.train.progress import Display, decoding, say
from vitreous.train.signals import stop_flag
from vitreous.train.start import Start
from vitreous.train.state import State, stop_reason
from vitreous.train.teacher import Teacher
from vitreous.weights import Bundle

log = logging.getLogger("vitreous")

WHITENED = 1 << 20  # pixels of training images that `ConvStem.whiten` sees
LOWER_RATES = "start again, into another --out, with lower rates (optim.learning_rate, optim.muon_learning_rate)"
BY_FINISH = ", or judge what was learnt until the last checkpoint by --finish (finish=True)"


class Job:
    """A run in progress: its parts, built from the recipe and the data, and where its hooks write."""

    def __init__(
        self,
        recipe: Recipe,
        data: ImageSet,
        model: ViT | None,
        folder: Path,
        engine: Engine,
        start: Start | None,
        teacher: Teacher | None,
        console: Console,
        pictures: bool,
    ):
        self.recipe, self.data, self.folder, self.start, self.console = recipe, data, folder, start, console
        self.teacher, self.pictures = teacher, pictures
        self.taught_by = teacher.sha256 if teacher else ""
        self.started_from = start.facts["sha256"] if start else ""
        self.stopped = False
        self.checkpoint = folder / "checkpoints" / "last.pt"
        if engine.device.type == "cuda" and torch.cuda.is_initialized():  # else there is no peak yet
            torch.cuda.empty_cache()  # what an earlier run has left reserved would count
            torch.cuda.reset_peak_memory_stats(engine.device)
        self.engine = engine  # whose processes may be on unlike machines
        self.precision = engine.from_main(partial(pick_precision, recipe.precision, engine.device))
        if recipe.optim.batch_size % engine.processes and not recipe.start.probe:
            raise ValueError(
                f"optim.batch_size {recipe.optim.batch_size} does not divide among {engine.processes} processes: set a "
                f"multiple of {engine.processes}"
            )
        if engine.processes > 1 and recipe.compile == "reduce-overhead":
            raise ValueError("compile=reduce-overhead is for one process: set compile=true")
        with engine.first_on_machine():
            self._load_images()
        self.summary = engine.from_main(partial(summary, data, self.plain_batches, self.val_batches))
        count = len(self.train_batches)
        if count < engine.processes:
            raise ValueError(
                f"{count} training images are too few for {engine.processes} processes: start at most {count}"
            )
        if engine.processes > 1 and recipe.optim.accumulate > 1 and count < recipe.optim.batch_size:
            raise ValueError(  # processes would take unequal numbers of parts, and wait for each other
                f"{count} training images do not fill a batch that is taken in parts by several processes: set "
                "optim.accumulate=1"
            )
        self.steps = steps_per_epoch(count, recipe.optim.batch_size)
        torch.manual_seed(recipe.seed)
        self.given = start is None and model is not None
        if model is None:
            model = ViT(recipe.model)
            if recipe.start.whiten and recipe.model.patch_embedding == "conv_stem":
                model.patches.whiten(self._some_images())
        elif self.given and recipe.start.whiten and model.config.patch_embedding == "conv_stem":
            say(console, "start.whiten does nothing here: the first convolution is that of the model given")
        if engine.rank:
            torch.manual_seed(recipe.seed + engine.rank)  # different dropout, same initial weights
        model.freeze(recipe.optim.freeze)
        self.parameters = sum(weight.numel() for weight in model.parameters())
        self.optimizers = make_optimizers(model, recipe.optim)
        self.model = engine.prepare(model)
        decay = recipe.optim.ema
        self.average = EMA(engine.unwrap(self.model), decay) if decay else None
        self.scaler = torch.amp.GradScaler(engine.device.type, enabled=self.precision == "float16")
        self.state, self.saved_epochs = State(), 0  # epochs complete at the last checkpoint
        self.head: Head | None = None  # of a probe
        self.kept: ViT | None = None  # weights that the next `save` writes as the run's model

    def _load_images(self) -> None:
        """Decode the training and validation images and place them. Of the test images nothing is used."""
        data, recipe = self.data, self.recipe
        make = partial(
            Batches,
            batch_size=eval_batch_size(recipe.model),
            device=self.engine.device,
            memory_budget=recipe.data.resident_bytes,
            workers=recipe.data.workers,
            skip_broken=recipe.data.skip_broken,
            progress=decoding(self.console),
        )
        if self.start is not None:
            self.preprocess = self.start.preprocess
            self.plain_batches = make(data.train, self.preprocess)  # read like validation and test images
        else:
            unmeasured = Preprocess(
                image_size=recipe.model.image_size,
                mean=(0.5,) * recipe.model.channels,
                std=(0.5,) * recipe.model.channels,
                fit=recipe.data.fit,
                crop_fraction=recipe.data.crop_fraction,
                white=recipe.data.white,
            )
            self.plain_batches = make(data.train, unmeasured)
            self.preprocess = self.plain_batches.measured()
        size = tuple(round(side * recipe.data.oversize) for side in self.preprocess.image_size)
        whole = {} if self.start else {"crop_fraction": 1.0}  # random crops are cut from whole images
        cut_from = self.preprocess.model_copy(update={"image_size": size} | whole)
        if cut_from == self.preprocess:
            larger = self.plain_batches
        else:
            if not (recipe.start.probe or recipe.start.probe_first):  # else they go through the model, too
                self.plain_batches = self.plain_batches.streamed()
            larger = make(data.train, cut_from)
        self.train_batches = larger.in_batches_of(max(1, recipe.optim.batch_size // self.engine.processes))
        self.val_batches = make(data.val, self.preprocess) if data.val is not None else None

    def _some_images(self) -> Tensor:
        """Training images to whiten, as many as have `WHITENED` pixels: (B, C, H, W), normalised."""
        rows = even_rows(len(self.plain_batches), max(1, WHITENED // math.prod(self.preprocess.image_size)))
        return self.preprocess.normalise(torch.from_numpy(self.plain_batches.images.read(rows, self.preprocess)))

    def train(
        self,
        on_step: Callable[[State, Tensor], None] | None,
        on_epoch: Callable[[dict[str, float]], None] | None,
    ) -> bool:
        """Train to the end. Returns False when interrupted, with everything saved."""
        recipe, state = self.recipe, self.state
        with (
            Display(self.console, recipe, self.steps, self.engine.device, state) as display,
            stop_flag() as stop,
        ):

            def epoch_done(row: dict[str, float]) -> None:
                if self.engine.main:
                    self.write_history()
                display.epoch(row, best=state.best_epoch == row["epoch"], last=bool(stop_reason(state, recipe)))
                self.engine.log({key: row[key] for key in row if key != "epoch"}, step=int(row["epoch"]))
                if on_epoch is not None:
                    on_epoch(dict(row))  # what a caller does to it stays out of the checkpoint

            hooks = Hooks(report=display.step, on_epoch=epoch_done, keep=self.keep, save=self.save, stop_requested=stop)
            if on_step is not None:
                hooks.on_step = on_step
            done = self.loop(hooks, recipe)
            self.stopped = bool(self.engine.max(stop())[0])
        if done and state.epoch < recipe.epochs:
            say(self.console, f"ended after epoch {state.epoch} of {recipe.epochs}: {stop_reason(state, recipe)}")
        return done

    def write_history(self) -> None:
        """Write `metrics.csv`."""
        rows = self.state.history
        write_csv(self.folder / "metrics.csv", rows[0], (row.values() for row in rows))

    def keep_present(self) -> None:
        """Without validation images, which choose the best epoch, keep the current weights as the run's model."""
        if self.val_batches is None:
            self.state.best_epoch = self.state.epoch
            self.write_model(self.parts(self.recipe).eval_model)

    def probe(self) -> None:
        """Fit only the head, on features computed once. For the main process, which alone has the model then."""
        begun = time.monotonic()
        state = self.state
        features = self._features_by_split()
        self.head = self._fitted(features)
        self._set_head(self.head)
        self.write_model(self.engine.unwrap(self.model))
        state.epoch = state.best_epoch = 1
        state.seen = len(self.train_batches)
        state.step_seconds = state.total_seconds = time.monotonic() - begun
        row: dict[str, float] = {"epoch": 1}
        for name, (x, labels) in features.items():
            logits = x @ self.head.weight.T + self.head.bias
            row |= watched(logits, labels, name)
        state.history = [row | {"images_per_second": state.seen / state.step_seconds, "seconds": state.total_seconds}]
        self.write_history()

    def probe_first(self) -> None:
        """Fit the head to the features before training starts; the main process does it for all."""
        begun = time.monotonic()
        head = self.engine.from_main(lambda: self._fitted(self._features_by_split()))
        self._set_head(head)
        (seconds,) = self.engine.max(time.monotonic() - begun)
        self.state.head_seconds = self.state.total_seconds = seconds  # uses up a time limit, but not the schedule
        say(self.console, f"head fitted to the features first, by {head.chosen_by}, in {seconds:.1f} s")

    def _fitted(self, features: dict[str, tuple[Tensor, Tensor]]) -> Head:
        pattern = self.recipe.data.group
        groups = None if pattern is None else groups_of(self.plain_batches.images, pattern)
        classes = len(self.data.class_names)
        balanced = self.recipe.data.balance != "none"
        return fit_head(*features["train"], classes, features.get("val"), self.recipe.seed, groups, balanced)

    def _set_head(self, head: Head) -> None:
        linear = self.engine.unwrap(self.model).head
        with torch.no_grad():
            linear.weight.copy_(head.weight)
            linear.bias.copy_(head.bias)

    def _features_by_split(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Features (N, D) and labels (N,) of `train` and, if there are validation images, of `val`."""
        return {name: (self.features(part), part.labels) for name, part in self._plain_by_split().items()}

    def features(self, batches: Batches, count: int | None = None) -> Tensor:
        """Features (N, D) of a split's images, or of the first `count`."""
        model = self.engine.unwrap(self.model)
        rows = torch.arange(len(batches))[:count]
        return split_logits(model, batches, self.preprocess, self.precision, rows, features=True)

    def learnt_before(self) -> dict[str, np.ndarray]:
        """`image_hashes` of the images that weights to start from, and a teacher, learnt from, by their names."""
        learnt = {self.start.facts["weights"]: self.start.seen} if self.start else {}
        if teacher := self.recipe.distill.teacher:
            learnt[teacher] = learnt_hashes(teacher)
        return learnt

    def loop(self, hooks: Hooks, recipe: Recipe) -> bool:
        """`train_loop` with the parts of this run."""
        try:
            return train_loop(self.parts(recipe), hooks)
        except Diverged as error:
            instead = "precision=float32" if self.precision == "float16" else "a smaller optim.clip"
            finish = BY_FINISH if self.saved_epochs else ""
            raise FloatingPointError(f"{error}: {LOWER_RATES} or {instead}{finish}") from error
        finally:  # even after an error: the model may be the caller's
            self.engine.unwrap(self.model).set_image_size(recipe.model.image_size)

    def parts(self, recipe: Recipe) -> Parts:
        """What the loop trains, and with what."""
        return Parts(
            recipe=recipe,
            engine=self.engine,
            precision=self.precision,
            preprocess=self.preprocess,
            model=self.model,
            average=self.average,
            optimizers=self.optimizers,
            scaler=self.scaler,
            train=self.train_batches,
            val=self.val_batches,
            teacher=self.teacher,
            state=self.state,
        )

    def keep(self, model: nn.Module) -> None:
        """Copy these weights, for the next `save` to write as the run's model: writing them each time would be slow."""
        if self.engine.main:
            self.kept = copy.deepcopy(model)

    def save(self) -> None:
        """Write the checkpoint and, before it, any weights to keep: `model/` is that of the best epoch it names."""
        if self.kept is not None:
            self.write_model(self.kept)
            self.kept = None
        random = self.engine.from_all(random_state(self.engine.device))
        if self.engine.main:
            content = {
                "recipe": self.recipe.model_dump(mode="json"),
                "data": self.summary["hash"],
                "labels": self._labels(),
                "precision": self.precision,
                "start": self.started_from,
                "teacher": self.taught_by,
                "given": self.given,
                "model": self.engine.unwrap(self.model).state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "scaler": self.scaler.state_dict(),
                "average": self.average.module.state_dict() if self.average is not None else {},
                "state": asdict(self.state),
            }
            save_checkpoint(self.checkpoint, content, random)
        self.saved_epochs = self.state.epoch

    def restore(self) -> None:
        """Restore the checkpoint. Raises ValueError if it is damaged, or recipe, data, weights or teacher changed."""
        content = load_checkpoint(self.checkpoint, self.engine.device, self.engine.rank)
        check_same_recipe(self.recipe, make_recipe(content["recipe"], str(self.checkpoint)), self.folder)
        before, now = content["data"], self.summary["hash"]  # either may lack what is not decoded
        changed = any(before[name] != now[name] for name in before.keys() & now)
        if changed or content["labels"] != self._labels():
            way_out = "resume with the same images and version of Pillow"
            raise ValueError(f"the data is not what {self.folder} was trained on: {way_out}")
        weights, teacher = self.recipe.start.weights, self.recipe.distill.teacher
        if content["start"] != self.started_from:
            raise ValueError(f"start.weights {weights} is not what {self.folder} started from: name the weights it had")
        asked = self.teacher is not None or teacher is None  # else the run is only to be ended
        if asked and content["teacher"] != self.taught_by:
            raise ValueError(f"distill.teacher {teacher} is not the teacher that {self.folder} had: name that one")
        if (begun := content.get("precision", self.precision)) != self.precision:
            log.warning("begun in %s, and goes on in %s, as this machine does", begun, self.precision)
        self.engine.unwrap(self.model).load_state_dict(content["model"])
        for optimizer, saved in zip(self.optimizers, content["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.scaler.load_state_dict(content["scaler"])
        if self.average is not None:
            self.average.module.load_state_dict(content["average"])
        self.state = State(**content["state"])
        self.saved_epochs = self.state.epoch
        self.taught_by = content["teacher"]
        self.given = content["given"]

    def _labels(self) -> dict[str, str]:
        """sha256 of all labels of `train` and, if there are validation images, of `val`."""
        splits = self._plain_by_split().items()
        return {name: hashlib.sha256(part.labels.numpy().tobytes()).hexdigest() for name, part in splits}

    def _plain_by_split(self) -> dict[str, Batches]:
        """The images as they are, of `train` and, if there are validation images, of `val`."""
        splits = {"train": self.plain_batches, "val": self.val_batches}
        return {name: part for name, part in splits.items() if part is not None}

    def write_model(self, model: nn.Module) -> None:
        """Write these weights as the run's model."""
        if self.engine.main:
            Bundle(model, self.preprocess, self.data.class_names).save(self.folder / "model")

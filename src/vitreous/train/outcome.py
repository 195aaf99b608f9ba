"""After training: evaluate the model, calibrate its probabilities, and write figures, plots and a report."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.check import are_among, copies_among, image_hashes, leaks
from vitreous.device import peak_memory
from vitreous.evaluation import TRAIN_HASHES, Judged, calibrated, judge, write_answers, write_classes
from vitreous.files import replace_file, write_json
from vitreous.metrics import NAMES
from vitreous.train.folder import optional
from vitreous.train.job import Job
from vitreous.train.preview import first_batch
from vitreous.train.progress import decoding
from vitreous.weights import Bundle

log = logging.getLogger("vitreous")

MISTAKES = 32  # shown


def conclude(job: Job) -> dict[str, Any]:
    """Evaluate the kept model on validation and test images; of the test images nothing was used before.

    Only for the main process, which has written the model. Returns the content of `results.json`.
    """
    state, judged, caution = job.state, {}, ""
    train, before = job.plain_batches.images, job.learnt_before()
    hashes = image_hashes(train)
    if len(hashes):
        learnt = np.unique(np.concatenate([hashes, *before.values()]))
        replace_file(job.folder / TRAIN_HASHES, lambda part: part.write_bytes(learnt.tobytes()))
    bundle = Bundle.load(job.folder / "model")
    if job.data.val is not None:
        val = _judge(job, bundle, "val")
        bundle = calibrated(val)
        judged["val"] = replace(val, bundle=bundle, calibrated_here=True)
        bundle.save_config(job.folder / "model")
    if job.data.test is not None:
        judged["test"] = _judge(job, bundle, "test")
        labels = judged["test"].labels.numpy()
        judged_of = {
            "counts": len(labels),
            "per_class": np.bincount(labels, minlength=len(job.data.class_names)).tolist(),
            "hash": judged["test"].digest,
        }
        told = {key: job.summary[key] | {"test": value} for key, value in judged_of.items() if value}
        write_json(job.folder / "data.json", job.summary | told)
        images = judged["test"].images
        found = [leaks("test", images, train, hashes)]
        if "val" in judged:
            chose = judged["val"].images
            found.append(leaks("test", images, chose, image_hashes(chose), "validation"))
        for name, seen in before.items():
            found.append(copies_among(images, are_among(images, seen), f"{len(images)} test", name))
        for finding in filter(None, found):
            log.warning("%s", finding)
        caution = "; ".join(filter(None, found))
    results = {
        "params": job.parameters,
        "epochs": state.epoch,
        "passes": state.seen / len(job.train_batches),
        "best_epoch": state.best_epoch,
        "seed": job.recipe.seed,
        "precision": job.precision,
        "train_seconds": state.total_seconds,
        "compile_seconds": state.compile_seconds,
        "images_per_second": state.history[-1]["images_per_second"],
        "start": job.start.facts if job.start else {"weights": None} if job.given else None,
        "teacher": {"weights": job.recipe.distill.teacher, "sha256": job.taught_by} if job.taught_by else None,
        "caution": caution,
        "peak_memory": peak_memory(job.engine.device),
        **{name: judged[name].figures if name in judged else None for name in ("val", "test")},
    }
    if job.head is not None:
        results["probe"] = {"C": job.head.C, "chosen_by": job.head.chosen_by}
    job.write_history()  # the file may have more or fewer rows, if a process was killed
    write_answers(judged.values(), bundle.class_names, job.folder / "answers.csv")
    write_classes({name: [answers] for name, answers in judged.items()}, bundle.class_names, job.folder / "classes.csv")
    if job.pictures:
        _draw(job, judged)
        with optional(job.folder / "report.html"):
            from vitreous.report import train_report

            train_report(job.folder, bundle, judged, results, first_batch(job))
    write_json(job.folder / "results.json", results)  # the last file: it says that the run is finished
    return results


def _judge(job: Job, bundle: Bundle, name: str) -> Judged:
    return judge(
        bundle,
        job.data.splits[name],
        device=job.engine.device,
        precision=job.precision,
        name=name,
        options=job.recipe.data,
        progress=decoding(job.console),
    )


def _draw(job: Job, judged: dict[str, Judged]) -> None:
    """Confusion matrices, the most confident mistakes, and learning curves."""
    plots, names = job.folder / "plots", job.data.class_names
    for name, answers in judged.items():
        with optional(plots / f"confusion_{name}.png") as file:
            from vitreous.plots import confusion_matrix

            confusion_matrix(answers.confusion, names, file)
        with optional(plots / f"mistakes_{name}.png") as file:
            _draw_mistakes(answers, file)
    with optional(plots / "learning_curves.png") as file:
        from vitreous.plots import learning_curves
        from vitreous.report.pictures import training_label

        chosen_by = job.recipe.best_by, NAMES[job.recipe.best_by]
        history, training = job.state.history, training_label(job.recipe)
        learning_curves(history, job.state.best_epoch, file, chosen_by=chosen_by, training=training)


def _draw_mistakes(answers: Judged, file: Path) -> None:
    """The most confident mistakes, each image with its class and the answer."""
    from vitreous.plots import image_grid
    from vitreous.report.pictures import confident_mistakes

    rows = confident_mistakes(answers.scaled.softmax(dim=1), answers.labels, MISTAKES)
    if not len(rows):
        return
    names, said = answers.bundle.class_names, answers.logits.argmax(dim=1)
    titles = [f"{names[answers.labels[row]]},\nsaid {names[said[row]]}" for row in rows]
    pixels = answers.images.read(rows.numpy(), answers.bundle.preprocess)
    image_grid(pixels / np.float32(255), titles, file)

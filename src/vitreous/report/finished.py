"""What finished runs, cross-validations and evaluations have left in their folders, alike for all of them."""

import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitreous.files import path_of, read_csv, read_history, read_json
from vitreous.recipe import flat, read_recipe
from vitreous.weights.bundle import check_named, find_record


@dataclass(frozen=True)
class Finished:
    """The contents of a run folder, or of the folder of an evaluation, whose images count as test images."""

    name: str
    results: dict[str, Any]
    recipe: dict[str, Any]
    """Under dotted keys; of an evaluation only those of `compare.FITTED`."""
    data: dict[str, Any]
    history: list[dict[str, float]]
    """Rows of `metrics.csv`; none for a shipped model."""
    answers: Path
    """`answers.csv`, which a shipped model does not have."""
    caution: str = ""
    """Why the figures are worth less than they seem, if known."""

    @cached_property
    def answered(self) -> dict[str, dict[tuple[str, str, int], tuple[bool, str]]]:
        """By split, whether each answer is right and the group of its image, keyed by the image's path, its class, and
        how often it has come up so far, since a table may list an image twice."""
        splits: dict[str, dict[tuple[str, str, int], tuple[bool, str]]] = {}
        times = Counter()
        if self.answers.exists():
            for row in read_csv(self.answers, ("split", "image", "class", "answer")):
                split = row["split"] if self.is_run else "test"
                image = split, row["image"], row["class"]
                times[image] += 1
                answer = row["answer"] == row["class"], row.get("group", "")
                splits.setdefault(split, {})[*image[1:], times[image]] = answer
        return splits

    @property
    def is_run(self) -> bool:
        """Whether it is a run, or a cross-validation, of which the recipe is known; else an evaluation."""
        return "seed" in self.recipe

    @property
    def is_cross(self) -> bool:
        """Whether it is a cross-validation, whose test images are those that each fold held out."""
        return "by_fold" in self.results

    @property
    def but_for_seed(self) -> str:
        """What runs that differ in nothing but the seed have in common, and others do not."""
        cut = {"data.split_seed": None} if self.is_cross else {}  # which the seed determines, too
        alone = "" if self.is_run else self.name  # an evaluation does not know its seed
        return repr((self.data["name"], self.recipe | {"seed": None} | cut, alone))

    def figure(self, split: str, key: str) -> float | None:
        return (self.results.get(split) or {}).get(key)


def read_run(run: os.PathLike[str] | str) -> Finished:
    """Read a finished run, cross-validation or evaluation by its folder, or a shipped name. Raises ValueError for
    anything else."""
    check_named(run)
    folder = find_record(run) or path_of(run)
    name = os.fspath(run).rstrip("/")
    if (folder / "evaluation.json").is_file() and (folder / "results.json").is_file():
        return _evaluation(folder, name)
    cross = (folder / "fold-1").is_dir()
    record = "fold-1/data.json" if cross else "data.json"
    missing = [file for file in ("results.json", "recipe.yaml", record) if not (folder / file).is_file()]
    if missing:
        if not folder.exists():
            raise ValueError(f"no run '{run}' here: give the folder of a run or an evaluation, or a shipped name")
        raise ValueError(
            f"{run} is not a finished run, it has no {missing[0]}: train it to the end or, for a model alone, give the "
            "folder that vitreous evaluate --out has written"
        )
    results, data = read_json(folder / "results.json"), read_json(folder / record)
    if not isinstance(results, dict) or not isinstance(data, dict) or not {"name", "counts"} <= data.keys():
        raise ValueError(f"{run} has a results.json or data.json that is not of a run: train it anew, or leave it out")
    caution = "; ".join(results.get("cautions", [])) or results.get("caution", "")
    if cross:
        try:
            results = _pooled(results)
            judged = f"all {results['test']['count']} of {data['name']}"  # however cut: no digest covers them all
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{run} has a results.json that is not of a cross-validation: leave it out") from error
        data = {"name": data["name"], "hash": {"test": judged}, "counts": data["counts"]}  # of its first fold
    read = read_recipe(folder / "recipe.yaml")
    recipe = flat(read.model_dump(mode="json"))
    if read.start.weights is not None:
        recipe["data.crop_fraction"] = "as start.weights"  # which bring it; the recipe has 1
    return Finished(
        name=name,
        results=results,
        recipe=recipe,
        data=data,
        history=read_history(folder),
        answers=folder / "answers.csv",
        caution=caution,
    )


def _evaluation(folder: Path, name: str) -> Finished:
    """What `vitreous evaluate --out` has left in a folder."""
    record, results = read_json(folder / "evaluation.json"), read_json(folder / "results.json")
    try:
        (judged,), (digest,) = results.values(), record["data"]["hash"].values()
        return Finished(
            name=name,
            results={"test": judged, "params": record["params"]},
            recipe=flat(record["recipe"]),
            data={"name": record["data"]["name"], "hash": {"test": digest}},
            history=[],
            answers=folder / "answers.csv",
            caution=record["caution"],
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{name} has an evaluation.json or results.json that is not of an evaluation: leave it out"
        ) from error


def _pooled(folds: dict[str, Any]) -> dict[str, Any]:
    """A cross-validation's results as those of one run, judged on each image once."""

    def spread(key: str) -> str:
        return f"{folds[f'{key}_mean']:.2%} ± {folds[f'{key}_sd']:.2%} (n = {folds['n']})"

    cost = {"params": folds["params"], "train_seconds": sum(folds["train_seconds"])}
    areas = {"auroc_by_fold": spread("auroc")} if "auroc" in folds else {}
    return {"test": folds["pooled"], "by_fold": spread("top1"), "top1_by_fold": folds["top1"], **areas, **cost}

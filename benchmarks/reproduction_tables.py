"""Write the tables of docs/reproductions.md from the results of the runs: python benchmarks/reproduction_tables.py"""

import json
import re
import statistics
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from measure import RESULTS, between, markdown, one_thread, replaced, threads
from reproduction_runs import FOLDER

from reproductions.__main__ import EXPERIMENTS
from reproductions.experiment import Experiment

DOCUMENT = Path(__file__).parent.parent / "docs" / "reproductions.md"
HEAD = ("", "parameters", "multiply-adds", "epochs", "top-1, mean ± sd", "n", "loss", "seconds", "on", "command")
COUNTED = {"top1": "top-1", "top5": "top-5", "precision_macro": "precision", "recall_macro": "recall", "f1_macro": "F1"}

Result = dict[str, Any]


def table(experiment: Experiment, results: list[Result]) -> str:
    """Reported, faithful, each fix, all fixes, ours: one row for all seeds of a kind of run."""
    groups: dict[tuple, list[Result]] = {}
    for result in sorted(results, key=lambda result: (place(experiment, result), result["seed"])):
        groups.setdefault(place(experiment, result), []).append(result)
    text = markdown(HEAD, [reported(experiment), *(row(experiment, group) for group in groups.values())])
    notes = [*spread(experiment, results), *losses(experiment, results), *repetitions(results), *counted(results)]
    return "\n".join([text, *notes, *macro(experiment, results), *missing(results)])


def place(experiment: Experiment, result: Result) -> tuple:
    """What a row has in common, in the order of the rows; the author's number of epochs comes first."""
    if "ours" in result:
        return (1, 0, 0, result["ours"])
    fixed, fixes = set(result["fixed"]), list(experiment.fixes)
    order = len(fixes) if fixed == set(fixes) else fixes.index(min(fixed)) if fixed else -1
    return (0, _passes(result) if _passes(result) != experiment.epochs else 0, order, "")


def row(experiment: Experiment, group: list[Result]) -> list[str]:
    """Runs that differ by their seed only."""
    first = group[0]
    millions = first["multiply_adds"] / 1e6
    cost = f"{millions:,.0f} M" if millions >= 100 else f"{millions:.3g} M"
    cells = [_label(experiment, first), f"{first['params']:,}", cost]
    if "folds" in first:
        values = [value for result in group for value in result["top1"]]
        losses = [result["loss_mean"] for result in group]
        seconds = [value for result in group for value in result["train_seconds"]]
        epochs = between([value for result in group for value in result["epochs"]], "{:d}")
        command = f"{first['command']} --seeds {len(group)}"
    else:
        values, losses = ([result["test"][key] for result in group] for key in ("top1", "loss"))
        seconds, command = [result["train_seconds"] for result in group], first["command"]
        timed = "time_limit=" in command
        epochs = between([result["passes" if timed else "epochs"] for result in group], "{:.1f}" if timed else "{:d}")
    sd = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    cells += [epochs, f"{100 * statistics.mean(values):.2f}{sd}", str(len(values))]
    cells += [f"{statistics.mean(losses):.3f}", between(seconds, "{:,.0f}"), _machines(group)]
    command = re.sub(r"--seed \d+", "--seed N" if len(group) > 1 else f"--seed {first['seed']}", command)
    return [*cells, f"`{command}`"]


def reported(experiment: Experiment) -> list[str]:
    """The author's figures, which are measured by none of us."""
    said = experiment.reported
    top1 = f"{100 * said['top1']:.1f}" if "top1" in said else said["note"]
    loss = f"{said['loss']:.2f}" if "loss" in said else ""
    epochs = str(said.get("epochs", experiment.epochs))
    return ["reported", f"{experiment.parameters:,}", "", epochs, top1, "1", loss, said.get("time", ""), "", ""]


def originals(results: list[Result]) -> list[Result]:
    """The runs of an experiment as its author had it."""
    return [result for result in results if "ours" not in result and not result["fixed"]]


def spread(experiment: Experiment, results: list[Result]) -> list[str]:
    """Between which figures the seeds of the faithful form lie, where there are several."""
    top1 = [100 * result["test"]["top1"] for result in originals(results) if _passes(result) == experiment.epochs]
    if len(top1) < 3:
        return []
    return ["", f"By seed, the faithful runs lie between {min(top1):.1f} and {max(top1):.1f}% (n = {len(top1)})."]


def losses(experiment: Experiment, results: list[Result]) -> list[str]:
    """The faithful runs' training loss by epoch beside the author's, where that is reported."""
    histories = [
        result["history"] for result in originals(results) if len(result.get("history", ())) == experiment.epochs
    ]
    said = experiment.reported.get("train_loss")
    if said is None or not histories:
        return []
    means = [statistics.mean(row["train_loss"] for row in rows) for rows in zip(*histories, strict=True)]
    ours = " ".join(f"{mean:.2f}" for mean in means)
    return ["", f"Training loss by epoch: reported {said}; faithful {ours} (mean, n = {len(histories)})."]


def macro(experiment: Experiment, results: list[Result]) -> list[str]:
    """The mean F1 of the classes, where the author reports it, beside that of the best kind of run of ours."""
    kinds: dict[str, list[Result]] = {}
    for result in results:
        if "ours" in result:
            kinds.setdefault(result["ours"], []).append(result)
    if "f1_macro" not in experiment.reported or not kinds:
        return []
    best = max(kinds, key=lambda kind: statistics.mean(result["test"]["top1"] for result in kinds[kind]))
    found = statistics.mean(result["test"]["f1_macro"] for result in kinds[best])
    reported = experiment.reported["f1_macro"]
    return [
        "",
        f"F1, the mean over the classes: reported {100 * reported:.1f} as a mean over batches, which counts lower "
        f"where classes are many; our {best}, over the whole split: {100 * found:.1f}.",
    ]


def repetitions(results: list[Result]) -> list[str]:
    """What each seed's folds have by themselves, where there are several."""
    ours = sorted((result for result in results if "folds" in result), key=lambda result: result["seed"])
    means = [f"{100 * result['top1_mean']:.2f}" for result in ours]
    return ["", f"By seed, which decides the folds, ours have {' and '.join(means)}%."] if len(means) > 1 else []


def missing(results: list[Result]) -> list[str]:
    """That nothing has been run, or nothing but ours, where that is so."""
    if any("ours" not in result for result in results):
        return []
    return ["", "The original has not been run here yet." if results else "Not measured yet."]


def counted(results: list[Result]) -> list[str]:
    """What the author's way of counting makes of the faithful runs, beside the figures of the whole split."""
    faithful = [result for result in originals(results) if result["as_counted"]]
    if not faithful:
        return []
    parts = []
    for key in faithful[0]["as_counted"]:
        theirs, right = (statistics.mean(run[part][key] for run in faithful) for part in ("as_counted", "test"))
        parts.append(f"{COUNTED[key]} {100 * theirs:.1f} instead of {100 * right:.1f}")
    return ["", f"Counted as the author did, the faithful runs have {', '.join(parts)}."]


def speed() -> str:
    file = RESULTS / "reproduction-speed.json"
    if not file.exists():
        return "Not measured yet."
    content = json.loads(file.read_text())
    loops, rebuilt = (content["images_per_second"][name] for name in ("loops", "rebuilt"))
    return (
        f"{loops:,.0f} images a second by loops, {rebuilt:,.0f} rebuilt: {content['faster_by']:.0f} times faster "
        f"(medians of {content['rounds']} interleaved rounds, batch {content['batch']}, "
        f"{_machine(content['machine'])}; `{one_thread(content['machine'])}{content['command']}`)."
    )


def pretrained() -> str:
    content = json.loads((RESULTS / "fine-tuning.json").read_text())
    probe, tuned, plain = (content[way]["split"] for way in ("probe", "finetune", "default"))
    return (
        "The second half of the guide takes a pretrained model. DeiT-Tiny reaches "
        f"{100 * probe:.2f}% on the same 75 images with a new head alone (`--recipe probe`), {100 * tuned:.2f}% "
        f"fine-tuned (`--recipe finetune {' '.join(content['finetune']['settings'])}`), one run each "
        f"({_machine(content['finetune']['machine'])}). These settings were chosen on folds of the 300 images; recipe "
        f"`finetune` as it is has {100 * plain:.2f}%{', too' * (plain == tuned)}. On folds: "
        "[measured](measurements.md#from-trained-weights)."
    )


def filled(document: str, results: list[Result]) -> str:
    """The document with its tables made from the results."""
    parts = {
        name: table(experiment, [r for r in results if r["experiment"] == name])
        for name, experiment in EXPERIMENTS.items()
    }
    for name, text in (parts | {"speed": speed(), "pretrained": pretrained()}).items():
        document = replaced(document, f"<!-- results: {name} -->", "<!-- end of results -->", text)
    return document


def saved() -> list[Result]:
    return [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]


def _label(experiment: Experiment, result: Result) -> str:
    if "ours" in result:
        return f"**our {result['ours']}**"
    fixed, short = result["fixed"], _passes(result) != experiment.epochs
    label = "faithful" if not fixed else "all fixed" if len(fixed) == len(experiment.fixes) else f"`{fixed[0]}`"
    return f"{label}, short" if short else label


def _passes(result: Result) -> int:
    """The epochs asked for: a run may stop before."""
    asked = re.search(r"--epochs (\d+)", result["command"])
    return int(asked[1]) if asked else EXPERIMENTS[result["experiment"]].epochs


def _machines(group: list[Result]) -> str:
    """Where the runs of a row were trained."""
    return "; ".join(sorted({_machine(result["machine"]) for result in group}))


def _machine(machine: dict[str, Any]) -> str:
    if machine["device"] != "cpu":
        return machine["device"]
    return f"{machine['processor']}, {threads(machine)}"


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    DOCUMENT.write_text(filled(DOCUMENT.read_text(), saved()))

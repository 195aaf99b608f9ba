"""Write the README's tables of measured figures from benchmarks/results/*.json: python benchmarks/tables.py"""

import json
from pathlib import Path

from measure import RESULTS, replaced

from reproductions.__main__ import EXPERIMENTS

README = Path(__file__).parent.parent / "README.md"
TUNED = {
    "probe": "DeiT-Tiny, a probe of the class token",
    "probe_cls_mean": "DeiT-Tiny, a probe of class token and mean",
    "finetune": "DeiT-Tiny, fine-tuned from that",
}


def headline(results: dict[str, dict]) -> str:
    """What two cores reach on CIFAR from scratch, beside what was reported."""
    ten, hundred = (results[f"cifar{n}-cpu-time_limit-{m}"] for n, m in ((10, "60m"), (100, "30m")))
    authors = [EXPERIMENTS[f"tigges-{name}"].reported for name in ("cifar10", "cifar100")]
    reported = " and ".join(f"{100 * said['top1']:.1f}% after {said['time']}" for said in authors)
    return (
        f"**{100 * ten['top1_mean']:.2f}% on CIFAR-10 from scratch, after an hour on two CPU cores** (n = {ten['n']}, "
        f"{ten['params']:,} parameters, no extra data), and {100 * hundred['top1_mean']:.2f}% on CIFAR-100 after half "
        f"an hour (n = {hundred['n']}). The best of the experiments that this grew out of report {reported}: "
        "[docs/reproductions.md](docs/reproductions.md)."
    )


def recipe_table(results: list[dict]) -> str:
    """One row a recipe and precision."""
    lines = [
        "| command | parameters | passes | precision | test top-1, mean ± sd | n | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in sorted(results, key=lambda r: (r["recipe"], r["precision"])):
        sd = f" ± {100 * r['top1_sd']:.2f}" if r["top1_sd"] is not None else ""
        seconds = f"{min(r['train_seconds']):.0f} to {max(r['train_seconds']):.0f}"
        passes = f"{r['passes']:.1f}" if "passes" in r else r["epochs"]
        cells = [f"`{r['command']}`", f"{r['params']:,}", passes, r["precision"]]
        cells += [f"{100 * r['top1_mean']:.2f}{sd}", r["n"], seconds]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def peers_table(peers: dict) -> str:
    """Training and inference throughput, and how many times faster this library is with its default settings."""
    lines = [
        "| model | precision | training, images/s | ours by default is faster by | inference, images/s | by |",
        "|---|---|---|---|---|---|",
    ]
    for row in peers["rows"]:
        cells = [row["name"], row["precision"]]
        for figures in (row["training"], row["inference"]):
            cells += [f"{figures['images_per_second']:.0f}", f"{figures['ours_by_default_is_faster_by']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def transfer_table(tuned: dict, own: dict) -> str:
    """Trained weights on small sets: mean and deviation over folds, or over draws of the training images."""
    digits = f"{own['train_images']} digits of 8 x 8 pixels"
    rows = [("photographs", name, tuned[key]) for key, name in TUNED.items() if key in tuned]
    rows += [(digits, row["way"], row | {"mean": row["top1_mean"], "sd": row["top1_sd"]}) for row in own["rows"]]
    lines = ["| training images | way | test top-1, mean ± sd | n |", "|---|---|---|---|"]
    for images, way, r in rows:
        n = r.get("n") or len(r["top1"])
        lines.append(f"| {images} | {way} | {100 * r['mean']:.2f} ± {100 * r['sd']:.2f} | {n} |")
    return "\n".join(lines)


def deployment_sentence(deployment: dict) -> str:
    """What int8 costs in top-1, and what it gains in time."""
    top1 = [
        f"{100 * r['before']:.2f}% before and {100 * r['after']:.2f} after ({r['model']})" for r in deployment["top1"]
    ]
    ratios = [
        f"{r['faster_than_torch_by']:.2f} at a batch of {r['batch']}"
        for r in deployment["speed"]
        if r["form"] == "int8"
    ]
    model, machine = deployment["model"]["size"], deployment["machine"]
    return (
        f"int8 on the digits' test images: {', '.join(top1)}. On {model} it is faster than torch in float32 by "
        f"{' and '.join(ratios)} ({machine['processor']}, threads: {machine['threads']}; "
        "`python benchmarks/deployment.py`)."
    )


def describe(machine: dict) -> str:
    rates = machine["matmul_gflops"]
    return (
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}; plain matrix products: "
        f"{rates['float32']} GFLOP/s in float32, {rates['bf16']} in bf16"
    )


def filled(readme: str) -> str:
    """The README with its tables made from the results."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    parts = [
        "By seed 0, 1, ... on the test images, which chose nothing (`python benchmarks/recipes.py NAME --seeds N`):",
        recipe_table([content for content in results.values() if "top1_mean" in content]),
        "From trained weights: DeiT-Tiny on 300 photographs of pizza, steak and sushi, by folds of a fifth held out "
        "(`python benchmarks/finetune.py`); and models/mnist on digits of other writers and another scanner, by draws "
        "of the training images (`python benchmarks/own_checkpoint.py`):",
        transfer_table(results["fine-tuning"], results["own-checkpoint"]),
        "Throughput of one model (32 px, patch 4, dim 256, 6 layers, 8 heads, MLP 512, batch 128, AdamW), interleaved "
        "in one run, medians (`python benchmarks/peers.py`):",
        peers_table(results["peers"]),
        f"Machine: {describe(results['peers']['machine'])}.",
        deployment_sentence(results["deployment"]),
    ]
    for name, block in {"headline": headline(results), "results": "\n\n".join(parts)}.items():
        readme = replaced(readme, f"<!-- {name} -->", f"<!-- end of {name} -->", block)
    return readme


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))

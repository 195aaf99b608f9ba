"""Write the tables of README.md and docs/measurements.md from benchmarks/results/*.json: python benchmarks/tables.py"""

import json
import math
import statistics
from argparse import ArgumentParser
from pathlib import Path

from measure import RESULTS, between, markdown, one_thread, replaced, threads
from minutes import COMPACT, UNITS, minutes_table, timed
from peers import OURS, RETURNED

from reproductions.__main__ import EXPERIMENTS
from vitreous.messages import duration

ROOT = Path(__file__).parent.parent
README, MEASUREMENTS = ROOT / "README.md", ROOT / "docs" / "measurements.md"
EXPLAINED = {
    "mnist": "models/mnist",
    "cifar10": "models/cifar10",
    "cifar100": "models/cifar100",
    "digits": "recipe digits",
}
PEERS = {  # results that there are, and what they were measured with
    f"peers{model}-{units}": f"{title}, {name}"
    for model, title in {"": "32 px", "-Ti-16": "Ti/16", "-B-16": "B/16"}.items()
    for units, name in UNITS.items()
    if (RESULTS / f"peers{model}-{units}.json").exists()
}
PHOTOGRAPHS = "paper-b16-pizza--ours--pizza--5-folds--"  # results of recipe pizza, one a repetition
TUNED = {
    "probe": "DeiT-Tiny, a probe of the class token",
    "probe_cls_mean": "DeiT-Tiny, a probe of class token and mean",
    "finetune": "DeiT-Tiny, fine-tuned from that",
    "default": "DeiT-Tiny, by recipe `finetune` as it is",
}


def headline(results: dict[str, dict]) -> str:
    """What a GPU and two cores reach on CIFAR from scratch, beside what was reported."""
    shown = {  # what these files do not say
        "cifar10-compile-reduce-overhead-time_limit-360s-cuda": "one {}",
        "cifar100-compile-reduce-overhead-time_limit-360s-cuda": "one {}",
        "cifar10-cpu-time_limit-60m-avx512-bf16": "two cores (AMD Zen 4, AVX-512 with bf16)",
        "cifar10-cpu-time_limit-5m-avx512-bf16": "two cores (AMD Zen 4, AVX-512 with bf16)",
        "cifar100-amx-time_limit-60m-amx": "two cores (Intel, AMX)",
    }
    rows = []
    for name, hardware in shown.items():
        result = results[name]
        assert result["test_images"] == 10_000
        rows.append(
            (
                "CIFAR-100" if result["recipe"].startswith("cifar100") else "CIFAR-10",
                f"`{result['recipe']}`",
                f"{result['params'] / 1e6:.1f} million",
                f"{duration(result['time_limit'])} ({result['passes']:.{0 if result['passes'] >= 10 else 1}f} passes)",
                hardware.format(result["machine"]["device"]),
                f"**{100 * result['top1_mean']:.2f}%** (n = {result['n']})",
            )
        )
    longest = results["cifar10-epochs-300-compile-reduce-overhead-time_limit-420s-cuda"]
    first, _ = results["cifar100-compile-reduce-overhead-time_limit-360s-cuda"]["top1"]
    assert {results[name]["precision"] for name in shown} == {"bf16"}
    chance = [1.96 * math.sqrt(top1 * (1 - top1) / 10_000) for top1 in (results[name]["top1_mean"] for name in shown)]
    authors = [EXPERIMENTS[f"tigges-{name}"].reported for name in ("cifar10", "cifar100")]
    reported = [f"{100 * said['top1']:.1f}% ({said['time']})" for said in authors]
    compact = " and ".join(f"{100 * top1:.1f}%" for top1 in COMPACT.values())
    return (
        f"{markdown(('from scratch, on', 'recipe', 'parameters', 'training time', 'hardware', 'test top-1'), rows)}\n\n"
        "These are ViTs with a convolutional stem, a 3 x 3 convolution in each MLP and attention pooling; n is the "
        "number of runs averaged. All figures are of bf16; the number of test images alone leaves "
        f"± {100 * min(chance):.1f} to {100 * max(chance):.1f} points (95% interval). The commands of the GPU's rows "
        "add `compile=reduce-overhead time_limit=360s`, and compiling takes a minute or more of that on a new machine "
        "([commands](docs/measurements.md#what-to-expect)). Two models from such runs ship here: `cifar10` (another "
        f"run, of {duration(longest['time_limit'])}, {100 * longest['top1_mean']:.2f}%) and `cifar100` "
        f"({100 * first:.2f}%). For scale, on CIFAR-10 and CIFAR-100:\n\n"
        f"- a [demonstration of 2022](docs/reproductions.md) reports {' and '.join(reported)}, of training "
        "images held out\n"
        "- Compact Transformers (CCT-7/3x1 of Hassani et al. 2021, 3.8 million parameters), from which that pooling "
        f"comes, report {compact} after 300 epochs, 98.0% and 82.9% after 5,000\n"
        "- a convolutional network made for speed (Jordan 2024), from which we took alternating flips and whitening "
        "(first by Page 2019), reports 94% on CIFAR-10 in 3.3 s and 96% in 46 s on one NVIDIA A100, averaging over "
        "views of each test image"
    )


def others(results: dict[str, dict]) -> str:
    """What the smallest sets give, and how fast training is beside other libraries."""
    small = [
        f"`vitreous train {r['recipe']}` reaches {100 * r['top1_mean']:.2f} ± {100 * r['top1_sd']:.2f}% (n = {r['n']}) "
        f"in {between(r['train_seconds'], '{:.0f}')} s ({where(r['machine'])})"
        for r in (results["digits-amx"], results["mnist-avx512-bf16"])
    ]
    ratios = [ratio for name in PEERS for ratio in lead(results[name]).values()]
    return (
        f"{'; '.join(small)}. On CPUs Vitreous trains the same model {between(ratios, '{:.2f}')} times as fast as "
        "timm, torchvision, transformers, vit-pytorch and a textbook's code, depending on model and processor "
        "([measured](docs/measurements.md#training-and-inference-beside-other-libraries), some with an older version)."
    )


def speed(results: dict[str, dict]) -> str:
    """How many times as fast as what else a user would pick, each at its better precision."""
    augment, loading = results["augment"], results["loading"]
    times = {(row["side"], row["policy"], row["name"]): row["ours_is_faster_by"] for row in augment["rows"]}
    policies = ("light", "strong")
    light, strong = (times[32, policy, "torchvision, pictures"] for policy in policies)
    large, tensors = (
        [times[224, policy, f"torchvision, {kind}"] for policy in policies] for kind in ("pictures", "tensors")
    )
    later = []
    for way in ("streamed", "in memory"):
        row = next(row for row in loading["rows"] if f"later epochs, {way}" in row["name"])
        low, high = (row["faster_than_peer_by"] * rate / row["images_per_second"] for rate in row["quartiles"])
        later.append(f"{way} {row['faster_than_peer_by']:.0f}{spread(low, row['faster_than_peer_by'], high, '{:.0f}')}")
    leads = {title: lead(results[name]) for name, title in PEERS.items()}
    libraries = sorted({name for ratios in leads.values() for name in ratios})
    rows = [
        [title, *(f"{ratios[name]:.2f}" if name in ratios else "" for name in libraries)]
        for title, ratios in leads.items()
    ]
    return (
        "How many times as fast as each other library Vitreous trains: same model, default settings, each in its "
        "faster precision (Ti/16 and B/16: at 224 px; two runs of a comparison differed by up to 15%, with AVX2 on two "
        "days by up to 29%):\n\n"
        f"{markdown(['', *libraries], rows)}\n\n"
        "Three things make the difference. In bf16, attention as two products: torch's fused attention trains slowly "
        "there. In float32, memory kept from one step to the next, which gains more on some machines than on others. "
        "And a last block that computes the class token alone where the head reads no other, which is 6 to 11% less "
        "work. The rows of AMX and of AVX-512 without bf16 are older and lack the third.\n\n"
        f"- Inference: {answering([results[name] for name in PEERS])} times as fast as timm, transformers and "
        "vit-pytorch in the same precision.\n"
        f"- Augmentation, beside torchvision on PIL images: at 32 px {light:.0f} times as fast (a flip and a shift) "
        f"and {strong:.0f} times (RandAugment and more), at 224 px {large[0]:.1f} and {large[1]:.1f} times; beside "
        f"torchvision on tensors of 224 px {tensors[0]:.1f} and {tensors[1]:.1f} times.\n"
        f"- Loading a folder of JPEGs, from the second epoch on: {', '.join(later)} times as fast as a DataLoader in "
        "one process, which decodes them each time; here they are kept decoded, at the model's size."
    )


def spread(low: float, median: float, high: float, form: str) -> str:
    """The quartiles, where one of them differs from the median by more than a fifth."""
    far = max(median - low, high - median) > median / 5
    return f" (quartiles {form} to {form})".format(low, high) if far else ""


def lead(peers: dict) -> dict[str, float]:
    """How many times as fast as each other library ours trains by default, each at its better precision."""
    times: dict[str, list[float]] = {}
    for row in peers["rows"]:
        if row["name"] not in (OURS, RETURNED) and row["mode"] == "eager":
            times.setdefault(row["name"], []).append(row["training"]["ours_by_default_is_faster_by"])
    return {name: min(ratios) for name, ratios in sorted(times.items())}


def answering(measured: list[dict]) -> str:
    """Between which figures the ratios in inference lie, in the precision that is the default there."""
    times = [
        row["inference"]["ours_is_faster_by"]
        for peers in measured
        for row in peers["rows"]
        if row["name"] in ("timm", "transformers", "vit-pytorch")
        and (row["precision"], row["mode"]) == (peers["default"], "eager")
    ]
    return between(times, "{:.2f}")


def memory_sentence(results: dict[str, dict]) -> str:
    """What kept memory is worth in float32."""
    found: dict[str, list[float]] = {"without": [], "training": [], "inference": []}
    for name in PEERS:
        rows = [r for r in results[name]["rows"] if (r["precision"], r["mode"]) == ("float32", "eager")]
        rates = {r["name"]: r["training"]["images_per_second"] for r in rows}
        fastest = max(rate for peer, rate in rates.items() if peer not in (OURS, RETURNED))
        found["without"].append(rates[RETURNED] / fastest)
        found["training"].append(rates[OURS] / rates[RETURNED])
        infers = {r["name"]: r["inference"]["images_per_second"] for r in rows}
        found["inference"].append(infers[OURS] / infers[RETURNED])
    without, gain, inference = (between(ratios, "{:.2f}") for ratios in found.values())
    return (
        f"Without kept memory our model trains in float32 at {without} times the speed of the fastest other; "
        f"kept memory makes it {gain} times as fast in training, and {inference} in inference."
    )


def photographs(scratch: list[dict], tuned: dict) -> str:
    """What few photographs give a model from scratch, and one that starts from trained weights."""
    top1, folds = [value for r in scratch for value in r["top1"]], scratch[0]["n"]
    mean, sd = statistics.mean(top1), statistics.stdev(top1)
    ours = f"{100 * mean:.2f} ± {100 * sd:.2f}% from scratch (mean ± standard deviation over {len(scratch)} x {folds} "
    ours += "folds)"
    r = tuned["default"]
    theirs = f"{100 * r['mean']:.2f} ± {100 * r['sd']:.2f}% ({r['n'] // 5} x 5 folds)"
    return (
        f"On {sum(scratch[0]['count'])} photographs of pizza, steak and sushi (of Food-101, Bossard et al. 2014) "
        f"recipe `pizza`, which holds nothing out for validation, reaches {ours}, and DeiT-Tiny by recipe `finetune` "
        f"with `data.val_fraction=0` {theirs} ([more](docs/measurements.md#from-trained-weights)). Recipe `pizza` was "
        "chosen on these images, and ImageNet, on which DeiT-Tiny was trained, has a class pizza of its own."
    )


def recipe_table(results: list[dict]) -> str:
    """One row a recipe, the settings changed in it, and the processor."""
    rows = []
    for r in sorted(results, key=lambda r: (r["recipe"], r["machine"]["units"], r["train_seconds"][0])):
        sd = f" ± {100 * r['top1_sd']:.2f}" if r["top1_sd"] is not None else ""
        seconds = between(r["train_seconds"], "{:.0f}")
        passes = f"{r['passes']:.1f}" if "passes" in r else r["epochs"]
        top1 = f"{100 * r['top1_mean']:.2f}{sd}"
        on = where(r["machine"])
        changes = f"`{' '.join(r['overrides'])}`" if r["overrides"] else ""
        rows.append(
            [f"`{r['recipe']}`", changes, f"{r['params']:,}", passes, r["precision"], top1, r["n"], seconds, on]
        )
    head = ["recipe", "with", "parameters", "passes", "precision", "test top-1, mean ± sd", "n", "seconds", "on"]
    return markdown(head, rows)


def where(machine: dict) -> str:
    if machine["units"] == "cuda":
        return machine["device"]
    return f"{machine['processor']}, {threads(machine)}, {UNITS[machine['units']]}"


def peers_table(peers: dict) -> str:
    """Training and inference throughput, and how many times faster this library is with its default settings: as they
    are, then compiled."""
    rows: dict[str, list[list[str]]] = {}
    for row in peers["rows"]:
        cells = [row["name"], row["precision"]]
        for figures in (row["training"], row["inference"]):
            rate, (low, high) = figures["images_per_second"], figures["quartiles"]
            cells += [
                f"{rate:.1f}{spread(low, rate, high, '{:.1f}')}",
                f"{figures['ours_by_default_is_faster_by']:.2f}",
            ]
        if row["mode"] == "eager":
            cells.append(f"{row['training']['peak_mib']:,.0f}")
        rows.setdefault(row["mode"], []).append(cells)
    times, rates = "ours is so many times as fast", ("training, images/s", "inference, images/s")
    head = ["model", "precision", rates[0], times, rates[1], times]
    table = markdown([*head, "MiB in training"], rows["eager"])
    if compiled := rows.get("compiled"):
        table += f"\n\nCompiled, beside ours as it is:\n\n{markdown(head, compiled)}"
    return table


def transfer_table(tuned: dict, own: dict) -> str:
    """Trained weights on small sets: mean and deviation over folds, or over draws of the training images."""
    digits = f"{own['train_images']} digits of 8 x 8 pixels"
    found = [("photographs", name, tuned[key]) for key, name in TUNED.items() if key in tuned]
    found += [(digits, row["way"], row | {"mean": row["top1_mean"], "sd": row["top1_sd"]}) for row in own["rows"]]
    rows = [
        [images, way, f"{100 * r['mean']:.2f} ± {100 * r['sd']:.2f}", r.get("n") or len(r["top1"])]
        for images, way, r in found
    ]
    table = markdown(["training images", "way", "test top-1, mean ± sd", "n"], rows)
    folds = [fold for fold in tuned["default"]["top1"] if fold != "split"]
    chosen = 100 * statistics.mean(tuned["finetune"]["top1"][fold] for fold in folds)
    said = f"On the {len(folds)} folds of the recipe as it is, the chosen settings reach {chosen:.2f}%."
    return f"{table}\n\n{probed(tuned)} {said}"


def probed(tuned: dict) -> str:
    """What a new head alone reaches on the folds of the fine-tuning."""
    folds = [fold for fold in tuned["finetune"]["top1"] if fold != "split"]
    same = 100 * statistics.mean(tuned["probe_cls_mean"]["top1"][fold] for fold in folds)
    return f"A new head alone, on class token and mean, reaches {same:.2f}% on the {len(folds)} folds of fine-tuning."


def deployment_sentence(deployment: dict) -> str:
    """What int8 costs in top-1, and what it gains in time."""
    top1 = [
        f"{100 * r['before']:.2f}% before and {100 * r['after']:.2f} after ({r['model']})" for r in deployment["top1"]
    ]
    times = {(r["form"], r["batch"]): r["faster_than_torch_by"] for r in deployment["speed"]}
    batches = [batch for form, batch in times if form == "int8"]
    ratios = [f"{times['int8', batch]:.2f} times as fast at a batch of {batch}" for batch in batches]
    plain = " and ".join(f"{times['onnx', batch]:.2f}" for batch in batches)
    model, machine = deployment["model"]["size"], deployment["machine"]
    far = [
        f"{r['form']} at a batch of {r['batch']} took {r['seconds']['median']:.1f} s{quartiles}"
        for r in deployment["speed"]
        if (quartiles := spread(**r["seconds"], form="{:.1f}"))
    ]
    varied = f" Some times varied: {', '.join(far)}." if far else ""
    return (
        f"int8 on the digits' test images: {', '.join(top1)}. Beside torch in float32, {model} in int8 "
        f"is {', '.join(ratios)}; the graph in float32 (`onnx`) is {plain} times as fast ({machine['processor']}, "
        f"{threads(machine)}; `{one_thread(machine)}python benchmarks/deployment.py`).{varied}"
    )


def augment_table(augment: dict) -> str:
    """Augmented images a second on one core, and how many times a peer's that is."""
    by_peer = {(row["side"], row["policy"], row["name"]): row for row in augment["rows"]}
    peers = [name for name in dict.fromkeys(row["name"] for row in augment["rows"]) if name != "vitreous"]
    rows = []
    for side, policy in dict.fromkeys((row["side"], row["policy"]) for row in augment["rows"]):
        rate = by_peer[side, policy, "vitreous"]["images_per_second"]
        times = [f"{by_peer[side, policy, name]['ours_is_faster_by']:.1f}" for name in peers]
        rows.append([f"{side} px", policy, f"{rate:,.0f}", *times])
    return markdown(["images", "policy", "ours, images/s", *(f"times {name}" for name in peers)], rows)


def loading_table(loading: dict) -> str:
    rows = [
        [row["name"], f"{rate:,.0f}{spread(low, rate, high, '{:,.0f}')}", f"{row['faster_than_peer_by']:.2f}"]
        for row in loading["rows"]
        for rate, (low, high) in [(row["images_per_second"], row["quartiles"])]
    ]
    return markdown(["way", "images/s", "times the DataLoader's"], rows)


def scaling_tables(scaling: dict) -> str:
    """What a step costs by model and by tokens, and an epoch by images, with the fitted exponents."""
    power = scaling["exponents"]
    few, many = scaling["tokens"][-2:]
    times = [row["seconds"]["median"] / row["batch"] for row in (few, many)]
    last = math.log(times[1] / times[0]) / math.log(many["tokens"] / few["tokens"])
    before, largest = scaling["images"][-2:]
    each = (largest["bytes"] - before["bytes"]) / (largest["images"] - before["images"])
    steps = [
        [
            row["size"],
            f"{row['parameters']:,}",
            f"{row['tokens']:,}",
            row["batch"],
            f"{1e3 * row['seconds']['median'] / row['batch']:.2f}",
        ]
        for row in scaling["models"] + scaling["tokens"]
    ]
    epochs = [
        [f"{row['images']:,}", f"{row['seconds']:.2f}", f"{row['bytes'] / 1e6:,.0f}"] for row in scaling["images"]
    ]
    return "\n\n".join(
        [
            f"The time of a step grows with the parameters to the power of {power['step by parameters']:.2f}, with the "
            f"tokens to the power of {power['step by tokens']:.2f}; from {few['tokens']} to {many['tokens']:,} tokens "
            f"alone it is {last:.1f}:",
            markdown(["model", "parameters", "tokens", "batch", "ms an image"], steps),
            f"The time of an epoch grows with the images to the power of {power['epoch by images']:.2f}; from "
            f"{before['images']:,} to {largest['images']:,} the peak memory grows by {each:.0f} bytes an image:",
            markdown(["images", "seconds an epoch", "peak memory, MB"], epochs),
        ]
    )


def faithfulness_table(results: list[dict]) -> str:
    """Insertion area minus deletion area of each method on each model, the more the better, and both areas."""
    areas = [r["areas"] for r in results]

    def cell(found: dict) -> str:
        difference, deletion, insertion = (found[key] for key in ("difference", "deletion", "insertion"))
        both = f"{deletion['mean']:.2f}, {insertion['mean']:.2f}"
        return f"{difference['mean']:.2f} ± {difference['se']:.2f} ({both})"

    methods = sorted(areas[0], key=lambda name: -areas[0][name]["difference"]["mean"])
    rows = [[f"`{name}`", *(cell(a[name]) for a in areas)] for name in methods]
    return markdown(
        ["method", *(f"{EXPLAINED[r['run']]}, {r['images']} images, {r['top1']:.1%} right" for r in results)], rows
    )


def shuffled_table(results: list[dict]) -> str:
    """How alike a method's maps are with a model's weights and with the same ones shuffled: 0 is best, 1 the worst."""
    rows = [
        [f"`{name}`", *(f"{r['shuffled'][name]['mean']:.2f} ± {r['shuffled'][name]['se']:.2f}" for r in results)]
        for name in results[0]["shuffled"]
    ]
    return markdown(["method", *(EXPLAINED[r["run"]] for r in results)], rows)


def gpu_table(throughput: dict, to_94: dict) -> str:
    """Training and inference throughput on a GPU, with the share of its datasheet's rate, and the time to 94%."""
    machine, peak = throughput["machine"], throughput["peak_tflops"]
    several = "number" in machine  # whose rows were put together by hand
    names = {"small": "32 px", "recipe": "recipe `cifar10`"}
    rows = []
    for row in throughput["models"]:
        cells = [names.get(row["name"], row["name"]), row["form"], row["batch"]]
        cells += [f"{row['training_images_per_second']:,.0f}", f"{row['tflops']:.0f}"]
        cells += [f"{row['mfu']:.1%}"] if peak else []
        cells += [f"{row['inference_images_per_second']:,.0f}" if "inference_images_per_second" in row else ""]
        rows.append([*cells, row["machine"]] if several else cells)
    head = ["model", "form", "batch", "training, images/s", "training, TFLOP/s"]
    head += [f"of {peak:g} TFLOP/s"] if peak else []
    head += ["inference, images/s"] + ["machine"] * several
    which, others = "Machine", ""
    if several:
        which += f" {machine['number']}"
        others = " The others have the same GPU and torch; their rates were not recorded."
    compiling = " and ".join(f"{seconds:.1f}" for seconds in to_94["compile_seconds"])
    runs = zip(to_94["top1"], to_94["seconds"], strict=True)
    each = " and ".join(f"{100 * top1:.2f}% in {seconds:.1f} s" for top1, seconds in runs)
    return (
        f"{markdown(head, rows)}\n\n"
        f"Recipe `{to_94['recipe']}` with `{' '.join(to_94['changes'])}` reaches {100 * to_94['mean_top1']:.2f}% on "
        f"CIFAR-10 in {to_94['mean_seconds']:.1f} s (n = {to_94['n']}: {each}), beside {compiling} s for compiling.\n\n"
        f"{which}: {describe(throughput)}.{others}"
    )


def describe(results: dict) -> str:
    """Where it was measured. Rates of products timed in turns with the rest are better than one before it."""
    machine = results["machine"]
    rates = machine["matmul_gflops"] | {k: round(v) for k, v in results.get("product_gflops", {}).items()}
    gpu = f"{machine['device']}, " if machine.get("units") == "cuda" else ""
    return (
        f"{gpu}{machine['processor']}, {threads(machine)}, torch {machine['torch']}; plain matrix products: "
        f"{rates['float32']} GFLOP/s in float32, {rates['bf16']} in bf16"
    )


def blocks(results: dict[str, dict]) -> dict[Path, dict[str, str]]:
    """For each document, what stands between which of its marks."""
    tables = {name: peers_table for name in PEERS}
    tables |= {"augment": augment_table, "loading": loading_table, "scaling": scaling_tables}
    measured = {name: f"{make(results[name])}\n\nMachine: {describe(results[name])}." for name, make in tables.items()}
    explained = [results[f"faithfulness-{name}"] for name in EXPLAINED]
    measured |= {
        "fine-tuning": transfer_table(results["fine-tuning"], results["own-checkpoint"]),
        "deployment": deployment_sentence(results["deployment"]),
        "gpu": gpu_table(results["throughput-cuda"], results["time-to-94"]),
        "faithfulness": faithfulness_table(explained),
        "shuffled": shuffled_table(explained),
    }
    recipes = [content for content in results.values() if {"recipe", "top1_mean"} <= content.keys()]
    measured |= {"results": recipe_table(recipes), "speed": speed(results), "memory": memory_sentence(results)}
    measured["minutes"] = minutes_table(timed(recipes))
    told = {"headline": headline(results)}
    scratch = [content for name, content in results.items() if name.startswith(PHOTOGRAPHS)]
    told["photographs"] = photographs(scratch, results["fine-tuning"])
    told["others"] = others(results)
    return {README: told, MEASUREMENTS: measured}


def filled(path: Path, results: dict[str, dict]) -> str:
    """The document with its tables made from the results."""
    document = path.read_text()
    for name, block in blocks(results)[path].items():
        document = replaced(document, f"<!-- {name} -->", f"<!-- end of {name} -->", block)
    return document


def saved() -> dict[str, dict]:
    files = [*sorted(RESULTS.glob("*.json")), *sorted(RESULTS.glob(f"reproductions/{PHOTOGRAPHS}*.json"))]
    return {path.stem: json.loads(path.read_text()) for path in files}


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    for path in (README, MEASUREMENTS):
        path.write_text(filled(path, saved()))

"""Which map of evidence is right? Two tests of every method, on test images of a trained model.

python benchmarks/faithfulness.py runs/mnist mnist --images 500

Deletion and insertion: a low deletion area and a high insertion area are good (Petsiuk et al. 2018). Any method has to
beat patches in a random order, and patches by their contrast, which need no model: how far their pixels are from the
mean colour. Shuffled weights: a map of what a model has learnt must not look the same for a model that has learnt
nothing (Adebayo et al. 2018), so the rank correlation of both maps of an image should be near 0. Writes
benchmarks/results/faithfulness-NAME.json, NAME being that of the run's folder.
"""

import argparse
import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import RESULTS, save
from scipy.stats import rankdata
from torch import Tensor

from vitreous.data.sources import load
from vitreous.data.stores import even_rows
from vitreous.device import pick_device
from vitreous.explain import METHODS, explanation_maps, faithfulness, random_maps
from vitreous.explain.explanations import explained_at_once
from vitreous.model import ViT
from vitreous.weights import Bundle


def shuffled(model: ViT) -> ViT:
    """A copy with the numbers of each parameter in random order: as large as before, and without what was learnt.

    One that starts anew would not do: its head starts at zero, so no patch speaks for any class.
    """
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter))
    return other


def rank_correlations(maps: Tensor, others: Tensor) -> Tensor:
    """Spearman's rank correlation of each two maps (B, rows, columns): (B,), 0 where one is the same everywhere."""
    ranks = [torch.from_numpy(rankdata(each.flatten(1).cpu(), axis=1)) for each in (maps, others)]
    return F.cosine_similarity(*(rank - rank.mean(dim=1, keepdim=True) for rank in ranks))


def mean_and_error(values: Tensor) -> dict[str, float | None]:
    """Of one value per image (N,): the mean, and its standard error, None where N is 1."""
    return {"mean": values.mean().item(), "se": values.std().item() / len(values) ** 0.5 if len(values) > 1 else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    device = pick_device(options.device)
    bundle = Bundle.of(options.run)
    torch.manual_seed(0)
    model, split = bundle.model.to(device), load(options.data).test
    ignorant = shuffled(model)
    rows = even_rows(len(split), options.images)
    pixels = torch.from_numpy(split.images.read(rows, bundle.preprocess))
    areas: dict[str, list[Tensor]] = {name: [] for name in (*METHODS, "contrast", "random")}
    same: dict[str, list[Tensor]] = {name: [] for name in METHODS}
    right = 0
    for batch, part in enumerate(torch.arange(len(rows)).split(explained_at_once(model.config))):
        images = bundle.preprocess.normalise(pixels[part].to(device))
        with torch.no_grad():
            likeliest = model(images).argmax(dim=1)
        right += int((likeliest.cpu().numpy() == split.labels[rows[part]]).sum())
        for name, found in areas.items():
            if name == "random":
                maps = random_maps(model, len(part), batch).to(device)
            elif name == "contrast":
                maps = F.avg_pool2d(images.abs().sum(dim=1), model.config.patch_size)
            else:
                maps = explanation_maps(model, images, name, likeliest)
                same[name].append(rank_correlations(maps, explanation_maps(ignorant, images, name, likeliest)))
            curves = faithfulness(model, images, maps)
            found.append(torch.stack([curves.deletion_area, curves.insertion_area]).cpu())

    figures = {}
    for name, found in areas.items():
        deletion, insertion = torch.cat(found, dim=1)
        figures[name] = {}
        for kind, values in (("deletion", deletion), ("insertion", insertion), ("difference", insertion - deletion)):
            figures[name][kind] = mean_and_error(values)
        numbers = "  ".join(f"{kind} {v['mean']:.3f} ± {v['se'] or 0:.3f}" for kind, v in figures[name].items())
        print(f"{name:<22}{numbers}", flush=True)
    correlations = {name: mean_and_error(torch.cat(found)) for name, found in same.items()}
    for name, found in correlations.items():
        print(f"{name:<22}rank correlation with shuffled weights {found['mean']:.3f} ± {found['se'] or 0:.3f}")
    content = {
        "run": Path(options.run).name,
        "data": options.data,
        "images": len(rows),
        "top1": right / len(rows),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "model": model.config.model_dump(mode="json"),
        "device": device.type,
        "torch": torch.__version__,
        "areas": figures,
        "shuffled": correlations,
    }
    save(RESULTS / f"faithfulness-{Path(options.run).name}.json", content)


if __name__ == "__main__":
    main()

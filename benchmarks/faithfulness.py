"""Which map of evidence is right? Deletion and insertion areas of every method, on test images of a trained model.

python benchmarks/faithfulness.py runs/mnist mnist --images 500

A low deletion area and a high insertion area are good (Petsiuk et al. 2018). Any method has to beat patches in a random
order, and patches by their contrast, which need no model: how far their pixels are from the mean colour. Writes
benchmarks/results/faithfulness-NAME.json, NAME being that of the run's folder.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import RESULTS, save

from vitreous.data.sources import load
from vitreous.data.stores import even_rows
from vitreous.device import pick_device
from vitreous.explain import METHODS, explanation_maps, faithfulness, random_maps
from vitreous.explain.explanations import explained_at_once
from vitreous.weights import Bundle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    device = pick_device(options.device)
    bundle = Bundle.of(options.run)
    model, split = bundle.model.to(device), load(options.data).test
    rows = even_rows(len(split), options.images)
    pixels = torch.from_numpy(split.images.read(rows, bundle.preprocess))
    areas: dict[str, list[torch.Tensor]] = {name: [] for name in (*METHODS, "contrast", "random")}
    right = 0
    for batch, part in enumerate(torch.arange(len(rows)).split(explained_at_once(model.config))):
        images = bundle.preprocess.normalise(pixels[part].to(device))
        with torch.no_grad():
            right += int((model(images).argmax(dim=1).cpu().numpy() == split.labels[rows[part]]).sum())
        for name, found in areas.items():
            if name == "random":
                maps = random_maps(model, len(part), batch).to(device)
            elif name == "contrast":
                maps = F.avg_pool2d(images.abs().sum(dim=1), model.config.patch_size)
            else:
                maps = explanation_maps(model, images, name)
            curves = faithfulness(model, images, maps)
            found.append(torch.stack([curves.deletion_area, curves.insertion_area]).cpu())

    figures = {}
    for name, found in areas.items():
        deletion, insertion = torch.cat(found, dim=1)
        figures[name] = {}
        for kind, values in (("deletion", deletion), ("insertion", insertion), ("difference", insertion - deletion)):
            se = values.std().item() / len(values) ** 0.5 if len(values) > 1 else None
            figures[name][kind] = {"mean": values.mean().item(), "se": se}
        numbers = "  ".join(f"{kind} {v['mean']:.3f} ± {v['se'] or 0:.3f}" for kind, v in figures[name].items())
        print(f"{name:<22}{numbers}", flush=True)
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
    }
    save(RESULTS / f"faithfulness-{Path(options.run).name}.json", content)


if __name__ == "__main__":
    main()

"""Train one of the original experiments, as it was or with mistakes fixed.

python -m reproductions                                        what there is, and what can be fixed
python -m reproductions lyon-mnist                             faithful
python -m reproductions lyon-mnist --fix softmax-loss          one mistake fixed
python -m reproductions lyon-mnist --fix all --seed 1          all of them
python -m reproductions paper-b16-pizza --images 64            a quick try on few images

The images are found as `vitreous train` finds them; the pizza set in $VITREOUS_DATA/pizza_steak_sushi, or by --data.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from reproductions import behery, lyon, paper_b16, tigges
from reproductions.experiment import Experiment, run
from vitreous.files import write_json
from vitreous.train.progress import say

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for module in (lyon, behery, tigges, paper_b16) for experiment in module.EXPERIMENTS
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reproductions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", metavar="NAME", choices=list(EXPERIMENTS))
    parser.add_argument("--fix", nargs="+", action="extend", default=[], metavar="FLAG", help="mistakes to fix, or all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="passes [default: as the author trained]")
    parser.add_argument("--images", type=int, help="use only so many of each split")
    parser.add_argument("--data", help="where the images are")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args(arguments)
    console = Console()
    if options.name is None:
        for experiment in EXPERIMENTS.values():
            say(console, f"{experiment.name}: {experiment.parameters:,} parameters, {experiment.epochs} epochs")
            for fix, text in experiment.fixes.items():
                say(console, f"    --fix {fix:<18} {text}")
        return 0
    try:
        experiment = EXPERIMENTS[options.name]
        results = run(
            experiment,
            experiment.named(options.fix),
            seed=options.seed,
            epochs=options.epochs,
            images=options.images,
            data=options.data,
            device=options.device,
            console=console,
        )
    except (ValueError, FloatingPointError) as error:
        print(f"reproductions: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    test, reported = results["test"], experiment.reported
    said = f", reported {reported['top1']:.2%}" if "top1" in reported else ""
    say(console, f"{results['command']}: test top-1 {test['top1']:.2%}{said}; loss {test['loss']:.3f}")
    say(console, f"{results['params']:,} parameters, {results['train_seconds']:.0f} s")
    if options.out is not None:
        write_json(options.out, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())

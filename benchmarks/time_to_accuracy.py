"""What a recipe reaches in how many minutes: one run, fitted to the clock, for each time limit.

    python benchmarks/time_to_accuracy.py cifar10-cpu                         # 5, 15, 30 and 60 minutes
    python benchmarks/time_to_accuracy.py cifar10-cpu --limits 30m --seeds 3
    python benchmarks/time_to_accuracy.py digits --quick                      # seconds; writes no result

Each limit writes a results file of its own as soon as it is done, as `benchmarks/recipes.py RECIPE time_limit=5m` does,
and is not run again; an interrupted one goes on.
"""

import argparse
from contextlib import chdir, nullcontext
from tempfile import TemporaryDirectory

from measure import RESULTS, save
from recipes import in_words, train_seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--limits", nargs="+", default=["5m", "15m", "30m", "60m"], metavar="TIME")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="limits of 2 and 4 seconds, no file")
    options = parser.parse_intermixed_args()
    lines = []
    with TemporaryDirectory() as scratch, chdir(scratch) if options.quick else nullcontext():
        for limit in ["2s", "4s"] if options.quick else options.limits:
            name, figures = train_seeds(options.recipe, [*options.overrides, f"time_limit={limit}"], options.seeds)
            if not options.quick:
                save(RESULTS / f"{name}.json", figures)
            lines.append(f"{limit:>5}: {in_words(figures)}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

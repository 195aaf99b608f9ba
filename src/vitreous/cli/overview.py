"""What there is: `vitreous summary`, `compare`, `recipes`, `settings`, `doctor`."""

from pathlib import Path
from typing import Annotated

import typer

from vitreous.cli.options import output


def summary(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A size such as B/16, a recipe, or a run.")],
    image_size: Annotated[int | None, typer.Option(min=1, help="Image side, in pixels.")] = None,
    channels: Annotated[int | None, typer.Option(min=1, help="Colour channels.")] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Number of classes.")] = None,
) -> None:
    """Show a model layer by layer: shapes, parameters, FLOPs, memory."""
    from pydantic import ValidationError
    from rich.console import Console

    from vitreous.messages import one_line
    from vitreous.model.config import ViTConfig
    from vitreous.model.sizes import SIZES
    from vitreous.model.summary import render, summarise
    from vitreous.recipe import StartOptions, read_recipe, recipe_names
    from vitreous.train.choose import WITHOUT_VALIDATION, data_of, fit_to_data
    from vitreous.weights.bundle import CONFIG, SHIPPED, find_bundle, read_config
    from vitreous.weights.tensor_files import SUFFIXES

    given = {"image_size": image_size, "channels": channels, "num_classes": classes}
    chosen = {key: value for key, value in given.items() if value is not None}
    without_data = False
    if model.partition("/")[0] in SIZES:
        fields = {"size": model}
    elif model in recipe_names() or (Path(model).is_file() and Path(model).suffix not in SUFFIXES):
        if (SHIPPED / model / CONFIG).is_file():
            print(f"showing the recipe {model}; for the trained model: vitreous summary {SHIPPED / model}")
        recipe = read_recipe(model, [f"model.{key}={value}" for key, value in chosen.items()])
        if recipe.start != StartOptions(whiten=recipe.start.whiten) and "dim" not in recipe.model.model_fields_set:
            raise ValueError(
                f"recipe {model} takes the model of the weights that it starts from: name a run of it, or a size"
            )
        try:
            data = data_of(recipe, fetch=False)
        except ValueError:  # what a recipe leaves to its data has stand-ins
            without_data = True
        else:
            recipe = fit_to_data(recipe.model_copy(update=WITHOUT_VALIDATION), data)  # as nothing is split off here
        fields = recipe.model.model_dump(exclude_unset=True)
    else:
        try:
            fields = read_config(find_bundle(model)).model.model_dump()
        except ValueError as error:
            raise ValueError(f"{error}; or a size such as B/16, or a recipe (vitreous recipes)") from error
    fields |= chosen
    if without_data and (left := [key for key in given if key not in fields]):
        options = ", ".join("--" + key.removeprefix("num_").replace("_", "-") for key in left)
        print(f"{model} takes these from its data, which is not here; stand-ins are used below: give {options}")
    try:
        config = ViTConfig(**fields)
    except ValidationError as error:
        raise ValueError(one_line(error)) from error
    Console().print(render(summarise(config)))


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Finished runs, shipped names, or folders of `evaluate --out`."),
    ],
    out: Annotated[Path | None, output("Write the comparison to this HTML file.")] = None,
) -> None:
    """Put finished runs beside each other: figures with intervals, cost, and where their recipes differ."""
    from rich.console import Console

    from vitreous.files import check_file
    from vitreous.page import MARK
    from vitreous.report.compare import about_p, cautions, compare_page, figures, render
    from vitreous.report.finished import read_run

    if out is not None:
        check_file(out, ".html", MARK)
    read = [read_run(run) for run in runs]
    rows = figures(read)
    if out is not None:  # before anything is printed, as a reader such as `head` may leave
        compare_page(out, read, rows)
    console = Console(emoji=False)  # a run may be called :cat:
    for table in render(read, rows):
        console.print(table)
    if note := about_p(rows):
        print(note)
    for caution in cautions(read):
        print(caution)
    if out is not None:
        print(f"comparison: {out}")


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe, as it is written.")] = None,
) -> None:
    """List the shipped recipes, or show one."""
    from vitreous.recipe import headline, recipe_file, recipe_names

    if name is not None:
        print(recipe_file(name).read_text(encoding="utf-8"), end="")
        return
    for name in recipe_names():
        print(f"{name:<16} {headline(name)}")


def settings(
    part: Annotated[
        str,
        typer.Argument(
            metavar="WORD", help="Part of a setting's name, such as optim, mix or model.pool, or else of its meaning."
        ),
    ] = "",
    schema: Annotated[bool, typer.Option("--schema", help="Print a JSON schema of recipes, for editors.")] = False,
) -> None:
    """List what can be set as key=value: its default, the words it takes, what it means."""
    import json
    import re
    import textwrap

    from vitreous.messages import did_you_mean
    from vitreous.recipe import json_schema, key_called, keys
    from vitreous.recipe import settings as all_settings

    if schema:
        if part:
            raise ValueError(f"a schema is of all settings, not of '{part}': leave it out")
        print(json.dumps(json_schema(), indent=1))
        return
    start = re.compile(rf"\b{re.escape(part)}", re.IGNORECASE)
    found = [setting for setting in all_settings() if part.lower() in setting.key]
    found = found or [setting for setting in all_settings() if setting.key == key_called(part.lower())]
    found = found or [setting for setting in all_settings() if start.search(setting.meaning)]
    if not found:
        near = did_you_mean(part, [word for key in keys() for word in (key, key.rpartition(".")[2])])
        way_out = f"; {near.strip()}" if near else ": `vitreous settings` lists all of them"
        raise ValueError(f"no setting has '{part}' in its name or meaning{way_out}")
    for setting in found:
        words = f"   ({', '.join(setting.choices)})" if setting.choices else ""
        print(f"{setting.key}={setting.default}{words}")
        print(textwrap.fill(setting.meaning, 100, initial_indent="    ", subsequent_indent="    "))


def doctor() -> None:
    """Check this machine: versions, devices, how fast it multiplies, combinations known not to work."""
    from vitreous.doctor import examine

    examine()

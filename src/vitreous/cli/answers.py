"""What a trained model answers: `vitreous evaluate`, `calibrate`, `predict`, `serve`, `embed`."""

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from vitreous.cli.options import (
    Architecture,
    Data,
    Device,
    Images,
    JudgedSplit,
    Revision,
    RunArgument,
    SkipBroken,
    output,
)
from vitreous.cli.output import counted, report_broken, results_table


def evaluate(
    run: RunArgument,
    data: Data = None,
    split: JudgedSplit = None,
    out: Annotated[
        Path | None,
        output("Write results.json, answers.csv, classes.csv and report.html into this folder, for `compare`, too."),
    ] = None,
    skip_broken: SkipBroken = False,
    arch: Architecture = None,
    revision: Revision = None,
    device: Device = "auto",
) -> None:
    """Judge a trained model on DATA, or a split of it; nothing in the run's folder changes."""
    from rich.console import Console

    from vitreous.cli.asked import asked_model, check_outside_data
    from vitreous.evaluation import judge_run, record_evaluation, write_answers, write_classes
    from vitreous.files import check_folder, check_free, write_json

    if out is not None:
        check_folder(out)
        names = ("results.json", "evaluation.json", "answers.csv", "classes.csv", "report.html")
        results, record, answers, classes, report = files = [out / name for name in names]
        check_free(files, record, '"sha256"')
    model = asked_model(run, arch, revision)
    if out is not None:
        check_outside_data(out, model, data)
    judged = judge_run(model, data, split=split, device=device, skip_broken=skip_broken)
    if out is not None:  # before printing, for whoever reads that may leave
        from vitreous.device import pick_device
        from vitreous.prediction import precision_for
        from vitreous.report import evaluation_report
        from vitreous.train.folder import environment

        where = pick_device(device)
        write_json(record, record_evaluation(judged))  # first: it marks the others as ours
        for file in (results, answers, classes, report):  # else, cut short, an earlier model's would stand beside it
            file.unlink(missing_ok=True)
        write_json(results, {judged.name: judged.figures})
        write_answers([judged], judged.bundle.class_names, answers)
        write_classes({judged.name: [judged]}, judged.bundle.class_names, classes)
        evaluation_report(
            report,
            judged,
            model=run,
            data=data,
            environment=environment(where, precision_for(model, "auto", where), 1),
        )
    Console().print(results_table({judged.name: judged.figures}))
    if judged.name == "given":
        print(f"{data} has only one split: all its images were judged")
    elif split is None and judged.name != "test":
        print(f"there are no test images: judged on {judged.name}")
    if out is not None:
        print(f"report: {report}")


def calibrate(
    run: RunArgument,
    data: Data = None,
    out: Annotated[Path | None, output("The folder to write \\[required].")] = None,
    split: JudgedSplit = None,
    skip_broken: SkipBroken = False,
    arch: Architecture = None,
    revision: Revision = None,
    device: Device = "auto",
) -> None:
    """Calibrate a model's probabilities on images it has not learnt from (temperature scaling), and write a copy.

    No answer changes.
    """
    import shutil
    from dataclasses import replace

    from vitreous.cli.asked import asked_model, check_outside_data
    from vitreous.evaluation import RECORD, calibrated, judge_run
    from vitreous.files import check_folder, check_free
    from vitreous.weights.bundle import CONFIG, WEIGHTS, find_record

    if out is None:
        raise ValueError("the model stays as it is: name a folder for the calibrated copy with --out")
    check_folder(out)
    check_free(out / name for name in (CONFIG, WEIGHTS, *RECORD))
    model = asked_model(run, arch, revision)
    check_outside_data(out, model, data)
    before = judge_run(model, data, split=split, device=device, skip_broken=skip_broken)
    after = replace(before, bundle=calibrated(before))
    after.bundle.save(out)
    folder = find_record(model)
    for name in RECORD:  # so that the copy knows its data and precision, too
        if folder is not None and (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
    judged = data if before.name == "given" else before.name
    count, old, new = len(before.labels), before.bundle.temperature, after.bundle.temperature
    if old == new:
        print(
            f"{judged}: {count:,} images tell no better temperature than {old:.3f} (too few, too often answered right, "
            "or it is fitted to them already): the copy answers as before"
        )
    else:
        print(
            f"{judged}: {count:,} images; temperature {new:.3f} (before: {old:.3f}), calibration error on them "
            f"{after.figures['ece']:.2%} ({before.figures['ece']:.2%}), on others a little larger"
        )
    print(f"{out}: {', '.join(sorted(file.name for file in out.iterdir()))}")


def predict(
    run: RunArgument,
    images: Images,
    top: Annotated[int, typer.Option(min=1, help="Classes to show for an image.")] = 5,
    json_lines: Annotated[bool, typer.Option("--json", help="Print a JSON object on each line.")] = False,
    csv_file: Annotated[Path | None, output("Write a table to this file, once all are answered.", "--csv")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 64,
    arch: Architecture = None,
    revision: Revision = None,
    device: Device = "auto",
) -> None:
    """Ask a trained model what is in images.

    A file that cannot be read is named at the end, and the exit status is then 2; the others are answered.
    """
    from vitreous.cli.asked import asked_images, asked_model
    from vitreous.data.check import first_page_alone
    from vitreous.data.stores import FileImages
    from vitreous.files import check_file
    from vitreous.messages import printable
    from vitreous.prediction import TABLE, write_json_lines, write_table, write_text
    from vitreous.prediction import predict as ask

    if json_lines and csv_file:
        raise ValueError("--json and --csv exclude each other: use one of them")
    if csv_file:
        check_file(csv_file, ".csv", ",".join(TABLE))
    broken: list = []
    model = asked_model(run, arch, revision)
    asked = asked_images(model, images)
    if stacks := first_page_alone(FileImages([image for image in asked if isinstance(image, Path)])):
        print(f"vitreous: {printable(stacks)}", file=sys.stderr)
    answers = ask(model, asked, top=top, batch_size=batch_size, device=device, broken=broken)
    if csv_file:
        write_table(counted(answers, len(asked)), csv_file)
        print(f"table: {csv_file}", file=sys.stderr)
    elif json_lines:
        write_json_lines(answers, sys.stdout)
    else:
        write_text(answers, sys.stdout)
    report_broken(broken)


def serve(
    run: RunArgument,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines ask.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8000,
    log: Annotated[
        Path | None,
        output("Add a line for each answer: time, model, class, probability.", metavar="FILE.csv"),
    ] = None,
    arch: Architecture = None,
    revision: Revision = None,
    device: Device = "auto",
) -> None:
    """Let others ask a trained model over HTTP: a page for people, JSON for programs.

    A proxy in front has to pass the Host header on and to serve it at /, or the page shows a wrong address.
    """
    from vitreous.cli.asked import asked_model
    from vitreous.extras import need
    from vitreous.files import check_file

    need("serve", ("starlette", "uvicorn", "python_multipart"), "serve")
    from vitreous.serve import AnswerLog, Service, listen
    from vitreous.serve import serve as answer

    if log is not None:
        check_file(log, ".csv", None)
    with listen(host, port) as listener:
        service = Service(asked_model(run, arch, revision), name=Path(run).resolve().name, device=device)
        if log is not None:  # last, so that no new one is left where nothing is served
            service.on_answer = AnswerLog(log)
        at = f"[{host}]" if ":" in host else host
        print(f"http://{at}:{listener.getsockname()[1]} serves {run}; Ctrl-C stops it", flush=True)
        with suppress(KeyboardInterrupt):
            answer(service, listener)


def embed(
    run: RunArgument,
    data: Data = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "train",
    out: Annotated[Path | None, output("Write the features to this parquet file.")] = None,
    nearest: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Show the images most like this one: a file, or test:7, row 7 of DATA's test images, counted from 0.",
        ),
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Neighbours that vote, and that are shown.")] = 5,
    arch: Architecture = None,
    revision: Revision = None,
    skip_broken: SkipBroken = False,
    device: Device = "auto",
) -> None:
    """Describe images by a model's features: accuracy of nearest neighbours, a file, images like another one."""
    from vitreous.cli.asked import is_row, stored_image
    from vitreous.data.sources import lies_within, load
    from vitreous.embedding import (
        MADE_BY,
        embed_image,
        embed_split,
        find_nearest,
        knn_accuracy,
        load_features,
        voters,
        write_parquet,
    )
    from vitreous.evaluation import own_data, record_of
    from vitreous.files import check_file
    from vitreous.messages import printable
    from vitreous.prediction import own_precision

    if out is not None:
        check_file(out, ".parquet", MADE_BY)
    bundle, precision = load_features(run, arch, revision), own_precision(run)
    image_set = load(data, skip_broken=skip_broken) if data is not None else own_data(run)
    if out is not None and lies_within(out, image_set.source):
        raise ValueError(f"{out} lies within the data, of which it would become a part: name a file elsewhere")
    image_set.split(split)  # refused before anything is computed
    query = None
    if nearest is not None:
        asked = stored_image(image_set, nearest) if is_row(nearest) else nearest
        query = embed_image(bundle, asked, device, precision)
    options = None
    with suppress(ValueError):  # others' weights may have a recipe.yaml of another kind beside them
        _, options = record_of(run)
    features_of = partial(
        embed_split, bundle, image_set, device=device, precision=precision, options=options, skip_broken=skip_broken
    )
    own = features_of(split)
    among, how = None, "leave-one-out" if own.groups is None else "leave-one-group-out"
    if split != "train":
        among = features_of("train")
        how = "neighbours from train"
    if out is not None:  # first, as comparing all with all may take long
        write_parquet(own, out)
        print(f"written to {out}")
    used, accuracy = voters(own, among, k), knn_accuracy(own, among, k)
    print(f"{split}: {len(own.labels):,} images, {own.features.shape[1]} features; {used}-NN {accuracy:.2%}, {how}")
    if split == "train" and (data is None or (options is not None and image_set.source == options.source)):
        more = "" if image_set.default_split == split else f": --split {image_set.default_split} says more"
        print(f"the model learnt from these images{more}")
    if query is not None:
        for row, similarity in find_nearest(query, own, k):
            print(printable(f"{similarity:.4f}  {own.class_names[own.labels[row]]}  {own.images[row]}"))

"""`push`: upload a finished run's model and its card to a repository on the Hugging Face Hub."""

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from vitreous.card import CARD, LIBRARY, finished, write_shared
from vitreous.files import path_of
from vitreous.messages import first_line
from vitreous.weights.bundle import CONFIG, WEIGHTS, check_named, is_shipped


class Pushed(NamedTuple):
    """What was uploaded, or would be."""

    files: dict[str, int]
    """Name -> bytes."""
    card: str


def push_run(run: os.PathLike[str] | str, repo: str, *, private: bool = False, dry_run: bool = False) -> Pushed:
    """Upload a finished run's bundle, record and card to `repo`, owner/name, creating it if needed.

    private: create it as private, and require an existing one to be; otherwise the owner's settings apply, public by
    default. dry_run: make the files without using the network. Raises ValueError for an unfinished run, a repository
    that holds another model than ours, and a failed upload.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise ValueError(f"'{repo}' is not a repository of the Hub: write owner/name")
    check_named(run)
    if is_shipped(run):
        raise ValueError(f"{run} is a shipped model, and those are not pushed: name your own run")
    run = path_of(run)
    results = finished(run)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        try:
            write_shared(run, folder, results, repo=repo)
        except KeyError as error:
            raise ValueError(f"{run} is no whole record of a run, it lacks {error}: push another run") from error
        if not dry_run:
            _upload(folder, repo, private)
        files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
        return Pushed(files, (folder / CARD).read_text(encoding="utf-8"))


def _upload(folder: Path, repo: str, private: bool) -> None:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repo, private=private or None, exist_ok=True)
        there = api.repo_info(repo)
        seen_by_all = private and not there.private  # it existed before
        library = getattr(there.card_data, "library_name", None)  # as cards say
        holds = {file.rfilename for file in there.siblings or ()} & {CONFIG, WEIGHTS}
        others = library != LIBRARY and bool(library or holds)
        if not seen_by_all and not others:
            api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload of a model by Vitreous")
    except Exception as error:  # anything from no network to no write access
        reason = first_line(error)
        raise ValueError(
            f"cannot upload to {repo} ({reason}): log in with 'hf auth login', or see the files with --dry-run"
        ) from error
    if others:
        raise ValueError(f"{repo} holds another model, which stays as it is: name another repository")
    if seen_by_all:
        raise ValueError(f"{repo} is there already and is public: make it private on the Hub, or name another")

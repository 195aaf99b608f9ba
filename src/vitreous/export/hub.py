"""`push`: a finished run's model and its card to a repository of the Hugging Face Hub."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from vitreous.card import CARD, finished, write_shared
from vitreous.messages import first_line


class Pushed(NamedTuple):
    """What was uploaded, or would be."""

    files: dict[str, int]
    """Name -> bytes."""
    card: str


def push_run(run: Path | str, repo: str, *, private: bool = False, dry_run: bool = False) -> Pushed:
    """Upload a finished run's bundle, record and card to `repo`, owner/name, which is made where it is not there.

    private: whether one that is made is; else the owner's settings say, which is public by default. One
    that is there must be.
    dry_run: make the files and touch no network. Raises ValueError for an unfinished run and a failed upload.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise ValueError(f"'{repo}' is not a repository of the Hub: write owner/name")
    run = Path(run)
    results = finished(run)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_shared(run, folder, results, repo=repo)
        if not dry_run:
            _upload(folder, repo, private)
        files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
        return Pushed(files, (folder / CARD).read_text())


def _upload(folder: Path, repo: str, private: bool) -> None:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repo, private=private or None, exist_ok=True)
        seen_by_all = private and not api.repo_info(repo).private  # as it was before
        if not seen_by_all:
            api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload of a model by Vitreous")
    except Exception as error:  # from no network to no right to write there
        reason = first_line(error)
        raise ValueError(
            f"cannot upload to {repo} ({reason}): log in with 'hf auth login', or see the files with --dry-run"
        ) from error
    if seen_by_all:
        raise ValueError(f"{repo} is there already and is public: make it private on the Hub, or name another")

"""The command line. Every import that costs time stands inside the command that needs it, so `--help` is instant."""

import errno
import io
import os
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import vitreous
from vitreous.cli.answers import calibrate, embed, evaluate, predict, serve
from vitreous.cli.insight import explain, look, walk
from vitreous.cli.overview import compare, doctor, recipes, settings, summary
from vitreous.cli.sharing import export, push
from vitreous.cli.training import no_such_option, train
from vitreous.messages import first_line, lacks_memory, printable

WAYS_OUT = {
    errno.EACCES: "allow it, as by chmod, or name another place",
    errno.EROFS: "name another place",
    errno.ENOSPC: "make room on the disk, or write to another",
    errno.EDQUOT: "make room on the disk, or write to another",
}

LESS_MEMORY = {
    "train": "choose a smaller model or image, lower optim.batch_size or raise optim.accumulate",
    "predict": "lower --batch-size",
    "export": "close other programs, or use a machine with more",
}

STOPS = (signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(
    help="Train Vision Transformers from scratch on the images you have, and see through them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"vitreous {vitreous.__version__}")
        raise typer.Exit


@app.callback()
def _(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


# in the order of --help
for command in (train, evaluate, calibrate, predict, explain, look, walk, embed, export, serve, push, summary, compare):
    app.command(no_args_is_help=True)(command)
for command in (recipes, settings, doctor):
    app.command()(command)


def main() -> None:
    """Entry point: bad input ends in one clear line and exit code 2; VITREOUS_DEBUG=1 shows where it came from."""
    warnings.filterwarnings("ignore", module="PIL")  # what Pillow says of images that it reads
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # advice of the compiler's that recipes do not take
    for number in STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that nothing half written is left
    sys.stdout = sys.stdout or io.TextIOWrapper(io.BytesIO())  # where it was closed, as by >&-
    sys.stdout.reconfigure(errors="backslashreplace")  # for names that the terminal cannot show
    try:
        Path.cwd()
    except OSError:  # else torch's libraries do not load, and say that they are broken
        _refuse("the current folder is gone: go to one that is there, as by cd")
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        _say_stopped()
        sys.exit(130)
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in [128 + number for number in STOPS]:
            _say_stopped()
            raise
        reader_left = isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError)
        if not reader_left or "train" in sys.argv[1:2]:  # training does not end with who watches it
            raise
        # the reader, such as `head`, has what it wanted; typer may have made an exit of the BrokenPipeError
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except typer.TyperException as error:  # one without a message has printed the help
        message = error.format_message()
        if "train" in sys.argv[1:2] and message.startswith("No such option"):
            message = no_such_option(error.option_name, message)
        if not message:
            sys.exit(2)
        _refuse(message)
    except (ValueError, ArithmeticError, ImportError, OSError, MemoryError, RuntimeError) as error:
        message = _in_words(error)
        if os.environ.get("VITREOUS_DEBUG") or message is None:
            raise
        _refuse(message)


def _in_words(error: Exception) -> str | None:
    """What is wrong, and the way out; None for an error that is a mistake of ours."""
    command, message = "".join(sys.argv[1:2]), str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        parts = error.strerror, error.filename, WAYS_OUT.get(error.errno)
        return ": ".join(str(part) for part in parts if part)
    if isinstance(error, OSError) and (way_out := WAYS_OUT.get(getattr(error.__cause__, "errno", None))):
        return f"{message}: {way_out}"
    runtime = isinstance(error, RuntimeError)
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")) and not lacks_memory(error):
        return f"the model does not compile here ({first_line(error)}): set compile=false"
    if runtime and ("shared memory" in message or "DataLoader worker" in message):
        way_out = ": give data.workers=0" if command == "train" else ""
        return f"a process that reads images has died, often for lack of shared memory{way_out}"
    if lacks_memory(error):
        return f"not enough memory: {LESS_MEMORY.get(command, 'use --device cpu, or a machine with more')}"
    if not runtime:
        return message
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and any(name in message for name in ("gloo", "NCCL")):
        return "another process of this run has failed; training goes on from its last checkpoint with --resume"
    return None


def _say_stopped() -> None:
    if os.environ.get("RANK", "0") == "0":
        more = "; what has begun to train goes on with --resume" if "train" in sys.argv[1:2] else ""
        with suppress(OSError):  # the terminal is gone
            print(f"vitreous: stopped at once{more}", file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    """End with one line and exit code 2; where several processes run, all but the main one say which they are."""
    rank = os.environ.get("RANK", "0")
    print(
        f"vitreous{'' if rank == '0' else f', process {rank}'}: {printable(' '.join(message.split()))}", file=sys.stderr
    )
    sys.exit(2)

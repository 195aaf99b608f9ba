"""The chapters as code: python docs/guide/chapters.py [01 ...] runs them and writes under each block what it prints."""

import contextlib
import io
import re
import sys
from pathlib import Path

GUIDE = Path(__file__).parent

# A block of Python and, if it printed something, the ```text block right after it that shows this
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def chapters() -> list[Path]:
    """The files NN-slug.md, in order."""
    return sorted(GUIDE.glob("[0-9][0-9]-*.md"))


def filled(chapter: Path) -> str:
    """The chapter's text with the output of every block as it is now: blocks run in order, in one namespace."""
    text = chapter.read_text()
    namespace = {"__name__": chapter.stem}

    def ran(block: re.Match[str]) -> str:
        lines_before = text[: block.start("code")].count("\n")  # so that a traceback names the chapter's own line
        code = compile("\n" * lines_before + block["code"], str(chapter), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        output = printed.getvalue()
        return f"```python\n{block['code']}```\n" + (f"\n```text\n{output}```\n" if output else "")

    return BLOCK.sub(ran, text)


if __name__ == "__main__":
    for path in chapters():
        if len(sys.argv) == 1 or path.name[:2] in sys.argv[1:]:
            path.write_text(filled(path))
            print(path.name)

"""The text of a PDF, read in a process of its own: `python -m shoal.tools.pdf` takes one on standard input.

A PDF from outside may be made to eat memory and time. So it is read by a child with little of both, which the kernel
ends when it takes more, and of which nothing is left when the caller is cancelled.
"""

import os
import resource
import subprocess
import sys

from shoal.domain.errors import ToolError

SECONDS_MAX = 25
MEMORY_BYTES_MAX = 1_073_741_824
TEXT_CHARS_MAX = 200_000
PAGES_MAX = 2000
EXIT_TOLD = 3
"""How the child ends when it says why a PDF cannot be read."""


async def pdf_text(content: bytes) -> str:
    """The text of its pages, at most TEXT_CHARS_MAX characters. Raises ToolError for one that cannot be read."""
    import anyio

    command = [sys.executable, "-I", "-m", "shoal.tools.pdf"]
    environment = {"PATH": os.defpath, "PYTHONUTF8": "1"}
    try:
        with anyio.fail_after(SECONDS_MAX + 5):
            done = await anyio.run_process(
                command, input=content, check=False, env=environment, stderr=subprocess.DEVNULL
            )
    except TimeoutError as error:
        raise ToolError("The PDF takes too long to read.") from error
    text = done.stdout.decode("utf-8", errors="replace").strip()
    if done.returncode == EXIT_TOLD:
        raise ToolError(f"The PDF cannot be read: {text}.")
    if done.returncode:
        raise ToolError("The PDF cannot be read: it takes too much memory or time.")
    return text or "[The PDF has no text; its pages may be pictures.]"


def extracted(content: bytes) -> str:
    """The text, page by page, until there is enough of it. Raises whatever pypdf does with a broken file."""
    import io

    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(content), strict=False)
    pages: list[str] = []
    room = TEXT_CHARS_MAX
    for page in reader.pages[:PAGES_MAX]:
        text = page.extract_text().strip()[:room]
        pages.append(text)
        room -= len(text)
        if room <= 0:
            break
    return "\n\n".join(page for page in pages if page)


def main() -> None:
    """Read standard input and write the text; exit with EXIT_TOLD and a reason when that fails."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_MAX, SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    from pypdf.errors import DependencyError, FileNotDecryptedError, PyPdfError

    try:
        text = extracted(sys.stdin.buffer.read())
    except (FileNotDecryptedError, DependencyError):
        text, code = "it is encrypted", EXIT_TOLD
    except (PyPdfError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError) as error:
        text, code = f"it is damaged ({type(error).__name__})", EXIT_TOLD
    else:
        code = 0
    sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
    sys.stdout.buffer.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

"""A person's editor: some bytes in, what the person made of them out."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bus.cli.usage import UsageError


class EditorFailed(UsageError):
    """The editor could not be run, or says that it failed."""


@contextmanager
def edited(data: bytes, *, name: str) -> Iterator[bytes]:
    """Runs `$VISUAL`, `$EDITOR` or vi on a file of its own and gives what stands in it afterwards.

    JSON is shown indented and comes back compact; other bytes are shown and come back as they are. When the body
    fails, the file stays, so that the work in it is not lost, and standard error says where. Raises EditorFailed.
    """
    folder = Path(tempfile.mkdtemp(prefix="bus-dead-"))
    file = folder / f"{name}.json"
    document = read_json(data)
    file.write_bytes(data if document is None else write_json(document[0], indent=2) + b"\n")
    try:
        _run(file)
        after = file.read_bytes()
    except BaseException:
        _remove(folder)
        raise
    again = read_json(after)
    try:
        yield after if again is None else write_json(again[0])
    except BaseException:
        print(f"your text is in {file}", file=sys.stderr)
        raise
    _remove(folder)


def read_json(data: bytes) -> tuple[Any] | None:
    """The JSON value of the bytes, in a tuple because it may be null, or None when they are not JSON.

    Unlike the codec it keeps integers of any size as they are.
    """
    try:
        return (json.loads(data),)
    except (ValueError, RecursionError):
        return None


def write_json(document: Any, *, indent: int | None = None) -> bytes:
    """JSON as UTF-8; what JSON cannot say is left to the codec to refuse."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(document, ensure_ascii=False, indent=indent, separators=separators)
    return text.encode("utf-8", "surrogatepass")


def _remove(folder: Path) -> None:
    # Editors leave backups beside the file.
    shutil.rmtree(folder, ignore_errors=True)


def _run(file: Path) -> None:
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # Ctrl-C belongs to the editor while it runs; an empty handler, unlike SIG_IGN, is not inherited.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        ended = subprocess.run([*shlex.split(command), str(file)], check=False).returncode
    except (OSError, ValueError) as problem:
        raise EditorFailed(f"cannot run the editor {command!r} ({problem}); set EDITOR, or use --set") from problem
    finally:
        signal.signal(signal.SIGINT, before)
    if ended:
        raise EditorFailed(f"the editor {command!r} ended with {ended}; the letter stays as it was")

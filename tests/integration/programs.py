"""The program that the connector's tests put on the bus: it does what it is told, good or bad.

`python programs.py` runs all the time and answers lines of JSON; `python programs.py once` is one call. No package.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def do(what: str, arguments: dict[str, Any]) -> Any:
    match what:
        case "pid":
            return os.getpid()
        case "env":
            return dict(os.environ)
        case "exit":
            print("I cannot go on, token=sesame-open-0123", file=sys.stderr, flush=True)
            sys.exit(arguments["code"])
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "huge":
            sys.stdout.write("x" * 3_000_000 + "\n")
            sys.stdout.flush()
        case "garbage":
            print("this is no JSON", flush=True)
            print('{"id": "of-nobody", "data": 1}', flush=True)
            print("[1, 2]", flush=True)
        case "noise":
            print("\xff" * 3000, file=sys.stderr, flush=True)
        case "hang":
            with Path(arguments["mark"]).open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(25)
        case "family":
            # A child in our group that holds our output open, and outlives us if nobody ends it.
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(25)"])
            return child.pid
    return arguments


def run_lines() -> None:
    for line in sys.stdin:
        question = json.loads(line)
        if "cancel" in question:
            continue
        arguments = question["arguments"]
        if arguments.get("do") == "fail":
            print(json.dumps({"id": question["id"], "error": arguments["error"]}), flush=True)
            continue
        data = do(arguments.get("do", ""), arguments)
        print(json.dumps({"id": question["id"], "data": data}), flush=True)


def run_once() -> None:
    arguments = json.loads(sys.stdin.read())
    data = do(arguments.get("do", ""), arguments)
    if arguments.get("do") not in ("garbage", "huge"):
        print(json.dumps(data), flush=True)


if __name__ == "__main__":
    run_once() if sys.argv[1:] == ["once"] else run_lines()

"""The main job, end to end (WF-5): real documents, real processes, real trouble, the same brief."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.testing import NatsServer
from tests.e2e.conftest import ROOT

Start = Callable[..., "subprocess.Popen[str]"]

GOAL = "How does the harbour keep ships safe in fog?"
CHINESE_GOAL = "港口如何在大雾中保护船只?"
CITED = re.compile(r"^(?P<text>.+) \[(?P<file>.+):(?P<line>\d+)\]$")

THINGS = ["lighthouse", "pilot boat", "radar", "fog horn", "harbour master", "buoy", "tug", "signal mast"]
ACTS = ["warns ships of", "keeps ships clear of", "guides ships past", "reports", "watches for", "measures"]
DANGERS = ["the northern reef", "a sudden fog bank", "shifting sand", "the ferry lane", "strong currents", "wrecks"]
WHEN = ["before dawn", "when visibility drops below 2.5 miles", "in every season", "at low water", "during storms"]
中文 = [
    "灯塔在大雾中每十秒闪光一次。",
    "引水员在浅滩前登上船只。",
    "雷达让港口看见雾中的船只。",
    "雾号提醒渔船远离礁石。",
]


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty long documents, five of them Chinese, always the same."""
    folder = tmp_path_factory.mktemp("documents")
    chance = random.Random(7)
    for number in range(20):
        lines = [f"# Harbour notes {number}", ""]
        for section in range(12):
            lines += [f"## Chapter {section}", ""]
            sentences = []
            for _ in range(12):
                if number % 4 == 3:
                    sentences.append(chance.choice(中文).replace("每十秒", f"每{chance.randrange(5, 60)}秒"))
                else:
                    sentences.append(
                        f"The {chance.choice(THINGS)} number {chance.randrange(90)} {chance.choice(ACTS)} "
                        f"{chance.choice(DANGERS)} {chance.choice(WHEN)}."
                    )
            joined = "".join(sentences) if number % 4 == 3 else " ".join(sentences)
            lines += [joined[start : start + 100] for start in range(0, len(joined), 100)] if number % 4 == 3 else []
            lines += sentences if number % 4 != 3 else []
            lines.append("")
        (folder / f"notes-{number:02}.md").write_text("\n".join(lines), "utf-8")
    return folder


def run_brief(
    environment: dict[str, str], folder: Path, *arguments: str, goal: str = GOAL
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agents", "brief", goal, *arguments],
        capture_output=True, text=True, env=environment, cwd=folder, timeout=60, check=False,
    )  # fmt: skip


def cited(markdown: str) -> list[tuple[str, str, int]]:
    """Sentence, file and line of every citation, by the brief's text alone."""
    found = [CITED.match(line) for line in markdown.splitlines()]
    return [(one["text"], one["file"], int(one["line"])) for one in found if one]


def stands(folder: Path, text: str, file: str, line: int) -> bool:
    """Whether the sentence stands, apart from white space, in the file and begins on that line."""
    lines = (folder / file).read_text("utf-8").splitlines()
    rest = "".join("\n".join(lines[line - 1 :]).split())
    wanted = "".join(text.split())
    begins = rest.find(wanted)
    return 0 <= begins < len("".join(lines[line - 1].split()))


@pytest.fixture(scope="session")
def expected(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The brief as one undisturbed process makes it."""
    folder = tmp_path_factory.mktemp("expected")
    server = NatsServer(tmp_path_factory.mktemp("expected-nats"))
    server.start()
    try:
        environment = {"BUS_SERVERS": server.url, "PYTHONPATH": str(ROOT), "PATH": "", "BUS_WORK_MAX_BYTES": "33554432"}
        done = run_brief(environment, documents, ".", "--out", str(folder / "brief.md"))
        assert done.returncode == 0, done.stderr
        return (folder / "brief.md").read_text("utf-8")
    finally:
        server.stop()


@pytest.mark.timeout(90)
def test_every_citation_stands_where_it_says(expected: str, documents: Path) -> None:
    found = cited(expected)
    assert len(found) >= 9
    assert [one for one in found if not stands(documents, *one)] == []


@pytest.mark.timeout(90)
def test_a_chinese_goal(environment: dict[str, str], documents: Path, tmp_path: Path) -> None:
    out = tmp_path / "brief.md"
    done = run_brief(environment, documents, ".", "--out", str(out), goal=CHINESE_GOAL)
    assert done.returncode == 0, done.stderr
    found = cited(out.read_text("utf-8"))
    assert any("雾" in text for text, _, _ in found)
    assert [one for one in found if not stands(documents, *one)] == []


def test_what_a_person_sees(environment: dict[str, str], documents: Path, tmp_path: Path, expected: str) -> None:
    """Progress, the tree with its times, where the brief is; with --json one object and nothing else."""
    out = tmp_path / "brief.md"
    shown = run_brief(environment, documents, "notes-00.md", "missing.md", "notes-01.md", "--out", str(out))
    assert shown.returncode == 0
    assert "skipped" in shown.stderr
    assert "missing.md" in shown.stderr
    assert re.search(r"draft_request  planner > writer +execute +waited .* worked", shown.stdout)
    assert re.search(r"brief_ready  reviewer > \* +\w* +broadcast", shown.stdout)
    assert f"brief: {out} (" in shown.stdout.splitlines()[-1]
    as_json = run_brief(environment, documents, ".", "--out", str(out), "--json")
    made = json.loads(as_json.stdout)
    assert made["ok"] is True
    assert out.read_text("utf-8") == expected


REPEATED = """# {name}

The fog horn sounds twice every minute in thick fog. The harbour master closes the entrance when ships cannot see
the breakwater. Pilots guide every large ship through the fog at walking pace. Radar shows the harbour master all
ships within 6.5 miles. Tugs wait at the breakwater while the fog lasts. A bell on each buoy rings with the swell.
"""


def test_sources_that_repeat_themselves_go_through_a_revision(environment: dict[str, str], tmp_path: Path) -> None:
    """The reviewer sends a section back with a reason, in phase revision, and the brief says nothing twice."""
    (tmp_path / "docs").mkdir()
    for name in ("Fog rules", "Fog guide", "Harbour safety in fog"):
        (tmp_path / "docs" / f"{name.lower().replace(' ', '-')}.md").write_text(REPEATED.format(name=name))
    done = run_brief(environment, tmp_path, "docs", "--out", "brief.md", "--sections", "3", "--json")
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)["story"]["steps"]
    assert ("agent_message", "reviewer", "writer", "revision") in {
        (step["type"], step["from"], step["to"], step["phase"]) for step in steps
    }
    texts = [text for text, _, _ in cited((tmp_path / "brief.md").read_text())]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize(
    ("make", "says", "code"),
    [
        (None, "no such file", 1),
        (b"", "empty", 1),
        (b"\xff\xfe\x00bad", "UTF-8", 1),
        (b"Nothing here speaks of that at all.", "no passage", 1),
    ],
)
def test_sources_that_cannot_be_used(
    make: bytes | None, says: str, code: int, environment: dict[str, str], tmp_path: Path
) -> None:
    """Missing, empty, not UTF-8, nothing relevant: one clear line and exit code 1."""
    if make is not None:
        (tmp_path / "one.md").write_bytes(make)
    done = run_brief(environment, tmp_path, "one.md", goal="quantum chromodynamics lattice")
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "brief.md").exists()


def begin(environment: dict[str, str], documents: Path, out: Path) -> subprocess.Popen[str]:
    """A brief that uses only agents that run elsewhere."""
    return subprocess.Popen(
        [sys.executable, "-m", "agents", "brief", GOAL, ".", "--out", str(out), "--remote"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=documents,
    )  # fmt: skip


@pytest.mark.timeout(120)
def test_replicas_killed_in_the_middle(
    environment: dict[str, str], documents: Path, tmp_path: Path, start: Start, expected: str
) -> None:
    """Several replicas in processes of their own, one writer and one reviewer killed: the same brief, once."""
    out = tmp_path / "brief.md"
    replicas = {}
    for name, count in (("planner", 1), ("writer", 2), ("reviewer", 2)):
        for number in range(count):
            replicas[name, number] = start("bus", "run", f"agents.{name}:{name}", until=f"running {name}", cwd=ROOT)
    client = begin(environment, documents, out)
    try:
        assert client.stdout is not None
        for phase, victim in (("execute", ("writer", 0)), ("review", ("reviewer", 0))):
            while not (line := client.stdout.readline()).startswith(phase):
                assert line, "the brief ended before its middle"
            replicas[victim].send_signal(signal.SIGKILL)
        shown, errors = client.communicate(timeout=60)
    finally:
        client.kill()
        client.communicate()
    assert client.returncode == 0, errors
    assert out.read_text("utf-8") == expected
    assert shown.count("brief_ready") == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_broker_restarts_in_the_middle(
    number: signal.Signals,
    environment: dict[str, str],
    documents: Path,
    tmp_path: Path,
    server: NatsServer,
    start: Start,
    expected: str,
) -> None:
    out = tmp_path / "brief.md"
    for name in ("planner", "writer", "reviewer"):
        start("bus", "run", f"agents.{name}:{name}", until=f"running {name}", cwd=ROOT)
    client = begin(environment, documents, out)
    try:
        assert client.stdout is not None
        first = client.stdout.readline()
        assert "plan" in first
        server.stop(number)
        time.sleep(0.5)
        server.start()
        _, errors = client.communicate(timeout=90)
    finally:
        client.kill()
        client.communicate()
    assert client.returncode == 0, errors
    assert out.read_text("utf-8") == expected

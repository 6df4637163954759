"""One example for each payload of the example workflow; they stand in the contracts, and a test validates them."""

from __future__ import annotations

from typing import Any, Final

_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_GOAL = "How does the harbour keep ships safe in fog?"
_QUOTE = {"file": "harbour/fog.md", "line": 12, "text": "The fog horn warns ships of the northern reef."}
_THEME = {
    "index": 0,
    "question": "What warns ships in fog?",
    "keywords": ["fog", "horn", "reef"],
    "candidates": [{**_QUOTE, "score": 1.0, "order": 4, "leans": False, "heading": "Signals"}],
}

PLAN_REQUEST: Final[dict[str, Any]] = {
    "goal": _GOAL,
    "sections": 4,
    "rounds": 2,
    "sources": [{"file": "harbour/fog.md", "sha256": _SHA256, "size_bytes": 2048}],
}
DRAFT_REQUEST: Final[dict[str, Any]] = {"theme": _THEME}
REVIEW_REQUEST: Final[dict[str, Any]] = {"index": 0, "round": 0, "sentences": [_QUOTE], "is_exhausted": True}
AGENT_MESSAGE: Final[dict[str, Any]] = {
    "reason": "too_short",
    "index": 0,
    "round": 1,
    "problems": [{"reason": "too_short", "quote": None, "other_index": None, "detail": "1 of at least 3 sentences"}],
    "sentences": [_QUOTE],
    "avoid": [],
    "theme": _THEME,
}
BRIEF_READY: Final[dict[str, Any]] = {
    "goal": _GOAL,
    "artifact": {"name": "brief.md", "sha256": _SHA256, "size_bytes": 512, "media_type": "text/markdown"},
    "sections": [{"question": "What warns ships in fog?", "sentences": 1, "revisions": 1, "remarks": []}],
    "sources": 1,
    "sections_with_remarks": 0,
}
BRIEF_FAILED: Final[dict[str, Any]] = {
    "reason": "no_relevant_passage",
    "message": "no passage in 1 source speaks about the question; name other sources",
}

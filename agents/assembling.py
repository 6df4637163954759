"""The finished brief as Markdown. No ids and no times: the same sections give the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agents.reviewing import Accepted
from schemas.brief import Plan


def assemble(plan: Plan, sections: Sequence[Accepted]) -> bytes:
    """Title, sections with one sentence and its `[file:line]` a line, remarks, and the list of sources."""
    lines = [f"# {' '.join(plan.goal.split())}", ""]
    for theme, section in zip(plan.themes, sections, strict=True):
        lines += [f"## {theme.index + 1}. {' '.join(theme.question.split())}", ""]
        if section.sentences:
            lines += [f"{quote.text} [{quote.file}:{quote.line}]" for quote in section.sentences]
            lines.append("")
        for remark in section.remarks:
            lines += [f"> Remark: {' '.join(remark.split())}", ""]
    cited = Counter(quote.file for section in sections for quote in section.sentences)
    lines += ["## Sources", ""]
    for source in plan.sources:
        if count := cited[source.file]:
            lines.append(f"- {source.file} ({count} sentence{'s' if count > 1 else ''})")
    others = [source.file for source in plan.sources if not cited[source.file]]
    if others:
        lines += ["", f"Read, but not cited: {', '.join(others)}"]
    return ("\n".join(lines) + "\n").encode()

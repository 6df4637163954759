"""Requests made of arguments (REG-11, SEC-7)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import Rejected
from bus.gateway.http_service import HttpRequest, composed, retry_after_ms, shown_url
from bus.gateway.template import Template


def template(text: str) -> Template:
    return Template.parse(text, {"KEY": "sesame"})


def request(method: str = "GET", url: str = "http://h/a/{x}", **fields: Any) -> HttpRequest:
    for name in ("query", "headers"):
        fields[name] = {key: template(text) for key, text in fields.get(name, {}).items()}
    if isinstance(fields.get("body"), dict):
        fields["body"] = {key: template(text) for key, text in fields["body"].items()}
    return HttpRequest(method, template(url), **fields)


@pytest.mark.parametrize(
    ("made", "arguments", "url", "body"),
    [
        (request(), {"x": "a b/c?d#e", "y": 1, "z": [1, "q"], "n": None},
         "http://h/a/a%20b%2Fc%3Fd%23e?y=1&z=1&z=q", b""),
        (request("POST"), {"x": 1, "y": {"z": 2}}, "http://h/a/1", b'{"y":{"z":2}}'),
        (request("POST", body="form"), {"x": 1, "y": "a&b", "l": [1, 2]}, "http://h/a/1", b"y=a%26b&l=1&l=2"),
        (request("POST", body="none"), {"x": 1, "y": 2}, "http://h/a/1?y=2", b""),
        (request("PUT", body={"id": "{x}", "say": "hi {y}", "no": "{n}"}), {"x": 1, "y": 2, "q": 3}, "http://h/a/1?q=3",
         b'{"id":1,"say":"hi 2"}'),
        (request(query={"u": "{y}", "list": "{z}", "key": "${KEY}"}), {"x": 1, "y": True, "z": ["a", "b"]},
         "http://h/a/1?u=true&list=a&list=b&key=sesame", b""),
        (request(url="http://h/a?fixed=1&q={x}"), {"x": "a&b=c"}, "http://h/a?fixed=1&q=a%26b%3Dc", b""),
        (request(url="http://h/a?fixed=1"), {"y": 2}, "http://h/a?fixed=1&y=2", b""),
    ],
)  # fmt: skip
def test_where_arguments_go(made: HttpRequest, arguments: dict[str, Any], url: str, body: bytes) -> None:
    """REG-11."""
    sent = httpx.Client().build_request(**composed(made, arguments))
    assert (str(sent.url), sent.content) == (url, body)


@given(st.text(min_size=1))
def test_no_argument_leaves_its_place_in_the_path(text: str) -> None:
    """SEC-7: no other path, host, query or fragment."""
    try:
        sent = httpx.Client().build_request(**composed(request(url="http://h/a/{x}/end"), {"x": text}))
    except Rejected:
        return
    assert (sent.url.host, sent.url.query, sent.url.fragment) == ("h", b"", "")
    assert sent.url.raw_path.startswith(b"/a/")
    assert sent.url.raw_path.endswith(b"/end")
    assert sent.url.raw_path.count(b"/") == 3


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_dots_and_nothing_are_no_part_of_a_path(value: str) -> None:
    """SEC-7."""
    with pytest.raises(Rejected, match=r"arguments\.x"):
        composed(request(), {"x": value})


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "ü", "\0"])
def test_no_argument_adds_a_header(value: str) -> None:
    """SEC-7."""
    with pytest.raises(Rejected, match=r"arguments\.y"):
        composed(request(headers={"X-Who": "{y}"}), {"x": 1, "y": value})


def test_retry_after_in_both_forms() -> None:
    """REG-11."""
    assert retry_after_ms("3") == 3000
    assert retry_after_ms("9" * 400) == 86_400_000
    soon = retry_after_ms(format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))
    assert soon is not None
    assert 50_000 < soon <= 60_000
    assert retry_after_ms("Sun, 06 Nov 1994 08:49:37 GMT") == 0
    assert [retry_after_ms(one) for one in (None, "", "soon", "-1")] == [None] * 4


def test_what_a_message_shows_of_a_url() -> None:
    """EDGE-6: keys stand in queries."""
    assert shown_url("https://me:pw@h:8443/a?key=sesame#x") == "https://h:8443/a"

"""Log lines are valid JSON whatever is in them, and show no secrets (OBS-5)."""

from __future__ import annotations

import io
import logging
import sys
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.telemetry.logs import LineFormatter, LineHandler
from bus.telemetry.redaction import HIDDEN, Redaction


class Silent:
    """Cannot even tell what it is."""

    def __str__(self) -> str:
        raise KeyError("no")

    __repr__ = __str__


class Odd(Exception):
    """An exception of somebody's own."""


class Hostile:
    """Raises what nobody expects."""

    def __str__(self) -> str:
        raise Odd("no")

    __repr__ = __str__


def written(message: Any, *args: Any, as_json: bool = True, redaction: Redaction | None = None, **options: Any) -> str:
    stream = io.StringIO()
    handler = LineHandler(stream)
    handler.setFormatter(LineFormatter(as_json=as_json, redaction=redaction or Redaction()))
    logger = logging.Logger("mine")
    logger.addHandler(handler)
    logger.info(message, *args, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    "value",
    [
        "\ud800", "a\nb", "\0\x1b[31m", {1: {2: object()}}, float("nan"), float("inf"), b"\xff", Silent(), Hostile(),
        {"\ud800": "\udfff"}, {"a", "b"}, 10**40, Odd("x"),
    ],
)  # fmt: skip
def test_a_line_is_one_json_object(value: Any) -> None:
    for line in (written("%s", value), written("x", extra={"value": value})):
        assert line.count("\n") == 1
        assert orjson.loads(line.replace(str(10**40), "1"))["logger"] == "mine"


@given(
    st.recursive(st.none() | st.floats() | st.text(st.characters()), lambda inner: st.dictionaries(st.text(), inner))
)
def test_any_value_makes_valid_json(value: Any) -> None:
    assert "value" in orjson.loads(written("%s", value, extra={"value": value}))


def test_what_does_not_fit_is_told_all_the_same() -> None:
    assert orjson.loads(written("%d of %d", "one"))["message"] == "%d of %d one"
    circle: list[Any] = []
    circle += [circle, circle]
    assert orjson.loads(written("x", extra={"circle": circle}))["message"] == "x"


def test_fields_cannot_pass_for_the_line_itself() -> None:
    line = orjson.loads(written("x", extra={"time": "never", "level": "calm", "count": 3}))
    assert (line["level"], line["level_"], line["time_"], line["count"]) == ("info", "calm", "never", 3)


def test_a_text_cannot_pass_for_a_line_on_a_console() -> None:
    first, *more = written("a\n2026-01-01 INFO bus: forged \x1b[2J", as_json=False).splitlines()
    assert first.endswith("mine: a")
    assert [line[:4] for line in more] == ["    "]
    assert "\x1b" not in more[0]


SECRETS = {
    "password=hunter2": "hunter2",
    '{"api_key": "a\\"bc"}': "bc",
    "Authorization: Bearer abc.def-ghi": "abc.def",
    "to nats://user:pa55@host:4222": "pa55",
    "key sk-abcdefghijklmnop1234": "abcdefgh",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----": "MIIE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc": "eyJ",
    "message: client_secret='x y z'": "y z",
    "to nats://t0ken@host:4222 failed": "t0ken",
    "-----BEGIN USER NKEY SEED-----\nSUAEL6GG2L2HIF7DUGZJGMRUFKXELGGYFMHF76UO2AYBG3K4YLWR3FKC2Q\n": "SUAEL6GG",
    "pwd=hunter2": "hunter2",
    "token=482913": "482913",
    "Authorization: Token s3cr3t": "s3cr3t",
    "x-auth-token: Bearer s3": "s3",
    "Set-Cookie: theme=dark; session=s3cr3t; Path=/": "s3cr3t",
    "passwords: ['one', 's3cr3t']": "s3cr3t",
    '{"credentials": {"user": "ada", "deep": ["s3}cr3t", "s3cr3t"]}}': "cr3t",
    '"{\\"secret\\": [\\"a]b\\", \\"s3cr3t\\"]}"': "s3cr3t",
    "token=(1, 's3cr3t'": "s3cr3t",
}


@pytest.mark.parametrize(("text", "secret"), SECRETS.items())
def test_secrets_in_texts_values_and_tracebacks_are_hidden(text: str, secret: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        trace = sys.exc_info()
    for as_json in (True, False):
        line = written("failed: %s", text, as_json=as_json, extra={"inner": [{"note": text}]}, exc_info=trace)
        # The source line of the traceback has only the name of the variable.
        assert secret not in line
        assert HIDDEN in line


def test_names_of_fields_decide_at_any_depth() -> None:
    given = {
        "headers": {"X-Api-Key": "one", "Cookie": ["two"]}, "usage": {"max_tokens": 5, "tokens": 7},
        "list": [{"accessToken": {"deep": "three"}}], "iban": "four", "patient_name": "five", "ibanx": "shown",
    }  # fmt: skip
    line = orjson.loads(written("x", extra=given, redaction=Redaction(["iban", "patient_*"])))
    assert line["headers"] == {"X-Api-Key": HIDDEN, "Cookie": HIDDEN}
    assert line["usage"] == {"max_tokens": 5, "tokens": 7}
    assert line["list"] == [{"accessToken": HIDDEN}]
    assert (line["iban"], line["patient_name"], line["ibanx"]) == (HIDDEN, HIDDEN, "shown")


def test_counts_of_tokens_are_no_secrets() -> None:
    """A model's usage is what one looks for in a log."""
    usage = {
        "prompt_tokens": 12,
        "completion_tokens": 3,
        "token_count": 15,
        "token_usage": {"a": 1},
        "secretary": "Ada",
    }
    line = orjson.loads(written("used prompt_tokens=12, token_limit: 9", extra={"usage": usage, "token": 482913}))
    assert line["usage"] == usage
    assert line["message"] == "used prompt_tokens=12, token_limit: 9"
    assert line["token"] == HIDDEN
    hidden = orjson.loads(written("x", extra=usage, redaction=Redaction(["prompt_tokens"])))
    assert hidden["prompt_tokens"] == HIDDEN


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "password=[",
        "cookie: ",
        "token=('",
        "password",
        "password=",
        "-eyJaaaaaaaa",
        "://a:",
        "://",
        "SUAEL6GG",
        "a ",
        '\\"',
        "sk-",
        "bearer ",
    ],
)
def test_no_text_makes_it_slow(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    started = time.thread_time()
    Redaction().text(text)
    assert time.thread_time() - started < 2

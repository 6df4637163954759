"""Budgets: what a chain of messages and calls may use up, inherited down the chain (WF-6).

Here is what an envelope alone can say: deadline, hops, who inherits what. What is counted over all replicas (calls,
messages, tokens) is in `accounts.py`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bus.envelope import Envelope, timestamps
from bus.errors import error
from bus.trust.delegation import ON_BEHALF_OF, chain_of, lengthened

Extensions = dict[str, Any]
UNITS = ("calls", "messages", "tokens")
PATH_KEPT = 128
MAX_WITHIN = 16
# What a sender cannot choose, because the bus counts it.
_STAMPED = ("hops", "path", "branch", "course")
_PASSED_ON = ("branch", "labels", "recorded")
COURSE = "course"
"""The extension of calls that names the message in whose course they are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a chain may use up: seconds, hops, and in all its branches together calls, messages, and model tokens.

    None is no limit. A budget given on the way is a share: it narrows what was inherited, and what it uses counts for
    the budgets above it too.
    """

    timeout_s: float | None = None
    hops: int | None = None
    calls: int | None = None
    messages: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("timeout_s", "hops", *UNITS):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}, a budget is 0 or more")

    @property
    def limits(self) -> dict[str, int]:
        """The limits of what is counted over all replicas."""
        return {unit: value for unit in UNITS if (value := getattr(self, unit)) is not None}

    def to_wire(self) -> dict[str, Any]:
        """The extension `budget`; the deadline counts from now."""
        limits: dict[str, Any] = dict(self.limits)
        if self.hops is not None:
            limits["hops"] = self.hops
        if self.timeout_s is not None:
            limits["deadline_at"] = (datetime.now(UTC) + timedelta(seconds=self.timeout_s)).isoformat()
        return limits


@dataclass(frozen=True, slots=True)
class Account:
    """Where the costs of a chain are counted: the limits of its own account, and the accounts above it."""

    name: str
    limits: Mapping[str, int]
    within: tuple[str, ...]


def check(
    envelope: Envelope, *, max_hops: int, max_visits: int | None = None, now: datetime | None = None
) -> float | None:
    """Refuses what is too late or has come too far; the seconds until the deadline of its budget, None without one.

    Raises Rejected: `protocol.expired` after `expires_at` or the inherited `budget.deadline_at`, `protocol.loop`
    beyond `max_hops` or the `hops` of its budget, or when the receiver is on the path `max_visits` times already.
    """
    extensions = envelope.extensions
    if not extensions:
        return None
    left_s = None
    budget = extensions.get("budget") or {}
    expires_at, deadline_at = extensions.get("expires_at"), budget.get("deadline_at")
    if expires_at is not None or deadline_at is not None:
        now_s = time.time() if now is None else now.timestamp()
        for path, moment in (("extensions.expires_at", expires_at), ("extensions.budget.deadline_at", deadline_at)):
            if moment is not None and (left_s := timestamps.epoch_s(moment) - now_s) <= 0:
                raise error("protocol.expired", f"{path} was {moment}; it is too late to handle this", path=path)
    limit = max_hops if "hops" not in budget else min(max_hops, int(budget["hops"]))
    if (hops := extensions.get("hops", 0)) > limit:
        raise error(
            "protocol.loop",
            f"the message has come {hops} hops, over the limit of {limit}; agents are sending in a circle: "
            f"{' > '.join(extensions.get('path', [])[-6:])}",
            hops=hops,
            limit=limit,
        )
    if max_visits is not None and (visits := extensions.get("path", []).count(envelope.to)) >= max_visits:
        raise error(
            "protocol.loop",
            f"the chain has passed {envelope.to} {visits} times, its limit is {max_visits}: "
            f"{' > '.join(extensions['path'][-6:])}",
            visits=visits,
            limit=max_visits,
        )
    return None if deadline_at is None else left_s


def time_left_s(envelope: Envelope) -> float | None:
    """Seconds until the deadline of its budget, 0 when that has passed; None without one."""
    deadline_at = (envelope.extensions.get("budget") or {}).get("deadline_at")
    return None if deadline_at is None else max(0.0, timestamps.epoch_s(deadline_at) - time.time())


def account_of(envelope: Envelope) -> Account | None:
    """The account that pays for what this message causes; None when nothing is counted.

    A budget without a name opens the account of its message.
    """
    budget = envelope.extensions.get("budget")
    if not budget:
        return None
    limits = {unit: int(budget[unit]) for unit in UNITS if unit in budget}
    within = tuple(budget.get("within", ()))
    if not limits and not within:
        return None
    return Account(budget.get("account") or own_account(envelope.sender, envelope.message_id), limits, within)


def own_account(sender: str, message_id: str) -> str:
    """The name of the account that a message opens by its own budget."""
    return hashlib.sha256(f"{sender}\0{message_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def inherit(parent: Envelope, agent: str, given: Mapping[str, Any] | None = None) -> Extensions:
    """The extensions of a message sent while handling `parent`: one hop more, the path, budget, labels, and `given`.

    Of what is `given`, `hops`, `path` and `branch` are passed over, because the bus sets them; a `budget` becomes a
    share of the inherited one, and `labels` and `on_behalf_of` come to those that are there. Raises
    `protocol.malformed` for shares of shares nested more than 16 deep.
    """
    above = parent.extensions
    inherited: Extensions = {
        # A call stands in no history: what it sends was caused by the message in whose course it was made.
        "causation_id": above.get(COURSE, parent.message_id),
        "correlation_id": above.get("correlation_id", parent.message_id),
        "hops": parent.hops + 1,
        "path": [*above.get("path", []), agent][-PATH_KEPT:],
        ON_BEHALF_OF: chain_of(parent),
    }
    if "budget" in above:
        inherited["budget"] = _passed_on(parent)
    for name in _PASSED_ON:
        if name in above:
            inherited[name] = above[name]
    if given:
        own = {name: value for name, value in given.items() if name not in _STAMPED}
        if "budget" in own and "budget" in inherited:
            own["budget"] = share(inherited["budget"], own["budget"])
        if "labels" in own and "labels" in inherited:
            own["labels"] = list(dict.fromkeys([*inherited["labels"], *own["labels"]]))
        if ON_BEHALF_OF in own:
            own[ON_BEHALF_OF] = lengthened(inherited[ON_BEHALF_OF], own[ON_BEHALF_OF])
        inherited |= own
    return inherited


def _passed_on(parent: Envelope) -> Any:
    budget = parent.extensions["budget"]
    account = account_of(parent)
    if account is None or "account" in budget:
        return budget
    return {**budget, "account": account.name}


def share(inherited: Mapping[str, Any], given: Any) -> Any:
    """`given` within what is inherited: nothing later, nothing more."""
    if not isinstance(given, Mapping):
        return given  # The envelope refuses it by name.
    share = {name: value for name, value in given.items() if name not in ("account", "within")}
    for name, earlier in (("hops", _lower), ("deadline_at", _earlier)):
        if name in inherited:
            share[name] = earlier(share[name], inherited[name]) if name in share else inherited[name]
    if not any(unit in share for unit in UNITS):
        return {**inherited, **share}
    within = [inherited["account"], *inherited.get("within", ())] if "account" in inherited else []
    if len(within) > MAX_WITHIN:
        raise error(
            "protocol.malformed", f"budgets are nested more than {MAX_WITHIN} deep", path="extensions.budget.within"
        )
    return {**share, "within": within} if within else share


def _lower(one: Any, other: Any) -> Any:
    return min(one, other) if isinstance(one, int | float) else one


def _earlier(one: Any, other: Any) -> Any:
    if isinstance(one, str) and timestamps.is_timestamp(one):
        return min(one, other, key=timestamps.instant)
    return one

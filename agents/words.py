# ruff: noqa: RUF001 - Chinese characters are meant
"""Turns text into tokens to compare by: stems of words, and characters where no space divides the words.

English words are lower-cased and lose their common endings, so that `retries` meets `retry`. Chinese and
Japanese have no spaces; pairs of neighbouring characters stand in for words (most Chinese words have two),
and single characters help short queries. No dictionary, no model: the same tokens everywhere.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

UNSPACED_LETTERS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

_TOKEN = re.compile(rf"[{UNSPACED_LETTERS}]+|[^\W_{UNSPACED_LETTERS}]+(?:'[a-z]{{1,2}}\b)?")
_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}]")
_ADDRESS = re.compile(r"(?:https?|ftp|file)://\S+|\]\([^)\s]*\)")
_VOWEL = re.compile(r"[aeiouy]")

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about above after again all almost along already also although always am among an and "
        "another any are around as at away back be became because become been before behind being "
        "below between both but by can cannot come could did do does doing done down during each "
        "either else enough etc even ever every few first for from further get gets give given go "
        "goes had has have having he her here hers him his how however i if in into is it its itself "
        "just keep kind last least less let like made make makes making many may me might mine more "
        "most much must my near neither never no none nor not nothing now of off often on once one "
        "only onto or other others our ours out over own per perhaps please put quite rather really "
        "said same say says see seen several shall she should since so some something soon still such "
        "sure take takes than that the their theirs them then there therefore these they thing things "
        "this those though through thus to together too toward two under until up upon us use used "
        "uses using very via want wants was way we well were what whatever when where whether which "
        "while who whole whom whose why will with within without would yes yet you your yours d ll m "
        "re s t ve don doesn didn isn aren wasn won",
    )
)
# Characters that only bind others together; a pair with one of them is no word.
_FUNCTION_CHARS = frozenset("的了是在和与及或也就都而着吗呢吧啊么之于以其这那哪你我他她它们个很把被让从对")
# Words made of other characters that carry as little.
_FUNCTION_WORDS = re.compile(
    "为什么|怎么样|如何|怎么|怎样|什么|是否|可以|以及|通过|进行|其中|"
    "一个|没有|不是|就是|因此|所以|但是|如果|因为|由于|并且|或者|"
    "已经|需要|应该|能够|必须|关于|根据|这样|那样|例如|比如|同时|"
    "另外|此外|然后|对于|还是|只有|只要|不会|不能"
)
_IRREGULAR: dict[str, str] = dict(
    re.findall(
        r"(\w+):(\w+)",
        "lost:lose loss:lose losses:lose losing:lose sent:send kept:keep written:write wrote:write "
        "ran:run found:find built:build held:hold chosen:choose chose:choose broken:break broke:break "
        "begun:begin began:begin spent:spend read:read led:lead left:leave met:meet paid:pay "
        "sought:seek taught:teach thought:think understood:understand drawn:draw driven:drive "
        "drove:drive fallen:fall fell:fall grown:grow grew:grow hidden:hide known:know knew:know "
        "rewritten:rewrite shown:show spoken:speak spoke:speak stolen:steal stood:stand taken:take "
        "thrown:throw threw:throw won:win worn:wear children:child people:person men:man women:woman "
        "data:data indices:index indexes:index vertices:vertex matrices:matrix analyses:analysis "
        "series:series process:process processes:process access:access dying:die died:die",
    )
)


def is_unspaced(text: str) -> bool:
    """Whether most letters of `text` belong to a script written without spaces."""
    unspaced = len(_UNSPACED.findall(text))
    letters = sum(char.isalpha() for char in text)
    # One such character carries about as much as a third of a word.
    return unspaced * 3 > letters - unspaced


def surface(text: str) -> Iterator[str]:
    """Words and unspaced runs as they are written, normalised by width only, without addresses."""
    plain = _ADDRESS.sub(" ", text)
    if not plain.isascii():
        plain = unicodedata.normalize("NFKC", plain).replace("’", "'")
    for match in _TOKEN.finditer(plain):
        yield match.group().partition("'")[0]


def tokens(text: str) -> list[str]:
    """All tokens that carry meaning, in the order of the text, with repetitions."""
    found: list[str] = []
    for word in surface(text):
        if _UNSPACED.match(word):
            found += _characters(word)
        else:
            token = stem(word.casefold())
            if token:
                found.append(token)
    return found


def pairs_only(found: Iterable[str]) -> list[str]:
    """Leaves out single unspaced characters: too common to tell one theme from another."""
    return [token for token in found if len(token) > 1 or not _UNSPACED.match(token)]


def _characters(run: str) -> Iterator[str]:
    for part in _FUNCTION_WORDS.split(run):
        for index, char in enumerate(part):
            if char in _FUNCTION_CHARS:
                continue
            yield char
            if index + 1 < len(part) and part[index + 1] not in _FUNCTION_CHARS:
                yield part[index : index + 2]


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The stem of a lower-case word; empty when the word carries no meaning."""
    if word in STOP_WORDS or (len(word) == 1 and not word.isdigit()):
        return ""
    if word in _IRREGULAR:
        return _strip_e(_IRREGULAR[word])
    if len(word) <= 3 or not word.isascii() or not word.isalpha():
        return word
    return _strip_e(_without_ending(_singular(word)))


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zzes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _without_ending(word: str) -> str:
    if word.endswith("ied") and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and _VOWEL.search(rest):
            doubled = rest[-1] == rest[-2] and rest[-1] not in "lsz"
            return rest[:-1] if doubled else rest
    if word.endswith("tion") and len(word) > 7:
        return word[:-3]
    if word.endswith("ery") and len(word) > 5:
        return word[:-1]
    return word


def _strip_e(word: str) -> str:
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


def overlap(left: frozenset[str], right: frozenset[str]) -> float:
    """Jaccard similarity of two sets of tokens, 0 to 1; two empty ones have nothing in common."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared) if shared else 0.0

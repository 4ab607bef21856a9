"""The scripts that a row is written in."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from functools import lru_cache

from finery.data.clean.texts import texts
from finery.data.dataset import Row
from finery.data.records import Reject
from finery.schemas.clean import ScriptStep

_RANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "latin": (
        (0x41, 0x5A), (0x61, 0x7A), (0xAA, 0xAA), (0xBA, 0xBA), (0xC0, 0x24F), (0x250, 0x2AF), (0x2B0, 0x2B8),
        (0x2E0, 0x2E4), (0x1D00, 0x1D25), (0x1D2C, 0x1D5C), (0x1D62, 0x1D65), (0x1D6B, 0x1D77), (0x1D79, 0x1DBE),
        (0x1E00, 0x1EFF), (0x2071, 0x2071), (0x207F, 0x207F), (0x2090, 0x209C), (0x212A, 0x212B), (0x2184, 0x2184),
        (0x2C60, 0x2C7F), (0xA722, 0xA787), (0xA78B, 0xA7FF), (0xAB30, 0xAB5A), (0xAB5C, 0xAB64), (0xAB66, 0xAB69),
        (0xFB00, 0xFB06), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0x1DF00, 0x1DF2A),
    ),
    "han": ((0x3005, 0x3007), (0x303B, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
            (0x20000, 0x3FFFF)),
    "kana": ((0x3031, 0x3035), (0x3041, 0x3096), (0x309D, 0x309F), (0x30A1, 0x30FA), (0x30FC, 0x30FF), (0x31F0, 0x31FF),
             (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F)),
    "hangul": ((0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97C), (0xAC00, 0xD7FF), (0xFFA0, 0xFFDC)),
    "cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8A), (0x1D2B, 0x1D2B), (0x1D78, 0x1D78), (0xA640, 0xA69D),
                 (0x1E030, 0x1E06D)),
    "greek": ((0x370, 0x373), (0x376, 0x377), (0x37A, 0x37D), (0x37F, 0x37F), (0x386, 0x386), (0x388, 0x3E1),
              (0x3F0, 0x3FF), (0x1D26, 0x1D2A), (0x1D5D, 0x1D61), (0x1D66, 0x1D6A), (0x1DBF, 0x1DBF), (0x1F00, 0x1FFF),
              (0x2126, 0x2126), (0xAB65, 0xAB65)),
    "arabic": ((0x620, 0x63F), (0x641, 0x6FF), (0x750, 0x77F), (0x870, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC),
               (0x10EC2, 0x10EC4)),
    "hebrew": ((0x5D0, 0x5F2), (0xFB1D, 0xFB4F)),
    "devanagari": ((0x904, 0x97F), (0xA8F2, 0xA8FE)),
    "thai": ((0xE01, 0xE46),),
    # letters by category only, of no script (Unicode's Common): they belong to all
    "": ((0xB5, 0xB5), (0x2B9, 0x2DF), (0x2E5, 0x2EE), (0x374, 0x374), (0x640, 0x640), (0x2100, 0x2125),
         (0x2127, 0x2129), (0x212C, 0x214F), (0xA788, 0xA78A), (0x1D400, 0x1D7FF), (0x1EE00, 0x1EEFF)),
}  # fmt: skip
"""Script to the code points of its letters (first and last), after Unicode's Scripts.txt; a test holds it to the
characters' names. Code points that are no letters may stand in a range: only letters are looked up."""

_STARTS, _ENDS, _NAMES = zip(
    *sorted((first, last, name) for name, ranges in _RANGES.items() for first, last in ranges), strict=True
)


@lru_cache(maxsize=1 << 17)
def script_of(character: str) -> str | None:
    """A letter's script; None for letters of scripts that the schema does not name, empty for what belongs to all."""
    if not character.isalpha():
        return ""
    at = bisect_right(_STARTS, ord(character)) - 1
    return _NAMES[at] if at >= 0 and ord(character) <= _ENDS[at] else None


class Script:
    """Drops a row when the letters of the scripts named are less than `min_share` of its letters."""

    def __init__(self, name: str, config: ScriptStep) -> None:
        self.name, self._allow, self._least = name, frozenset(config.allow), config.min_share
        self._latin = "latin" in self._allow

    def __call__(self, row: Row) -> Row:
        said = [text for _, _, text in texts(row)]
        if self._latin and all(map(str.isascii, said)):
            return row
        right, wrong = 0, Counter[str]()
        for character, count in Counter("".join(said)).items():
            script = script_of(character)
            if script in self._allow:
                right += count
            elif script != "":
                wrong[script or "other scripts"] += count
        letters = right + wrong.total()
        if letters and right / letters < self._least:
            most = sorted(wrong.items(), key=lambda item: (-item[1], item[0]))[0][0]
            raise Reject(
                "", self.name, f"{right / letters:.0%} of its letters are of the scripts named, most others {most}"
            )
        return row

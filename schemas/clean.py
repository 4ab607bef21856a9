"""`clean:` of a data stage: steps that mend or drop rows, each named, optional and counted."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import Model, refuse


class UnicodeStep(Model):
    kind: Literal["unicode"]
    """Unicode normalisation."""
    form: Literal["NFC", "NFKC"] = "NFC"
    """`NFC` joins letters and marks; `NFKC` also folds compatibility characters (full-width letters, ligatures, superscripts), which changes mathematics: x² becomes x2."""
    fold_width: bool = False
    """Fold full-width letters, digits, punctuation (U+FF01 to U+FF5E) and the full-width space to their plain forms, and nothing else. Chinese text loses its own punctuation by it: `，` becomes `,`."""


class CharactersStep(Model):
    kind: Literal["characters"]
    """Damaged characters, by ftfy: control characters and terminal escapes go, halves of surrogate pairs are joined or become U+FFFD, mojibake is mended; nothing else is touched. Tabs, newlines and form feeds stay."""
    fix_encoding: bool = True
    """Mend text that was decoded with a wrong encoding (`cafÃ©`); ftfy is careful, but text about mojibake is mended too."""
    replacement: Literal["drop", "remove", "keep"] = "drop"
    """Text that holds U+FFFD has lost something: drop the row, remove the character, or keep it."""


class WhitespaceStep(Model):
    kind: Literal["whitespace"]
    """One kind of newline and of space: CRLF, CR, U+2028, U+2029 and U+0085 become newlines; the spaces of Unicode become plain ones; zero-width spaces (U+200B, U+2060, U+FEFF) go; spaces at line ends and newlines at both ends of a text go. Where a text prompt ends and its completion begins nothing is taken away: the two are one text."""
    collapse: bool = False
    """Also make runs of spaces and tabs one space and runs of empty lines one; leave it off for code."""


class LengthStep(Model):
    kind: Literal["length"]
    """Limits of length. The answer is kept whole: a conversation that is too long loses its oldest exchanges first, never its system message nor its last user turn and what follows it; what is still too long, and a text that is, is dropped."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The most tokens of a row, as the stage's tokenizer counts them, chat template included."""
    min_tokens: Annotated[int, Field(ge=1)] | None = None
    """The least."""
    max_characters: Annotated[int, Field(ge=1)] | None = None
    """The most characters of prompt and completion together (of all messages in a conversation)."""
    min_characters: Annotated[int, Field(ge=1)] | None = None
    """The least characters of the completion (of the assistant's words in a conversation); rows without one pass."""

    @model_validator(mode="after")
    def _check(self) -> LengthStep:
        if not self.model_fields_set & {"max_tokens", "min_tokens", "max_characters", "min_characters"}:
            raise refuse("needs a limit: max_tokens, min_tokens, max_characters or min_characters")
        for unit in ("tokens", "characters"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least is not None and most is not None and least > most:
                raise refuse("{least} is above max_{unit} ({most}); no row can be both", field=f"min_{unit}", least=least, most=most, unit=unit)  # fmt: skip
        return self


class RepetitionStep(Model):
    kind: Literal["repetition"]
    """Drops rows whose completion (or one turn of the assistant's) repeats itself, by the shares of Gopher's filters (arXiv 2112.11446, table A1)."""
    line_share: Annotated[float, Field(gt=0, le=1)] = 0.3
    """The most that duplicate lines (those that came before) may be of all lines that are not empty."""
    ngram: Annotated[int, Field(ge=2)] = 10
    """Words in an n-gram; in scripts without spaces each character is a word."""
    ngram_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The most that characters within repeated n-grams may be of the characters of all words."""


class RefusalStep(Model):
    kind: Literal["refusal"]
    """Drops rows whose completion (or one turn of the assistant's) begins by refusing to answer, or by speaking of itself as a language model."""
    patterns: list[str] = []
    """Regular expressions beside the shipped ones (English and Chinese), searched without regard to case in the first 200 characters of the completion. One with a repeat within a repeat is searched in a guarded process, slower; if it takes longer than 5 s on a text the stage fails and names both."""
    shipped: bool = True
    """Use the shipped patterns."""

    @model_validator(mode="after")
    def _check(self) -> RefusalStep:
        if not self.patterns and not self.shipped:
            raise refuse("has nothing to look for: give `patterns`, or leave `shipped` on")
        for index, pattern in enumerate(self.patterns):
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise refuse("is no regular expression: {error}", field=f"patterns.{index}", error=str(error)) from None
        return self


class ScriptStep(Model):
    kind: Literal["script"]
    """Drops rows that are written in other scripts than those named."""
    allow: Annotated[
        list[Literal["latin", "han", "kana", "hangul", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "thai"]],
        Field(min_length=1),
    ]
    """The scripts; digits, punctuation and symbols belong to all. Japanese needs han and kana."""
    min_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """The least share of the letters of prompt and completion that they must make up; a row without letters passes."""


Step = Annotated[
    UnicodeStep | CharactersStep | WhitespaceStep | LengthStep | RepetitionStep | RefusalStep | ScriptStep,
    Field(discriminator="kind"),
]

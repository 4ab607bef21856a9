"""`clean:` of a data stage: steps that mend or drop rows, each named, optional and counted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from finery.schemas.base import Model, refuse


class UnicodeStep(Model):
    kind: Literal["unicode"]
    """Unicode normalisation."""
    form: Literal["NFC", "NFKC"] = "NFC"
    """`NFC` joins letters and marks; `NFKC` also folds compatibility characters (full-width letters, ligatures, superscripts), which changes mathematics: x² becomes x2."""
    fold_width: bool = False
    """Fold full-width letters, digits and punctuation to their plain forms, and nothing else."""


class CharactersStep(Model):
    kind: Literal["characters"]
    """Damaged characters, by ftfy: control characters go, mojibake is mended."""
    fix_encoding: bool = True
    """Mend text that was decoded with a wrong encoding (`cafÃ©`)."""
    replacement: Literal["drop", "remove", "keep"] = "drop"
    """Text that holds U+FFFD has lost something: drop the row, remove the character, or keep it."""


class WhitespaceStep(Model):
    kind: Literal["whitespace"]
    """One kind of newline and of space: CRLF, CR, U+2028, U+2029 and U+0085 become newlines; the spaces of Unicode become plain ones; zero-width spaces go; spaces at line ends and empty lines at both ends go."""
    collapse: bool = False
    """Also make runs of spaces one and runs of empty lines one; leave it off for code."""


class LengthStep(Model):
    kind: Literal["length"]
    """Limits of length. The answer is kept whole: a conversation that is too long loses its oldest turns first, never its last user turn; what is still too long is dropped."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The most tokens of a row, as the stage's tokenizer counts them, chat template included."""
    min_tokens: Annotated[int, Field(ge=1)] | None = None
    """The least."""
    max_characters: Annotated[int, Field(ge=1)] | None = None
    """The most characters of prompt and completion together."""
    min_characters: Annotated[int, Field(ge=1)] | None = None
    """The least characters of the completion (of the assistant's words in a conversation)."""

    @model_validator(mode="after")
    def _check(self) -> LengthStep:
        if not self.model_fields_set & {"max_tokens", "min_tokens", "max_characters", "min_characters"}:
            raise refuse("needs a limit: max_tokens, min_tokens, max_characters or min_characters")
        return self


class RepetitionStep(Model):
    kind: Literal["repetition"]
    """Drops rows whose completion repeats itself, by the shares of Gopher's filters (arXiv 2112.11446, table A1)."""
    line_share: Annotated[float, Field(gt=0, le=1)] = 0.3
    """The most that duplicate lines may be of all lines."""
    ngram: Annotated[int, Field(ge=2)] = 10
    """Words in an n-gram."""
    ngram_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The most that characters within repeated n-grams may be of all characters."""


class RefusalStep(Model):
    kind: Literal["refusal"]
    """Drops rows whose completion refuses to answer, or speaks of itself as a language model."""
    patterns: list[str] = []
    """Regular expressions beside the shipped ones (English and Chinese), searched without regard to case at the beginning of the completion."""
    shipped: bool = True
    """Use the shipped patterns."""


class ScriptStep(Model):
    kind: Literal["script"]
    """Drops rows that are written in other scripts than those named."""
    allow: Annotated[
        list[Literal["latin", "han", "kana", "hangul", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "thai"]],
        Field(min_length=1),
    ]
    """The scripts; digits, punctuation and symbols belong to all."""
    min_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """The least share of the row's letters that they must make up."""


Step = Annotated[
    UnicodeStep | CharactersStep | WhitespaceStep | LengthStep | RepetitionStep | RefusalStep | ScriptStep,
    Field(discriminator="kind"),
]

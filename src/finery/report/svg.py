"""SVG as text: one function that escapes, so that nothing a user wrote reaches the page as markup."""

from __future__ import annotations

from html import escape


class Markup(str):
    """Markup that is safe as it stands; jinja2's autoescape leaves it alone."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def tag(name: str, *children: str | float | None, **attributes: str | float | None) -> Markup:
    """An element; text and attribute values are escaped, None is left out, `class_` is class and `_` is `-`."""
    said = "".join(f' {_key(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None)
    inner = "".join(
        child if isinstance(child, Markup) else escape(_value(child, quote=False), quote=False)
        for child in children
        if child is not None
    )
    return Markup(f"<{name}{said}>{inner}</{name}>" if inner else f"<{name}{said}/>")


def drawing(width: float, height: float, label: str, *children: str | None, class_: str | None = None) -> Markup:
    """A whole drawing with a label for those who cannot see it."""
    return tag(
        "svg", *children, viewBox=f"0 0 {_value(width)} {_value(height)}", width=width, height=height,
        role="img", aria_label=label, class_=class_,
    )  # fmt: skip


def path(points: list[tuple[float, float]]) -> str:
    """The `d` of a line through the points."""
    return "".join(f"{'L' if index else 'M'}{_value(x)} {_value(y)}" for index, (x, y) in enumerate(points))


def _key(name: str) -> str:
    return {"class_": "class", "viewBox": "viewBox"}.get(name, name.rstrip("_").replace("_", "-"))


def _value(value: str | float, *, quote: bool = True) -> str:
    if isinstance(value, str):
        return escape(value) if quote else value
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

"""The schema seen from the data: which type stands at a path, which member of a union is meant, and its plain words."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from finery.language.nodes import Node
from finery.language.problems import Keys
from finery.schemas import base
from finery.schemas.reference import Ref, SecretMark

_SAYS_DURATION = get_args(base.Duration)[1]


@dataclass(frozen=True)
class Type:
    """One annotation, taken apart.

    Attributes:
        base: int, float, str, bool, list, dict, Literal, Union, Any or a Model class.
        args: the arguments of a list, dict or Literal; the members of a union, None left out.
        marks: what Annotated and Field say of it.
        tag: the discriminator of a union.
    """

    annotation: Any
    base: Any
    args: tuple[Any, ...] = ()
    marks: tuple[Any, ...] = ()
    optional: bool = False
    tag: str | None = None

    @property
    def model(self) -> type[BaseModel] | None:
        return self.base if isinstance(self.base, type) and issubclass(self.base, BaseModel) else None

    @property
    def ref(self) -> Ref | None:
        return next((mark for mark in self.marks if isinstance(mark, Ref)), None)

    @property
    def secret(self) -> bool:
        return any(isinstance(mark, SecretMark) for mark in self.marks)

    def members(self) -> list[Type]:
        return [type_of(arg) for arg in self.args] if self.base is Union else [self]

    def tagged(self) -> dict[str, Type]:
        """Tag to member, of a union with a discriminator."""
        return {
            str(get_args(member.model.model_fields[self.tag].annotation)[0]): member
            for member in self.members()
            if self.tag and member.model
        }

    def child(self, key: str | int) -> Type | None:
        """The type of what stands under a key of this map, model or list; None for a key that is not known."""
        if self.model:
            found = fields(self.model).get(str(key))
            return type_of(found.annotation, tuple(found.metadata), found.discriminator) if found else None
        if self.base is dict:
            return type_of(self.args[1])
        if self.base is list:
            return type_of(self.args[0])
        return type_of(Any) if self.base is Any else None


def fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """A model's fields by the name that YAML uses."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def type_of(annotation: Any, marks: tuple[Any, ...] = (), tag: Any = None) -> Type:
    whole = annotation
    if marks or tag:
        # a FieldInfo keeps what Annotated said apart; put together again, an adapter of it validates alike
        whole = Annotated[annotation, *marks] if marks else annotation
    while get_origin(annotation) is Annotated:
        annotation, *found = get_args(annotation)
        for mark in found:
            if isinstance(mark, FieldInfo):
                tag = tag or mark.discriminator
                marks = (*marks, *mark.metadata)
            else:
                marks = (*marks, mark)
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        args = tuple(arg for arg in get_args(annotation) if arg is not type(None))
        optional = len(args) < len(get_args(annotation))
        if len(args) == 1:
            inner = type_of(args[0], marks, tag)
            return Type(whole, inner.base, inner.args, inner.marks, True, inner.tag)
        return Type(whole, Union, args, marks, optional, tag if isinstance(tag, str) else None)
    if origin is Literal:
        return Type(whole, Literal, get_args(annotation), marks)
    if origin in (list, dict):
        return Type(whole, origin, get_args(annotation), marks)
    return Type(whole, annotation, (), marks)


def choose(kind: Type, node: Node) -> Type | None:
    """The member of a union that `node` is meant as, by its shape; None when no member has that shape.

    Of several it is the first that validates, else the model that knows most of the keys, else the first.
    """
    if kind.base is not Union:
        return kind
    if kind.tag:
        found = node.child(kind.tag) if node.kind == "map" else None
        return kind.tagged().get(found.value) if found and isinstance(found.value, str) else None
    fitting = [member for member in kind.members() if _shape(member, node)]
    if len(fitting) == 1:
        return fitting[0]
    for member in fitting:
        if not errors_of(member, node):
            return member
    if node.kind == "map":
        fitting.sort(key=lambda m: -len(set(fields(m.model)) & set(node.value)) if m.model else 0)
    return fitting[0] if fitting else None


def _shape(member: Type, node: Node) -> bool:
    if node.kind == "map":
        return bool(member.model) or member.base in (dict, Any)
    if node.kind == "list":
        return member.base in (list, Any)
    value = node.value
    if isinstance(value, bool):
        return member.base in (bool, Any)
    if isinstance(value, (int, float)):
        return member.base in (int, float, Any)
    return isinstance(value, str) and member.base in (str, Literal, Any)


def errors_of(kind: Type, node: Node) -> list[Any]:
    """Pydantic's errors for a node taken as a type by itself."""
    try:
        if kind.model:
            kind.model.model_validate(node.plain())
        else:
            TypeAdapter(kind.annotation, config={"strict": True, "allow_inf_nan": False}).validate_python(node.plain())
    except ValidationError as error:
        return list(error.errors(include_url=False))
    return []


def leaves(kind: Type, node: Node, path: Keys = ()) -> Iterator[tuple[Keys, Type, Node]]:
    """Every scalar below a node with its type, whether the whole is valid or not; unknown keys are passed over."""
    chosen = choose(kind, node)
    if chosen is None:
        return
    if node.kind == "scalar":
        yield path, chosen, node
        return
    children = node.value.items() if node.kind == "map" else enumerate(node.value)
    for key, child in children:
        if (inner := chosen.child(key)) is not None:
            yield from leaves(inner, child, (*path, key))


def bound(kind: Type, mark: type, name: str) -> Any:
    return next((getattr(found, name) for found in kind.marks if isinstance(found, mark)), None)


def words(kind: Type) -> str:
    """What a type takes, in plain words: `a whole number of at least 1`."""
    if kind.base is Union:
        if kind.tag:
            return f"a map whose {kind.tag} is one of {', '.join(kind.tagged())}"
        return " or ".join(dict.fromkeys(words(member) for member in kind.members()))
    if kind.base is Literal:
        values = [str(arg) for arg in kind.args]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if _SAYS_DURATION in kind.marks:
        return "seconds as a whole number, or for example 30s, 10m, 2h30m"
    if kind.base in (int, float):
        return ("a whole number" if kind.base is int else "a number") + _range(kind)
    if kind.secret:
        return "${env:NAME}"
    if kind.ref:
        return "a path" if kind.ref.local_only else "a reference"
    if kind.base is list:
        return "a list" + _length(kind)
    if kind.model:
        required = [name for name, info in fields(kind.model).items() if info.is_required()]
        return f"a map {{{', '.join(f'{name}: ...' for name in required)}}}" if required else "a map"
    if kind.base is dict:
        return "a map"
    return {str: "text", bool: "true or false"}.get(kind.base, "a value")


def _range(kind: Type) -> str:
    ge, gt, le, lt = (bound(kind, mark, name) for mark, name in ((Ge, "ge"), (Gt, "gt"), (Le, "le"), (Lt, "lt")))
    low = f"at least {ge}" if ge is not None else f"above {gt}" if gt is not None else ""
    high = f"at most {le}" if le is not None else f"below {_power(lt)}" if lt is not None else ""
    text = ", ".join(part for part in (low, high) if part)
    return f" ({text})" if text else ""


def _power(number: Any) -> str:
    return f"2^{number.bit_length() - 1}" if isinstance(number, int) and number > 10**9 else str(number)


def _length(kind: Type) -> str:
    low, high = bound(kind, MinLen, "min_length"), bound(kind, MaxLen, "max_length")
    if low is not None and low == high:
        return f" of {low} items"
    return f" of at least {low} item{'s' if low > 1 else ''}" if low else ""

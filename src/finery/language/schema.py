"""The JSON Schema of a pipeline as a user writes it, where validators accept more or less than the bare type."""

from __future__ import annotations

from typing import Any, get_args

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from finery.language.documentation import field_doc
from finery.schemas import base

_DURATION = get_args(base.Duration)[1].func
_SECRET = get_args(base.Secret)[2].func


class PipelineSchema(GenerateJsonSchema):
    """Durations may be texts as 30s, a secret is `${env:NAME}` and nothing else, names keep to their pattern."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().model_schema(schema)
        for name, described in found.get("properties", {}).items():
            if text := field_doc(schema["cls"], name):
                described["description"] = text
        return found

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().dict_schema(schema)
        return {**found, "additionalProperties": False} if "patternProperties" in found else found

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().function_before_schema(schema)
        if schema["function"]["function"] is _DURATION:
            return {"anyOf": [found, {"type": "string", "pattern": r"^(?=.)(\d+d)?(\d+h)?(\d+m)?(\d+s)?$"}]}
        return found

    def function_after_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().function_after_schema(schema)
        if schema["function"]["function"] is _SECRET:
            return {**found, "pattern": r"^\$\{env:[A-Za-z_][A-Za-z0-9_]*\}$"}
        return found

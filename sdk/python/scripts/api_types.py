"""Writes `_api_types.py`, the API's objects as typed dicts, from the committed OpenAPI document.

    python scripts/api_types.py [--check]

With `--check` nothing is written, and a difference is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[2] / "openapi" / "openapi.json"
TARGET = HERE.parent / "src" / "withruntime" / "_api_types.py"

#: The answers the client hands out, by the document's names, with their names here.
WANTED = {
    "OutOfMemory": "OutOfMemory",
    "TracedFiles": "TracedFilesInfo",
    "Sandbox": "SandboxInfo",
    "DeletedSandbox": "DeletedSandbox",
    "ProcessInfo": "ProcessInfo",
    "FileEntry": "FileEntry",
    "FileStat": "FileStat",
    "FileWritten": "FileWritten",
    "WatchInfo": "WatchInfo",
    "SnapshotShape": "SnapshotShape",
    "Durability": "SnapshotDurability",
    "Snapshot": "SnapshotInfo",
    "SandboxNetwork": "NetworkInfo",
    "DecidedProcess": "DecidedProcess",
    "NetworkDecision": "NetworkDecision",
    "Session": "SessionInfo",
    "NewSession": "NewSessionInfo",
    "Preview": "PreviewInfo",
    "DeletedPreview": "DeletedPreviewInfo",
    "AccountLimit": "AccountLimit",
    "Credit": "Credit",
    "DailyLimit": "DailyLimit",
    "Limits": "LimitsInfo",
    "Me": "MeInfo",
}

HEADER = '''"""The API's objects, as it sends them. Written by scripts/api_types.py: do not edit."""

from __future__ import annotations

from typing import Any, Optional, TypedDict
'''

SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


class Writer:
    """Turns schemas into source."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self.schemas = schemas

    def type_of(self, schema: dict[str, Any]) -> str:
        """The annotation for a schema."""
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[-1]
            target = self.schemas[name]
            return WANTED[name] if name in WANTED else self.type_of({"type": "string", **target})
        if "oneOf" in schema:
            some = [one for one in schema["oneOf"] if one.get("type") != "null"]
            inner = self.type_of(some[0])
            return f"Optional[{inner}]" if len(some) < len(schema["oneOf"]) else inner
        kind = schema.get("type")
        if isinstance(kind, list):
            inner = self.type_of({**schema, "type": next(one for one in kind if one != "null")})
            return f"Optional[{inner}]"
        if kind == "array":
            return f"list[{self.type_of(schema.get('items') or {})}]"
        if kind == "object":
            return f"dict[str, {self.type_of(schema.get('additionalProperties') or {})}]"
        return SCALARS.get(str(kind), "Any")

    def fields(self, schema: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
        """All properties of a schema, with those that are always there. Of alternatives: what all have."""
        if "$ref" in schema:
            return self.fields(self.schemas[schema["$ref"].rsplit("/", 1)[-1]])
        properties = dict(schema.get("properties") or {})
        required = set(schema.get("required") or ())
        for part in schema.get("allOf") or ():
            more, needed = self.fields(part)
            properties.update(more)
            required |= needed
        alternatives = [self.fields(part) for part in schema.get("oneOf") or ()]
        for more, _ in alternatives:
            properties.update(more)
        if alternatives:
            required |= set.intersection(*[needed for _, needed in alternatives])
        return properties, required

    def class_of(self, name: str) -> str:
        """The typed dicts for one schema: what is always there, then what may be."""
        properties, required = self.fields(self.schemas[name])
        about = " ".join(str(self.schemas[name].get("description") or f"`{name}` of the API.").split())
        title = WANTED[name]
        parts = []
        base = "TypedDict"
        always = {key: value for key, value in properties.items() if key in required}
        maybe = {key: value for key, value in properties.items() if key not in required}
        if always and maybe:
            parts.append(self._body(f"class _{title}(TypedDict):", None, always))
            base = f"_{title}"
        if maybe:
            parts.append(self._body(f"class {title}({base}, total=False):", about, maybe))
        else:
            parts.append(self._body(f"class {title}(TypedDict):", about, always))
        return "\n\n".join(parts)

    def _body(self, head: str, about: str | None, properties: dict[str, Any]) -> str:
        lines = [head]
        if about:
            lines += [f'    """{about}"""', ""]
        for key, schema in properties.items():
            told = schema.get("description")
            for line in str(told).split("\n") if told else ():
                lines.append(f"    #: {line.strip()}".rstrip())
            lines.append(f"    {key}: {self.type_of(schema)}")
        return "\n".join(lines) + "\n"


def source() -> str:
    schemas = json.loads(DOCUMENT.read_text())["components"]["schemas"]
    writer = Writer(schemas)
    return HEADER + "".join("\n\n" + writer.class_of(name) for name in WANTED)


def main() -> int:
    wanted = source()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(wanted)
        return 0
    if not TARGET.exists() or TARGET.read_text() != wanted:
        print(f"{TARGET.name} is not what the API document says; run scripts/api_types.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

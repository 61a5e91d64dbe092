"""Checks calls and updates against aiogram's models, which are generated from the Bot API documentation.

Run it with aiogram and its dependencies on the path. It reads `{"calls": [[METHOD, PARAMETERS]…], "updates": […]}`
from standard input and prints one line for each mismatch with the documentation.
"""

import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any  # noqa: TID251 (foreign models without types)


def problems(told: Mapping[str, Any]) -> list[str]:
    methods = importlib.import_module("aiogram.methods")
    update = importlib.import_module("aiogram.types").Update
    lines = [problem for method, arguments in told["calls"] for problem in _call(methods, method, arguments)]
    for one in told["updates"]:
        lines += _unknown("Update", update, one)
    return lines


def _call(methods: Any, method: str, given: Mapping[str, Any]) -> list[str]:
    model = getattr(methods, method[0].upper() + method[1:], None)
    return [f"{method}: no such method"] if model is None else _unknown(method, model, given)


def _unknown(name: str, model: Any, given: Mapping[str, Any]) -> list[str]:
    try:
        made = model.model_validate(given)
    except ValueError as error:
        return [f"{name}: {error}".replace("\n", " ")]
    return [f"{name}: {path} is unknown" for path in _extra(made)]


def _extra(made: Any, path: str = "") -> list[str]:
    """Return the paths of all fields, at any depth, that the model does not declare."""
    if isinstance(made, list | tuple):
        return [found for one in made for found in _extra(one, f"{path}[]")]
    if not hasattr(made, "model_extra"):
        return []
    unknown = [f"{path}.{name}" for name in made.model_extra or {}]
    return unknown + [
        found for name in type(made).model_fields for found in _extra(getattr(made, name), f"{path}.{name}")
    ]


if __name__ == "__main__":
    sys.stdout.writelines(f"{problem}\n" for problem in problems(json.load(sys.stdin)))

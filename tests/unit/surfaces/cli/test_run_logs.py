"""The log: one line per event, with the message's fields."""

import json
import logging
import sys

from shoal.surfaces.cli.run import JsonFormatter, TextFormatter


def record(*, fails: bool = False) -> logging.LogRecord:
    try:
        if fails:
            raise ValueError("broken")
    except ValueError:
        trace = sys.exc_info()
    else:
        trace = None
    found = logging.LogRecord("shoal.x", logging.WARNING, "x.py", 1, "turn %s", ("done",), trace)
    found.created = 1_700_000_000.25
    vars(found).update(thread_id="a:b:c", steps=2)
    return found


def test_human_logs_show_time_level_name_message_and_fields() -> None:
    line = TextFormatter().format(record())
    assert line == "2023-11-14T22:13:20.250Z warning shoal.x: turn done thread_id=a:b:c steps=2"


def test_json_logs_have_one_object_per_line() -> None:
    line = JsonFormatter().format(record())
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "shoal.x",
        "message": "turn done",
        "thread_id": "a:b:c",
        "steps": 2,
    }


def test_an_error_has_its_traceback() -> None:
    assert TextFormatter().format(record(fails=True)).endswith("ValueError: broken")
    assert "ValueError: broken" in json.loads(JsonFormatter().format(record(fails=True)))["trace"]

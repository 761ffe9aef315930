"""What pages are made of: templates, the shared style, and the charts' JavaScript, none of it from the network."""

import functools
import importlib.resources
import json
from typing import Any

import jinja2
import markupsafe
import vl_convert


@functools.cache
def bundle() -> str:
    """Vega, Vega-Lite and `vegaEmbed` as a script's text (about 0.9 MB)."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


@functools.cache
def packaged(room: str, name: str) -> str:
    """The text of a file that lies beside the modules of a room."""
    return importlib.resources.files(f"sojourn.{room}").joinpath(name).read_text("utf-8")


def style() -> str:
    return packaged("looks", "style.css")


@functools.cache
def template(room: str, name: str) -> jinja2.Template:
    # StrictUndefined: a misspelt name in the template is an error, not an empty cell
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(packaged(room, name))


def json_block(value: Any) -> markupsafe.Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return markupsafe.Markup(text)

"""The status page: one local web page that shows a run live, and loads nothing that does not come from here.

`/` is the page, `/events` sends the snapshot every second (server-sent events), `/status.json` gives it once. On the
loopback anybody who can reach the page may read it, but only under a name of this machine: else a page from elsewhere
could point its own name here (DNS rebinding) and read along. Beyond the loopback a token is needed, once in the
address, then as a cookie. It is never logged; it travels in plain text, as the page does, so it keeps out those on the
network who do not listen to it. What workers call themselves reaches the page as text and is never read as HTML.
"""

import asyncio
import contextlib
import functools
import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from sojourn.core.errors import SojournError
from sojourn.deploy.certificates import is_loopback
from sojourn.deploy.status import describe, finite
from sojourn.looks.charts import CONFIG, LOG_SPAN, PALETTE, Spec
from sojourn.looks.pages import bundle, json_block, packaged, style, template
from sojourn.looks.words import METRIC_TITLES

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_EVERY_SECONDS = 1.0
_CHART_HEIGHT = 220
_ROOM = 36  # for the numbers at an axis, so that charts neither cut nor move
# No inline script or style, nothing from elsewhere, no page around this one; Vega interprets its expressions (`ast`).
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def new_token() -> str:
    return secrets.token_urlsafe(18)


@contextlib.asynccontextmanager
async def serve_page(
    snapshot: Callable[[], Mapping[str, Any]], host: str, port: int, token: str | None
) -> AsyncIterator[str]:
    """Serves while the block runs, and gives the address to open, which contains the token; port 0 is any free one."""
    if not token and not is_loopback(host):
        raise SojournError(f"a page on {host} can be read by others, so it needs a token.")
    pages = _Pages(snapshot)
    runner = web.AppRunner(_application(pages, token), access_log=None, handle_signals=False, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise SojournError(f"cannot serve the page on {host}, port {port}: {why}; choose another.") from None
        yield _address(host, runner.addresses[0][1], token)
    finally:
        pages.closing.set()
        await runner.cleanup()


def _address(host: str, port: int, token: str | None) -> str:
    bare = host.strip("[]")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(bare).is_unspecified:  # all interfaces: none of them is a name to open
            bare = socket.gethostname()
    shown = f"[{bare}]" if ":" in bare else bare
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


class _Pages:
    """What is served."""

    def __init__(self, snapshot: Callable[[], Mapping[str, Any]]) -> None:
        self._snapshot = snapshot
        self.closing = asyncio.Event()

    def _told(self) -> dict[str, Any]:
        found = finite(self._snapshot())
        return {"snapshot": found, "words": describe(found)}

    async def index(self, request: web.Request) -> web.Response:
        told = self._told()
        data = {"told": told, "charts": _charts(), "titles": METRIC_TITLES, "log_span": LOG_SPAN}
        text = template("deploy", "page.html.jinja").render(data=json_block(data), words=told["words"])
        return web.Response(text=text, content_type="text/html")

    async def status(self, request: web.Request) -> web.Response:
        return web.json_response(finite(self._snapshot()))

    async def events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # the reader went away
            while not self.closing.is_set():
                await response.write(f"data: {json.dumps(self._told(), allow_nan=False)}\n\n".encode())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.closing.wait(), _EVERY_SECONDS)
        return response

    async def script(self, request: web.Request) -> web.Response:
        return web.Response(text=packaged("deploy", "page.js"), content_type="text/javascript")

    async def vega(self, request: web.Request) -> web.Response:
        wrapped = f"(() => {{\n{await asyncio.to_thread(bundle)}\n}})();"  # its names stay its own
        return web.Response(text=wrapped, content_type="text/javascript")

    async def style(self, request: web.Request) -> web.Response:
        return web.Response(text=style() + packaged("deploy", "page.css"), content_type="text/css")


def _application(pages: _Pages, token: str | None) -> web.Application:
    guard = _only_under_our_own_names if not token else functools.partial(_only_with, token)

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await guard(request, handler)

    application = web.Application(middlewares=[guarded])
    application.on_response_prepare.append(_with_headers)
    for path, handler in {
        "/": pages.index, "/status.json": pages.status, "/events": pages.events, "/page.js": pages.script,
        "/vega.js": pages.vega, "/style.css": pages.style,
    }.items():  # fmt: skip
        application.router.add_get(path, handler)
    return application


async def _with_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


async def _only_under_our_own_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    name = request.host.rpartition(":")[0] if not request.host.endswith("]") else request.host
    if not is_loopback(name or request.host):
        raise web.HTTPForbidden(text="This page is served under the names of this machine alone.")
    return await handler(request)


async def _only_with(token: str, request: web.Request, handler: Handler) -> web.StreamResponse:
    # a browser sends cookies to every port of a host: each page has one of its own
    cookie = f"sojourn-{request.url.port}"
    if _same(request.query.get("token", ""), token):
        answer = web.HTTPSeeOther(request.path)  # without the token, which then stands in no history of addresses
        # lax, as strict ones are left out when the link was followed from another site; nothing here changes anything
        answer.set_cookie(cookie, token, httponly=True, samesite="Lax", path="/")
        raise answer
    if not _same(request.cookies.get(cookie, ""), token):
        raise web.HTTPUnauthorized(text="Open the address that `sojourn serve` printed: it contains the token.")
    return await handler(request)


def _same(given: str, token: str) -> bool:
    """In constant time, so that how long it takes tells nothing."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


# --- charts ----------------------------------------------------------------------------------------------------------


def _charts() -> dict[str, Spec]:
    """By the id of their element; the page fills in the rows, and what is counted along x."""
    line = {"type": "line", "strokeWidth": 2, "strokeJoin": "round", "clip": True, "point": {"size": 18}}
    area = {"type": "area", "color": PALETTE[2], "opacity": 0.25, "line": {"color": PALETTE[2], "strokeWidth": 2}}
    bar = {"type": "bar", "color": PALETTE[0]}
    late = {**_x("left", "Versions applied meanwhile", {"tickMinStep": 1}), "scale": {"nice": False, "zero": False}}
    bars = {"x": late, "x2": {"field": "right"}, "y": _y("count", ",~r", {"tickMinStep": 1}), "y2": {"datum": 0}}
    rate = {"x": _x("seconds", "Seconds since the start"), "y": _y("rate", ".2~g")}
    return {
        "loss": _chart(line, _curves(".3~g"), {"metric": "", "done": ",", "value": ".4~g"}),
        "accuracy": _chart(line, _curves(".3~%"), {"metric": "", "done": ",", "value": ".2%"}),
        "staleness": _chart(bar, bars, {"staleness": "", "count": ","}),
        "throughput": _chart(area, rate, {"seconds": ",.0f", "rate": ".3~g"}),
    }


def _curves(form: str) -> Spec:
    legend = {"title": None, "orient": "top", "symbolType": "stroke", "symbolStrokeWidth": 2.5, "offset": 4}
    color = {"field": "metric", "type": "nominal", "sort": None, "scale": {"range": list(PALETTE)}, "legend": legend}
    y = {**_y("value", form), "scale": {"zero": False, "nice": True}}
    return {"x": _x("done", None), "y": y, "color": color}


def _x(field: str, title: str | None, further: Spec | None = None) -> Spec:
    axis = {"format": ",~r", "tickCount": 5, "grid": False, **(further or {})}
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "axis": axis,
        "scale": {"nice": False, "zero": True},
    }


def _y(field: str, form: str, further: Spec | None = None) -> Spec:
    axis = {"format": form, "tickCount": 4, "minExtent": _ROOM, **(further or {})}
    return {"field": field, "type": "quantitative", "title": None, "axis": axis}


def _chart(mark: Spec, encoding: Spec, told: Mapping[str, str]) -> Spec:
    """`told` is what a tooltip says: fields and their formats."""
    tip = [{"field": name, **({"format": form, "type": "quantitative"} if form else {})} for name, form in told.items()]
    # `autosize` keeps axes inside the given size: a longer number does not move the page
    size = {"width": "container", "height": _CHART_HEIGHT, "autosize": {"type": "fit", "contains": "padding"}}
    return {"data": {"name": "rows"}, "mark": mark, "encoding": {**encoding, "tooltip": tip}, **size, "config": CONFIG}

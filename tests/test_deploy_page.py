"""The status page: who may read it, what it sends, and what a real browser makes of it."""

import asyncio
import contextlib
import copy
import json
import logging
import re
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from run_snapshots import HOSTILE, snapshot, worker
from sojourn.core.errors import SojournError
from sojourn.deploy.page import new_token, serve_page

HOME = "127.0.0.1"
TOKEN = "a-token-for-tests"
PATHS = ("", "status.json", "events", "page.js", "vega.js", "style.css")


class Told:
    """A server's snapshot, which a test can change."""

    def __init__(self, first: dict[str, Any] | None = None) -> None:
        self.now = first or snapshot()

    def __call__(self) -> dict[str, Any]:
        return self.now


@contextlib.asynccontextmanager
async def visit(told: Told, token: str | None = None) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A client and the bare address of the page."""
    jar = aiohttp.CookieJar(unsafe=True)  # also of hosts that are addresses
    async with serve_page(told, HOME, 0, token) as url, aiohttp.ClientSession(cookie_jar=jar) as client:
        yield client, url.partition("?")[0]


def test_the_snapshot_is_given_as_it_is() -> None:
    async def read() -> Any:
        async with visit(Told()) as (client, url), client.get(url + "status.json") as answer:
            return await answer.json()

    assert asyncio.run(read()) == snapshot()


def test_a_loss_that_is_no_number_is_null_for_the_browser() -> None:
    told = Told(snapshot(metrics=[{"done": 0, "seconds": 0.0, "loss": float("inf")}]))

    async def read() -> tuple[str, int]:
        async with visit(told) as (client, url), client.get(url + "status.json") as answer:
            return await answer.text(), await _status(client, url)

    text, status = asyncio.run(read())
    assert json.loads(text, parse_constant=pytest.fail)["metrics"][0]["loss"] is None
    assert status == 200


def test_events_tell_what_changed() -> None:
    told = Told()

    async def read() -> list[Any]:
        async with visit(told) as (client, url), client.get(url + "events") as answer:
            assert answer.content_type == "text/event-stream"
            heard = [await _event(answer)]
            told.now = snapshot(200)
            return [*heard, await _event(answer)]

    first, second = asyncio.run(read())
    assert first["snapshot"] == snapshot() and first["words"]["progress"] == "120 of 600 uploads"
    assert second["snapshot"] == snapshot(200) and second["words"]["progress"] == "200 of 600 uploads"


async def _event(answer: aiohttp.ClientResponse) -> Any:
    line, blank = await answer.content.readline(), await answer.content.readline()
    assert line.startswith(b"data: ") and blank == b"\n"
    return json.loads(line[6:])


def test_the_page_ends_with_its_block_though_somebody_listens() -> None:
    async def leave() -> bool:
        async with aiohttp.ClientSession() as client:
            async with serve_page(Told(), HOME, 0, None) as url:
                answer = await client.get(url + "events")
                await _event(answer)
            async with asyncio.timeout(60):
                await answer.read()  # to its end
            with pytest.raises(aiohttp.ClientConnectorError):
                await client.get(url)
            return answer.content.at_eof()

    assert asyncio.run(leave())


@pytest.mark.parametrize(
    ("name", "status"),
    [("127.0.0.1", 200), ("localhost", 200), ("[::1]", 200), ("LOCALHOST", 200), ("evil.example", 403),
     ("127.0.0.1.evil.example", 403), ("localhost.evil.example", 403), ("192.168.0.7", 403), ("", 403)],
)  # fmt: skip
@pytest.mark.parametrize("with_port", [True, False])
def test_on_the_loopback_only_names_of_this_machine_are_answered(name: str, status: int, with_port: bool) -> None:
    async def ask() -> list[int]:
        async with visit(Told()) as (client, url):
            port = url.rpartition(":")[2].strip("/")
            headers = {"Host": f"{name}:{port}" if with_port else name}
            return [await _status(client, url + path, headers=headers) for path in ("", "status.json", "style.css")]

    assert asyncio.run(ask()) == [status] * 3


async def _status(client: aiohttp.ClientSession, url: str, **options: Any) -> int:
    async with client.get(url, **options) as answer:
        return answer.status


def test_nothing_from_elsewhere_and_nothing_inline_may_run() -> None:
    async def ask() -> list[tuple[str, str]]:
        async with visit(Told()) as (client, url):
            answers = []
            for path in (*PATHS, "nowhere"):
                async with client.get(url + path) as answer:
                    answers.append((answer.headers["Content-Security-Policy"], answer.headers["Cache-Control"]))
            async with client.post(url) as answer:
                assert answer.status == 405
            return answers

    answers = asyncio.run(ask())
    assert set(answers) == {answers[0]} and answers[0][1] == "no-store"
    policy = dict(part.strip().split(" ", 1) for part in answers[0][0].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
    assert "unsafe" not in answers[0][0] and "http" not in answers[0][0]


def test_beyond_the_loopback_there_is_no_page_without_a_token() -> None:
    async def serve(host: str, token: str | None) -> None:
        async with serve_page(Told(), host, 0, token):
            pass

    for host in ("0.0.0.0", "::", "broker.example"):
        for token in (None, ""):
            with pytest.raises(SojournError, match=rf"^a page on {host} can be read by others, so it needs a token\.$"):
                asyncio.run(serve(host, token))


def test_a_port_that_is_taken_is_one_sentence() -> None:
    async def serve(port: int) -> None:
        async with serve_page(Told(), HOME, port, None):
            pass

    with socket.socket() as taken:
        taken.bind((HOME, 0))
        taken.listen()
        with pytest.raises(
            SojournError, match=r"^cannot serve the page on 127\.0\.0\.1, port \d+: .*choose another\.$"
        ):
            asyncio.run(serve(taken.getsockname()[1]))


def test_with_a_token_only_those_who_know_it_read_anything() -> None:
    async def ask() -> None:
        async with visit(Told(), TOKEN) as (client, url):
            wrong = [url + path for path in (*PATHS, "nowhere")]
            wrong += [url + "?token=", url + "?token=wrong", url + f"?token={TOKEN}x", url + "?token=%F6%00"]
            assert {await _status(client, address) for address in wrong} == {401}
            port = url.rpartition(":")[2].strip("/")
            assert await _status(client, url, headers={"Cookie": f"sojourn-{port}=wrong"}) == 401
            assert await _status(client, url, headers={"Cookie": f"sojourn-{port}=é"}) == 401
            async with client.get(url + f"?token={TOKEN}", allow_redirects=False) as answer:
                assert answer.status == 303 and answer.headers["Location"] == "/"  # out of sight
                cookie = answer.headers["Set-Cookie"]
                assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Domain" not in cookie
            assert {await _status(client, url + path) for path in PATHS} == {200}

    asyncio.run(ask())


def test_the_address_holds_the_token_and_leads_to_the_page() -> None:
    async def ask() -> tuple[int, str]:
        async with contextlib.AsyncExitStack() as stack:
            url = await stack.enter_async_context(serve_page(Told(), HOME, 0, TOKEN))
            jar = aiohttp.CookieJar(unsafe=True)
            client = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
            answer = await stack.enter_async_context(client.get(url))
            return answer.status, str(answer.url)

    status, url = asyncio.run(ask())
    assert status == 200 and TOKEN not in url


def test_the_token_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        async with visit(Told(), TOKEN) as (client, url):
            await _status(client, url + f"?token={TOKEN}")
            await _status(client, url + f"nowhere?token={TOKEN}")

    with caplog.at_level(logging.DEBUG):
        asyncio.run(ask())
    assert TOKEN not in caplog.text


def test_tokens_are_long_and_never_the_same() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100 and min(map(len, made)) >= 24


def test_hostile_words_stay_inside_the_data_of_the_page() -> None:
    told = Told(snapshot(workers=[worker(HOSTILE, 0, last=HOSTILE)], label=HOSTILE, phase=HOSTILE))

    async def read() -> str:
        async with visit(told) as (client, url), client.get(url) as answer:
            return await answer.text()

    html = asyncio.run(read())
    assert "<img" not in html and "\x1b" not in html
    assert html.count("</script>") == 3  # those of the template
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert data and json.loads(data[1])["told"]["snapshot"]["workers"][0]["name"] == HOSTILE


# --- in a real browser -----------------------------------------------------------------------------------------------

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip


class Seen:
    """What the browser complained about, and what it asked for."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []


async def browse(
    scenario: Callable[[Any, str, Seen], Awaitable[None]], told: Told, token: str | None = None, width: int = 1280
) -> Seen:
    """Opens the page in Chromium and plays the scenario; visibly skipped where there is none."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium is installed, so the status page was not looked at in a browser")
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    seen = Seen()
    async with serve_page(told, HOME, 0, token) as url, playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=list(FLAGS))
        page = await browser.new_page(viewport={"width": width, "height": 800})
        page.set_default_timeout(60_000)
        playwright.expect.set_options(timeout=60_000)
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("dialog", lambda dialog: seen.complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: seen.requests.append(request.url))
        await page.goto(url)
        await scenario(page, url, seen)
        await browser.close()
    return seen


def shows(page: Any, where: str) -> Any:
    from playwright.async_api import expect

    return expect(page.locator(where))


def test_a_browser_shows_the_run_and_follows_it() -> None:
    told = Told()

    async def scenario(page: Any, url: str, seen: Seen) -> None:
        await shows(page, "#label").to_have_text("fedasync")
        await shows(page, "#banner").to_have_text("Running: two are at work")
        await shows(page, "#progress").to_have_text("120 of 600 uploads")
        for fact in ("Training loss0.3149", "Test accuracy12.00 %", "Staleness1.17 (≤ 4)", "Queue3", "Version120"):
            await shows(page, "#facts").to_contain_text(fact)
        for count in ("Rejected4", "Duplicates5", "Given up6"):
            await shows(page, "#counts").to_contain_text(count)
        rows = page.locator("#workers tr")
        expected = {0: "adatask 1712 s3102applied", 1: "bensilent4 min", 2: "cleoasked no more", 3: "dotnot here yet"}
        for number, text in expected.items():
            await shows(rows.nth(number), ":scope").to_contain_text(text)
        await shows(page, "#staleness path[aria-roledescription=bar]").to_have_count(3)
        await shows(page, "#loss path[aria-roledescription=point]").to_have_count(13)
        await shows(page, "#accuracy path[aria-roledescription=point]").to_have_count(13)
        await shows(page, "#throughput .mark-area path").to_have_count(1)

        told.now = snapshot(200, staleness=[[0, 40], [1, 60], [4, 20], [6, 1]], workers=[worker("eve", 0, task=99)])
        await shows(page, "#progress").to_have_text("200 of 600 uploads")
        await shows(page, "#workers tr").to_have_count(1)
        await shows(page, "#workers").to_contain_text("evetask 99")
        await shows(page, "#loss path[aria-roledescription=point]").to_have_count(21)
        await shows(page, "#staleness path[aria-roledescription=bar]").to_have_count(4)
        assert await page.title() == "200 of 600 uploads · fedasync"
        assert all(request.startswith((url, "data:")) for request in seen.requests) and len(seen.requests) >= 5

    assert asyncio.run(browse(scenario, told)).complaints == []


def test_a_browser_takes_hostile_names_for_text() -> None:
    told = Told(snapshot(workers=[worker(HOSTILE, 0, last=HOSTILE)], label=HOSTILE, phase=HOSTILE))
    read_as = HOSTILE.replace("\x1b", "·").replace("\u202e", "·")

    async def scenario(page: Any, url: str, seen: Seen) -> None:
        await shows(page, "#workers th").to_have_text(read_as)
        await shows(page, "#workers td:last-child").to_have_text(read_as)
        await shows(page, "#label").to_have_text(read_as)
        await shows(page, "img").to_have_count(0)
        told.now = copy.deepcopy(told.now) | {"workers": [worker("<b>bold</b>", 0)]}  # and so when it comes later
        await shows(page, "#workers th").to_have_text("<b>bold</b>")
        await shows(page, "#workers b").to_have_count(0)

    assert asyncio.run(browse(scenario, told)).complaints == []


def test_a_browser_is_told_when_the_run_is_over_and_nothing_was_lost() -> None:
    told = Told(snapshot(0, status="waiting", metrics=[], workers=[], staleness=[], throughput=[]))

    async def scenario(page: Any, url: str, seen: Seen) -> None:
        await shows(page, "#banner").to_have_class("waiting")
        await shows(page, "#nobody").to_be_visible()
        await shows(page, "#loss.empty").to_be_visible()
        told.now = snapshot(0, status="waiting", staleness=[[0, 1]], throughput=[[0.0, 0.0]])  # a first one of each
        await shows(page, "#loss path[aria-roledescription=point]").to_have_count(1)
        await shows(page, "#staleness path[aria-roledescription=bar]").to_have_count(1)
        await shows(page, "#throughput svg").to_have_count(1)
        told.now = snapshot(600, status="over", phase="600 uploads were applied.")
        await shows(page, "#banner").to_have_text("The run is over: 600 uploads were applied.")
        await shows(page, "#banner").to_have_class("over")
        await shows(page, "#loss path[aria-roledescription=point]").to_have_count(61)
        await shows(page, "#loss.empty").to_have_count(0)

    assert asyncio.run(browse(scenario, told)).complaints == []


@pytest.mark.parametrize(
    ("status", "kind", "words"), [("running", "lost", "lost; trying"), ("over", "over", "has ended")]
)
def test_a_browser_notices_that_the_server_is_gone_and_that_it_is_back(status: str, kind: str, words: str) -> None:
    told = Told(snapshot(status=status))

    async def scenario(page: Any, url: str, seen: Seen) -> None:
        # a second server, which can end while the browser looks at it
        async with serve_page(told, HOME, 0, None) as other:
            await page.goto(other)
            await shows(page, "#loss svg").to_have_count(1)
        await shows(page, "#banner").to_have_class(kind)
        await shows(page, "#banner").to_contain_text(words)
        told.now = snapshot(300)
        async with serve_page(told, HOME, int(other.rpartition(":")[2].strip("/")), None):
            await shows(page, "#progress").to_have_text("300 of 600 uploads")
            await shows(page, "#banner").to_have_class("running")

    asyncio.run(browse(scenario, told))  # a browser writes lost connections to its console: no complaint of ours


def test_a_browser_with_the_token_is_let_in_and_a_narrow_one_need_not_scroll_sideways() -> None:
    async def scenario(page: Any, url: str, seen: Seen) -> None:
        await shows(page, "#loss svg").to_have_count(1)
        assert TOKEN not in page.url
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390

    assert asyncio.run(browse(scenario, Told(), TOKEN, width=390)).complaints == []


def test_a_run_in_rounds_has_no_staleness_and_a_problem_without_accuracy_no_chart_of_it() -> None:
    metrics = [{"done": 0, "seconds": 0.0, "loss": 1e3}, {"done": 1, "seconds": 1.0, "loss": 1e-3}]

    async def scenario(page: Any, url: str, seen: Seen) -> None:
        await shows(page, "#staleness-figure").to_be_hidden()
        await shows(page, "#accuracy-figure").to_be_hidden()
        await shows(page, "#loss").to_contain_text("Rounds")
        await shows(page, "#unit").to_have_text("(uploads per second)")

    told = Told(snapshot(mode="rounds", unit="rounds", staleness=[], metrics=metrics))
    assert asyncio.run(browse(scenario, told)).complaints == []

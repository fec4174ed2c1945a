"""Take the pictures of the pages that the documents show, from the demo bundles.

make screenshots, or python -m scripts.screenshots [--bundles bundles] [--more bundles] [--out docs/images]

No demo model chooses among texts or fills masks: name bundles of your own for these pictures with --more.
"""

import argparse
import io
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.browser import PHONE, find_chromium, launched, visit
from tests.support.process import address, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WINDOW = {"width": 1120, "height": 600}
DEMO = ("sentiment", "ner", "qa", "similarity")
RUNS = 5
"""Times that an example is run: a picture shows the latency of a service that is warm."""
PICTURES: list[tuple[str, str, str, dict[str, Any]]] = [
    # file, tab, example, browser
    ("classify.webp", "classify", "A warm, funny film that I …", {}),
    ("entities.webp", "ner", "Biography", {}),
    ("similarity.webp", "similarity", "Duplicates", {}),
    ("rerank.webp", "rerank", "Help desk", {}),
    ("embed.webp", "embed", "Sentence", {}),
    ("answer.webp", "qa", "Place", {}),
    ("no-answer-dark.webp", "qa", "No answer", {"color_scheme": "dark"}),
    ("choice.webp", "multiple-choice", "Kettle", {}),
    ("mask.webp", "fill-mask", "One", {}),
    ("phone.webp", "ner", "Right to left", {"viewport": PHONE}),
]
STATUS = "status.webp"
BUSY_S = 62
"""Seconds of traffic before the picture of the running service: its curves are a minute wide."""
TRAFFIC: list[tuple[str, dict[str, object]]] = [
    ("classify", {"text": ["A warm, funny film.", "Dull, far too long and badly acted."]}),
    ("ner", {"text": "Angela Merkel met engineers from Siemens in Munich."}),
    (
        "similarity",
        {"text": "How do I reset my password?", "candidates": ["I forgot my login", "Opening hours"]},
    ),
    ("qa", {"question": "Where was Marie Curie born?", "context": "Marie Curie was born in Warsaw in 1867."}),
]


def main() -> int:
    """Take all pictures; return 1 where there is no Chromium."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bundles", type=Path, default=Path("bundles"))
    parser.add_argument("--more", default="", help="more bundles, separated by commas")
    parser.add_argument("--only", default="", help="names of pictures, separated by commas; default: all")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    path = find_chromium()
    if path is None:
        print("error: no Chromium is on the PATH: apt-get install chromium, or set CHROMIUM", file=sys.stderr)
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    bundles = ",".join([*(str(args.bundles / name) for name in DEMO), *filter(None, args.more.split(","))])
    chosen = {name for name in args.only.split(",") if name} or {name for name, *_ in PICTURES} | {STATUS}
    with started("--bundles", bundles, "--no-keep-tuning") as process, launched(path) as browser:
        url = address(process.until("Ready at"))
        for name, tab, example, context in PICTURES:
            if name in chosen:
                with opened(browser, f"{url}/#{tab}", **context) as page:
                    take(page, tab, example, args.out / name)
        if STATUS in chosen:
            with traffic(url), opened(browser, f"{url}/status") as page:
                page.wait_for_timeout(1000 * BUSY_S)
                save(page, args.out / STATUS)
    return 0


def take(page: "Page", tab: str, example: str, path: Path) -> None:
    """Take the picture of an example, unless no loaded model answers its task."""
    page.locator("#tab-classify").wait_for()
    if page.locator(f"#tab-{tab}[aria-selected=true]").count() and page.locator(".examples").count():
        run_example(page, example)
        save(page, path)
    else:
        print(f"{path}: left as it is, no loaded model answers {tab}; name one with --more")


@contextmanager
def opened(browser: "Browser", url: str, **context: Any) -> Iterator["Page"]:
    """Open an address in a window of the pictures' size."""
    with visit(browser, url, **{"viewport": WINDOW, "device_scale_factor": 1.5, **context}) as page:
        yield page


def run_example(page: "Page", name: str) -> None:
    """Run an example and wait until its result is drawn."""
    for _ in range(RUNS):
        page.locator(".examples").get_by_role("button", name=name, exact=True).click()
        page.locator(".result[aria-busy=false] .latency").wait_for()
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(400)  # the bars grow


@contextmanager
def traffic(url: str) -> Iterator[None]:
    """Send requests from four clients, sometimes more and sometimes fewer, until the block ends."""
    end = threading.Event()

    def send(client: int) -> None:
        number = client
        while not end.wait(0.01 * (1 + (int(time.monotonic() / 3) + client) % 4)):
            path, body = TRAFFIC[number % len(TRAFFIC)]
            number += 1
            data = json.dumps(body).encode()
            request = urllib.request.Request(f"{url}/{path}", data, {"content-type": "application/json"})
            urllib.request.urlopen(request, timeout=30).close()

    clients = [threading.Thread(target=send, args=(client,)) for client in range(4)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        end.set()
        for client in clients:
            client.join()


def save(page: "Page", path: Path) -> None:
    """Write a picture of the whole page; WebP without loss is a third of a PNG."""
    from PIL import Image

    shot = page.screenshot(full_page=True)
    with Image.open(io.BytesIO(shot)) as image:
        image.convert("RGB").save(path, lossless=True, method=6)
    print(f"{path}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    sys.exit(main())

"""Ask a running service on all four endpoints, or on those named, and check the answers; ask its Prometheus too.

python scripts/ask.py --url http://127.0.0.1:8000 [--prometheus http://127.0.0.1:9090] [--wait-s 60] [similarity ...]
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

SENTENCE = "Angela Merkel met engineers from Siemens in Munich."
PASSAGE = (
    "The Eiffel Tower was built between 1887 and 1889 for the World's Fair in Paris. "
    "It was designed by the company of the engineer Gustave Eiffel and is 330 metres tall."
)


class WrongAnswer(Exception):
    """The service answered, but not what a person would."""


def main() -> int:
    """Run every check; return 1 after the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--prometheus", help="its address, where one scrapes the service")
    parser.add_argument("--wait-s", type=float, default=60, help="wait so long for readiness and scrapes")
    checks: dict[str, Callable[[str], None]] = {
        "classify": classify,
        "ner": ner,
        "similarity": similarity,
        "qa": qa,
    }
    parser.add_argument("endpoints", nargs="*", help=f"of {', '.join(checks)}; all by default")
    args = parser.parse_args()
    try:
        until(lambda: get(f"{args.url}/health/ready"), args.wait_s)
        for endpoint in args.endpoints or checks:
            checks[endpoint](args.url)
            print(f"  /{endpoint}: right")
        if args.prometheus:
            until(lambda: scraped(args.prometheus), args.wait_s)
            print("  Prometheus: the target is up and has the bert_ metrics")
    except (WrongAnswer, urllib.error.URLError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def classify(url: str) -> None:
    """Sentiment of two plain sentences."""
    texts = ["A warm, funny film that I would gladly see again.", "Dull, far too long and badly acted."]
    results = post(url, "classify", {"text": texts})
    expect([result["label"] for result in results], ["positive", "negative"])


def ner(url: str) -> None:
    """A person, an organisation and a place, with offsets that give back the text."""
    entities = post(url, "ner", {"text": SENTENCE})[0]["entities"]
    found = [(entity["text"], entity["label"]) for entity in entities]
    expect(found, [("Angela Merkel", "PER"), ("Siemens", "ORG"), ("Munich", "LOC")])
    expect([SENTENCE[entity["start"] : entity["end"]] for entity in entities], [text for text, _ in found])


def similarity(url: str) -> None:
    """The candidate that means the same comes first."""
    candidates = [
        "Opening hours on Sunday",
        "I forgot my login",
        "A recipe for lentil soup",
    ]
    results = post(url, "similarity", {"text": "How do I reset my password?", "candidates": candidates})
    ranked = results[0] if isinstance(results[0], list) else results
    expect(ranked[0]["index"], 1)


def qa(url: str) -> None:
    """An answer that the paragraph holds, and none where it holds none."""
    result = post(url, "qa", {"question": "Who designed the Eiffel Tower?", "context": PASSAGE})[0]
    expect("Gustave Eiffel" in (result["answer"] or ""), True)
    expect(PASSAGE[result["start"] : result["end"]], result["answer"])
    result = post(url, "qa", {"question": "What is the capital of Australia?", "context": PASSAGE})[0]
    expect(result["answer"], None)


def scraped(prometheus: str) -> bool:
    """Tell whether the target is up and its requests are counted; raise WrongAnswer where not yet."""
    up = query(prometheus, 'up{job="bert"}')
    expect([sample["value"][1] for sample in up], ["1"])
    counted = query(prometheus, "sum by (endpoint) (bert_request_duration_seconds_count)")
    expect(len(counted) >= 4, True)
    return True


def query(prometheus: str, expression: str) -> list[dict[str, Any]]:
    """Return the samples of an instant query."""
    answer = get(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    samples: list[dict[str, Any]] = answer["data"]["result"]
    return samples


def post(url: str, endpoint: str, body: dict[str, Any]) -> list[Any]:
    """Return the results of one request; raise WrongAnswer with the body of an error."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/{endpoint}", data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            results: list[Any] = json.load(response)["results"]
            return results
    except urllib.error.HTTPError as error:
        raise WrongAnswer(f"POST /{endpoint} {body}: {error.code} {error.read().decode()}") from error


def get(url: str) -> Any:
    """Return the JSON of an address."""
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def expect(found: object, wanted: object) -> None:
    """Raise WrongAnswer unless both are equal."""
    if found != wanted:
        raise WrongAnswer(f"got {found!r}, expected {wanted!r}")


def until(attempt: Callable[[], object], wait_s: float) -> None:
    """Call until it raises nothing; raise its last error once the time is over."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            attempt()
            return
        except (WrongAnswer, urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline:
                raise WrongAnswer(f"not after {wait_s:g} s: {error}") from error
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())

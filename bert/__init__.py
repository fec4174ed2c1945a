"""Code shared by training, export and service: BERT's configuration, tokenizer, tasks, metrics and file formats.

Importing it turns off the usage reports of the libraries that send some, before any of them is imported. A variable that is
already set stays as it is.
"""

import os

NO_REPORTS = {
    # A queue of events in the user's cache folder, sent to its maker at intervals (onnxruntime's pull request 27379).
    "ORT_DISABLE_TELEMETRY": "1",
    # Names and versions of libraries in the requests to the hub; datasets and transformers report by it.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # A cluster's size and libraries, sent to its maker every hour.
    "RAY_USAGE_STATS_ENABLED": "0",
    # The convention for all others (https://consoledonottrack.com).
    "DO_NOT_TRACK": "1",
}
"""Environment variables by which libraries are told to report nothing."""

for _name, _value in NO_REPORTS.items():
    os.environ.setdefault(_name, _value)

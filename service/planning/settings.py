"""Settings of `bert-serve --plan`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from service.settings import ServeSettings


class PlanSettings(ServeSettings):
    """Measure a bundle on this machine, and print how many replicas a load needs (docs/howto/plan.md)."""

    model_config = SettingsConfigDict(cli_prog_name="bert-serve --plan")

    requests: Path = Field(
        description="File of requests, sent in turn: on each line the JSON of a body, as the model's endpoint takes it."
    )
    requests_per_s: float = Field(gt=0, description="Requests per second of all replicas together.")
    p99_ms: float = Field(gt=0, description="Milliseconds in which 99 of 100 requests are to be answered.")

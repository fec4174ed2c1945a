"""The documentation site: its generated pages, and its search in a browser without a network."""

from scripts.site import configuration, http_reference
from tests.support.documents import ROOT, scripts, text_of


def test_the_page_of_settings_is_up_to_date() -> None:
    command = "python -m scripts.site.configuration > docs/configuration.md"
    assert text_of(ROOT / "docs/configuration.md") == configuration.markdown(), f"run: {command}"


def test_the_page_of_settings_has_every_command() -> None:
    assert {kind.model_config["cli_prog_name"] for kind in configuration.COMMANDS} == set(scripts().values())


def test_the_http_reference_has_every_endpoint_and_field() -> None:
    document = http_reference.document()
    page = http_reference.markdown(document)
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"### {method.upper()} {path}\n" in page
    for name in ("ClassifyRequest", "QaRequest", "EmbeddingsRequest"):
        for field in document["components"]["schemas"][name]["properties"]:
            assert f"`{field}`" in page

"""Adds pages to the website that are not in docs/: the README and other files, and the reference of all commands."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from ads_pipeline import api
from ads_pipeline.operations.cli.main import app

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\(|src=\"|srcset=\")(?![a-z]+:|#)([^)#\"]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that the setting `pages_from_elsewhere` names, and the generated pages."""
    for source, page in config.extra["pages_from_elsewhere"].items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "commands.md", content=describe_commands()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_others: Any) -> str:
    """Make relative links, which name files of the checkout, name pages of the website."""
    pages: dict[str, str] = config.extra["pages_from_elsewhere"]
    sources = {each: source for source, each in pages.items()}
    folder = PurePosixPath(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent

    def rename(link: re.Match[str]) -> str:
        path = normpath((folder / link[2]).as_posix())
        return link[1] + pages.get(path, path.removeprefix("docs/"))

    return LINK.sub(rename, markdown)


def on_page_content(html: str, page: Page, **_others: Any) -> None:
    """Raise PluginError when a public name has no entry on the page of the Python interface."""
    if page.file.src_uri == "python-interface.md":
        missing = [name for name in api.__all__ if f'id="{api.__name__}.{name}"' not in html]
        if missing:
            raise PluginError(f"docs/python-interface.md: no entry for {', '.join(missing)} of {api.__name__}")


def describe_commands() -> str:
    """Help of every command as Markdown. Typer's own lists of commands are left out: the navigation has them."""
    context = typer.Context(typer.main.get_command(app))
    text = get_docs_for_click(obj=context.command, ctx=context, name="ads-pipeline", title="All commands and options")
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", text)
    text = text.replace("* `--help`: Show this message and exit.\n", "")
    return re.sub(r"^(#+) `(.+)`$", r"\1 \2", text, flags=re.MULTILINE)

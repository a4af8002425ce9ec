"""A hook of mkdocs: what the theme leaves out for those who read by ear. The search gets a name."""

from typing import Any

SEARCH = 'data-md-component="search" role="dialog"'


def named(page: str) -> str:
    return page.replace(f"{SEARCH}>", f'{SEARCH} aria-label="Search">')


def on_post_page(output: str, **_: Any) -> str:
    return named(output)

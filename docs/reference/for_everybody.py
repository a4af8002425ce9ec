"""A hook of mkdocs: what the theme leaves out for those who read by ear or by keyboard.

The search gets a name; a block of code that may be wider than a telephone can be moved by keyboard.
"""

from typing import Any

SEARCH = 'data-md-component="search" role="dialog"'


def reachable(page: str) -> str:
    return page.replace(f"{SEARCH}>", f'{SEARCH} aria-label="Search">').replace("</span><code>", '</span><code tabindex="0">')


def on_post_page(output: str, **_: Any) -> str:
    return reachable(output)

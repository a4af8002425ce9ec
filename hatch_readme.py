"""Read by hatchling when a distribution is built: README.md with links that also work on the package index.

In the repository links are relative, so that they lead to the file of the same commit. The index shows the text alone.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # read by a test, where hatchling need not be
    MetadataHookInterface = object

_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
_IMAGE = re.compile(r'(<img [^>]*src=")(?!\w+:)([^"]+)"')


def absolute(text: str, repository: str) -> str:
    """Relative links lead to the repository's main branch, pictures to their bytes."""
    text = _LINK.sub(rf"]({repository}/blob/main/\1)", text)
    return _IMAGE.sub(rf'\1{repository}/raw/main/\2"', text)


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc,valid-type]
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        text = absolute((root / "README.md").read_text(encoding="utf-8"), project["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

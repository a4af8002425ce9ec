"""The memory of a Gram study at a site: blocks of subjects go through, so that dealing and multiplying need the same at any n."""

import tracemalloc
from collections.abc import Mapping
from pathlib import Path

from tests.federation import frames, gram_sites, gram_study

from intarsia.server.study import protocol
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.protocol import Payload, Reply
from intarsia.site.answer import answer


def peaks(where: Path, n: int) -> dict[str, int]:
    """Bytes that a site held at most, by step of the protocol; tables lie on disk."""
    paths: dict[str, Path] = {}
    for name, frame in frames(n).items():
        (where / name).mkdir(parents=True)
        paths[name] = where / f"{name}.parquet"
        frame.to_parquet(paths[name], index=False)
    parties = gram_sites(paths, policy={"attack_seconds": 0.2})
    for site in parties:
        site.folder = where / site.name
    plan, by_name, found = gram_study(parties), {site.name: site for site in parties}, dict[str, int]()

    def ask(step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        replies = {}
        for name, payload in payloads.items():
            raw = {key: part.read_bytes() if isinstance(part, Path) else part for key, part in payload.items()}
            tracemalloc.start()
            replies[name] = Reply(answer(by_name[name], plan, step, raw))
            found[step] = max(found.get(step, 0), tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        return replies

    protocol.collect(StudyFolder.create(where / "server", plan), ask)
    return found


def test_dealing_and_multiplying_need_the_same_memory_at_any_number_of_subjects(tmp_path: Path) -> None:
    few, many = peaks(tmp_path / "few", 500), peaks(tmp_path / "many", 1500)
    for step in ("deal", "multiply"):
        assert many[step] < 1.1 * few[step], step
    # Before that ids, tokens and the ledger take some hundred bytes per subject, whatever the columns.
    assert many["sketch"] - few["sketch"] < 1000 * 1500

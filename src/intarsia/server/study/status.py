"""Where a study stands, read from its folder: which step is done, and for whom the next one waits."""

from intarsia.server.study.folder import StudyFolder


def status(folder: StudyFolder) -> list[dict[str, object]]:
    """Every step of the study: done, waiting for whom, or not begun."""
    study, names = folder.study, folder.names
    kinds = ["offer", "share", "confirmation"] if study.agrees else []
    kinds += ["announcement", "alignment", "sketch"]
    if study.sketch.gram:
        kinds.append("product")
    rounds = [row for at in _rounds(folder) for row in at]
    if folder.left:
        kinds = ["sketch"]  # all had sent before the first one left
    elif not folder.missing("sketch"):
        # Sketches that came as files prove the alignment themselves.
        kinds = [kind for kind in kinds if kind in ("sketch", "product") or not folder.missing(kind)]
    else:
        # By files the sites exchange keys and counts among themselves: where something later is here, the server waits for none.
        last = max((k for k, kind in enumerate(kinds) if folder.present(kind)), default=0)
        kinds = [kind for k, kind in enumerate(kinds) if k >= last or folder.present(kind)]
    rows = [_row(folder, kind, kind) for kind in kinds] + rounds
    begun = (folder.path / "checkpoint").exists()
    fitted = (folder.path / "fit.json").is_file()
    rows.append({"step": "fit", "done": fitted, "present": ["checkpoint"] if begun else [], "missing": []})
    rows.append(_row(folder, "deliver", "receipt"))
    for where in sorted((folder.path / "predictions").glob("*")):
        parts = [name for name in names if (where / f"{name}.part").is_file()]
        lacking = [name for name in names if name not in parts]
        rows.append({"step": f"predict {where.name}", "done": not lacking, "present": parts, "missing": lacking})
    return rows


def _rounds(folder: StudyFolder) -> list[list[dict[str, object]]]:
    """Of a screened study: whether the features are shared, and every round and look."""
    if not folder.study.sketch.screened:
        return []
    from intarsia.server.study.round_folder import RoundFolder
    from intarsia.server.study.screened import last_round
    from intarsia.server.study.screened_rounds import DONE

    shared = (folder.path / DONE).is_file()
    out = [] if folder.study.sketch.by_sketch else [[{"step": "share features", "done": shared, "present": [], "missing": []}]]
    for at in range(1, last_round(folder) + 1):
        rows = [_row(RoundFolder(folder, at), f"round {at}", "product")]
        out.append(rows + ([_row(folder, f"look {at}", f"look-{at}")] if at < last_round(folder) else []))
    return out


def _row(folder: StudyFolder, step: str, kind: str) -> dict[str, object]:
    missing = folder.missing(kind)
    return {"step": step, "done": not missing, "present": list(folder.present(kind)), "missing": list(missing)}

"""Where a study stands, read from its folder: which step is done, and for whom the next one waits."""

from intarsia.server.study.folder import StudyFolder


def status(folder: StudyFolder) -> list[dict[str, object]]:
    """Every step of the study: done, waiting for whom, or not begun."""
    study, names = folder.study, folder.names
    kinds = ["offer", "share", "confirmation"] if study.agrees else []
    kinds += ["announcement", "alignment", "sketch"]
    if study.sketch.gram:
        kinds.append("product")
    if folder.left:
        kinds = ["sketch"]  # all had sent before the first one left
    elif not folder.missing("sketch"):
        # Sketches that came as files prove the alignment themselves.
        kinds = [kind for kind in kinds if kind in ("sketch", "product") or not folder.missing(kind)]
    else:
        # By files the sites exchange keys and counts among themselves: where something later is here, the server waits for none.
        last = max((k for k, kind in enumerate(kinds) if folder.present(kind)), default=0)
        kinds = [kind for k, kind in enumerate(kinds) if k >= last or folder.present(kind)]
    rows = [_row(folder, kind, kind) for kind in kinds]
    begun = (folder.path / "checkpoint").exists()
    fitted = (folder.path / "fit.json").is_file()
    rows.append({"step": "fit", "done": fitted, "present": ["checkpoint"] if begun else [], "missing": []})
    rows.append(_row(folder, "deliver", "receipt"))
    for where in sorted((folder.path / "predictions").glob("*")):
        parts = [name for name in names if (where / f"{name}.part").is_file()]
        lacking = [name for name in names if name not in parts]
        rows.append({"step": f"predict {where.name}", "done": not lacking, "present": parts, "missing": lacking})
    return rows


def _row(folder: StudyFolder, step: str, kind: str) -> dict[str, object]:
    missing = folder.missing(kind)
    return {"step": step, "done": not missing, "present": list(folder.present(kind)), "missing": list(missing)}

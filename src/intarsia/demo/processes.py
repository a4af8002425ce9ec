"""The demonstration, step by step: what a consortium would do, with the hospitals as processes on this machine."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.carriers.pipes import Hospital
from intarsia.demo.hospitals import RESPONSES, SITES, Hospitals, simulate, write_regions, write_table, write_truth
from intarsia.errors import InputError
from intarsia.files import replace
from intarsia.progress import Bar
from intarsia.report import write
from intarsia.server.study import protocol
from intarsia.server.study.fit import fit
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.protocol import Payload, Reply
from intarsia.server.study.toml_text import dump
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study, new_run

MARK = ".intarsia-demo"
FIT = {"draws": 1800, "warmup": 500, "chains": 4, "thin": 2, "seed": 7}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How large the demonstration is, and how it tells what happens."""

    people: int = 2000
    m: int = 160
    fit: Mapping[str, Any] = field(default_factory=dict)  # in place of values of FIT
    workers: int | None = None
    say: Say = print
    bar: Bar | None = None
    screened: bool = False  # exact sums of all features, then the few that matter, in place of a sketch
    patience_s: float = 120.0  # how long a hospital may give no sign


def prepare(out: Path, options: Options) -> tuple[Hospitals, Study]:
    """The hospitals' folders, and the study file that all three have read and accepted."""
    say = options.say
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).is_file():
            raise InputError(f"{out} is not empty and not a demo of ours; choose another folder with --out.")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    replace(out / MARK, b"made by `intarsia demo`; the next demo into this folder replaces it\n")
    data = simulate(n=options.people)
    write_truth(out / "truth.csv", data.truth)
    say(f"Three hospitals know different things about the same {options.people:,} people. Nobody may show anybody their table.")
    roster = []
    for site in SITES:
        folder = out / "sites" / site
        responses = list(RESPONSES.get(site, ()))
        site_folder = SiteFolder.create(folder, site, "data.csv", "patient", responses)
        write_table(folder / "data.csv", data.ids[site], data.columns[site], data.values[site])
        features = [c for c in data.columns[site] if c not in responses]
        identity = site_folder.identity()
        entry: dict[str, Any] = {"name": site, "features": features}
        entry |= {"responses": responses} if responses else {}
        entry |= {"exchange_key": identity.exchange_key, "signing_key": identity.signing_key}
        roster.append(entry)
        has = f"{len(features)} features" + (f", responses {', '.join(responses)}" if responses else "")
        say(f"  {site:<11} {len(data.ids[site]):,} people, {has}")
    content = {
        "id": "memory",
        "run": new_run(),
        "title": "Memory, movement and the brain (simulated)",
        "sketch": {"kind": "screened"} if options.screened else {"m": options.m},
        "alignment": {"mode": "intersect"},
        "fit": {**FIT, **options.fit},
        "site": roster,
    }
    study = Study.from_dict(content)
    replace(out / "study.toml", dump(study).encode())
    for site in SITES:
        SiteFolder.load(out / "sites" / site).accept(out / "study.toml")
    how = "screened" if options.screened else f"m = {options.m}"
    say(f"One study file, read and accepted by all three: {out / 'study.toml'} (hash {study.hash[:12]}…, {how})")
    return data, study


def run(out: Path, options: Options) -> dict[str, Any]:
    """The whole study over pipes between processes; returns the summary."""
    began, say = time.perf_counter(), options.say
    data, study = prepare(out, options)
    folder = StudyFolder.create(out / "study", out / "study.toml")
    write_regions(folder.path / "regions.csv", data.regions)
    hospitals = {name: Hospital(name, out / "sites" / name, patience_s=options.patience_s, waiting=_works(say)) for name in SITES}
    try:
        pids = ", ".join(f"{name} {h.process.pid}" for name, h in hospitals.items())
        say(f"Each hospital runs in a process of its own ({pids}); only messages pass.")
        ask = _carrier(hospitals, study, say)
        protocol.collect(folder, ask)
        (_tell_screen if options.screened else _tell_sketches)(out, folder, study, say)
        summary = finish(out, folder, data, lambda: protocol.deliver(folder, ask), options)
        return summary | {"seconds": round(time.perf_counter() - began, 1)}
    finally:
        for hospital in hospitals.values():
            hospital.close()


def _works(say: Say) -> Callable[[str, float], None]:
    return lambda name, seconds: say(f"  {name} works on it since {seconds:.0f} s")


def finish(out: Path, folder: StudyFolder, data: Hospitals, deliver: Callable[[], Any], options: Options) -> dict[str, Any]:
    """Fit, deliver, compare with the truth, write the report."""
    f, say = folder.study.fit, options.say
    what = "the products of the kept columns" if options.screened else "the sketches"
    warmup = "warm-up" if f.warmup is None else f"{f.warmup:,} sweeps of warm-up"
    say(f"Sampling: {f.chains} chains × ({warmup} + at most {f.draws:,} draws) on {what} alone")
    with options.bar or Bar() as live:
        summary = fit(folder, workers=options.workers, progress=live)
    verdict = str(summary["verdict"])
    say("  " + verdict[:1].upper() + verdict[1:])
    deliver()
    say("Delivered: each hospital has the coefficients of its own columns, in its own units")
    rows = compare(folder, data)
    truth = out / "truth.csv"
    report = write(
        folder.path,
        out / "report.html",
        truth=truth,
        command=f"intarsia fit -o {folder.path.name}\nintarsia report {folder.path.name} --truth truth.csv -o report.html",
    )
    right = sum(row["true"] for row in rows)
    missed = len({p for p, _q in data.truth}) - right
    return {
        **summary,
        "table": rows,
        "right": right,
        "wrong": len(rows) - right,
        "missed": missed,
        "report": str(report),
        "folder": str(folder.path),
        "report_bytes": report.stat().st_size,
    }


def _carrier(hospitals: Mapping[str, Hospital], study: Study, say: Say) -> protocol.Ask:
    """Bring a step to all hospitals at once, gather the replies, and say what passed."""
    words = {
        "offer": "Key agreement: each hospital draws a key for this run alone and signs it",
        "share": "  each seals a share of the study key to the others' keys of this run",
        "combine": "  the server relays the shares; it cannot open them",
        "announce": "Each hospital tells the others how many people and columns it brings",
        "align": "Alignment: keyed tokens of the patients' ids, opaque to the server",
        "sketch": "Columns: each hospital states which it brings, after its own privacy gate"
        if study.sketch.screened
        else "Sketch: each hospital mixes its people with the secret Φ, after its own privacy gate",
        "look": "Look: exact sums of every feature with every response, added up from three shares",
        "receive": None,
    }

    def ask(step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        if words.get(step):
            say(str(words[step]))
        for name, payload in payloads.items():
            hospitals[name].post(step, study.hash, payload)
        replies = {name: hospitals[name].reply() for name in payloads}
        if step == "combine":
            say("  all three hold the same 32-byte key and have proved it")
        if step == "align":
            from intarsia.wire.alignment import AlignmentReport, intersect

            reports = {name: AlignmentReport.from_bytes(r.message) for name, r in replies.items() if r.message}
            if len(reports) == len(hospitals):
                n = next(iter(intersect(reports).values())).n
                say(f"  {n:,} people are at all three; the order is proved by a MAC, no id was shown")
        return replies

    return ask


def _tell_sketches(out: Path, folder: StudyFolder, study: Study, say: Say) -> None:
    for name in SITES:
        raw = (out / "sites" / name / "data.csv").stat().st_size
        sent = folder.file("sketch", name).stat().st_size
        say(f"  {name:<11} table {raw / 1e6:5.2f} MB stays, sketch {sent / 1e6:5.2f} MB leaves; gate: {_gate(out, name, study)}")


def _tell_screen(out: Path, folder: StudyFolder, study: Study, say: Say) -> None:
    """Which features were kept, and what each hospital's gate said."""
    from intarsia.server.study import screened

    rows = screened.table(folder)
    for name in SITES:
        kept = sum(row["kept"] is not None for row in rows if row["site"] == name)
        looked = sum(row["site"] == name for row in rows)
        say(f"  {name:<11} {looked} features looked at, {kept} kept, no value shown; gate: {_gate(out, name, study)}")


def _gate(out: Path, name: str, study: Study) -> str:
    """What the hospital's own privacy check found, from its own folder."""
    path = out / "sites" / name / "studies" / study.folder_name / "preflight.json"
    if not path.is_file():
        return "passed"
    found = json.loads(path.read_text(encoding="utf-8"))
    warned, overridden = ([f["rule"] for f in found["findings"] if f["level"] == level] for level in ("warn", "overridden"))
    told = [f"{what} {', '.join(rules)}" for what, rules in (("warns of", warned), ("overridden", overridden)) if rules]
    auc = "unknown" if found["membership_auc"] is None else f"{found['membership_auc']:.2f}"
    spent = "" if study.sketch.shares else f"Σm/n = {found['ratio']:.2f}, "
    return f"{spent}membership AUC {auc}; {', '.join(told) or 'nothing to warn of'}"


def compare(folder: StudyFolder, data: Hospitals) -> list[dict[str, Any]]:
    """The selected features at the response where each is strongest, beside the truth."""
    from intarsia.wire.coefficients import Coefficients

    rows: list[dict[str, Any]] = []
    known = {p for p, _q in data.truth}
    for name in SITES:
        c = Coefficients.from_bytes(folder.file("coefficients", name).read_bytes())
        for p in np.flatnonzero(c.selected):
            q = int(np.argmax(np.abs(c.mean[p]) / c.sd[p]))
            pair = (c.features[p], c.responses[q])
            rows.append(
                {
                    "feature": c.features[p],
                    "site": name,
                    "response": c.responses[q],
                    "effect": float(c.mean[p, q]),
                    "lower": float(c.lower[p, q]),
                    "upper": float(c.upper[p, q]),
                    "truth": data.truth.get(pair, 0.0),
                    "true": c.features[p] in known,
                }
            )
    return sorted(rows, key=lambda row: -abs(row["effect"]))

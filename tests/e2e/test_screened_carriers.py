"""A screened study by letters, through pipes to processes and in one process: the same numbers, bit for bit, and results at every
site. A site or the server that is killed goes on where it was.
"""

from pathlib import Path

import numpy as np
import pytest
from tests.e2e.test_gram_carriers import in_folders, run, through_pipes
from tests.federation import FIT, gram_parties, screened_study_of

from intarsia.carriers.in_process import carrier
from intarsia.carriers.pipes import Hospital
from intarsia.cli import main
from intarsia.errors import FederationError, IntarsiaError
from intarsia.server.study import gram, protocol, screened
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.round_folder import RoundFolder
from intarsia.site.site import Site
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study

pytestmark = pytest.mark.filterwarnings("ignore")

N = 2000  # enough people for the gate: 11 features, 2 responses, two looks
SHORT = {**FIT, "until": "draws"}


def planned(number: int = 3, **sketch) -> Study:  # type: ignore[no-untyped-def]
    parties, _ = gram_parties(number, n=N)
    holders = ["site0", "site1", "server"] if number == 2 else ["site0", "site1", "site2"]
    content = screened_study_of(parties, holders, again=1, rows=800, **sketch).to_dict()
    return Study.from_dict(content | {"fit": SHORT})


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The study in one process, of sites that keep nothing on disk."""
    parties, _ = gram_parties(3, n=N)
    folder = StudyFolder.create(tmp_path_factory.mktemp("here"), planned())
    protocol.collect(folder, carrier(parties, folder.study))
    return folder


def same(one: StudyFolder, other: StudyFolder) -> None:
    """The looks and the last round, number by number; masks differ from run to run, sums do not."""
    assert one.collected
    for at in range(1, screened.last_round(other)):
        assert np.array_equal(screened.looked(one, at), screened.looked(other, at))
    last = screened.last_round(other)
    assert np.array_equal(gram.joint(RoundFolder(one, last)), gram.joint(RoundFolder(other, last)))
    assert (one.path / screened.TABLE).read_bytes() == (other.path / screened.TABLE).read_bytes()


@pytest.mark.slow
def test_through_pipes_to_processes_it_is_the_same(here, tmp_path):
    folders = in_folders(3, tmp_path, here.study, n=N)
    hospitals = {path.name: Hospital(path.name, path) for path in folders}
    same(through_pipes(hospitals, here.study, tmp_path / "server"), here)


def by_letters(where: Path, most: int = 40) -> int:
    """The commands of docs/screened.md until no letter is left: how often letters went out."""
    run("fit", "--study", where / "study.toml", "-o", where / "liver")
    for count in range(1, most):
        letters = sorted((where / "liver" / "letters").glob("*.letter"))
        if not letters:
            return count - 1
        for letter in letters:
            run("site", "answer", where / letter.stem, letter, "-o", where / f"{letter.stem}.answers", "--yes")
        run("fit", *sorted(where.glob("*.answers")), "-o", where / "liver")
        for path in where.glob("*.answers*"):
            path.unlink()
    raise AssertionError("the study did not end")


@pytest.mark.slow
def test_by_letters_it_is_the_same_and_every_site_gets_its_results(here, tmp_path, capsys):
    in_folders(3, tmp_path, here.study, n=N)
    times = by_letters(tmp_path)
    assert times == 20  # as docs/screened.md says
    said = capsys.readouterr().out
    assert "every site has its coefficients" in said
    folder = StudyFolder.open(tmp_path / "liver")
    same(folder, here)
    assert not (folder.path / "letters").exists()
    site = SiteFolder.load(tmp_path / "site2").site()
    kept = folder.joined().features
    assert set(site.model(here.study).units.features) == {label for label in kept if label.startswith("site2")}
    for path in tmp_path.glob("site?/studies"):  # what only the multiplications needed is gone
        left = [file.name for file in path.rglob("*.secret")]
        assert not [name for name in left if "packets" in name or "sums" in name or "seed" in name or "encoded" in name], left
    run("site", "table", tmp_path / "site2", "-o", tmp_path / "site2.csv.out.csv")
    run("study", "status", folder.path)
    assert "look 2" in capsys.readouterr().out


def test_letters_of_another_study_and_answers_that_are_not_signed_are_refused(here, tmp_path):
    in_folders(3, tmp_path, here.study, n=N)
    run("fit", "--study", tmp_path / "study.toml", "-o", tmp_path / "liver")
    letter = tmp_path / "liver" / "letters" / "site0.letter"
    with pytest.raises(IntarsiaError, match="is a letter to site 'site0'"):
        main(["--debug", "site", "answer", str(tmp_path / "site1"), str(letter), "-o", str(tmp_path / "x.answers"), "--yes"])
    run("site", "answer", tmp_path / "site0", letter, "-o", tmp_path / "site0.answers", "--yes")
    (tmp_path / "site0.answers.sig").unlink()
    with pytest.raises(FederationError, match="comes without its signature"):
        main(["--debug", "fit", str(tmp_path / "site0.answers"), "-o", str(tmp_path / "liver")])


class PowerCutError(RuntimeError):
    """In place of a power cut."""


def killed_again_and_again(number: int, study: Study, tmp_path: Path) -> tuple[StudyFolder, list[Site], list[str]]:
    """Between any two steps, sites and server start again from their folders; asked again, a site sends what it sent.

    The folder at the server, the sites, and all steps that were asked.
    """
    folders = in_folders(number, tmp_path, study, n=N)
    sent: dict[tuple[str, str, bytes], bytes] = {}
    steps = []

    def restarted(stop: int) -> protocol.Ask:
        sites = [SiteFolder.load(path).site() for path in folders]
        honest, count = carrier(sites, study), iter(range(10**6))

        def ask(step, payloads):  # type: ignore[no-untyped-def]
            replies = honest(step, payloads)
            steps.append(step)
            for name, reply in replies.items():
                raw = repr(sorted((k, v if isinstance(v, bytes) else v.read_bytes()) for k, v in payloads[name].items()))
                assert sent.setdefault((name, step, raw.encode()), reply.message) == reply.message
            if next(count) == stop:  # the answers have left the sites and never arrive
                raise PowerCutError
            return replies

        return ask

    folder = StudyFolder.create(tmp_path / "server", study)
    for stop in range(2, 200):
        try:
            protocol.collect(StudyFolder.open(folder.path), restarted(stop % 3))
            break
        except PowerCutError:
            continue
    assert StudyFolder.open(folder.path).collected
    return StudyFolder.open(folder.path), [SiteFolder.load(path).site() for path in folders], steps


@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_anywhere_a_study_goes_on_and_sends_the_same_bytes(number, tmp_path):
    study = planned(number)
    folder, _, steps = killed_again_and_again(number, study, tmp_path)
    assert steps.count("look") >= 2
    parties, _ = gram_parties(number, n=N)
    whole = StudyFolder.create(tmp_path / "whole", study)
    protocol.collect(whole, carrier(parties, study))
    same(folder, whole)

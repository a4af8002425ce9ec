"""Compiling ahead: after it, a fit of another size compiles nothing more."""

import os
import subprocess
import sys

import numpy as np
import pytest

from intarsia.server import sampler as package
from intarsia.server.sampler.horseshoe import collapsed, conditionals, model, noise, systems
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.precompile import precompile
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.sparse import laws, patterns, places, scan, sweep, together
from intarsia.server.sampler.sparse import sample as sparse

FIT = """
import hashlib, sys
import numpy as np
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.settings import Settings
rng = np.random.default_rng(0)
X, Y = rng.standard_normal((12, 30)), rng.standard_normal((12, 2))
for local in sys.argv[1:]:
    draws = sample(X, Y, Model(local=local), Settings(draws=60, warmup=40, chains=1, thin=1, seed=1, workers=1))
print(hashlib.sha256(draws.C.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_the_same_bits_whether_compiled_now_or_before_and_whatever_ran_first(tmp_path):
    def fit(*local):
        return subprocess.run(
            [sys.executable, "-c", FIT, *local], check=True, capture_output=True, text=True,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"},
        ).stdout  # fmt: skip

    first = fit("row")
    assert any(tmp_path.iterdir())
    assert first == fit("row") == fit("element", "row")


def test_a_fit_of_another_size_finds_everything_compiled(monkeypatch):
    precompile()
    modules = collapsed, conditionals, model, noise, systems
    compiled = {f"{m.__name__}.{n}": f for m in modules for n, f in vars(m).items() if hasattr(f, "signatures")}
    before = {name: list(f.signatures) for name, f in compiled.items()}
    rng = np.random.default_rng(1)
    for costly in (np.inf, 0):  # as small problems, then as large ones
        monkeypatch.setattr("intarsia.server.sampler.horseshoe.sweep.COSTLY", costly)
        for m, P, Q in ((30, 50, 3), (9, 40, 4), (40, 10, 2)):
            X, Y = rng.standard_normal((m, P)), rng.standard_normal((m, Q))
            for noise_prior, local in (("correlated", "row"), ("independent", "row"), ("correlated", "element")):
                run = Settings(draws=8, warmup=8, chains=1, thin=1, workers=1)
                sample(X, Y, Model(noise=noise_prior, local=local), run)
    assert {name for name, f in compiled.items() if list(f.signatures) != before[name]} == set()
    assert len(before) > 15


def test_so_does_a_fit_under_the_sparse_prior():
    precompile()
    modules = laws, patterns, places, scan, sweep, together
    compiled = {f"{m.__name__}.{n}": f for m in modules for n, f in vars(m).items() if hasattr(f, "signatures")}
    before = {name: list(f.signatures) for name, f in compiled.items()}
    assert before["intarsia.server.sampler.sparse.sweep.sweep"]
    rng, run = np.random.default_rng(1), Settings(draws=8, warmup=8, chains=2, thin=1, workers=1)
    for m, P, Q in ((30, 50, 3), (9, 40, 1), (40, 10, 2), (20, 700, 3)):
        X, Y = rng.standard_normal((m, P)), rng.standard_normal((m, Q))
        for model_of in ((None, "correlated", 1.0, 3.0, True), (None, "independent", 1.0, 3.0, False), (1, "correlated")):
            sparse.sample(X, Y, sparse.SparseModel(*model_of), run)
        sparse.sample(X, np.where(np.eye(m, Q) > 0, np.nan, Y) if Q > 1 else Y, settings=run, partly=True)
    assert {name for name, f in compiled.items() if list(f.signatures) != before[name]} == set()


def test_what_is_kept_is_made_anew_when_any_file_of_the_sampler_changes(tmp_path, monkeypatch):
    """A compiled function holds those it calls, which may stand in another file."""
    monkeypatch.setattr(package, "__file__", str(tmp_path / "__init__.py"))
    stamps = []
    for text in ("one", "two", "one"):
        (tmp_path / "other.py").write_text(text)
        package._stamp.cache_clear()
        stamps.append(package._stamp())
    package._stamp.cache_clear()
    assert stamps[0] == stamps[2] != stamps[1]
    assert conditionals.draw_lam._cache._cache_file._source_stamp == stamps_of_the_package(monkeypatch)


def stamps_of_the_package(monkeypatch):
    monkeypatch.undo()
    package._stamp.cache_clear()
    return package._stamp()


def test_where_nothing_can_be_kept_functions_are_compiled_all_the_same(monkeypatch):
    from numba.core.dispatcher import Dispatcher

    def refused(self):
        raise RuntimeError("cannot cache function 'f': no locator available for file")

    monkeypatch.setattr(Dispatcher, "enable_caching", refused)
    assert package.compiled(lambda x: x + 1.0)(2.0) == 3.0

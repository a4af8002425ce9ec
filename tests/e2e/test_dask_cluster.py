"""The Dask path on real worker processes: sums are made there and come back whole."""

import numpy as np
import pytest

from intarsia import SketchKey, SketchTerms, sketch


@pytest.mark.slow
def test_a_cluster_of_processes_gives_the_same_sketch() -> None:
    da = pytest.importorskip("dask.array")
    distributed = pytest.importorskip("distributed")
    X = np.random.default_rng(0).standard_normal((3000, 20))
    key, terms = SketchKey(bytes(range(32))), SketchTerms("s", "r", 50)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        far = sketch(da.from_array(X, chunks=(400, 20)), key, terms).message
    np.testing.assert_allclose(far.X, sketch(X, key, terms).message.X, atol=1e-10)

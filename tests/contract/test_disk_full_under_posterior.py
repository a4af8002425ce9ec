"""A disk that fills while a posterior is written: an error in words, the process lives, and what was there is there still."""

import subprocess
import sys
from pathlib import Path

CHILD = """
import os, random, resource, signal, sys
from pathlib import Path
import numpy as np
from tests.reports import made_up
from intarsia.server.posterior.posterior import Posterior

file = Path(sys.argv[1])
posterior, _, _ = made_up(P=40, Q=2, draws=20)
posterior.save(file)
before, chance = file.read_bytes(), random.Random(1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a limit on the size of a file fails as a full disk does: in the middle of a write
for _ in range(25):
    resource.setrlimit(resource.RLIMIT_FSIZE, (chance.randrange(len(before)), resource.RLIM_INFINITY))
    try:
        posterior.save(file)
    except OSError as error:
        assert (error.filename, error.strerror) == (str(file), "File too large"), error
    else:
        raise AssertionError("a posterior that has no room was saved")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]
assert posterior.save(file) == file
assert np.array_equal(np.asarray(Posterior.load(file).draws.C), np.asarray(posterior.draws.C))
print("alive")
"""

LARGE = """
import resource, sys
import numpy as np
import xarray as xr
from pathlib import Path
from intarsia.files import writing
from intarsia.server.posterior.hdf5_file import Hdf5File

def save(values):
    with writing(Path(sys.argv[1])) as file:
        written = Hdf5File(file.fileno())
        tree = xr.DataTree.from_dict({"/posterior": xr.Dataset({"C": (("draw", "feature"), values)})})
        tree.to_netcdf(written, engine="h5netcdf")
        written.finish()

save(np.ones((2, 2)))
values = np.ones((1000, 10_000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
save(values)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def in_a_child(code: str, file: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)


def test_a_full_disk_under_a_posterior_ends_no_process(tmp_path: Path) -> None:
    """HDF5 by itself dies of it, at the write or as the process ends."""
    ended = in_a_child(CHILD, tmp_path / "posterior.nc")
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr[-2000:]


def test_a_large_posterior_is_not_copied_to_be_written(tmp_path: Path) -> None:
    """80 MB of draws go to the disk with less than 20 MB more of memory."""
    ended = in_a_child(LARGE, tmp_path / "posterior.nc")
    assert int(ended.stdout) < 20_000, ended.stderr[-2000:]

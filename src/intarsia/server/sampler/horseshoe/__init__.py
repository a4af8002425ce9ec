"""The paper's prior: a reduced-rank regression whose coefficients have local and global scales (the horseshoe and its kin).

Read `sweep` first: it is the paper's Algorithm 1, a step per line. `conditionals` has those steps (Algorithm 2 among them),
`collapsed` the moves with B integrated out, `systems` the linear systems behind both, `model` and `noise` the laws. `chain` makes
one chain of sweeps, `sample` runs several. `missing` and `errors_in_variables` are for rows that lack responses or carry noise.
"""

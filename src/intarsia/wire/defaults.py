"""How long a fit runs unless told otherwise: study files, command line, estimator and samplers read these."""

CHAINS = 4
# Draws kept per chain, sweeps before the first of them, and sweeps per kept draw: where a sweep costs next to nothing; where two
# sweeps share a factored system and the second of them is a full one.
DRAWS, WARMUP, THIN = 1000, 500, 10
SHARED_DRAWS, SHARED_WARMUP, SHARED_THIN = 4000, 400, 4
MEMORY = 2 * 2**30  # bytes that the draws of C may take
GRAM_ROWS = 16_384  # subjects per message between the sites of a Gram study: 26 MB for 200 columns

# A run ends before its budget of draws when every coefficient has met these.
RHAT = 1.01  # at most: Vehtari et al. (2021)
RHAT_FOLDED = 1.02  # at most: the spread settles more slowly than the location
NOISE_RHAT, NOISE_ESS = 1.05, 100.0  # both R̂ and the ESS of a noise variance: its chains must agree, its tails nobody asks for
PIP_GAP = 0.25  # at most: an inclusion probability of one chain beside that of another
ESS = 400.0  # at least, over all chains: enough for R̂ itself and for the interval's ends
# Every covariate uses up one row. With a third of the rows gone, intervals are 1/√(2/3) = 1.22 times as wide; beyond that a
# study should rather bring more rows.
MOST_SHARE_OF_ROWS = 1 / 3

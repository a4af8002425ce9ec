"""How long a fit runs unless told otherwise: study files, command line, estimator and samplers read these."""

DRAWS = 1000  # kept per chain
WARMUP = 500  # sweeps per chain before any is kept
CHAINS = 4
THIN, SHARED_THIN = 10, 20  # sweeps per kept draw; where sweeps share a factored system most of them are short
MANY_WARMUP = 120  # with many features, whose sweeps are all kept
MEMORY = 2 * 2**30  # bytes of draws of C above which some are kept and the rest is summed up on the way
GRAM_ROWS = 16_384  # subjects per message between the sites of a Gram study: 26 MB for 200 columns

# A run ends before its budget of draws when every coefficient has met these.
RHAT = 1.01  # at most: Vehtari et al. (2021)
RHAT_FOLDED = 1.02  # at most: the spread settles more slowly than the location
NOISE_RHAT, NOISE_ESS = 1.05, 100.0  # both R̂ and the ESS of a noise variance: its chains must agree, its tails nobody asks for
ESS = 400.0  # at least, over all chains: enough for R̂ itself and for the interval's ends
# Every covariate uses up one row. With a third of the rows gone, intervals are 1/√(2/3) = 1.22 times as wide; beyond that a
# study should rather bring more rows.
MOST_SHARE_OF_ROWS = 1 / 3

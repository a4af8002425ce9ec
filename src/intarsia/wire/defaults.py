"""How long a fit runs unless told otherwise: study files, command line, estimator and samplers read these."""

DRAWS = 1000  # kept per chain
WARMUP = 500  # sweeps per chain before any is kept
CHAINS = 4
THIN = 10  # sweeps per kept draw
GRAM_ROWS = 16_384  # subjects per message between the sites of a Gram study: 26 MB for 200 columns

skip_if_not_installed("ncdf4")
skip_if_not_installed("posterior")

means <- function(name) utils::read.csv(test_path("fixtures", paste0(name, "-means.csv")), check.names = FALSE)

for (name in c("posterior-0.1.0", "posterior-0.2.0")) {
  test_that(paste("draws of", name, "are those of the program"), {
    path <- test_path("fixtures", paste0(name, ".nc"))
    draws <- read_draws(path)
    expect_s3_class(draws, "draws_df")
    told <- means(name)
    expect_setequal(posterior::variables(draws), told$variable)
    found <- posterior::summarise_draws(draws, "mean", "sd")
    found <- found[match(told$variable, found$variable), ]
    expect_equal(as.numeric(found$mean), told$mean, tolerance = 1e-10)
    expect_equal(as.numeric(found$sd), told$sd, tolerance = 1e-10)
    expect_equal(posterior::nchains(draws), told$chains[1])
    first <- posterior::subset_draws(draws, chain = 2, iteration = 1)
    expect_equal(vapply(told$variable, function(v) first[[v]], numeric(1), USE.NAMES = FALSE), told$first_of_chain_2)
  })

  test_that(paste("some of", name, "can be read by name"), {
    path <- test_path("fixtures", paste0(name, ".nc"))
    all <- read_draws(path)
    pick <- sub("C\\[(.*),(.*)\\]", "\\1", posterior::variables(all)[2])
    some <- read_draws(path, features = pick, responses = "y1")
    expect_equal(posterior::variables(some), c(paste0("C[", pick, ",y1]"), "sigma2[y1]"))
    variable <- paste0("C[", pick, ",y1]")
    expect_equal(some[[variable]], all[[variable]])
    expect_error(read_draws(path, features = "nobody"), "no feature nobody")
  })
}

results <- read_results(test_path("fixtures", "results.csv"))

test_that("the table has one row for each coefficient, and logical columns", {
  expect_s3_class(results, "intarsia_results")
  expect_equal(nrow(results), 12)
  expect_type(results$selected, "logical")
  expect_equal(unique(results$feature[results$selected %in% TRUE]), c("f0", "f1"))
  expect_error(read_results(test_path("test-results.R")), "no table of results")
})

test_that("sets are those of susieR: places, purity, coverage, pip", {
  found <- sets(results)
  expect_named(found, c("cs", "purity", "coverage", "pip"))
  expect_equal(found$cs, list(L1 = c(3L, 4L), L2 = 6L))
  expect_equal(found$purity$min.abs.corr, c(0.95, 1))
  expect_equal(rownames(found$purity), c("L1", "L2"))
  expect_equal(found$coverage, c(L1 = 0.97, L2 = 0.99))
  expect_equal(names(found$pip), paste0("f", 0:5))
  expect_equal(unname(found$pip[1]), 0.999)
  without <- results
  without$set <- NA
  expect_length(sets(without)$cs, 0)
})

test_that("plots draw what the table says", {
  grDevices::pdf(NULL)
  on.exit(grDevices::dev.off())
  rows <- plot_effects(results, "y1", top = 4)
  expect_equal(rows$feature[1], "f0")
  expect_equal(nrow(rows), 4)
  expect_error(plot_effects(results, "y9"), "no response y9")
  expect_equal(names(plot_inclusion(results)$cs), c("L1", "L2"))
})

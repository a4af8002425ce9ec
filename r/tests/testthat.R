library(testthat)
library(intarsia)
test_check("intarsia")

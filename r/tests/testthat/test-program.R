test_that("a command's words are returned and its errors are errors", {
  skip_on_os("windows")
  program <- tempfile()
  writeLines(c("#!/bin/sh", "if [ \"$2\" = bad ]; then echo wrong >&2; exit 4; fi", "for word in \"$@\"; do echo \"$word\"; done"), program)
  Sys.chmod(program, "700")
  expect_equal(intarsia("site", "a b", "$HOME", program = program), c("site", "a b", "$HOME"))
  expect_error(intarsia("site", "bad", program = program), "exit code 4:\nwrong")
  expect_error(intarsia("site", program = "no-such-program"), "not found")
})

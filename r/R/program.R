#' A command of the program, such as `intarsia("site", "check", "clinic")`; what it prints is returned, line by line.
#'
#' The program is found on the path, or named by the variable INTARSIA. Steps that ask for a yes need a terminal: give them there.
intarsia <- function(..., program = Sys.getenv("INTARSIA", "intarsia")) {
  words <- c(...)
  if (!nzchar(Sys.which(program))) {
    stop("The program ", program, " is not found. Install it (pip install intarsia) or name it in the variable INTARSIA.",
         call. = FALSE)
  }
  errors <- tempfile()
  on.exit(unlink(errors))
  told <- suppressWarnings(system2(program, shQuote(words), stdout = TRUE, stderr = errors))
  code <- attr(told, "status")
  if (!is.null(code)) {
    stop("intarsia ", paste(words, collapse = " "), " ended with exit code ", code, ":\n",
         paste(readLines(errors), collapse = "\n"), call. = FALSE)
  }
  told
}

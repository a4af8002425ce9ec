#' The table of results, one row for each coefficient.
#'
#' `path` is what `intarsia report STUDY --table results.csv` or `intarsia site table SITE -o results.csv` wrote.
read_results <- function(path) {
  found <- read.csv(path, check.names = FALSE, stringsAsFactors = FALSE, encoding = "UTF-8")
  needed <- c("feature", "role", "response", "effect", "lower", "upper", "unit")
  missing <- setdiff(needed, names(found))
  if (length(missing)) {
    stop(path, " is no table of results: it has no column ", paste(missing, collapse = ", "),
         ". Write one with `intarsia report STUDY --table results.csv`.", call. = FALSE)
  }
  for (name in intersect(c("selected", "selected_here"), names(found))) {
    found[[name]] <- as.logical(found[[name]])  # the file says True and False; empty for covariates
  }
  class(found) <- c("intarsia_results", "data.frame")
  found
}

#' Sets of interchangeable features in the form of susieR's `susie_get_cs`: a list with `cs` (places among the features, a
#' vector for each set), `purity`, `coverage`, and `pip` of every feature by name.
sets <- function(results) {
  rows <- results[results$role == "feature", ]
  features <- unique(rows$feature)
  first <- rows[match(features, rows$feature), ]
  numbers <- sort(unique(first$set[!is.na(first$set)]))
  names <- if (length(numbers)) paste0("L", numbers) else character(0)
  members <- lapply(numbers, function(k) which(!is.na(first$set) & first$set == k))
  one <- function(column) vapply(numbers, function(k) first[[column]][match(k, first$set)], numeric(1))
  list(
    cs = setNames(members, names),
    purity = data.frame(min.abs.corr = one("purity"), row.names = names),
    coverage = setNames(one("coverage"), names),
    pip = setNames(first$pip, features)
  )
}

#' Draws of coefficients as `posterior::draws_df`: variables `C[feature,response]`, with `sigma2[response]`.
#'
#' `path` is a study's `posterior.nc`, of the default prior (sparse draws) or of the horseshoe (dense ones). Coefficients are in
#' standard deviations of the columns in a study, and in the columns' units from the estimator. `features` and `responses` pick
#' some by name; without `features`, files of more than 200 features are refused.
read_draws <- function(path, features = NULL, responses = NULL) {
  for (package in c("ncdf4", "posterior")) {
    if (!requireNamespace(package, quietly = TRUE)) {
      stop("read_draws needs the package ", package, ": install.packages(\"", package, "\")", call. = FALSE)
    }
  }
  nc <- ncdf4::nc_open(path)
  on.exit(ncdf4::nc_close(nc))
  known <- list(feature = .get(nc, "posterior/feature", path), response = .get(nc, "posterior/response", path))
  if (is.null(features) && length(known$feature) > 200) {
    stop(path, " has ", length(known$feature), " features: name some, such as those selected in read_results().", call. = FALSE)
  }
  at <- .places(features, known$feature, "feature")
  to <- .places(responses, known$response, "response")
  sigma2 <- .get(nc, "posterior/sigma2", path, c(length(known$response), NA, NA))  # response, draw, chain
  draws <- dim(sigma2)[2]
  chains <- dim(sigma2)[3]
  C <- if ("sparse_effects/effects" %in% names(nc$var)) {
    .sparse(nc, path, at, to, draws, chains, length(known$response))
  } else {
    whole <- .get(nc, "posterior/C", path, c(length(known$response), length(known$feature), draws, chains))
    whole[to, at, , , drop = FALSE]
  }
  # posterior's order: iteration, chain, variable
  out <- array(aperm(C, c(3, 4, 2, 1)), c(draws, chains, length(at) * length(to)))
  pairs <- expand.grid(feature = known$feature[at], response = known$response[to], stringsAsFactors = FALSE)
  noise <- array(aperm(sigma2[to, , , drop = FALSE], c(2, 3, 1)), c(draws, chains, length(to)))
  all <- array(c(out, noise), c(draws, chains, dim(out)[3] + length(to)))
  names <- c(sprintf("C[%s,%s]", pairs$feature, pairs$response), sprintf("sigma2[%s]", known$response[to]))
  dimnames(all) <- list(NULL, NULL, names)
  posterior::as_draws_df(posterior::as_draws_array(all))
}

.get <- function(nc, name, path, shape = NULL) {
  if (!name %in% c(names(nc$var), names(nc$dim))) {
    stop(path, " is no posterior of intarsia: it has no ", name, ".", call. = FALSE)
  }
  found <- ncdf4::ncvar_get(nc, name, collapse_degen = FALSE)
  if (is.null(shape)) {
    return(as.vector(found))
  }
  found
}

.places <- function(wanted, known, what) {
  if (is.null(wanted)) {
    return(seq_along(known))
  }
  at <- match(wanted, known)
  if (anyNA(at)) {
    stop("There is no ", what, " ", paste(wanted[is.na(at)], collapse = ", "), " in this posterior.", call. = FALSE)
  }
  at
}

# Draw k (chains one after the other) has the entries offsets[k] + 1 to offsets[k + 1]; all other features are zero in it.
.sparse <- function(nc, path, at, to, draws, chains, responses) {
  offsets <- .get(nc, "sparse_effects/offsets", path)
  place <- match(.get(nc, "sparse_effects/features", path) + 1, at)
  effects <- .get(nc, "sparse_effects/effects", path, c(responses, NA))  # response, entry
  draw <- rep(seq_len(draws * chains), diff(offsets))
  C <- array(0, c(length(to), length(at), draws * chains))
  keep <- which(!is.na(place))
  for (q in seq_along(to)) {
    C[cbind(rep(q, length(keep)), place[keep], draw[keep])] <- effects[to[q], keep]
  }
  array(C, c(length(to), length(at), draws, chains))
}

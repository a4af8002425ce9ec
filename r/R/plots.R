#' Effects on one response with their intervals, the strongest evidence on top. Selected ones are filled.
plot_effects <- function(results, response = results$response[1], top = 30) {
  rows <- results[results$response == response & results$role != "set", ]
  if (!nrow(rows)) {
    stop("There is no response ", response, " in these results.", call. = FALSE)
  }
  rows <- rows[order(-ifelse(is.na(rows$pip), Inf, rows$pip), -abs(rows$standardised)), ]
  rows <- rows[seq_len(min(top, nrow(rows))), ]
  at <- rev(seq_len(nrow(rows)))
  old <- par(mar = c(4.5, 8, 2, 1))
  on.exit(par(old))
  plot(rows$effect, at, xlim = range(rows$lower, rows$upper, 0), yaxt = "n", ylab = "", xlab = rows$unit[1], main = response,
       pch = ifelse(rows$selected %in% TRUE, 19, 1))
  segments(rows$lower, at, rows$upper, at)
  abline(v = 0, lty = 2)
  axis(2, at, rows$feature, las = 1, cex.axis = 0.8)
  invisible(rows)
}

#' Inclusion probabilities of all features in the table's order; sets of interchangeable ones have colours.
plot_inclusion <- function(results) {
  found <- sets(results)
  plot(seq_along(found$pip), found$pip, ylim = c(0, 1), pch = 20, col = "grey50", xlab = "feature", ylab = "inclusion probability")
  for (k in seq_along(found$cs)) {
    points(found$cs[[k]], found$pip[found$cs[[k]]], pch = 19, col = k + 1)
  }
  if (length(found$cs)) {
    legend("topright", names(found$cs), pch = 19, col = seq_along(found$cs) + 1, bty = "n")
  }
  invisible(found)
}

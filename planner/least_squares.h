/* least_squares.h - one step of a robust Gauss-Newton method with bounds and prior values.
 *
 * Unknowns x_k minimise
 *
 *   sum_i w_i rho (r_i (x)) + sum_k ((x_k - prior_k) / spread_k)^2,   low_k <= x_k <= high_k,
 *   rho (r) = 2 d^2 (sqrt (1 + (r / d)^2) - 1)     (pseudo-Huber loss, d = `elbow`)
 *
 * so that residuals much larger than d count in proportion to |r|, not to r^2, and a row that the
 * model cannot explain does not pull all unknowns. The step uses iteratively reweighted least
 * squares (Holland and Welsch, "Robust regression using iteratively reweighted least-squares",
 * Communications in Statistics A6, 1977) on the linear model r (x + s) = r + J s. A NaN residual
 * does not count. */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_least_squares {
  uint32_t n_x, n_r;
  const double *weight;        /* [n_r], at least 0 */
  const double *prior, *spread; /* [n_x]; spread > 0 */
  const double *low, *high;    /* [n_x] */
  double elbow;                /* d, greater than 0 */
};

/* The sum that the fit minimises, at the point x[n_x] with residuals r[n_r]. */
double weft_least_squares_loss (const struct weft_least_squares *problem, const double *x,
                                const double *r);

/* Writes the minimum of the linear model to next[n_x]. `slope` is the matrix J with n_r rows of n_x
 * elements. */
void weft_least_squares_step (const struct weft_least_squares *problem, const double *x,
                              const double *r, const double *slope, double *next);

/* Computes the standard errors of the unknowns from the curvature of the linear model at x and the
 * scatter of the residuals, without the prior. An unknown that no residual depends on has an
 * infinite error. */
void weft_least_squares_errors (const struct weft_least_squares *problem, const double *r,
                                const double *slope, double *standard_error);

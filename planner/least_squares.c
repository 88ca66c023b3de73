#include "planner/least_squares.h"
#include <math.h>
#include <string.h>

double
weft_least_squares_loss (const struct weft_least_squares *problem, const double *x,
                         const double *r)
{
  double d = problem->elbow, loss = 0;

  for (uint32_t i = 0; i < problem->n_r; i++)
    if (!isnan (r[i]))
      loss += problem->weight[i] * 2 * d * d * (sqrt (1 + r[i] * r[i] / (d * d)) - 1);
  for (uint32_t k = 0; k < problem->n_x; k++)
    loss += pow ((x[k] - problem->prior[k]) / problem->spread[k], 2);
  return loss;
}

/* The weight with which the plain square of a residual has the same gradient as the robust loss of
 * this residual. */
static double
weight_of (const struct weft_least_squares *problem, uint32_t i, double r)
{
  return isnan (r) ? 0 : problem->weight[i] / sqrt (1 + pow (r / problem->elbow, 2));
}

/* The residual that the linear model predicts at x + step. */
static double
predicted (const struct weft_least_squares *problem, const double *r, const double *slope,
           const double *step, uint32_t i)
{
  double sum = r[i];

  for (uint32_t k = 0; k < problem->n_x; k++)
    sum += slope[(size_t) i * problem->n_x + k] * step[k];
  return sum;
}

/* Adds J' W J to `matrix`, with the weights of residuals `at`. */
static void
add_products (const struct weft_least_squares *problem, const double *at, const double *slope,
              double *matrix)
{
  uint32_t n = problem->n_x;

  for (uint32_t i = 0; i < problem->n_r; i++) {
    const double *row = slope + (size_t) i * n;
    double w = weight_of (problem, i, at[i]);
    for (uint32_t k = 0; w > 0 && k < n; k++)
      for (uint32_t l = 0; row[k] != 0 && l < n; l++)
        matrix[k * n + l] += w * row[k] * row[l];
  }
}

/* Solves matrix * x = right for the unknowns that are not fixed, by Cholesky's method. The x of
 * fixed unknowns are not changed, and their terms are moved to the right side. The matrix is
 * positive definite. */
static void
solve (uint32_t n, const double *matrix, const double *right, const gboolean *fixed, double *x)
{
  g_autofree double *l = g_new0 (double, (size_t) n * n), *y = g_new0 (double, n);

  for (uint32_t i = 0; i < n; i++) {
    y[i] = fixed[i] ? x[i] : right[i];
    for (uint32_t j = 0; j < n; j++)
      if (!fixed[i] && fixed[j])
        y[i] -= matrix[i * n + j] * x[j];
    for (uint32_t j = 0; j <= i; j++) {
      double sum = fixed[i] || fixed[j] ? i == j : matrix[i * n + j];
      for (uint32_t k = 0; k < j; k++)
        sum -= l[i * n + k] * l[j * n + k];
      l[i * n + j] = i == j ? sqrt (fmax (sum, 1e-300)) : sum / l[j * n + j];
    }
  }
  for (uint32_t i = 0; i < n; i++) {
    for (uint32_t k = 0; k < i; k++)
      y[i] -= l[i * n + k] * y[k];
    y[i] /= l[i * n + i];
  }
  for (uint32_t i = n; i-- > 0;) {
    for (uint32_t k = i + 1; k < n; k++)
      y[i] -= l[k * n + i] * y[k];
    y[i] /= l[i * n + i];
    if (!fixed[i])
      x[i] = y[i];
  }
}

/* Solves within the bounds of the unknowns. An unknown whose solution is outside its bounds is
 * fixed on the bound, and the others are solved for again. */
static void
solve_bounded (const struct weft_least_squares *problem, const double *x, const double *matrix,
               const double *right, double *step)
{
  uint32_t n = problem->n_x, newly = 1;
  g_autofree gboolean *fixed = g_new0 (gboolean, n);

  while (newly) {
    solve (n, matrix, right, fixed, step);
    newly = 0;
    for (uint32_t k = 0; k < n; k++) {
      double inside = CLAMP (x[k] + step[k], problem->low[k], problem->high[k]) - x[k];
      if (fixed[k] || inside == step[k])
        continue;
      step[k] = inside;
      fixed[k] = TRUE;
      newly++;
    }
  }
}

/* One iteration of the reweighted least squares: computes weights from the residuals after `step`,
 * then a new step. */
static void
reweigh (const struct weft_least_squares *problem, const double *x, const double *r,
         const double *slope, double *step)
{
  uint32_t n = problem->n_x;
  g_autofree double *matrix = g_new0 (double, (size_t) n * n), *right = g_new0 (double, n);
  g_autofree double *after = g_new (double, problem->n_r + 1);

  for (uint32_t i = 0; i < problem->n_r; i++)
    after[i] = predicted (problem, r, slope, step, i);
  add_products (problem, after, slope, matrix);
  for (uint32_t i = 0; i < problem->n_r; i++)
    for (uint32_t k = 0; !isnan (r[i]) && k < n; k++)
      right[k] -= weight_of (problem, i, after[i]) * slope[(size_t) i * n + k] * r[i];
  for (uint32_t k = 0; k < n; k++) {
    double stiffness = 1 / (problem->spread[k] * problem->spread[k]);
    right[k] -= stiffness * (x[k] - problem->prior[k]);
    matrix[k * n + k] += stiffness;
  }
  solve_bounded (problem, x, matrix, right, step);
}

enum { ROUNDS = 12 }; /* number of iterations after which the weights do not change any more */

void
weft_least_squares_step (const struct weft_least_squares *problem, const double *x,
                         const double *r, const double *slope, double *next)
{
  g_autofree double *step = g_new0 (double, problem->n_x + 1);

  for (int round = 0; round < ROUNDS; round++)
    reweigh (problem, x, r, slope, step);
  for (uint32_t k = 0; k < problem->n_x; k++)
    next[k] = x[k] + step[k];
}

/* Column k of the inverse of `matrix`; its entry k is the variance of unknown k. */
static double
variance (uint32_t n, const double *matrix, uint32_t k)
{
  g_autofree double *unit = g_new0 (double, n), *column = g_new0 (double, n);
  g_autofree gboolean *none = g_new0 (gboolean, n);

  unit[k] = 1;
  solve (n, matrix, unit, none, column);
  return column[k];
}

void
weft_least_squares_errors (const struct weft_least_squares *problem, const double *r,
                           const double *slope, double *standard_error)
{
  uint32_t n = problem->n_x;
  g_autofree double *matrix = g_new0 (double, (size_t) n * n);
  g_autofree gboolean *unknown = g_new0 (gboolean, n + 1);
  double squares = 0, weights = 0;

  add_products (problem, r, slope, matrix);
  for (uint32_t i = 0; i < problem->n_r; i++) {
    double w = weight_of (problem, i, r[i]);
    squares += w > 0 ? w * r[i] * r[i] : 0;
    weights += w > 0;
  }
  for (uint32_t k = 0; k < n; k++) {
    unknown[k] = matrix[k * n + k] <= 0;
    matrix[k * n + k] += unknown[k] ? 1 : 1e-12 * matrix[k * n + k];
  }
  double scatter = squares / fmax (1, weights - n);
  for (uint32_t k = 0; k < n; k++)
    standard_error[k] = unknown[k] ? INFINITY : sqrt (scatter * variance (n, matrix, k));
}

/* GELU in the tanh form of GPT-2 (Hendrycks and Gimpel, arXiv 1606.08415), computed with the
 * logistic function: (1 + tanh u) / 2 = logistic (2 u). With activation = gelu_erf, GELU uses the
 * error function. SwiGLU and GEGLU (gate by GELU in its tanh form): Shazeer, arXiv 2002.05202.
 * Squared ReLU: So et al., arXiv 2109.08668. */
#include "kernels/elementwise.h"
#include "kernels/float.h"
#include "kernels/math.h"
#include "kernels/part.h"
#include <math.h>

#define TWICE_ROOT_2_PI 1.5957691216057308 /* 2 sqrt (2 / pi) */
#define CUBIC 0.044715
#define ROOT_HALF 0.7071067811865476
#define ROOT_1_2_PI 0.3989422804014327 /* 1 / sqrt (2 pi) */

static uint64_t
elements (const struct weft_kernel *k)
{
  return k->shape.dim[0] * k->shape.dim[1];
}

#define EXTENT(name)                                                                               \
  uint64_t weft_extent_##name (const struct weft_kernel *k, uint32_t operand)                      \
  {                                                                                                \
    (void) operand;                                                                                \
    return elements (k);                                                                           \
  }
EXTENT (gelu)
EXTENT (gelu_bwd)
EXTENT (relu)
EXTENT (relu_bwd)
EXTENT (relu2)
EXTENT (relu2_bwd)
EXTENT (add)
EXTENT (softcap)

uint64_t
weft_extent_swiglu (const struct weft_kernel *k, uint32_t operand)
{
  return elements (k) * (operand == 0 ? 2 : 1);
}

uint64_t
weft_extent_swiglu_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return elements (k) * (operand == 1 ? 1 : 2);
}

/* Computes yes = logistic (z) and no = 1 - logistic (z), both without cancellation. */
static inline void
logistic (float z, float *yes, float *no)
{
  float e = weft_expf (z < 0 ? z : -z), more = 1 / (1 + e), less = e * more;
  *yes = z < 0 ? less : more;
  *no = z < 0 ? more : less;
}

WEFT_WIDE static void
gelu (const void *with, float *const *at, uint64_t n)
{
  const float *x = at[0];
  float *y = at[1];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++) {
    float z = (float) TWICE_ROOT_2_PI * (x[i] + (float) CUBIC * x[i] * x[i] * x[i]), yes, no;
    logistic (z, &yes, &no);
    y[i] = x[i] * yes;
  }
}

WEFT_WIDE static void
gelu_bwd (const void *with, float *const *at, uint64_t n)
{
  const float *x = at[0], *dy = at[1];
  float *dx = at[2];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++) {
    float square = x[i] * x[i], yes, no;
    logistic ((float) TWICE_ROOT_2_PI * (x[i] + (float) CUBIC * square * x[i]), &yes, &no);
    float dz = (float) TWICE_ROOT_2_PI * (1 + 3 * (float) CUBIC * square);
    dx[i] = dy[i] * (yes + x[i] * yes * no * dz);
  }
}

WEFT_WIDE static void
gelu_erf (const void *with, float *const *at, uint64_t n)
{
  const float *x = at[0];
  float *y = at[1];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    y[i] = x[i] * (0.5f + 0.5f * weft_erff (x[i] * (float) ROOT_HALF));
}

WEFT_WIDE static void
gelu_erf_bwd (const void *with, float *const *at, uint64_t n)
{
  const float *x = at[0], *dy = at[1];
  float *dx = at[2];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++) {
    float share = 0.5f + 0.5f * weft_erff (x[i] * (float) ROOT_HALF);
    dx[i] = dy[i] * (share + x[i] * (float) ROOT_1_2_PI * weft_expf (-0.5f * x[i] * x[i]));
  }
}

WEFT_WIDE static void
relu (const void *with, float *const *at, uint64_t n)
{
  const float *x = at[0];
  float *y = at[1];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    y[i] = x[i] < 0 ? 0 : x[i];
}

WEFT_WIDE static void
relu_bwd (const void *with, float *const *at, uint64_t n)
{
  const float *x = at[0], *dy = at[1];
  float *dx = at[2];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    dx[i] = x[i] > 0 ? dy[i] : 0;
}

WEFT_WIDE static void
relu2 (const void *with, float *const *at, uint64_t n)
{
  const float *x = at[0];
  float *y = at[1];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++) {
    float above = x[i] < 0 ? 0 : x[i];
    y[i] = above * above;
  }
}

WEFT_WIDE static void
relu2_bwd (const void *with, float *const *at, uint64_t n)
{
  const float *x = at[0], *dy = at[1];
  float *dx = at[2];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    dx[i] = 2 * (x[i] < 0 ? 0 : x[i]) * dy[i];
}

WEFT_WIDE static void
add (const void *with, float *const *at, uint64_t n)
{
  const float *a = at[0], *b = at[1];
  float *y = at[2];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    y[i] = a[i] + b[i];
}

WEFT_WIDE static void
softcap (const void *with, float *const *at, uint64_t n)
{
  const struct weft_kernel *k = with;
  float cap = (float) k->model->final_logit_softcapping, less = 1 / cap, *x = at[0];

  for (uint64_t i = 0; i < n; i++)
    x[i] = cap * weft_tanhf (x[i] * less);
}

#define FLAT(name, access)                                                                         \
  void weft_cpu_##name (const struct weft_kernel *k, uint32_t part, uint32_t parts)                \
  {                                                                                                \
    weft_elementwise_run (k, &(struct weft_elementwise){ access, elements (k), name, NULL }, part, \
                          parts);                                                                  \
  }
FLAT (relu, "rw")
FLAT (relu_bwd, "rrw")
FLAT (relu2, "rw")
FLAT (relu2_bwd, "rrw")
FLAT (add, "rrw")

void
weft_cpu_softcap (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_elementwise_run (k, &(struct weft_elementwise){ "u", elements (k), softcap, k }, part,
                        parts);
}

static gboolean
by_erf (const struct weft_kernel *k)
{
  return k->model->activation == WEFT_GELU_ERF;
}

void
weft_cpu_gelu (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_elementwise_run (
      k, &(struct weft_elementwise){ "rw", elements (k), by_erf (k) ? gelu_erf : gelu, NULL }, part,
      parts);
}

void
weft_cpu_gelu_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_elementwise_run (
      k,
      &(struct weft_elementwise){ "rrw", elements (k), by_erf (k) ? gelu_erf_bwd : gelu_bwd, NULL },
      part, parts);
}

/* -------------------------------------------------------------- gates: swiglu, geglu */

typedef void activate_gate (float *y, const float *gate, const float *up, uint64_t n);
typedef void gate_slopes (float *const to[2], const float *gate, const float *up, const float *dy,
                          uint64_t n);

static gboolean
by_gelu (const struct weft_kernel *k)
{
  return k->model->activation == WEFT_GEGLU;
}

WEFT_WIDE static void
swiglu (float *y, const float *gate, const float *up, uint64_t n)
{
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++) {
    float yes, no;
    logistic (gate[i], &yes, &no);
    y[i] = gate[i] * yes * up[i];
  }
}

WEFT_WIDE static void
swiglu_bwd (float *const to[2], const float *gate, const float *up, const float *dy, uint64_t n)
{
  float *dgate = to[0], *dup = to[1];

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++) {
    float yes, no, g = gate[i], u = up[i], d = dy[i];
    logistic (g, &yes, &no);
    dgate[i] = d * u * yes * (1 + g * no);
    dup[i] = d * g * yes;
  }
}

WEFT_WIDE static void
geglu (float *y, const float *gate, const float *up, uint64_t n)
{
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++) {
    float g = gate[i], yes, no;
    logistic ((float) TWICE_ROOT_2_PI * (g + (float) CUBIC * g * g * g), &yes, &no);
    y[i] = g * yes * up[i];
  }
}

WEFT_WIDE static void
geglu_bwd (float *const to[2], const float *gate, const float *up, const float *dy, uint64_t n)
{
  float *dgate = to[0], *dup = to[1];

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++) {
    float yes, no, g = gate[i], u = up[i], d = dy[i], square = g * g;
    logistic ((float) TWICE_ROOT_2_PI * (g + (float) CUBIC * square * g), &yes, &no);
    float dz = (float) TWICE_ROOT_2_PI * (1 + 3 * (float) CUBIC * square);
    dgate[i] = d * u * (yes + g * yes * no * dz);
    dup[i] = d * g * yes;
  }
}

/* Computes columns [c, c + n) of one row: activation of the gate, times `up`. */
static void
swiglu_stretch (const struct weft_kernel *k, uint64_t row, uint64_t c, uint64_t n)
{
  const struct weft_operand *x = &k->operand[0], *out = &k->operand[1];
  uint64_t columns = k->shape.dim[1], at = row * 2 * columns + c, to = row * columns + c;
  float gate[WEFT_STRETCH], up[WEFT_STRETCH], room[WEFT_STRETCH];
  float *y = weft_target (out->data, out->dtype, to, room);
  activate_gate *run = by_gelu (k) ? geglu : swiglu;

  run (y, weft_floats (x->data, x->dtype, at, n, gate),
       weft_floats (x->data, x->dtype, at + columns, n, up), n);
  weft_store (out->data, out->dtype, to, n, y);
}

static void
swiglu_bwd_stretch (const struct weft_kernel *k, uint64_t row, uint64_t c, uint64_t n)
{
  const struct weft_operand *x = &k->operand[0], *dy = &k->operand[1], *out = &k->operand[2];
  uint64_t columns = k->shape.dim[1], at = row * 2 * columns + c;
  float gate[WEFT_STRETCH], up[WEFT_STRETCH], d[WEFT_STRETCH], room[2][WEFT_STRETCH];
  float *const to[2] = { weft_target (out->data, out->dtype, at, room[0]),
                         weft_target (out->data, out->dtype, at + columns, room[1]) };
  gate_slopes *run = by_gelu (k) ? geglu_bwd : swiglu_bwd;

  run (to, weft_floats (x->data, x->dtype, at, n, gate),
       weft_floats (x->data, x->dtype, at + columns, n, up),
       weft_floats (dy->data, dy->dtype, row * columns + c, n, d), n);
  weft_store (out->data, out->dtype, at, n, to[0]);
  weft_store (out->data, out->dtype, at + columns, n, to[1]);
}

static void
each_stretch (const struct weft_kernel *k, struct weft_range rows,
              void (*run) (const struct weft_kernel *k, uint64_t row, uint64_t c, uint64_t n))
{
  for (uint64_t r = rows.begin; r < rows.end; r++)
    for (uint64_t c = 0; c < k->shape.dim[1]; c += WEFT_STRETCH)
      run (k, r, c, weft_least (k->shape.dim[1] - c, WEFT_STRETCH));
}

void
weft_cpu_swiglu (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  each_stretch (k, weft_part (k->shape.dim[0], 1, part, parts), swiglu_stretch);
}

void
weft_cpu_swiglu_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  each_stretch (k, weft_part (k->shape.dim[0], 1, part, parts), swiglu_bwd_stretch);
}

/* -------------------------------------------------------------------- reference */

static double
ref_logistic (double z)
{
  return 1 / (1 + exp (-z));
}

/* Reference in double: returns GELU at x. *slope receives the derivative of GELU at x. */
static double
ref_gelu (gboolean erf_form, double x, double *slope)
{
  double u = TWICE_ROOT_2_PI / 2 * (x + CUBIC * x * x * x);
  double du = TWICE_ROOT_2_PI / 2 * (1 + 3 * CUBIC * x * x);
  double share = erf_form ? (1 + erf (x * ROOT_HALF)) / 2 : (1 + tanh (u)) / 2;

  *slope = share + x * (erf_form ? ROOT_1_2_PI * exp (-x * x / 2)
                                 : (1 - tanh (u) * tanh (u)) / 2 * du);
  return x * share;
}

void
weft_ref_gelu (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data;
  double *y = k->operand[1].data, slope;

  for (uint64_t i = 0; i < elements (k); i++)
    y[i] = ref_gelu (by_erf (k), x[i], &slope);
}

void
weft_ref_gelu_bwd (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data, *dy = k->operand[1].data;
  double *dx = k->operand[2].data, slope;

  for (uint64_t i = 0; i < elements (k); i++) {
    ref_gelu (by_erf (k), x[i], &slope);
    dx[i] = dy[i] * slope;
  }
}

static double
ref_gate (const struct weft_kernel *k, double x, double *slope)
{
  double s = ref_logistic (x);

  if (by_gelu (k))
    return ref_gelu (FALSE, x, slope);
  *slope = s * (1 + x * (1 - s));
  return x * s;
}

void
weft_ref_swiglu (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[1];
  double slope;

  for (uint64_t r = 0; r < k->shape.dim[0]; r++) {
    const double *gate = (double *) k->operand[0].data + r * 2 * n;
    double *y = (double *) k->operand[1].data + r * n;
    for (uint64_t i = 0; i < n; i++)
      y[i] = ref_gate (k, gate[i], &slope) * gate[n + i];
  }
}

void
weft_ref_swiglu_bwd (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[1];
  double slope;

  for (uint64_t r = 0; r < k->shape.dim[0]; r++) {
    const double *gate = (double *) k->operand[0].data + r * 2 * n;
    const double *dy = (double *) k->operand[1].data + r * n;
    double *dgate = (double *) k->operand[2].data + r * 2 * n;
    for (uint64_t i = 0; i < n; i++) {
      dgate[n + i] = dy[i] * ref_gate (k, gate[i], &slope);
      dgate[i] = dy[i] * gate[n + i] * slope;
    }
  }
}

void
weft_ref_relu (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data;
  double *y = k->operand[1].data;

  for (uint64_t i = 0; i < elements (k); i++)
    y[i] = x[i] > 0 ? x[i] : 0;
}

void
weft_ref_relu_bwd (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data, *dy = k->operand[1].data;
  double *dx = k->operand[2].data;

  for (uint64_t i = 0; i < elements (k); i++)
    dx[i] = x[i] > 0 ? dy[i] : 0;
}

void
weft_ref_relu2 (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data;
  double *y = k->operand[1].data;

  for (uint64_t i = 0; i < elements (k); i++)
    y[i] = x[i] > 0 ? x[i] * x[i] : 0;
}

void
weft_ref_relu2_bwd (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data, *dy = k->operand[1].data;
  double *dx = k->operand[2].data;

  for (uint64_t i = 0; i < elements (k); i++)
    dx[i] = x[i] > 0 ? 2 * x[i] * dy[i] : 0;
}

void
weft_ref_softcap (const struct weft_kernel *k)
{
  double *x = k->operand[0].data, cap = k->model->final_logit_softcapping;

  for (uint64_t i = 0; i < elements (k); i++)
    x[i] = cap * tanh (x[i] / cap);
}

void
weft_ref_add (const struct weft_kernel *k)
{
  const double *a = k->operand[0].data, *b = k->operand[1].data;
  double *y = k->operand[2].data;

  for (uint64_t i = 0; i < elements (k); i++)
    y[i] = a[i] + b[i];
}

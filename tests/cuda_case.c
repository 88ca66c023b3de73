#include "tests/cuda_case.h"
#include "kernels/cuda/table.h"
#include "kernels/float.h"
#include "tests/emulated_cuda.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { BEHIND = 64 };

void
cuda_case_launch (const struct weft_kernel *k, gboolean backwards)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (k);
  g_autofree uint8_t *scratch = NULL;

  l.scratch_bytes = weft_cuda_scratch (k->kind, &k->shape);
  l.scratch = scratch = g_malloc (l.scratch_bytes + BEHIND);
  memset (scratch, 0xff, l.scratch_bytes + BEHIND);
  emulated_order_of_threads (backwards);
  assert_null (weft_cuda_launchers[k->kind](&l));
  for (uint64_t i = 0; i < BEHIND; i++)
    assert_int_equal (scratch[l.scratch_bytes + i], 0xff);
}

static uint64_t
bytes_of (const struct weft_operand *o)
{
  return o->n * weft_dtype_bytes (o->dtype);
}

/* Operands in one memory, as those of an op that works in place are, stay in one. */
struct weft_kernel
cuda_case_copy (const struct weft_kernel *k)
{
  struct weft_kernel copy = *k;

  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    uint32_t same = 0;
    while (same < o && k->operand[same].data != k->operand[o].data)
      same++;
    copy.operand[o].data = same < o ? copy.operand[same].data
                                    : g_memdup2 (k->operand[o].data, bytes_of (&k->operand[o]));
  }
  return copy;
}

void
cuda_case_free (struct weft_kernel *k)
{
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    void *data = k->operand[o].data;
    for (uint32_t next = o; next < WEFT_MOST_OPERANDS; next++)
      if (k->operand[next].data == data)
        k->operand[next].data = NULL;
    g_free (data);
  }
}

static const double half_ulp[WEFT_N_DTYPE] = { [WEFT_BF16] = 0x1p-8, [WEFT_FP16] = 0x1p-11 };

static double
element (const struct weft_operand *o, uint64_t i)
{
  float room;
  return (double) *weft_floats (o->data, o->dtype, i, 1, &room);
}

static void
compare_floats (const struct weft_kernel *k, uint32_t o, const struct weft_operand *found,
                double tolerance)
{
  const struct weft_operand *wanted = &k->operand[o];
  double scale = 1;

  for (uint64_t i = 0; i < wanted->n; i++)
    if (isfinite (element (wanted, i)))
      scale = fmax (scale, fabs (element (wanted, i)));
  for (uint64_t i = 0; i < wanted->n; i++) {
    double f = element (found, i), w = element (wanted, i);
    if (f == w || (isnan (f) && isnan (w)))
      continue;
    if (!(fabs (f - w) <= tolerance * scale + 2 * half_ulp[wanted->dtype] * fabs (w)))
      fail_msg ("%s, operand %u, element %" G_GUINT64_FORMAT ": found %.9g, wanted %.9g",
                weft_op_info[k->kind].word, o, i, f, w);
  }
}

void
cuda_case_check (const struct weft_kernel *k, double tolerance)
{
  struct weft_kernel forwards = cuda_case_copy (k), backwards = cuda_case_copy (k);

  cuda_case_launch (&forwards, FALSE);
  cuda_case_launch (&backwards, TRUE);
  weft_kernels[k->kind].cpu (k, 0, 1);
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    const struct weft_operand *wanted = &k->operand[o];
    if (!wanted->data)
      continue;
    if (memcmp (forwards.operand[o].data, backwards.operand[o].data, bytes_of (wanted)) != 0)
      fail_msg ("%s: operand %u depends on the order of threads", weft_op_info[k->kind].word, o);
    if (wanted->dtype <= WEFT_FP16)
      compare_floats (k, o, &forwards.operand[o], tolerance);
    else if (memcmp (forwards.operand[o].data, wanted->data, bytes_of (wanted)) != 0)
      fail_msg ("%s: operand %u is not that of the CPU", weft_op_info[k->kind].word, o);
  }
  cuda_case_free (&forwards);
  cuda_case_free (&backwards);
}

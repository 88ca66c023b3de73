#include "train/quantised.h"
#include "kernels/float.h"
#include "kernels/fp8.h"
#include "kernels/kernel.h"

static void
run (enum weft_op_kind kind, const uint64_t dim[2], const struct weft_operand *operand, uint32_t n)
{
  struct weft_kernel k = { .kind = kind, .shape = { .dim = { dim[0], dim[1], WEFT_MX_BLOCK } } };

  for (uint32_t i = 0; i < n; i++)
    k.operand[i] = operand[i];
  weft_kernels[kind].cpu (&k, 0, 1);
}

static struct weft_operand
bytes_of (const struct weft_quantised *q, enum weft_quantised_part part, enum weft_dtype dtype)
{
  return (struct weft_operand){ q->data[part], q->bytes[part] / weft_dtype_bytes (dtype), dtype,
                                FALSE };
}

/* Finds the buffers of the transposed codes by searching for the op that writes them. */
static void
find_transposed (struct weft_quantised *q, const weft_program *p)
{
  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_use *use = &p->uses[p->op[op].uses];
    gboolean mx = p->op[op].kind == WEFT_OP_QUANTISE_BLOCKS && use[1].buf == q->buf[WEFT_CODES];
    gboolean transposes = p->op[op].kind == WEFT_OP_TRANSPOSE && use[0].buf == q->buf[WEFT_CODES];
    if (mx) {
      q->buf[WEFT_CODES_TRANSPOSED] = use[3].buf;
      q->buf[WEFT_SCALE_TRANSPOSED] = use[4].buf;
    } else if (transposes && p->buf[use[1].buf].permanent) {
      q->buf[WEFT_CODES_TRANSPOSED] = use[1].buf;
    }
  }
}

static void
make_mx (struct weft_quantised *q, const uint64_t size[2], const float *master)
{
  uint64_t n = size[0] * size[1];
  g_autofree uint16_t *staged = g_new (uint16_t, n);
  const struct weft_operand operand[] = { { staged, n, WEFT_BF16, FALSE },
                                          bytes_of (q, WEFT_CODES, WEFT_FP8),
                                          bytes_of (q, WEFT_SCALE, WEFT_E8M0),
                                          bytes_of (q, WEFT_CODES_TRANSPOSED, WEFT_FP8),
                                          bytes_of (q, WEFT_SCALE_TRANSPOSED, WEFT_E8M0) };

  weft_store (staged, WEFT_BF16, 0, n, master);
  run (WEFT_OP_QUANTISE_BLOCKS, size, operand, G_N_ELEMENTS (operand));
}

static void
make_scaled (struct weft_quantised *q, const uint64_t size[2], const float *master)
{
  const uint64_t flat[2] = { size[0] * size[1], 0 };
  const struct weft_operand x = { (void *) (uintptr_t) master, flat[0], WEFT_FP32, FALSE };
  const struct weft_operand amax = bytes_of (q, WEFT_SCALE, WEFT_FP32),
                            y = bytes_of (q, WEFT_CODES, WEFT_FP8),
                            transposed = bytes_of (q, WEFT_CODES_TRANSPOSED, WEFT_FP8);

  run (WEFT_OP_AMAX, flat, (const struct weft_operand[]){ x, amax }, 2);
  run (WEFT_OP_QUANTISE, flat, (const struct weft_operand[]){ x, amax, y }, 3);
  run (WEFT_OP_TRANSPOSE, size, (const struct weft_operand[]){ y, transposed }, 2);
}

void
weft_quantised_init (struct weft_quantised *q, const weft_program *p,
                     const struct weft_param *param, const float *master)
{
  const uint64_t size[2] = { param->rows, param->columns };
  gboolean mx = p->buf[param->scale].dtype == WEFT_E8M0;

  *q = (struct weft_quantised){ .buf = { param->weight, param->scale, WEFT_NO_BUF, WEFT_NO_BUF } };
  if (param->weight != WEFT_NO_BUF)
    find_transposed (q, p);
  q->bytes[WEFT_CODES] = q->bytes[WEFT_CODES_TRANSPOSED] = size[0] * size[1];
  q->bytes[WEFT_SCALE] = mx ? size[0] * weft_mx_blocks (size[1]) : sizeof (float);
  q->bytes[WEFT_SCALE_TRANSPOSED] = mx ? size[1] * weft_mx_blocks (size[0]) : 0;
  for (int part = 0; part < WEFT_N_QUANTISED; part++)
    q->data[part] = g_malloc (q->bytes[part]);
  (mx ? make_mx : make_scaled) (q, size, master);
}

void
weft_quantised_release (struct weft_quantised *q)
{
  for (int part = 0; part < WEFT_N_QUANTISED; part++)
    g_free (q->data[part]);
}

void
weft_quantised_values (float *value, uint64_t n, float largest)
{
  float up = weft_fp8_scale (largest), down = weft_fp8_unscale (largest);

  for (uint64_t i = 0; i < n; i++)
    value[i] = weft_e4m3_float (weft_e4m3_round (weft_fp8_scaled (value[i], up, largest))) * down;
}

void
weft_quantised_row (float *value, uint64_t columns)
{
  weft_round (WEFT_BF16, columns, value);
  for (uint64_t c = 0; c < columns; c += WEFT_MX_BLOCK) {
    uint64_t end = MIN (c + WEFT_MX_BLOCK, columns);
    float most = 0;
    for (uint64_t i = c; i < end; i++)
      most = fmaxf (most, fabsf (value[i]));
    uint8_t scale = weft_e8m0_scale (most);
    float up = weft_e8m0_float ((uint8_t) (254 - scale)), down = weft_e8m0_float (scale);
    for (uint64_t i = c; i < end; i++)
      value[i] = weft_e4m3_float (weft_e4m3_round (value[i] * up)) * down;
  }
}

/* fp8 rows of experts: every group of rows is quantised as a tensor of its own. */
#include "kernels/fp8_blocks.h"
#include "kernels/moe.h"
#include <math.h>

enum { ROWS, COLUMNS, GROUPS, STRIDE, BLOCK, SQUARE };
enum { X, COUNTS };
/* operand numbers of moe_quantise; moe_amax has only the operand AMAX of these */
enum { AMAX = 2, Y, SEEN };
enum { B_Y = 2, B_SCALE, B_YT, B_SCALE_T };

static struct weft_moe_rows
rows_of (const struct weft_kernel *k, uint64_t g)
{
  const uint64_t *dim = k->shape.dim;

  return weft_moe_rows_of (&k->operand[COUNTS], g, dim[GROUPS], dim[STRIDE], dim[ROWS]);
}

/* An operand without its first i elements. doubles TRUE: elements are doubles, as in a reference;
 * FALSE: elements have the stored type. */
static struct weft_operand
from (const struct weft_operand *o, uint64_t i, gboolean doubles)
{
  struct weft_operand part = *o;
  uint64_t size = doubles ? sizeof (double) : weft_dtype_bytes (o->dtype);

  if (o->data)
    part.data = (uint8_t *) o->data + i * size;
  return part;
}

/* ----------------------------------------------------------------- largest magnitudes */

uint64_t
weft_extent_moe_amax (const struct weft_kernel *k, uint32_t operand)
{
  return operand == AMAX ? k->shape.dim[GROUPS] : 0;
}

/* Arguments of the op amax for the token rows of one group. */
static struct weft_kernel
measured (const struct weft_kernel *k, uint64_t g, const struct weft_operand *amax,
          gboolean doubles)
{
  struct weft_moe_rows rows = rows_of (k, g);
  uint64_t columns = k->shape.dim[COLUMNS];
  struct weft_kernel one = { .kind = WEFT_OP_AMAX, .shape = { .dim = { rows.n * columns } } };

  one.operand[0] = from (&k->operand[X], rows.first * columns, doubles);
  one.operand[1] = from (amax, g, doubles);
  return one;
}

void
weft_cpu_moe_amax (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  for (uint64_t g = part; g < k->shape.dim[GROUPS]; g += parts) {
    struct weft_kernel one = measured (k, g, &k->operand[AMAX], FALSE);
    weft_kernels[one.kind].cpu (&one, 0, 1);
  }
}

void
weft_ref_moe_amax (const struct weft_kernel *k)
{
  for (uint64_t g = 0; g < k->shape.dim[GROUPS]; g++) {
    struct weft_kernel one = measured (k, g, &k->operand[AMAX], TRUE);
    weft_kernels[one.kind].reference (&one);
  }
}

/* ---------------------------------------------------------------- one scale per group */

uint64_t
weft_extent_moe_quantise (const struct weft_kernel *k, uint32_t operand)
{
  return operand == AMAX || operand == SEEN ? k->shape.dim[GROUPS] : 0;
}

static struct weft_kernel
quantised (const struct weft_kernel *k, uint64_t g, gboolean doubles)
{
  uint64_t columns = k->shape.dim[COLUMNS];
  struct weft_kernel one = measured (k, g, &k->operand[AMAX], doubles);

  one.kind = k->operand[SEEN].data ? WEFT_OP_QUANTISE_DELAYED : WEFT_OP_QUANTISE;
  one.operand[2] = from (&k->operand[Y], rows_of (k, g).first * columns, doubles);
  one.operand[3] = from (&k->operand[SEEN], g, doubles);
  return one;
}

void
weft_cpu_moe_quantise (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  for (uint64_t g = part; g < k->shape.dim[GROUPS]; g += parts) {
    struct weft_kernel one = quantised (k, g, FALSE);
    weft_kernels[one.kind].cpu (&one, 0, 1);
  }
}

void
weft_ref_moe_quantise (const struct weft_kernel *k)
{
  for (uint64_t g = 0; g < k->shape.dim[GROUPS]; g++) {
    struct weft_kernel one = quantised (k, g, TRUE);
    weft_kernels[one.kind].reference (&one);
  }
}

/* --------------------------------------------------------------------- block scales */

/* Describes the blocks with a scale in the rows of one group, and where their scales are stored:
 * along rows, per square, or down columns (kernels/moe_scales.h). */
static struct weft_blocks
blocks_of (const struct weft_kernel *k, struct weft_moe_rows rows, gboolean down)
{
  uint64_t columns = k->shape.dim[COLUMNS], block = k->shape.dim[BLOCK];
  uint64_t across = weft_fp8_blocks (columns, block);

  if (down)
    return (struct weft_blocks){ { columns, rows.n }, { 1, columns }, { 1, columns },
                                 { 1, columns },      block,          1 };
  return (
      struct weft_blocks){ { rows.n, columns }, { columns, 1 }, { columns, 1 },
                           { across, 1 },       block,          k->shape.dim[SQUARE] ? block : 1 };
}

/* Index of the first fp8 scale of a group of token rows. */
static uint64_t
scales_before (const struct weft_kernel *k, uint64_t g, struct weft_moe_rows rows, gboolean down)
{
  uint64_t columns = k->shape.dim[COLUMNS], block = k->shape.dim[BLOCK];
  uint64_t line = down || k->shape.dim[SQUARE] ? weft_moe_line (rows.first, g, block) : rows.first;

  return line * (down ? columns : weft_fp8_blocks (columns, block));
}

uint64_t
weft_extent_moe_quantise_blocks (const struct weft_kernel *k, uint32_t operand)
{
  (void) k;
  (void) operand;
  return 0;
}

static void
round_group (const struct weft_kernel *k, uint64_t g, gboolean down, gboolean doubles)
{
  const struct weft_operand *o = k->operand;
  struct weft_moe_rows rows = rows_of (k, g);
  struct weft_blocks b = blocks_of (k, rows, down);
  uint64_t at = rows.first * k->shape.dim[COLUMNS];
  struct weft_operand x = from (&o[X], at, doubles), y = from (&o[down ? B_YT : B_Y], at, doubles),
                      scale = from (&o[down ? B_SCALE_T : B_SCALE],
                                    scales_before (k, g, rows, down), doubles);

  if (!y.data || rows.n == 0)
    return;
  if (doubles)
    weft_blocks_reference (&b, x.data, &y, scale.data);
  else
    weft_blocks_round (&b, &x, &y, &scale);
}

void
weft_cpu_moe_quantise_blocks (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  for (uint64_t g = part; g < k->shape.dim[GROUPS]; g += parts)
    for (int down = 0; down < 2; down++)
      round_group (k, g, down, FALSE);
}

void
weft_ref_moe_quantise_blocks (const struct weft_kernel *k)
{
  for (uint64_t g = 0; g < k->shape.dim[GROUPS]; g++)
    for (int down = 0; down < 2; down++)
      round_group (k, g, down, TRUE);
}

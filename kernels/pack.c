/* FSDP2: packs tensors of a unit into the shards of a group's ranks, and unpacks them.
 *
 * A tensor is cut along its rows into equal pieces, one per rank, the last ones padded; piece r
 * lies in slice r. A call copies one tensor; slices also hold pieces of other tensors. */
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/part.h"

/* Number of elements of one rank's piece of a tensor. The slices of two consecutive ranks begin
 * dim[0] elements apart. */
static uint64_t
piece_of (const struct weft_kernel *k)
{
  return k->shape.dim[2] ? weft_least (k->shape.dim[2], k->shape.dim[0]) : k->shape.dim[0];
}

/* Number of elements of all slices of a packed buffer. */
static uint64_t
slices (const struct weft_kernel *k)
{
  return k->shape.dim[0] * k->shape.dim[1];
}

/* Upper bound of the number of elements of the tensor, which may have fewer elements than all its
 * padded pieces together. */
uint64_t
weft_extent_pack (const struct weft_kernel *k, uint32_t operand)
{
  return operand == 1 ? slices (k) : piece_of (k) * k->shape.dim[1];
}

uint64_t
weft_extent_unpack (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_pack (k, !operand);
}

/* Copies n elements that are contiguous in both arrays. */
static void
copy (const struct weft_operand *from, uint64_t first, const struct weft_operand *to, uint64_t at,
      uint64_t n)
{
  float room[WEFT_STRETCH];
  const float *value = weft_floats (from->data, from->dtype, first, n, room);

  weft_store (to->data, to->dtype, at, n, value);
}

static void
clear (const struct weft_operand *to, uint64_t at, uint64_t n)
{
  uint64_t size = weft_dtype_bytes (to->dtype);

  memset ((uint8_t *) to->data + at * size, 0, n * size);
}

/* Copies elements [first, first + n) of the padded tensor; all of them belong to one rank's
 * piece. */
static void
move (const struct weft_kernel *k, uint64_t first, uint64_t n)
{
  const struct weft_operand *x = &k->operand[0], *y = &k->operand[1];
  gboolean packs = k->kind == WEFT_OP_PACK;
  uint64_t piece = piece_of (k), at = first / piece * k->shape.dim[0] + first % piece;
  uint64_t whole = packs ? x->n : y->n, there = first < whole ? weft_least (n, whole - first) : 0;

  if (!packs) {
    copy (x, at, y, first, there);
    return;
  }
  copy (x, first, y, at, there);
  clear (y, at + there, n - there);
}

static void
repack (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint64_t piece = piece_of (k);
  struct weft_range range = weft_part (piece * k->shape.dim[1], WEFT_STRETCH, part, parts);

  for (uint64_t first = range.begin, n; first < range.end; first += n) {
    n = weft_least (weft_least (range.end - first, WEFT_STRETCH), piece - first % piece);
    move (k, first, n);
  }
}

void
weft_cpu_pack (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  repack (k, part, parts);
}

void
weft_cpu_unpack (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  repack (k, part, parts);
}

void
weft_ref_pack (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data;
  double *y = k->operand[1].data;

  for (uint64_t r = 0; r < k->shape.dim[1]; r++)
    for (uint64_t i = 0; i < piece_of (k); i++) {
      uint64_t from = r * piece_of (k) + i;
      y[r * k->shape.dim[0] + i] = from < k->operand[0].n ? x[from] : 0;
    }
}

void
weft_ref_unpack (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data;
  double *y = k->operand[1].data;

  for (uint64_t i = 0; i < k->operand[1].n; i++)
    y[i] = x[i / piece_of (k) * k->shape.dim[0] + i % piece_of (k)];
}

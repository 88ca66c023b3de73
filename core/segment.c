#include "core/segment.h"

/* Parameters lie in reverse registration order: walking them backwards is walking up in memory. */
uint32_t
weft_segments (const weft_program *p, uint64_t first, uint64_t n, struct weft_segment *out)
{
  uint32_t n_out = 0;

  for (uint32_t i = p->n_param; i-- > 0;) {
    const struct weft_param *param = &p->param[i];
    uint64_t begin = MAX (first, param->start);
    uint64_t end = MIN (first + n, param->start + param->rows * param->columns);
    if (begin < end)
      out[n_out++] = (struct weft_segment){
        .param = i, .start = begin - param->start, .offset = begin - first, .n = end - begin
      };
  }
  return n_out;
}

/* Where a bucket begins in the flat buffers: with its first tensor. */
static uint64_t
bucket_start (const weft_program *p, uint32_t bucket)
{
  uint64_t start = UINT64_MAX;

  for (uint32_t i = 0; i < p->n_param; i++)
    if (p->param[i].bucket == bucket)
      start = MIN (start, p->param[i].start);
  return start;
}

static struct weft_slice
slice_of (const weft_program *p, const struct weft_use *use, uint32_t bucket, uint32_t place)
{
  const struct weft_buf *weight = &p->buf[use[2].buf], *m = &p->buf[use[4].buf];
  uint64_t n = m->bytes / weft_dtype_bytes (m->dtype), start = bucket_start (p, bucket);
  uint64_t first = start + (weight->shard || weight->slice ? place * n : 0);
  uint64_t slices = n ? weight->bytes / weft_dtype_bytes (weight->dtype) / n : 1;

  return (struct weft_slice){ .first = first,
                              .n = n,
                              .flat = first - place % slices * n,
                              .grad = use[0].buf,
                              .weight = use[2].buf,
                              .master = use[3].buf,
                              .m = use[4].buf,
                              .v = use[5].buf };
}

struct weft_slice *
weft_slices (const weft_program *p, uint32_t place, uint32_t *n)
{
  GArray *slices = g_array_new (FALSE, FALSE, sizeof (struct weft_slice));

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ADAM) {
      struct weft_slice slice = slice_of (p, &p->uses[p->op[op].uses], slices->len, place);
      g_array_append_val (slices, slice);
    }
  *n = slices->len;
  return (struct weft_slice *) (void *) g_array_free (slices, FALSE);
}

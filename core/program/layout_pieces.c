/* Lays out flat buffers by the rule of FSDP2, which cuts tensors into row pieces, one per rank. */
#include "core/program/layout.h"

/* Number of elements of one row piece. As with torch.chunk(), the pieces of the last ranks may have
 * fewer rows. */
static uint64_t
piece_of (const struct weft_layout_param *param, uint32_t ranks)
{
  uint64_t rows = param->numel / param->columns;
  return (rows + ranks - 1) / ranks * param->columns;
}

/* Numbers the buckets of the FSDP unit that begins with tensor `first`, from bucket n on. Returns
 * the number of tensors in the unit. */
static uint32_t
number_unit (struct weft_layout *layout, const struct weft_layout_param *param, uint32_t first,
             uint32_t n)
{
  uint32_t end = first, experts = 0;

  for (; end < layout->n_param && param[end].unit == param[first].unit; end++)
    experts |= param[end].expert;
  for (uint32_t i = first; i < end; i++)
    layout->place[i].bucket = n + (experts && !param[i].expert);
  return end - first;
}

/* Numbers the buckets of the model chunk that begins with tensor `first`, from bucket *n on.
 * Tensors outside FSDP units form the first bucket, wherever they are registered. Returns the
 * number of tensors in the chunk, and adds the number of buckets to *n. */
static uint32_t
number_chunk (struct weft_layout *layout, const struct weft_layout_param *param, uint32_t first,
              uint32_t *n)
{
  uint32_t end = first, root = *n, has_root = 0;

  for (; end < layout->n_param && param[end].chunk == param[first].chunk; end++)
    has_root |= param[end].unit == WEFT_NO_UNIT;
  *n += has_root;
  for (uint32_t i = first, each = 1; i < end; i += each) {
    layout->place[i].bucket = root;
    each = param[i].unit == WEFT_NO_UNIT ? 1 : number_unit (layout, param, i, *n);
    for (uint32_t j = i; j < i + each; j++)
      *n = MAX (*n, layout->place[j].bucket + 1);
  }
  return end - first;
}

static uint32_t
number_buckets (struct weft_layout *layout, const struct weft_layout_param *param)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < layout->n_param;)
    i += number_chunk (layout, param, i, &n);
  return n;
}

static void
place_bucket (struct weft_layout *layout, uint32_t k, uint32_t ranks,
              const struct weft_layout_param *param)
{
  struct weft_bucket *bucket = &layout->bucket[k];
  uint64_t slice = 0;

  *bucket = (struct weft_bucket){ .start = layout->numel };
  for (uint32_t i = 0; i < layout->n_param; i++) {
    struct weft_layout_place *place = &layout->place[i];
    if (place->bucket != k)
      continue;
    place->piece = piece_of (&param[i], ranks);
    place->start = bucket->start + slice;
    place->end = place->start + place->piece;
    slice += place->piece;
    bucket->unpadded += param[i].numel;
    bucket->buffer = param[i].buffer;
  }
  for (uint32_t i = 0; i < layout->n_param; i++)
    if (layout->place[i].bucket == k)
      layout->place[i].stride = slice;
  bucket->end = layout->numel = bucket->start + slice * ranks;
}

static const struct weft_layout_param *
first_of (const struct weft_layout *layout, uint32_t k, const struct weft_layout_param *param)
{
  uint32_t i = 0;

  while (layout->place[i].bucket != k)
    i++;
  return &param[i];
}

void
weft_layout_pieces_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                         const struct weft_layout_param *param, uint32_t n_param)
{
  *layout = (struct weft_layout){ .n_param = n_param, .n_buffer = 1 };
  layout->place = g_new0 (struct weft_layout_place, n_param);
  layout->n_bucket = number_buckets (layout, param);
  layout->bucket = g_new0 (struct weft_bucket, layout->n_bucket);
  for (uint32_t i = 0; i < n_param; i++)
    layout->n_buffer = MAX (layout->n_buffer, param[i].buffer + 1);
  layout->first = g_new0 (uint64_t, layout->n_buffer + 1);
  for (uint32_t buffer = 0; buffer < layout->n_buffer; buffer++) {
    for (uint32_t k = 0; k < layout->n_bucket; k++) {
      const struct weft_layout_param *first = first_of (layout, k, param);
      if (first->buffer == buffer)
        place_bucket (layout, k, first->ranks ? first->ranks : rule->group, param);
    }
    layout->first[buffer + 1] = layout->numel;
  }
}

#include "core/program/layout.h"
#include <string.h>

struct cursor {
  uint64_t divisor;
  uint64_t bucket_start;
  uint32_t n_in_bucket;
  GArray *buckets;
};

static uint64_t
gcd (uint64_t a, uint64_t b)
{
  return b ? gcd (b, a % b) : a;
}

static uint64_t
lcm (uint64_t a, uint64_t b)
{
  return a / gcd (a, b) * b;
}

static uint64_t
round_up (uint64_t x, uint64_t to)
{
  return (x + to - 1) / to * to;
}

static void
close_bucket (struct cursor *c, uint64_t end)
{
  uint64_t padded = c->bucket_start + round_up (end - c->bucket_start, c->divisor);
  struct weft_bucket bucket = { c->bucket_start, padded, end - c->bucket_start };

  g_array_append_val (c->buckets, bucket);
  c->bucket_start = padded;
  c->n_in_bucket = 0;
}

uint64_t
weft_layout_default_threshold (uint32_t group)
{
  return MAX ((uint64_t) 40000000, (uint64_t) 1000000 * group);
}

static uint32_t
count_buffers (const struct weft_layout_param *param, uint32_t n_param)
{
  uint32_t n = 1;

  for (uint32_t q = 0; q < n_param; q++)
    n = MAX (n, param[q].buffer + 1);
  return n;
}

/* Sets the places of the tensors of one flat buffer, from the cursor's position on. */
typedef void (*lay_buffer) (struct weft_layout *layout, struct cursor *c,
                            const struct weft_layout_rule *rule,
                            const struct weft_layout_param *param, uint32_t buffer);

static void
lay_out (struct weft_layout *layout, const struct weft_layout_rule *rule,
         const struct weft_layout_param *param, uint32_t n_param, lay_buffer lay)
{
  struct cursor c = { 1, 0, 0, g_array_new (FALSE, FALSE, sizeof (struct weft_bucket)) };

  *layout = (struct weft_layout){ .n_param = n_param, .n_buffer = count_buffers (param, n_param) };
  layout->place = g_new0 (struct weft_layout_place, n_param);
  layout->first = g_new0 (uint64_t, layout->n_buffer + 1);
  for (uint32_t buffer = 0; buffer < layout->n_buffer; buffer++) {
    guint before = c.buckets->len;
    lay (layout, &c, rule, param, buffer);
    for (guint k = before; k < c.buckets->len; k++)
      g_array_index (c.buckets, struct weft_bucket, k).buffer = buffer;
    layout->first[buffer + 1] = c.bucket_start;
  }
  layout->n_bucket = c.buckets->len;
  layout->numel = c.bucket_start;
  layout->bucket = (struct weft_bucket *) (void *) g_array_free (c.buckets, FALSE);
}

static uint64_t
threshold_of (const struct weft_layout_rule *rule, const struct weft_layout_param *param)
{
  return rule->whole_from && param->chunk >= rule->whole_from ? WEFT_BUCKET_INFINITE
                                                              : rule->threshold;
}

/* Number of ranks that reduce the gradients of the tensors in flat buffer number `buffer`. */
static uint32_t
ranks_of (const struct weft_layout_rule *rule, const struct weft_layout *layout,
          const struct weft_layout_param *param, uint32_t buffer)
{
  for (uint32_t q = 0; q < layout->n_param; q++)
    if (param[q].buffer == buffer && param[q].ranks)
      return param[q].ranks;
  return rule->group;
}

/* Elements that share a scale of 8-bit moments in a flat buffer; 1: no such elements. */
static uint64_t
block_of (const struct weft_layout *layout, const struct weft_layout_param *param, uint32_t buffer)
{
  for (uint32_t q = 0; q < layout->n_param; q++)
    if (param[q].buffer == buffer && param[q].block)
      return param[q].block;
  return 1;
}

/* The slices of a bucket whose tensors are dealt out whole. */
struct deal {
  uint32_t n;
  uint64_t *length; /* [n]: elements in each slice */
  double *work;     /* [n]: work of each slice so far, in all buckets of the flat buffer */
};

/* The slice for a tensor of n elements, if slices should not be longer than `most`. */
static uint32_t
choose_slice (const struct deal *d, uint64_t n, double most)
{
  uint32_t best = UINT32_MAX, shortest = 0;

  for (uint32_t i = 0; i < d->n; i++) {
    gboolean fits = (double) (round_up (d->length[i], 64) + n) <= most;
    if (fits && (best == UINT32_MAX || d->work[i] < d->work[best]))
      best = i;
    if (d->length[i] < d->length[shortest])
      shortest = i;
  }
  return best == UINT32_MAX ? shortest : best;
}

static gint
compare_work (gconstpointer a, gconstpointer b, gpointer param)
{
  const struct weft_layout_param *p = param;
  double x = p[*(const uint32_t *) a].work, y = p[*(const uint32_t *) b].work;

  return (x < y) - (x > y);
}

/* Deals out the tensors of one bucket, and closes the bucket. The places of tensors are first
 * counted from the start of their slice. */
static void
deal_bucket (struct weft_layout *layout, struct cursor *c, struct deal *d, GArray *tensors,
             const struct weft_layout_param *param)
{
  g_autofree uint32_t *slice = g_new (uint32_t, tensors->len + 1);
  uint64_t total = 0, longest = 0;

  memset (d->length, 0, d->n * sizeof *d->length);
  g_array_sort_with_data (tensors, compare_work, (gpointer) (uintptr_t) param);
  for (uint32_t i = 0; i < tensors->len; i++)
    total += param[g_array_index (tensors, uint32_t, i)].numel;
  for (uint32_t i = 0; i < tensors->len; i++) {
    uint32_t q = g_array_index (tensors, uint32_t, i);
    slice[i] = choose_slice (d, param[q].numel, 1.3 * (double) total / d->n);
    uint64_t start = round_up (d->length[slice[i]], 64);
    layout->place[q] = (struct weft_layout_place){ .start = start, .bucket = c->buckets->len };
    d->length[slice[i]] = start + param[q].numel;
    d->work[slice[i]] += param[q].work;
    longest = MAX (longest, d->length[slice[i]]);
  }
  uint64_t each = round_up (longest, lcm (64, c->divisor / d->n));
  for (uint32_t i = 0; i < tensors->len; i++) {
    uint32_t q = g_array_index (tensors, uint32_t, i);
    layout->place[q].start += c->bucket_start + slice[i] * each;
    layout->place[q].end = layout->place[q].start + param[q].numel;
  }
  close_bucket (c, c->bucket_start + each * d->n);
  g_array_set_size (tensors, 0);
}

static void
lay_dealt (struct weft_layout *layout, struct cursor *c, const struct weft_layout_rule *rule,
           const struct weft_layout_param *param, uint32_t buffer)
{
  uint32_t ranks = ranks_of (rule, layout, param, buffer);
  g_autoptr (GArray) tensors = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  g_autofree uint64_t *length = g_new (uint64_t, ranks);
  g_autofree double *work = g_new0 (double, ranks);
  struct deal d = { ranks, length, work };
  uint64_t numel = 0;

  c->divisor = lcm (lcm (ranks, 128), rule->high_busbw ? 65536 : 1);
  for (uint32_t q = layout->n_param; q-- > 0;) {
    if (param[q].buffer != buffer)
      continue;
    g_array_append_val (tensors, q);
    numel += param[q].numel;
    if (numel >= threshold_of (rule, &param[q])) {
      deal_bucket (layout, c, &d, tensors, param);
      numel = 0;
    }
  }
  if (tensors->len)
    deal_bucket (layout, c, &d, tensors, param);
}

/* Whether the tensors of a flat buffer are dealt out whole. */
static gboolean
is_dealt (const struct weft_layout *layout, const struct weft_layout_param *param, uint32_t buffer)
{
  for (uint32_t q = 0; q < layout->n_param; q++)
    if (param[q].buffer == buffer && param[q].work > 0)
      return TRUE;
  return FALSE;
}

/* The largest block of all flat buffers. Buckets end at a multiple of it, so that the next flat
 * buffer begins with a whole block. */
static uint64_t
largest_block (const struct weft_layout *layout, const struct weft_layout_param *param)
{
  uint64_t block = 1;

  for (uint32_t q = 0; q < layout->n_param; q++)
    block = MAX (block, param[q].block);
  return block;
}

static void
lay_reversed (struct weft_layout *layout, struct cursor *c, const struct weft_layout_rule *rule,
              const struct weft_layout_param *param, uint32_t buffer)
{
  uint64_t block = largest_block (layout, param), end = c->bucket_start;
  uint64_t align = MAX (rule->sharded ? 64 : 1, block_of (layout, param, buffer));

  if (rule->sharded && is_dealt (layout, param, buffer)) {
    lay_dealt (layout, c, rule, param, buffer);
    return;
  }
  c->divisor = block;
  if (rule->sharded) {
    uint64_t ranks = ranks_of (rule, layout, param, buffer);
    c->divisor = lcm (lcm (ranks * block, 128), rule->high_busbw ? 65536 : 1);
  }
  for (uint32_t q = layout->n_param; q-- > 0;) {
    gboolean own = param[q].shared_embedding && rule->sharded;
    uint64_t start = round_up (end, align);

    if (param[q].buffer != buffer)
      continue;
    if (own && c->n_in_bucket) {
      close_bucket (c, start);
      start = c->bucket_start;
    }
    end = start + param[q].numel;
    layout->place[q] =
        (struct weft_layout_place){ .start = start, .end = end, .bucket = c->buckets->len };
    c->n_in_bucket++;
    if (own || end - c->bucket_start >= threshold_of (rule, &param[q])) {
      close_bucket (c, end);
      end = c->bucket_start;
    }
  }
  if (c->n_in_bucket)
    close_bucket (c, end);
}

void
weft_layout_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                  const struct weft_layout_param *param, uint32_t n_param)
{
  lay_out (layout, rule, param, n_param, lay_reversed);
}

/* Whether tensor b begins a new bucket. Tensor a precedes tensor b in the same flat buffer; so_far
 * is the number of elements in the bucket of a. */
static gboolean
begins_bucket (const struct weft_layout_rule *rule, const struct weft_layout_param *a,
               const struct weft_layout_param *b, uint64_t so_far)
{
  return a->unit != b->unit || (rule->sharded && (a->shared_embedding || b->shared_embedding)) ||
         (b->unit == WEFT_NO_UNIT && so_far >= threshold_of (rule, b));
}

static void
lay_units (struct weft_layout *layout, struct cursor *c, const struct weft_layout_rule *rule,
           const struct weft_layout_param *param, uint32_t buffer)
{
  const struct weft_layout_param *before = NULL;
  uint64_t end = c->bucket_start, ranks = ranks_of (rule, layout, param, buffer);

  c->divisor = ranks;
  for (uint32_t q = 0; q < layout->n_param; q++) {
    if (param[q].buffer != buffer)
      continue;
    if (c->n_in_bucket && begins_bucket (rule, before, &param[q], end - c->bucket_start)) {
      close_bucket (c, end);
      end = c->bucket_start;
      c->divisor = ranks;
    }
    layout->place[q] = (struct weft_layout_place){ .start = end,
                                                   .end = end + param[q].numel,
                                                   .bucket = c->buckets->len };
    c->divisor = rule->sharded ? lcm (c->divisor, ranks * param[q].columns) : 1;
    c->n_in_bucket++;
    end += param[q].numel;
    before = &param[q];
  }
  if (c->n_in_bucket)
    close_bucket (c, end);
}

void
weft_layout_units_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                        const struct weft_layout_param *param, uint32_t n_param)
{
  lay_out (layout, rule, param, n_param, lay_units);
}

/* ------------------------------------------------------------------------ groups */

#define NO_GROUP UINT32_MAX

/* Assigns the buckets of a model chunk to launch groups, and numbers the launch groups in bucket
 * order. */
static void
name_groups (struct weft_layout *l, const struct weft_layout_launch *how, uint32_t chunk)
{
  uint32_t n = l->n_group, last = n, any = 0;

  for (uint32_t k = 0; k < l->n_bucket; k++) {
    gboolean alone = how->launch == WEFT_LAUNCH_EACH ||
                     (how->launch == WEFT_LAUNCH_APART && l->bucket[k].buffer == how->apart);
    if (l->bucket[k].chunk != chunk)
      continue;
    any = 1;
    l->bucket[k].group = alone ? last = n++ : NO_GROUP;
  }
  for (uint32_t k = 0; k < l->n_bucket; k++)
    if (l->bucket[k].chunk == chunk && l->bucket[k].group == NO_GROUP)
      l->bucket[k].group = last;
  l->n_group = MAX (n, l->n_group + any);
}

static void
name_units (struct weft_layout *l, uint32_t chunk, const struct weft_layout_param *param)
{
  /* group[0]: launch group of an FSDP unit's dense buckets; group[1]: launch group of the unit's
   * expert buckets */
  uint32_t unit = WEFT_NO_UNIT, group[2] = { NO_GROUP, NO_GROUP };

  for (uint32_t k = 0; k < l->n_bucket; k++)
    if (l->bucket[k].chunk == chunk)
      l->bucket[k].group = NO_GROUP;
  for (uint32_t q = 0; q < l->n_param; q++) {
    struct weft_bucket *bucket = &l->bucket[l->place[q].bucket];
    uint32_t *same = &group[param[q].expert];
    if (param[q].chunk != chunk)
      continue;
    if (param[q].unit == WEFT_NO_UNIT || param[q].unit != unit)
      group[0] = group[1] = NO_GROUP;
    if (bucket->group == NO_GROUP)
      bucket->group = *same == NO_GROUP ? l->n_group++ : *same;
    *same = bucket->group;
    unit = param[q].unit;
  }
}

static void
fill_groups (struct weft_layout *l)
{
  l->group = g_new0 (struct weft_bucket_group, l->n_group + 1);
  l->bucket_of = g_new0 (uint32_t, l->n_bucket + 1);
  for (uint32_t k = 0; k < l->n_bucket; k++)
    l->group[l->bucket[k].group + 1].first++;
  for (uint32_t g = 0; g < l->n_group; g++)
    l->group[g + 1].first += l->group[g].first;
  for (uint32_t k = 0; k < l->n_bucket; k++) {
    struct weft_bucket_group *group = &l->group[l->bucket[k].group];
    l->bucket_of[group->first + group->n++] = k;
    group->chunk = l->bucket[k].chunk;
  }
}

void
weft_layout_group (struct weft_layout *l, const struct weft_layout_launch *how, uint32_t n_chunks,
                   const struct weft_layout_param *param)
{
  for (uint32_t q = 0; q < l->n_param; q++) {
    gboolean apart = param[q].expert && how[param[q].chunk].launch != WEFT_LAUNCH_UNITS;
    l->bucket[l->place[q].bucket].chunk = param[q].chunk + (apart ? n_chunks : 0);
  }
  for (uint32_t chunk = 0; chunk < n_chunks; chunk++)
    if (how[chunk].launch == WEFT_LAUNCH_UNITS)
      name_units (l, chunk, param);
    else
      name_groups (l, &how[chunk], chunk);
  for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
    struct weft_layout_launch experts = how[chunk];
    if (experts.launch == WEFT_LAUNCH_APART)
      experts.launch = WEFT_LAUNCH_EACH;
    name_groups (l, &experts, n_chunks + chunk);
  }
  fill_groups (l);
}

void
weft_layout_release (struct weft_layout *layout)
{
  g_free (layout->place);
  g_free (layout->bucket);
  g_free (layout->first);
  g_free (layout->group);
  g_free (layout->bucket_of);
  *layout = (struct weft_layout){ 0 };
}

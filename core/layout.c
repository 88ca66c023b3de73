#include "core/layout.h"

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

void
weft_layout_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                  const struct weft_layout_param *param, uint32_t n_param)
{
  uint64_t align = rule->sharded ? 64 : 1, end = 0;
  struct cursor c = { 1, 0, 0, g_array_new (FALSE, FALSE, sizeof (struct weft_bucket)) };

  if (rule->sharded)
    c.divisor = lcm (lcm (rule->group, 128), rule->high_busbw ? 65536 : 1);
  layout->n_param = n_param;
  layout->place = g_new0 (struct weft_layout_place, n_param);
  for (uint32_t q = n_param; q-- > 0;) {
    gboolean own = param[q].shared_embedding && rule->sharded;
    uint64_t start = round_up (end, align);

    if (own && c.n_in_bucket) {
      close_bucket (&c, start);
      start = c.bucket_start;
    }
    end = start + param[q].numel;
    layout->place[q] = (struct weft_layout_place){ start, end, c.buckets->len };
    c.n_in_bucket++;
    if (own || end - c.bucket_start >= rule->threshold) {
      close_bucket (&c, end);
      end = c.bucket_start;
    }
  }
  if (c.n_in_bucket)
    close_bucket (&c, end);
  layout->n_bucket = c.buckets->len;
  layout->numel = c.bucket_start;
  layout->bucket = (struct weft_bucket *) (void *) g_array_free (c.buckets, FALSE);
}

/* Whether tensor q begins a new bucket after tensor q - 1. */
static gboolean
begins_bucket (const struct weft_layout_rule *rule, const struct weft_layout_param *param,
               uint32_t q, uint64_t so_far)
{
  const struct weft_layout_param *a = &param[q - 1], *b = &param[q];

  return a->unit != b->unit || (rule->sharded && (a->shared_embedding || b->shared_embedding)) ||
         (b->unit == WEFT_NO_UNIT && so_far >= rule->threshold);
}

void
weft_layout_units_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                        const struct weft_layout_param *param, uint32_t n_param)
{
  struct cursor c = { rule->group, 0, 0, g_array_new (FALSE, FALSE, sizeof (struct weft_bucket)) };
  uint64_t end = 0;

  layout->n_param = n_param;
  layout->place = g_new0 (struct weft_layout_place, n_param);
  for (uint32_t q = 0; q < n_param; q++) {
    if (c.n_in_bucket && begins_bucket (rule, param, q, end - c.bucket_start)) {
      close_bucket (&c, end);
      end = c.bucket_start;
      c.divisor = rule->group;
    }
    layout->place[q] = (struct weft_layout_place){ end, end + param[q].numel, c.buckets->len };
    c.divisor = rule->sharded ? lcm (c.divisor, rule->group * param[q].columns) : 1;
    c.n_in_bucket++;
    end += param[q].numel;
  }
  if (c.n_in_bucket)
    close_bucket (&c, end);
  layout->n_bucket = c.buckets->len;
  layout->numel = c.bucket_start;
  layout->bucket = (struct weft_bucket *) (void *) g_array_free (c.buckets, FALSE);
}

void
weft_layout_release (struct weft_layout *layout)
{
  g_free (layout->place);
  g_free (layout->bucket);
  *layout = (struct weft_layout){ 0 };
}

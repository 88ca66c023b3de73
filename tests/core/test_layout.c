/* The flat gradient buffer: positions of parameters and ends of buckets. The tables were computed
 * by hand from the rule of Megatron-Core (param_and_grad_buffer.py), as stated in layout.h. */
#include "core/program/layout.h"
#include "tests/runner/runner.h"

/* Parameters of the test's model in the order of registration: a tied embedding, two layers of a
 * weight and a bias each, and a norm. */
static const struct weft_layout_param model[] = {
  { 1000, TRUE }, { 300, FALSE }, { 10, FALSE }, { 300, FALSE }, { 10, FALSE }, { 7, FALSE },
};

struct wanted {
  struct weft_layout_place place[G_N_ELEMENTS (model)];
  struct weft_bucket bucket[3];
  uint32_t n_bucket;
};

static void
assert_layout (struct weft_layout_rule rule, const struct wanted *wanted)
{
  struct weft_layout layout;

  weft_layout_init (&layout, &rule, model, G_N_ELEMENTS (model));
  assert_int_equal (layout.n_param, G_N_ELEMENTS (model));
  for (uint32_t i = 0; i < layout.n_param; i++) {
    assert_int_equal (layout.place[i].start, wanted->place[i].start);
    assert_int_equal (layout.place[i].end, wanted->place[i].end);
    assert_int_equal (layout.place[i].bucket, wanted->place[i].bucket);
  }
  assert_int_equal (layout.n_bucket, wanted->n_bucket);
  for (uint32_t k = 0; k < layout.n_bucket; k++) {
    assert_int_equal (layout.bucket[k].start, wanted->bucket[k].start);
    assert_int_equal (layout.bucket[k].end, wanted->bucket[k].end);
    assert_int_equal (layout.bucket[k].unpadded, wanted->bucket[k].unpadded);
  }
  assert_int_equal (layout.numel, wanted->bucket[wanted->n_bucket - 1].end);
  weft_layout_release (&layout);
}

static void
sharded_buckets_are_aligned_padded_and_spare_the_tied_embedding (void **state)
{
  (void) state;
  assert_layout (
      (struct weft_layout_rule){ .threshold = 350, .group = 4, .sharded = TRUE },
      &(const struct wanted){ .place = { { 896, 1896, .bucket = 2 },
                                         { 576, 876, .bucket = 1 },
                                         { 512, 522, .bucket = 1 },
                                         { 128, 428, .bucket = 0 },
                                         { 64, 74, .bucket = 0 },
                                         { 0, 7, .bucket = 0 } },
                              .bucket = { { 0, 512, 428 }, { 512, 896, 364 }, { 896, 1920, 1000 } },
                              .n_bucket = 3 });
}

static void
plain_buckets_have_no_gaps_and_no_rule_for_the_tied_embedding (void **state)
{
  (void) state;
  assert_layout ((struct weft_layout_rule){ .threshold = 350, .group = 4 },
                 &(const struct wanted){ .place = { { 627, 1627, .bucket = 1 },
                                                    { 327, 627, .bucket = 0 },
                                                    { 317, 327, .bucket = 0 },
                                                    { 17, 317, .bucket = 0 },
                                                    { 7, 17, .bucket = 0 },
                                                    { 0, 7, .bucket = 0 } },
                                         .bucket = { { 0, 627, 627 }, { 627, 1627, 1000 } },
                                         .n_bucket = 2 });
}

/* Without bucket_size, the tied embedding still closes a bucket. The padding before the embedding
 * belongs to this bucket, which therefore has 832 elements instead of 812. */
static void
the_tied_embedding_closes_a_bucket_that_has_no_threshold (void **state)
{
  (void) state;
  assert_layout ((struct weft_layout_rule){ WEFT_BUCKET_INFINITE, 3, .sharded = TRUE },
                 &(const struct wanted){ .place = { { 1152, 2152, .bucket = 1 },
                                                    { 512, 812, .bucket = 0 },
                                                    { 448, 458, .bucket = 0 },
                                                    { 128, 428, .bucket = 0 },
                                                    { 64, 74, .bucket = 0 },
                                                    { 0, 7, .bucket = 0 } },
                                         .bucket = { { 0, 1152, 832 }, { 1152, 2304, 1000 } },
                                         .n_bucket = 2 });
}

static void
without_a_threshold_plain_parameters_share_one_bucket (void **state)
{
  (void) state;
  assert_layout ((struct weft_layout_rule){ WEFT_BUCKET_INFINITE, 8, .high_busbw = TRUE },
                 &(const struct wanted){ .place = { { 627, 1627, .bucket = 0 },
                                                    { 327, 627, .bucket = 0 },
                                                    { 317, 327, .bucket = 0 },
                                                    { 17, 317, .bucket = 0 },
                                                    { 7, 17, .bucket = 0 },
                                                    { 0, 7, .bucket = 0 } },
                                         .bucket = { { 0, 1627, 1627 } },
                                         .n_bucket = 1 });
}

static void
buckets_padded_for_bus_bandwidth_end_at_65536_elements (void **state)
{
  (void) state;
  struct wanted wanted = {
    .place = { { 131072, 132072, .bucket = 2 },
               { 65600, 65900, .bucket = 1 },
               { 65536, 65546, .bucket = 1 },
               { 128, 428, .bucket = 0 },
               { 64, 74, .bucket = 0 },
               { 0, 7, .bucket = 0 } },
    .bucket = { { 0, 65536, 428 }, { 65536, 131072, 364 }, { 131072, 196608, 1000 } },
    .n_bucket = 3
  };

  assert_layout ((struct weft_layout_rule){ 350, 4, TRUE, TRUE }, &wanted);
}

static void
a_bucket_closes_at_the_parameter_that_reaches_the_threshold_exactly (void **state)
{
  (void) state;
  static const struct weft_layout_param pair[] = { { 50, FALSE }, { 100, FALSE } };
  struct weft_layout_rule rule = { .threshold = 100, .group = 2 };
  struct weft_layout layout;

  weft_layout_init (&layout, &rule, pair, 2);
  assert_int_equal (layout.n_bucket, 2);
  weft_layout_release (&layout);
  rule.threshold++;
  weft_layout_init (&layout, &rule, pair, 2);
  assert_int_equal (layout.n_bucket, 1);
  weft_layout_release (&layout);
}

static void
no_parameters_need_no_bucket (void **state)
{
  (void) state;
  struct weft_layout layout;

  weft_layout_init (&layout, &(const struct weft_layout_rule){ 1, 1, TRUE, FALSE }, NULL, 0);
  assert_int_equal (layout.n_bucket, 0);
  assert_int_equal (layout.numel, 0);
  weft_layout_release (&layout);
}

static void
the_default_threshold_is_forty_million_or_a_million_a_rank (void **state)
{
  (void) state;
  assert_int_equal (weft_layout_default_threshold (1), 40000000);
  assert_int_equal (weft_layout_default_threshold (40), 40000000);
  assert_int_equal (weft_layout_default_threshold (41), 41000000);
  assert_int_equal (weft_layout_default_threshold (16384), UINT64_C (16384000000));
}

/* Random parameters, and the random rule by which they are laid out in flat buffers. */
struct draw {
  struct weft_layout_param param[40];
  uint32_t n;
  struct weft_layout_rule rule;
  struct weft_layout layout;
};

static void
draw_make (struct draw *d, GRand *random)
{
  *d = (struct draw){ .n = g_rand_int_range (random, 1, G_N_ELEMENTS (d->param) + 1) };
  for (uint32_t i = 0; i < d->n; i++) {
    d->param[i].numel = g_rand_int_range (random, 1, g_rand_boolean (random) ? 50 : 5000);
    d->param[i].shared_embedding = g_rand_int_range (random, 0, 12) == 0;
  }
  d->rule.threshold = g_rand_int_range (random, 1, 9000);
  if (g_rand_int_range (random, 0, 6) == 0)
    d->rule.threshold = WEFT_BUCKET_INFINITE;
  d->rule.group = g_rand_int_range (random, 1, 100);
  d->rule.sharded = g_rand_boolean (random);
  d->rule.high_busbw = g_rand_int_range (random, 0, 4) == 0;
  weft_layout_init (&d->layout, &d->rule, d->param, d->n);
}

/* Asserts that the flat buffer holds the parameters in reverse order of registration, without
 * overlap, and that no parameter crosses the end of a bucket. */
static void
assert_places (const struct draw *d)
{
  const struct weft_layout *l = &d->layout;
  uint64_t end = 0;
  uint32_t bucket = 0;

  for (uint32_t i = d->n; i-- > 0;) {
    const struct weft_layout_place *place = &l->place[i];
    assert_true (place->end - place->start == d->param[i].numel);
    assert_true (place->start >= end);
    assert_true (place->bucket == bucket || place->bucket == bucket + 1);
    end = place->end;
    bucket = place->bucket;
    assert_true (place->start >= l->bucket[bucket].start && end <= l->bucket[bucket].end);
    assert_int_equal (place->start % (d->rule.sharded ? 64 : 1), 0);
  }
  assert_int_equal (l->place[d->n - 1].bucket, 0);
  assert_int_equal (bucket, l->n_bucket - 1);
}

static void
assert_tiles (const struct draw *d)
{
  const struct weft_layout *l = &d->layout;
  uint64_t end = 0;

  for (uint32_t k = 0; k < l->n_bucket; k++) {
    const struct weft_bucket *bucket = &l->bucket[k];
    uint64_t length = bucket->end - bucket->start;
    assert_true (bucket->start == end);
    end = bucket->end;
    assert_true (bucket->unpadded <= length);
    if (!d->rule.sharded) {
      assert_true (bucket->unpadded == length);
      continue;
    }
    assert_int_equal (length % d->rule.group, 0);
    assert_int_equal (length % 128, 0);
    assert_int_equal (length % (d->rule.high_busbw ? 65536 : 1), 0);
    /* A bucket's padding is less than the product of its two alignments: number of ranks, and 128
     * or 65536 elements. */
    assert_true (length - bucket->unpadded <
                 (uint64_t) d->rule.group * (d->rule.high_busbw ? 65536 : 128));
  }
  assert_true (l->numel == end);
}

/* A bucket ends with the parameter that reaches the threshold. Exception: in a sharded buffer, a
 * tied parameter has a bucket of its own. `first` and `last`: the parameters of bucket k, in the
 * order of the buffer. */
static void
assert_threshold (const struct draw *d, uint32_t k, uint32_t first, uint32_t last)
{
  const struct weft_layout *l = &d->layout;
  uint64_t start = l->bucket[k].start;
  gboolean alone = d->rule.sharded && d->param[first].shared_embedding;
  gboolean cut = d->rule.sharded && last > 0 && d->param[last - 1].shared_embedding;

  for (uint32_t i = first; i > last; i--) {
    assert_true (l->place[i].end - start < d->rule.threshold);
    assert_false (d->rule.sharded && d->param[i - 1].shared_embedding);
  }
  if (alone)
    assert_int_equal (first, last);
  if (!alone && !cut && last > 0)
    assert_true (l->place[last].end - start >= d->rule.threshold);
}

static void
random_parameters_obey_every_rule (void **state)
{
  (void) state;
  GRand *random = g_rand_new_with_seed (2309);

  for (int round = 0; round < 3000; round++) {
    struct draw d;
    draw_make (&d, random);
    assert_places (&d);
    assert_tiles (&d);
    for (uint32_t first = d.n; first-- > 0;) {
      uint32_t k = d.layout.place[first].bucket, last = first;
      while (last > 0 && d.layout.place[last - 1].bucket == k)
        last--;
      assert_threshold (&d, k, first, last);
      first = last;
    }
    weft_layout_release (&d.layout);
  }
  g_rand_free (random);
}

/* ------------------------------------------------------------------- units */

/* Expected layout of flat buffers: start and bucket of each tensor; end of each bucket before and
 * after padding. */
struct units_wanted {
  uint64_t start[10], bucket[10];
  uint64_t unpadded[6], end[6];
};

static void
assert_units (struct weft_layout_rule rule, const struct weft_layout_param *param, uint32_t n,
              const struct units_wanted *wanted)
{
  struct weft_layout layout;

  weft_layout_units_init (&layout, &rule, param, n);
  for (uint32_t i = 0; i < n; i++) {
    assert_int_equal (layout.place[i].start, wanted->start[i]);
    assert_int_equal (layout.place[i].end, wanted->start[i] + param[i].numel);
    assert_int_equal (layout.place[i].bucket, wanted->bucket[i]);
  }
  assert_int_equal (layout.n_bucket, wanted->bucket[n - 1] + 1);
  for (uint32_t k = 0; k < layout.n_bucket; k++) {
    assert_int_equal (layout.bucket[k].start, k ? wanted->end[k - 1] : 0);
    assert_int_equal (layout.bucket[k].start + layout.bucket[k].unpadded, wanted->unpadded[k]);
    assert_int_equal (layout.bucket[k].end, wanted->end[k]);
  }
  assert_int_equal (layout.numel, wanted->end[layout.n_bucket - 1]);
  weft_layout_release (&layout);
}

/* The test's model: a tied embedding of 10 rows of 4 elements; two layers of a norm, a matrix of 6
 * rows of 4 and one of 4 rows of 6; then a norm, a head of 10 rows of 4, and a bias. Each layer has
 * 52 elements, padded to 72 = 3 x 2 ranks x lcm (1, 4, 6). Norm and head have 44 elements, padded
 * to 48 = 6 x 2 x 4; so bucket_size 44 closes their bucket before the bias, and bucket_size 45 does
 * not. */
static void
layers_are_units_and_bucket_size_cuts_the_rest (void **state)
{
  static const struct weft_layout_param layers[] = {
    { 40, TRUE, WEFT_NO_UNIT, 4 },
    { 4, FALSE, 0, 1 },
    { 24, FALSE, 0, 4 },
    { 24, FALSE, 0, 6 },
    { 4, FALSE, 1, 1 },
    { 24, FALSE, 1, 4 },
    { 24, FALSE, 1, 6 },
    { 4, FALSE, WEFT_NO_UNIT, 1 },
    { 40, FALSE, WEFT_NO_UNIT, 4 },
    { 3, FALSE, WEFT_NO_UNIT, 1 },
  };
  struct units_wanted wanted = { .start = { 0, 40, 44, 68, 112, 116, 140, 184, 188, 232 },
                                 .bucket = { 0, 1, 1, 1, 2, 2, 2, 3, 3, 4 },
                                 .unpadded = { 40, 92, 164, 228, 235 },
                                 .end = { 40, 112, 184, 232, 236 } };
  struct weft_layout_rule rule = { .threshold = 44, .group = 2, .sharded = TRUE };

  (void) state;
  assert_units (rule, layers, G_N_ELEMENTS (layers), &wanted);
  rule.threshold = 45;
  wanted.start[9] = 228;
  wanted.bucket[9] = 3;
  wanted.unpadded[3] = 231;
  assert_units (rule, layers, G_N_ELEMENTS (layers), &wanted);
}

/* Buckets of gradients that are not sharded have no padding, and the tied embedding shares a
 * bucket with the next tensor. In sharded buffers the tied embedding has its own bucket, and 27
 * elements are padded to 48 = 8 x 6. */
static void
buckets_of_whole_tensors_are_not_padded (void **state)
{
  static const struct weft_layout_param all[] = { { 40, TRUE, WEFT_NO_UNIT, 4 },
                                                  { 24, FALSE, WEFT_NO_UNIT, 6 },
                                                  { 3, FALSE, WEFT_NO_UNIT, 1 } };
  static const struct units_wanted whole = { { 0, 40, 64 }, { 0, 0, 1 }, { 64, 67 }, { 64, 67 } };
  static const struct units_wanted split = { { 0, 64, 88 }, { 0, 1, 1 }, { 40, 91 }, { 64, 112 } };
  struct weft_layout_rule rule = { .threshold = 50, .group = 8 };

  (void) state;
  assert_units (rule, all, 3, &whole);
  rule.sharded = TRUE;
  assert_units (rule, all, 3, &split);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (sharded_buckets_are_aligned_padded_and_spare_the_tied_embedding),
  cmocka_unit_test (plain_buckets_have_no_gaps_and_no_rule_for_the_tied_embedding),
  cmocka_unit_test (the_tied_embedding_closes_a_bucket_that_has_no_threshold),
  cmocka_unit_test (without_a_threshold_plain_parameters_share_one_bucket),
  cmocka_unit_test (buckets_padded_for_bus_bandwidth_end_at_65536_elements),
  cmocka_unit_test (a_bucket_closes_at_the_parameter_that_reaches_the_threshold_exactly),
  cmocka_unit_test (no_parameters_need_no_bucket),
  cmocka_unit_test (the_default_threshold_is_forty_million_or_a_million_a_rank),
  cmocka_unit_test (random_parameters_obey_every_rule),
  cmocka_unit_test (layers_are_units_and_bucket_size_cuts_the_rest),
  cmocka_unit_test (buckets_of_whole_tensors_are_not_padded),
};

WEFT_TESTS (tests)

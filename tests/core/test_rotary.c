/* Frequencies of rotary embeddings, against values computed from the wavelengths that the papers
 * publish. */
#include "core/job/rotary.h"
#include "kernels/kernel.h"
#include "tests/runner/runner.h"
#include <math.h>

static union weft_model
made (double base, enum weft_rotary_scaling scaling, double factor)
{
  union weft_model model;

  weft_table_defaults (&weft_model_table, model.at);
  model.rotary_base = base;
  model.rotary_scaling = scaling;
  model.rotary_scaling_factor = factor;
  return model;
}

static void
assert_turns (const union weft_model *model, uint32_t i, uint32_t width, double wanted)
{
  double found = weft_rotary_frequency (model, i, width, FALSE);

  if (!(fabs (found - wanted) <= 1e-14 * wanted))
    fail_msg ("pair %u of %u: found %.17g, wanted %.17g", i, width, found, wanted);
}

static void
pairs_turn_by_falling_powers_of_the_base (void **state)
{
  union weft_model model = made (10000, WEFT_ROTARY_NONE, 1);

  (void) state;
  assert_turns (&model, 0, 64, 1);
  assert_turns (&model, 8, 64, 0.1);
  assert_turns (&model, 16, 64, 0.01);
  assert_turns (&model, 24, 64, 0.001);
  assert_turns (&model, 1, 4, 0.01);
}

static void
linear_scaling_slows_every_pair_alike (void **state)
{
  union weft_model model = made (10000, WEFT_ROTARY_LINEAR, 4);

  (void) state;
  assert_turns (&model, 0, 64, 0.25);
  assert_turns (&model, 16, 64, 0.0025);
}

/* Llama 3 scaling: base 500000 on 128 elements, 8192 original positions, factor 8. Frequencies
 * with a wavelength up to 2048 positions are unchanged; those with 8192 and more are divided by
 * 8; the others are interpolated. Over 8192 positions, pair 29 rotates 3.41 times, pair 32 1.84
 * times, and pair 35 slightly less than once. */
static void
llama3_scaling_blends_between_the_two_wavelengths (void **state)
{
  union weft_model model = made (500000, WEFT_ROTARY_LLAMA3, 8);

  (void) state;
  assert_turns (&model, 0, 128, 1);
  assert_turns (&model, 28, 128, 3.211445994752591e-3);
  assert_turns (&model, 29, 128, 2.166570763503359e-3);
  assert_turns (&model, 32, 128, 5.248461609929547e-4);
  assert_turns (&model, 35, 128, 9.556212353964683e-5);
  assert_turns (&model, 63, 128, 3.068925988914511e-7);
}

static void
the_blend_is_continuous_and_never_rises (void **state)
{
  union weft_model model = made (500000, WEFT_ROTARY_LLAMA3, 8);
  double before = 2;

  (void) state;
  for (uint32_t i = 0; i < 4096; i++) {
    double now = weft_rotary_frequency (&model, i, 8192, FALSE);
    assert_true (now < before && now > 0.98 * fmin (before, 1));
    before = now;
  }
}

static void
a_pair_lies_half_a_head_apart_and_values_are_not_turned (void **state)
{
  union weft_model model;
  /* The operand holds the query, key and value of one head of four elements, at two positions. */
  float qkv[24] = { [12] = 1, [13] = 1, [16] = 1, [20] = 1 };
  struct weft_kernel k = { .kind = WEFT_OP_ROPE,
                           .shape = { .dim = { 4, 4 } },
                           .model = &model,
                           .operand = { { qkv, 24, WEFT_FP32, TRUE } } };

  (void) state;
  weft_table_defaults (&weft_model_table, model.at);
  model.num_attention_heads = model.num_query_groups = 1;
  model.seq_length = 2;
  weft_cpu_rope (&k, 0, 1);
  /* first the query at position 1, rotated */
  const double wanted[24] = { [12] = cos (1),
                              cos (0.01),
                              sin (1),
                              sin (0.01),
                              /* key at position 1, rotated */
                              [16] = cos (1),
                              0,
                              sin (1),
                              0,
                              [20] = 1 };
  for (int i = 0; i < 24; i++)
    assert_true (fabs ((double) qkv[i] - wanted[i]) < 1e-7);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (pairs_turn_by_falling_powers_of_the_base),
  cmocka_unit_test (linear_scaling_slows_every_pair_alike),
  cmocka_unit_test (llama3_scaling_blends_between_the_two_wavelengths),
  cmocka_unit_test (the_blend_is_continuous_and_never_rises),
  cmocka_unit_test (a_pair_lies_half_a_head_apart_and_values_are_not_turned),
};

WEFT_TESTS (tests)

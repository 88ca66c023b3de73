/* The tables of ops, lanes, memory kinds and activations: the fields of a row must not
 * contradict each other. */
#include "core/report/report.h"
#include "tests/runner/runner.h"
#include <string.h>

/* Returns operand o of an op as text, such as "dw:rw"; NULL: the op has fewer operands. The caller
 * frees the text. */
static char *
operand (enum weft_op_kind kind, uint32_t o)
{
  g_auto (GStrv) all = g_strsplit (weft_op_info[kind].operands, " ", -1);

  return *weft_op_info[kind].operands && o < g_strv_length (all) ? g_strdup (all[o]) : NULL;
}

static void
the_gradient_of_a_bias_is_added_to_and_may_be_absent (void **state)
{
  unsigned found = 0;

  (void) state;
  for (int kind = 0; kind < WEFT_N_OP; kind++) {
    const struct weft_op_info *info = &weft_op_info[kind];
    g_autofree char *bias = operand (kind, info->bias_gradient);
    if (info->bias_gradient == 0)
      continue;
    assert_int_equal (info->product, WEFT_PRODUCT_WGRAD);
    assert_non_null (bias);
    assert_true (g_str_has_suffix (bias, ":rw?"));
    found++;
  }
  assert_true (found > 0);
}

/* An op with a `bulk` mask works on a part of a flat buffer. Each bit of the mask must be the
 * number of an operand of the op, and operand 0 must be among these operands. */
static void
bulk_operands_are_operands (void **state)
{
  (void) state;
  for (int kind = 0; kind < WEFT_N_OP; kind++)
    for (uint32_t o = 0; o < 8; o++) {
      g_autofree char *text = operand (kind, o);
      if (weft_op_info[kind].bulk >> o & 1)
        assert_non_null (text);
      if (weft_op_info[kind].bulk)
        assert_true (weft_op_info[kind].bulk & 1);
    }
}

static void
copies_alone_cross_the_host_link (void **state)
{
  (void) state;
  for (int kind = 0; kind < WEFT_N_OP; kind++) {
    gboolean copy = weft_op_info[kind].class == WEFT_CLASS_COPY;
    g_autofree char *other = operand (kind, 1);
    assert_true (copy || !(weft_op_info[kind].mailbox || weft_op_info[kind].enters_device));
    if (copy)
      assert_int_equal (weft_op_is_pooled_copy (kind), other != NULL);
  }
}

static void
a_lane_has_kernels_or_messages_or_copies (void **state)
{
  unsigned kernels = 0;

  (void) state;
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    const struct weft_lane_traits *traits = &weft_lane_traits[lane];
    assert_false (traits->communicates && traits->copies);
    kernels += !traits->communicates && !traits->copies;
    assert_true (!traits->in_layer || !traits->copies);
  }
  assert_int_equal (kernels, 2); /* only the lanes `gpu` and `host` run kernels */
  for (int group = WEFT_GROUP_NONE + 1; group < WEFT_N_GROUP; group++)
    assert_true (weft_lane_traits[weft_group_lane (group)].communicates);
}

static void
each_part_of_memory_has_a_mark_of_its_own (void **state)
{
  (void) state;
  for (int part = 0; part < WEFT_N_REPORT_PART; part++) {
    const struct weft_report_part *p = &weft_report_parts[part];
    assert_true (p->mark && p->ink && *p->word);
    for (int other = 0; other < part; other++) {
      assert_int_not_equal (p->mark, weft_report_parts[other].mark);
      assert_int_not_equal (p->look, weft_report_parts[other].look);
    }
  }
}

static void
a_gated_activation_has_an_op_of_two_projections (void **state)
{
  (void) state;
  for (int a = 0; weft_activation_words[a]; a++) {
    const char *operands = weft_op_info[weft_activation_ops[a].forward].operands;
    assert_int_equal (weft_activation_is_gated (a), g_str_has_prefix (operands, "gate_up:"));
    g_autofree char *backward =
        g_strconcat (weft_op_words[weft_activation_ops[a].forward], "_bwd", NULL);
    assert_string_equal (weft_op_words[weft_activation_ops[a].backward], backward);
  }
}

/* In an evaluation, ops that only training needs are skipped: Adam in every phase, and a matmul if
 * it belongs to the backward pass. */
static void
an_evaluation_skips_the_update_and_keeps_forward (void **state)
{
  (void) state;
  assert_int_equal (weft_op_info[WEFT_OP_ADAM].skipped, WEFT_SKIPPED);
  assert_int_equal (weft_op_info[WEFT_OP_MATMUL].skipped, WEFT_SKIPPED_BACKWARD);
  for (int kind = 0; kind < WEFT_N_OP; kind++)
    if (weft_op_info[kind].in_bound)
      assert_int_equal (weft_op_info[kind].skipped, WEFT_SKIPPED_BACKWARD);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_gradient_of_a_bias_is_added_to_and_may_be_absent),
  cmocka_unit_test (bulk_operands_are_operands),
  cmocka_unit_test (copies_alone_cross_the_host_link),
  cmocka_unit_test (a_lane_has_kernels_or_messages_or_copies),
  cmocka_unit_test (each_part_of_memory_has_a_mark_of_its_own),
  cmocka_unit_test (a_gated_activation_has_an_op_of_two_projections),
  cmocka_unit_test (an_evaluation_skips_the_update_and_keeps_forward),
};

WEFT_TESTS (tests)

/* Programs as text: printed text is parsed to the same program; damaged text is refused with the
 * number of its line. */
#include "core/base/error.h"
#include "core/program/program.h"
#include "tests/runner/runner.h"
#include <string.h>

static void
assert_same (const weft_program *a, const weft_program *b)
{
  assert_int_equal (a->role, b->role);
  assert_int_equal (a->n_roles, b->n_roles);
  assert_int_equal (a->n_op, b->n_op);
  assert_int_equal (a->n_buf, b->n_buf);
  assert_int_equal (a->n_shape, b->n_shape);
  assert_int_equal (a->n_name, b->n_name);
  assert_int_equal (a->n_param, b->n_param);
  assert_memory_equal (a->op, b->op, (a->n_op + 1) * sizeof *a->op);
  assert_memory_equal (a->deps, b->deps, a->op[a->n_op].deps * sizeof *a->deps);
  assert_memory_equal (a->uses, b->uses, a->op[a->n_op].uses * sizeof *a->uses);
  assert_memory_equal (a->buf, b->buf, a->n_buf * sizeof *a->buf);
  assert_memory_equal (a->shape, b->shape, a->n_shape * sizeof *a->shape);
  assert_memory_equal (a->param, b->param, a->n_param * sizeof *a->param);
  assert_memory_equal (a->pos, b->pos, a->n_op * sizeof *a->pos);
  assert_memory_equal (a->lane_n, b->lane_n, sizeof a->lane_n);
  for (uint32_t i = 0; i < a->n_name; i++)
    assert_string_equal (a->name[i], b->name[i]);
}

static weft_program *
parse (const char *text)
{
  g_autoptr (GError) error = NULL;
  weft_program *p = weft_program_parse (text, "golden.txt", &error);

  if (!p)
    fail_msg ("%s", error->message);
  return p;
}

static void
assert_round_trip (const weft_program *p)
{
  g_autofree char *text = weft_program_print (p);
  g_autoptr (weft_program) again = parse (text);
  g_autofree char *second = weft_program_print (again);

  assert_same (p, again);
  assert_string_equal (text, second);
}

static uint32_t
add_buf (weft_builder *b, uint32_t i)
{
  struct weft_buf row = { .bytes = 1000 + 7 * i,
                          .offset = 64 * i,
                          .base = WEFT_NO_BUF,
                          .name = weft_build_name (b, i % 2 ? "odd" : "even"),
                          .layer = i % 3 ? i : WEFT_NO_LAYER,
                          .micro = i % 4 ? WEFT_NO_MICRO : i,
                          .kind = i % WEFT_N_BUF_KIND,
                          .pool = i % WEFT_N_POOL,
                          .dtype = i % WEFT_N_DTYPE,
                          .permanent = i % 5 == 0 };
  return weft_build_buf (b, &row);
}

/* Adds the operands of an op; each operand is the next buffer of the program. Every second optional
 * operand is omitted. */
static void
add_operands (weft_builder *b, const char *operands, uint32_t n_buf, uint32_t i)
{
  g_auto (GStrv) operand = g_strsplit (operands, " ", -1);

  for (uint32_t u = 0; operand[u] && *operand[u]; u++) {
    const char *access = strchr (operand[u], ':') + 1;
    gboolean absent = strchr (access, '?') && i % 2;
    weft_build_use (b, absent ? WEFT_NO_BUF : (i + u) % n_buf, strchr (access, 'r') != NULL,
                    strchr (access, 'w') != NULL);
  }
}

static void
add_op (weft_builder *b, uint32_t i, uint32_t n_buf)
{
  enum weft_op_kind kind = i % WEFT_N_OP;
  struct weft_op row = { .kind = kind,
                         .lane = i % WEFT_N_LANE,
                         .group = i % WEFT_N_GROUP,
                         .flags = (i % 3 == 0 ? WEFT_OP_RECOMPUTE : 0) |
                                  (i % 7 == 6 && i >= WEFT_N_LANE ? WEFT_OP_GROUPED : 0),
                         .layer = i % 2 ? i : WEFT_NO_LAYER,
                         .micro = i % 3 ? i : WEFT_NO_MICRO,
                         .name = weft_build_name (b, weft_op_info[kind].word),
                         .chunk = i % 256,
                         .phase = i % WEFT_N_PHASE,
                         .peer = (int) (i % 256) - 128,
                         .reduce = i % (WEFT_REDUCE_MAX + 1) };
  struct weft_shape shape = { .dtype = i % WEFT_N_DTYPE, .out_dtype = i % 4 % WEFT_N_DTYPE };

  for (uint32_t d = 0; d < i % 6; d++)
    shape.dim[d] = d == 1 ? 0 : UINT64_C (3) << (d * 10);
  weft_build_op (b, &row, &shape);
  add_operands (b, weft_op_info[kind].operands, n_buf, i);
}

static void
add_params (weft_builder *b, uint32_t view)
{
  struct weft_param first = { .name = weft_build_name (b, "word \"embedding\"\\\n\x7f \xc3\xa9"),
                              .layer = WEFT_NO_LAYER,
                              .chunk = 255,
                              .tied = 1,
                              .duplicate = 1,
                              .weight = view,
                              .grad = WEFT_NO_BUF,
                              .rows = UINT64_C (1) << 40,
                              .columns = 3,
                              .whole_rows = (UINT64_C (3) << 40) - 5,
                              .whole_columns = 3,
                              .tail = UINT64_C (1) << 30,
                              .ways = 3,
                              .cut = WEFT_CUT_ROWS,
                              .group = WEFT_GROUP_EP,
                              .start = UINT64_C (1) << 50,
                              .bucket = UINT32_MAX };
  struct weft_param second = { .name = weft_build_name (b, ""),
                               .layer = 65534,
                               .decay = 1,
                               .weight = WEFT_NO_BUF,
                               .grad = view,
                               .columns = 1,
                               .whole_columns = 1,
                               .ways = 1 };
  struct weft_param expert = { .name = weft_build_name (b, "experts"),
                               .weight = view,
                               .grad = view,
                               .rows = 24,
                               .columns = 5,
                               .whole_rows = 24 * 8,
                               .whole_columns = 5,
                               .tail = 3,
                               .block = 6,
                               .ways = 8,
                               .inner = 2,
                               .cut = WEFT_CUT_ROWS,
                               .group = WEFT_GROUP_TP_EP };
  weft_build_param (b, &first);
  weft_build_param (b, &second);
  weft_build_param (b, &expert);
}

/* A program with ops of every kind, lane and group, and with and without every optional part. */
static weft_program *
everything (void)
{
  g_autoptr (weft_builder) b = weft_builder_new (3, 8);
  uint32_t n = 30;

  for (uint32_t i = 0; i < n; i++)
    add_buf (b, i);
  uint32_t view = weft_build_view (b, 4, 28, 1000, "view");
  weft_build_view (b, 0, 1000, 0, "nothing at the end");
  add_params (b, view);
  weft_build_name (b, "used by nobody");
  for (uint32_t i = 0; i < 600; i++)
    add_op (b, i, n + 2);
  return weft_builder_freeze (b);
}

static void
every_field_comes_back (void **state)
{
  (void) state;
  g_autoptr (weft_program) p = everything ();

  assert_true (p->op[p->n_op].deps > 100);
  assert_round_trip (p);
}

static void
an_access_that_is_neither_read_nor_write_comes_back (void **state)
{
  (void) state;
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_op row = { .layer = WEFT_NO_LAYER, .micro = WEFT_NO_MICRO };
  struct weft_shape shape = { .dtype = WEFT_BF16, .out_dtype = WEFT_FP32 };

  row.name = weft_build_name (b, "x");
  add_buf (b, 0);
  weft_build_op (b, &row, &shape);
  for (int access = 0; access < 4; access++) {
    weft_build_use (b, WEFT_NO_BUF, access & 1, access >> 1);
    weft_build_use (b, 0, access & 1, access >> 1);
  }
  g_autoptr (weft_program) p = weft_builder_freeze (b);
  g_autofree char *text = weft_program_print (p);
  assert_non_null (strstr (text, " uses - 0 r- r0 w- w0 rw- rw0\n"));
  assert_round_trip (p);
}

static void
an_empty_program_comes_back (void **state)
{
  (void) state;
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  g_autoptr (weft_program) p = weft_builder_freeze (b);
  g_autofree char *text = weft_program_print (p);

  assert_string_equal (text, "program 1 role 0 of 1\nend\n");
  assert_round_trip (p);
}

static const char good[] =
    "program 1 role 1 of 4\n"
    "name 0 \"qkv\"\n"
    "name 1 \"bucket\"\n"
    "shape 0 bf16 4096 12288 4096\n"
    "shape 1 bf16 1024 out fp32\n"
    "buf 0 weights device bf16 \"bucket\" bytes 8192 at 256 permanent\n"
    "buf 1 weights device bf16 L3 \"qkv\" bytes 4096 at 4096 in 0 permanent\n"
    "buf 2 activations device bf16 L3 m0 \"qkv\" bytes 512 at 8448\n"
    "param 0 L3 c0 \"qkv\" 64 x 32 at 2048 bucket 2 weight 1 grad - decay\n"
    "op 0 dp all_gather O c0 \"bucket\" s1 over dp uses rw0\n"
    "op 1 gpu matmul F L3 m0 c0 \"qkv\" s0 uses r1 r- w2 after 0\n"
    "op 2 pp send F m0 c0 \"qkv\" s1 over pp reduce avg peer +1 uses r2 after 1\n"
    "op 3 pp recv F m1 c0 \"qkv\" s1 over pp peer -1 grouped recompute\n"
    "end\n";

static void
the_text_says_what_the_rows_hold (void **state)
{
  (void) state;
  g_autoptr (weft_program) p = parse (good);
  g_autofree char *text = weft_program_print (p);

  assert_string_equal (text, good);
  assert_int_equal (p->role, 1);
  assert_int_equal (p->shape[1].out_dtype, WEFT_FP32);
  assert_int_equal (p->shape[0].dim[1], 12288);
  assert_int_equal (p->buf[1].base, 0);
  assert_int_equal (weft_buf_address (p, 1), 4352);
  assert_int_equal (p->param[0].start, 2048);
  assert_int_equal (p->op[1].layer, 3);
  assert_int_equal (p->op[2].peer, 1);
  assert_int_equal (p->op[2].reduce, WEFT_REDUCE_AVG);
  assert_int_equal (p->op[3].peer, -1);
  assert_int_equal (p->op[3].flags, WEFT_OP_GROUPED | WEFT_OP_RECOMPUTE);
  assert_int_equal (p->uses[2].buf, WEFT_NO_BUF);
}

static void
lifetimes_and_lane_order_are_rebuilt (void **state)
{
  (void) state;
  g_autoptr (weft_program) p = parse (good);

  assert_int_equal (p->buf[0].last, 3);
  assert_int_equal (p->buf[2].first, 1);
  assert_int_equal (p->buf[2].last, 2);
  assert_int_equal (p->lane_n[WEFT_LANE_PP], 2);
  assert_int_equal (p->lane_ops[WEFT_LANE_PP][1], 3);
}

static void
comments_blanks_and_foreign_line_ends_do_not_count (void **state)
{
  (void) state;
  g_autofree char *text = g_strdup_printf ("# golden\r\n\n  \t\r\n%s# over\n\n", good);
  g_auto (GStrv) lines = g_strsplit (good, "\n", -1);
  g_autofree char *other = g_strjoinv ("\t # why\r\n ", lines);
  g_autoptr (weft_program) a = parse (good), b = parse (text), c = parse (other);

  assert_same (a, b);
  assert_same (a, c);
}

/* Each row damages a correct program text: `from` is replaced by `to`. `message` is the whole error
 * after "golden.txt:". */
static const struct {
  const char *from, *to, *message;
} damages[] = {
  { "program 1 role 1 of 4\n", "",
    "1: found \"name\", wanted the header \"program 1 role N of N\"" },
  { "program 1", "program 2", "1: found version 2 of this text, wanted 1" },
  { "program 1", "program one", "1: found \"one\", wanted a version, 0 to 4294967294" },
  { "role 1", "roll 1", "1: found \"roll\", wanted \"role\"" },
  { "role 1", "role 4", "1: found role 4 of 4, wanted a role below their number" },
  { "role 1 of 4", "role 0 of 0", "1: found role 0 of 0, wanted a role below their number" },
  { "of 4", "of 4 4", "1: found \"4\", wanted the end of the row" },
  { "name 0", "program 1", "2: found a second header, wanted one" },
  { "name 0", "nam 0", "2: found \"nam\", wanted a row; did you mean name?" },
  { "name 0", "zzzzzzzz 0", "2: found \"zzzzzzzz\", wanted a row: name, shape, buf, param, op" },
  { "name 0", "name 1", "2: found \"1\", wanted 0, the number of this name row" },
  { "name 1 \"bucket\"", "name 1 \"qkv\"", "3: this name is given twice, wanted every name once" },
  { "name 1 \"bucket\"", "name 1", "3: found the end of the row, wanted a name in double quotes" },
  { "name 1 \"bucket\"", "name 1 \"bucket",
    "3: found the end of the row, wanted the rest of a name and its closing quote" },
  { "\"bucket\"", "\"b\\ucket\"",
    "3: found \"\\ucket\"\", wanted one of the escapes \\\" \\\\ \\x01 to \\x1f \\x7f" },
  { "\"bucket\"", "\"\\x00\"",
    "3: found \"\\x00\"\", wanted one of the escapes \\\" \\\\ \\x01 to \\x1f \\x7f" },
  { "\"bucket\"", "\"\xff\"", "3: found a name that is not UTF-8, wanted UTF-8" },
  { "\"bucket\"", "\"bucket\"s", "3: found \"s\", wanted a blank after a name" },
  { "bf16 4096 1", "bf17 4096 1", "4: found \"bf17\", wanted a type; did you mean bf16?" },
  { "12288", "1152921504606846976",
    "4: found \"1152921504606846976\", wanted a dimension, 0 to 1152921504606846975" },
  { "12288", "-3", "4: found \"-3\", wanted a dimension, 0 to 1152921504606846975" },
  { "4096 12288 4096", "1 2 3 4 5 6 7 8 9", "4: found \"9\", wanted the end of the row" },
  { "out fp32", "out",
    "5: found the end of the row, wanted a type: fp32, bf16, fp16, fp8, int32, int64, "
    "e8m0, uint8, e5m2" },
  { "weights", "weight", "6: found \"weight\", wanted a kind of buffer; did you mean weights?" },
  { "device", "devise", "6: found \"devise\", wanted a pool; did you mean device?" },
  { "bytes 8192", "bytes 8Ki", "6: found \"8Ki\", wanted bytes, 0 to 1152921504606846975" },
  { "bytes 8192", "byte 8192", "6: found \"byte\", wanted \"bytes\"" },
  { "bytes 8192 ", "bytes 8191 ",
    "7: this view ends at byte 8192, wanted at most 8191, the size of buffer 0" },
  { "in 0", "in 1", "7: found \"1\", wanted a buffer above, 0 to 0" },
  { "at 256 perm", "at 256 in 0 perm",
    "6: found \"0\", wanted a buffer above, but there is none so far" },
  { "at 8448", "at 0 in 1", "8: buffer 1 is itself a view, wanted one that owns memory" },
  { "weights device bf16 L3", "weights host bf16 L3",
    "7: found pool host, wanted device, that of buffer 0" },
  { "bf16 L3 m0", "bf16 L65535 m0", "8: found \"L65535\", wanted a layer, L0 to L65534" },
  { "bf16 L3 m0", "bf16 L3 m70000", "8: found \"m70000\", wanted a microbatch, m0 to m65534" },
  { "bf16 L3 m0 \"qkv\"", "bf16 \"kqv\"",
    "8: found \"kqv\", wanted a name of one of the 2 name rows above" },
  { "64 x 32", "68719476736 x 68719476736",
    "9: found 68719476736 x 68719476736 elements, wanted fewer than 2^60" },
  { "bucket 2", "bucket 4294967296", "9: found \"4294967296\", wanted a bucket, 0 to 4294967295" },
  { "weight 1", "weight 3", "9: found \"3\", wanted a buffer or -, 0 to 2" },
  { "- decay", "- duplicate tied", "9: found \"tied\", wanted the end of the row" },
  { "param 0 L3 c0", "param 0 L3 c256", "9: found \"c256\", wanted a chunk, c0 to c255" },
  { "op 0 dp", "op 1 dp", "10: found \"1\", wanted 0, the number of this op row" },
  { "op 0 dp", "op 0 gpuu", "10: found \"gpuu\", wanted a lane; did you mean gpu?" },
  { "op 0 dp", "op 0 sky\x1b[2J",
    "10: found \"sky?[2J\", wanted a lane: gpu, tp, cp, ep, dp, dp_outer, pp, pp_back, world, h2d, "
    "d2h, "
    "host" },
  { "all_gather", "allgather",
    "10: found \"allgather\", wanted a kind of op; did you mean all_gather?" },
  { "all_gather O", "all_gather Q", "10: found \"Q\", wanted a phase; did you mean F?" },
  { "over dp", "over dpp", "10: found \"dpp\", wanted a group; did you mean dp?" },
  { "s1 over dp", "s2 over dp", "10: found \"s2\", wanted a shape, s0 to s1" },
  { "uses rw0", "uses rw3",
    "10: found \"rw3\", wanted a use like r0, w0, rw0 or r-, of a buffer below 3" },
  { "uses rw0", "uses wr0",
    "10: found \"wr0\", wanted a use like r0, w0, rw0 or r-, of a buffer below 3" },
  { "uses rw0", "uses r 0",
    "10: found \"r\", wanted a use like r0, w0, rw0 or r-, of a buffer below 3" },
  { "after 0", "after 1", "11: found \"1\", wanted an op above, 0 to 0" },
  { "uses rw0", "after 0", "10: found \"0\", wanted an op above, but there is none so far" },
  { "after 0", "after 0x", "11: found \"0x\", wanted an op above, 0 to 0" },
  { "reduce avg", "reduce agv", "12: found \"agv\", wanted a reduction; did you mean avg?" },
  { "peer +1", "peer 1", "12: found \"1\", wanted a distance in stages, -128 to +127" },
  { "peer -1", "peer -129", "13: found \"-129\", wanted a distance in stages, -128 to +127" },
  { "op 3 pp", "op 3 tp", "13: op 3 is grouped, wanted an op before it on lane tp" },
  { "end\n", "",
    "14: found the end of the text, wanted the row \"end\", which shows that a program is whole" },
  { "end\n", "end\nop 4", "15: found \"op\", wanted nothing after \"end\"" },
};

static char *
replaced (const char *from, const char *to)
{
  const char *at = strstr (good, from);

  assert_non_null (at);
  return g_strdup_printf ("%.*s%s%s", (int) (at - good), good, to, at + strlen (from));
}

static void
damage_is_named_with_its_line (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (damages); i++) {
    g_autoptr (GError) error = NULL;
    g_autofree char *text = replaced (damages[i].from, damages[i].to);
    g_autofree char *message = g_strconcat ("golden.txt:", damages[i].message, NULL);
    g_autoptr (weft_program) p = weft_program_parse (text, "golden.txt", &error);
    if (p)
      fail_msg ("\"%s\" for \"%s\" was accepted", damages[i].to, damages[i].from);
    assert_string_equal (error->message, message);
    assert_int_equal (weft_error_exit_status (error), 2);
  }
}

static void
a_text_cut_anywhere_is_refused (void **state)
{
  (void) state;
  for (size_t n = 0; n < strlen (good) - 1; n++) {
    g_autoptr (GError) error = NULL;
    g_autofree char *text = g_strndup (good, n);
    g_autoptr (weft_program) p = weft_program_parse (text, "golden.txt", &error);
    assert_null (p);
    assert_non_null (error);
  }
}

static void
damage_bytes (GRand *rand, char *text, size_t n)
{
  static const char bytes[] = "0123456789 \"\\-+rwsLmc\n#x\xff\x01";

  for (int hits = g_rand_int_range (rand, 1, 4); hits; hits--)
    text[g_rand_int_range (rand, 0, n)] = bytes[g_rand_int_range (rand, 0, sizeof bytes - 1)];
}

/* Program text with random damage is refused, or it is a program that is printed and parsed back to
 * the same program. */
static void
random_damage_is_refused_or_still_a_program (void **state)
{
  (void) state;
  GRand *rand = g_rand_new_with_seed (20);
  unsigned refused = 0, rounds = 20000;

  for (unsigned i = 0; i < rounds; i++) {
    g_autoptr (GError) error = NULL;
    g_autofree char *text = g_strdup (good);
    damage_bytes (rand, text, strlen (text));
    g_autoptr (weft_program) p = weft_program_parse (text, "golden.txt", &error);
    assert_true ((p == NULL) == (error != NULL));
    if (p)
      assert_round_trip (p);
    else
      refused++;
  }
  g_rand_free (rand);
  assert_in_range (refused, rounds / 2, rounds - 100);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_field_comes_back),
  cmocka_unit_test (an_access_that_is_neither_read_nor_write_comes_back),
  cmocka_unit_test (an_empty_program_comes_back),
  cmocka_unit_test (the_text_says_what_the_rows_hold),
  cmocka_unit_test (lifetimes_and_lane_order_are_rebuilt),
  cmocka_unit_test (comments_blanks_and_foreign_line_ends_do_not_count),
  cmocka_unit_test (damage_is_named_with_its_line),
  cmocka_unit_test (a_text_cut_anywhere_is_refused),
  cmocka_unit_test (random_damage_is_refused_or_still_a_program),
};

WEFT_TESTS (tests)

/* Tests each check of check.h with programs of a few ops: first the smallest program that violates
 * the check, with the whole error message, then the smallest change after which the check
 * passes. */
#include "core/plan/check.h"
#include "tests/runner/runner.h"
#include <string.h>

/* Buffers x and y do not overlap. Buffer p is permanent (256 bytes) and has three views: v is
 * bytes [0, 128) of p, w is [64, 192), q is [128, 256). */
#define HEAD(role, of)                                                                             \
  "program 1 role " role " of " of "\n"                                                            \
  "name 0 \"a\"\nname 1 \"b\"\nname 2 \"c\"\nname 3 \"d\"\n"                                       \
  "name 4 \"x\"\nname 5 \"y\"\nname 6 \"p\"\nname 7 \"v\"\nname 8 \"w\"\nname 9 \"q\"\n"           \
  "shape 0 fp32 64\nshape 1 fp32 63\nshape 2 bf16 64\n"
#define BUFS(x_at, y_at, p_at)                                                                     \
  "buf 0 activations device fp32 \"x\" bytes 256 at " x_at "\n"                                    \
  "buf 1 activations device fp32 m1 \"y\" bytes 256 at " y_at "\n"                                 \
  "buf 2 weights device fp32 \"p\" bytes 256 at " p_at " permanent\n"                              \
  "buf 3 weights device fp32 \"v\" bytes 128 at 0 in 2 permanent\n"                                \
  "buf 4 weights device fp32 \"w\" bytes 128 at 64 in 2 permanent\n"                               \
  "buf 5 weights device fp32 \"q\" bytes 128 at 128 in 2 permanent\n"
#define ONE HEAD ("0", "1") BUFS ("256", "512", "0")
#define END "end\n"

static weft_program *
parse (const char *text)
{
  g_autoptr (GError) error = NULL;
  weft_program *p = weft_program_parse (text, "test", &error);

  if (!p)
    fail_msg ("%s", error->message);
  return p;
}

/* A program as text, and the error message that the check must report; NULL: the check must accept
 * the program. */
struct sample {
  const char *text, *message;
};

static void
check_each (const struct sample *samples, size_t n,
            gboolean (*check) (const weft_program *program, GError **error))
{
  for (size_t i = 0; i < n; i++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_program) p = parse (samples[i].text);
    gboolean ok = check (p, &error);
    if (!ok && !samples[i].message)
      fail_msg ("sample %zu: %s", i, error->message);
    if (ok && samples[i].message)
      fail_msg ("sample %zu passed, wanted \"%s\"", i, samples[i].message);
    if (!ok)
      assert_string_equal (error->message, samples[i].message);
  }
}

#define CHECK_EACH(check, ...)                                                                     \
  check_each ((const struct sample[]){ __VA_ARGS__ },                                              \
              sizeof ((const struct sample[]){ __VA_ARGS__ }) / sizeof (struct sample), check)

/* --------------------------------------------------------------------- uses */

static void
a_read_needs_a_write_before_it (void **state)
{
  (void) state;
  CHECK_EACH (
      weft_check_program,
      { ONE "op 0 gpu gelu F c0 \"a\" s0 uses r0 w1\n" END,
        "role 0: op 0 (a) reads buffer 0 (x) before any op wrote it" },
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\nop 1 gpu gelu F m1 c0 \"b\" s0 uses r0 r1\n" END,
        "role 0: op 1 (b m1) reads buffer 1 (y m1) before any op wrote it" },
      { ONE "op 0 gpu gelu F L7 c0 \"a\" s0 uses rw0\n" END,
        "role 0: op 0 (L7 a) reads buffer 0 (x) before any op wrote it" },
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\nop 1 gpu gelu F c0 \"b\" s0 uses r0 w1\n" END },
      /* An op may read a permanent buffer, which was written before the step. An absent operand
       * ("r-") reads nothing. */
      { ONE "op 0 gpu gelu F c0 \"a\" s0 uses r2 w0 r-\n" END });
}

static void
lanes_that_touch_one_buffer_need_an_order (void **state)
{
  (void) state;
  CHECK_EACH (
      weft_check_program,
      /* Three pairs of ops on two lanes without a dependency between them: the check must report a
       * read after a write, a write after a read, and a write after a write. */
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\nop 1 d2h copy_out F c0 \"b\" s0 uses r0\n" END,
        "role 0: op 0 (a) and op 1 (b) both touch buffer 0 (x), and nothing orders them: a race" },
      { ONE "op 0 gpu gelu F c0 \"a\" s0 uses r2 w0\nop 1 h2d copy_in F c0 \"b\" s0 uses w2\n" END,
        "role 0: op 0 (a) and op 1 (b) both touch buffer 2 (p), and nothing orders them: a race" },
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\nop 1 h2d copy_in F c0 \"b\" s0 uses w0\n" END,
        "role 0: op 0 (a) and op 1 (b) both touch buffer 0 (x), and nothing orders them: a race" },
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\n"
            "op 1 d2h copy_out F c0 \"b\" s0 uses r0 after 0\n" END },
      /* Two ops that only read a buffer need no order. */
      { ONE
        "op 0 gpu gelu F c0 \"a\" s0 uses r2 w0\nop 1 d2h copy_out F c0 \"b\" s0 uses r2\n" END },
      /* Two writes of one buffer on one lane need no dependency, because a lane runs its ops in
       * order. */
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\nop 1 gpu zero F c0 \"b\" s0 uses w0\n" END });
}

static void
order_may_pass_through_other_lanes (void **state)
{
  (void) state;
  CHECK_EACH (
      weft_check_program,
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\n"
            "op 1 gpu zero F c0 \"b\" s0 uses w1\n"
            "op 2 dp all_reduce G c0 \"c\" s0 over dp uses rw1 after 1\n"
            "op 3 d2h copy_out F c0 \"d\" s0 uses r0 after 2\n" END },
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\n"
            "op 1 dp all_reduce G c0 \"b\" s0 over dp uses rw2\n"
            "op 2 gpu zero F c0 \"c\" s0 uses w1 after 1\n"
            "op 3 d2h copy_out F c0 \"d\" s0 uses r0 after 1\n" END,
        "role 0: op 0 (a) and op 3 (d) both touch buffer 0 (x), and nothing orders them: a race" });
}

static void
views_race_where_they_overlap (void **state)
{
  (void) state;
  CHECK_EACH (
      weft_check_program,
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w3\n"
            "op 1 dp all_reduce G c0 \"b\" s0 over dp uses rw4\n" END,
        "role 0: op 0 (a) and op 1 (b) both touch buffer 4 (w), and nothing orders them: a race" },
      /* Views v and q of buffer p are adjacent and share no bytes, so their ops need no order. */
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w3\n"
            "op 1 dp all_reduce G c0 \"b\" s0 over dp uses rw5\n" END },
      /* View q overlaps its buffer p, so unordered writes of both are a race. */
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w2\n"
            "op 1 dp all_reduce G c0 \"b\" s0 over dp uses rw5\n" END,
        "role 0: op 0 (a) and op 1 (b) both touch buffer 5 (q), and nothing orders them: a race" },
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w3\n"
            "op 1 dp all_reduce G c0 \"b\" s0 over dp uses rw4 after 0\n" END });
}

static void
ops_of_one_group_run_at_once (void **state)
{
  (void) state;
  CHECK_EACH (
      weft_check_program,
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\n"
            "op 1 pp send F c0 \"b\" s0 over pp peer +1 uses r0 after 0\n"
            "op 2 pp recv F c0 \"c\" s0 over pp peer +1 grouped uses w0\n" END,
        "role 0: op 1 (b) and op 2 (c) both touch buffer 0 (x), and nothing orders them: a race" },
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\n"
            "op 1 pp send F c0 \"b\" s0 over pp peer +1 uses r0 after 0\n"
            "op 2 pp recv F c0 \"c\" s0 over pp peer +1 uses w0\n" END },
      /* The next launch of the lane waits for all ops of a launch group. An op that waits for one
       * op of a group also waits for the whole group. */
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\n"
            "op 1 pp send F c0 \"b\" s0 over pp peer +1 uses r0 after 0\n"
            "op 2 pp recv F c0 \"c\" s0 over pp peer +1 grouped uses w1\n"
            "op 3 pp recv F c0 \"c\" s0 over pp peer +1 uses w0\n"
            "op 4 gpu zero F c0 \"d\" s0 uses w1 after 2\n" END },
      { ONE "op 0 gpu zero F c0 \"a\" s0 uses w0\n"
            "op 1 pp send F c0 \"b\" s0 over pp peer +1 uses r0 after 0\n"
            "op 2 pp recv F c0 \"c\" s0 over pp peer +1 grouped uses w1\n"
            "op 3 gpu zero F c0 \"d\" s0 uses w0 after 2\n" END });
}

/* ---------------------------------------------------------------- addresses */

#define SHARED HEAD ("0", "1") BUFS ("256", "256", "0")
#define PARTLY HEAD ("0", "1") BUFS ("256", "384", "0")
#define FIRST "op 0 gpu zero F c0 \"a\" s0 uses w0\nop 1 gpu gelu F c0 \"b\" s0 uses r0 w2\n"

static void
bytes_are_handed_over_after_their_last_use (void **state)
{
  static const char early[] =
      "role 0: buffer 1 (y m1) overwrites buffer 0 (x), but op 1 still "
      "uses the old one when op 2 may start";
  (void) state;
  CHECK_EACH (
      weft_check_addresses, { SHARED FIRST "op 2 h2d copy_in F c0 \"c\" s0 uses w1\n" END, early },
      { SHARED FIRST "op 2 h2d copy_in F c0 \"c\" s0 uses w1 after 0\n" END, early },
      { PARTLY FIRST "op 2 h2d copy_in F c0 \"c\" s0 uses w1 after 0\n" END, early },
      { SHARED FIRST "op 2 h2d copy_in F c0 \"c\" s0 uses w1 after 1\n" END },
      { SHARED FIRST "op 2 gpu zero F c0 \"c\" s0 uses w1\n" END },
              /* Buffers x and y have different addresses here, so an op may write y before the last
               * use of x. */
      { ONE FIRST "op 2 h2d copy_in F c0 \"c\" s0 uses w1\n" END },
              /* Buffers x and y share an address here. An op that uses x after another op has
               * written y must be reported. */
      { SHARED FIRST "op 2 gpu zero F c0 \"c\" s0 uses w1\n"
                     "op 3 gpu gelu F c0 \"d\" s0 uses r0 w2\n" END,
        "role 0: buffer 1 (y m1) overwrites buffer 0 (x), but op 3 still uses the old one "
        "when op 2 may start" });
}

static void
nothing_shares_bytes_with_what_is_permanent (void **state)
{
  (void) state;
  CHECK_EACH (
      weft_check_addresses,
      { HEAD ("0", "1") BUFS ("128", "512", "0") FIRST END,
        "role 0: buffer 2 (p) overwrites buffer 0 (x), but op 1 still uses the old one "
        "when op 0 may start" },
      { HEAD ("0", "1") BUFS ("512", "128", "0") FIRST "op 2 gpu zero F c0 \"c\" s0 uses w1\n" END,
        "role 0: buffer 1 (y m1) overwrites buffer 2 (p), but op 2 still uses the old one "
        "when op 2 may start" },
      { HEAD ("0", "1") BUFS ("256", "512", "0") FIRST END });
}

/* -------------------------------------------------------------------- roles */

#define ROLE_0 HEAD ("0", "2") BUFS ("256", "512", "0")
#define ROLE_1 HEAD ("1", "2") BUFS ("256", "512", "0")

static void
check_roles (const char *one, const char *two, const char *message)
{
  g_autoptr (GError) error = NULL;
  struct weft_mesh mesh = weft_mesh_make (1, 1, 2, 2);
  g_autofree char *text_0 = g_strconcat (ROLE_0, one, END, NULL);
  g_autofree char *text_1 = g_strconcat (ROLE_1, two, END, NULL);
  g_autoptr (weft_program) a = parse (text_0), b = parse (text_1);
  weft_program *const role[] = { a, b };
  gboolean ok = weft_check_roles (&mesh, role, &error);

  if (!ok && !message)
    fail_msg ("%s", error->message);
  if (ok && message)
    fail_msg ("passed, wanted \"%s\"", message);
  if (!ok)
    assert_string_equal (error->message, message);
}

#define SUM(name, shape) "world all_reduce O c0 \"" name "\" " shape " over world uses rw2\n"
#define AGREE ": members of a group must agree in kind, size, type and order"

static void
members_issue_the_same_collectives_in_the_same_order (void **state)
{
  (void) state;
  check_roles ("op 0 " SUM ("a", "s0") "op 1 " SUM ("b", "s0"),
               "op 0 " SUM ("a", "s0") "op 1 " SUM ("b", "s0"), NULL);
  check_roles ("op 0 " SUM ("a", "s0") "op 1 " SUM ("b", "s0"),
               "op 0 " SUM ("b", "s0") "op 1 " SUM ("a", "s0"),
               "role 0 issues all_reduce a (op 0) where role 1 issues all_reduce b (op 0)" AGREE);
  check_roles ("op 0 " SUM ("a", "s0") "op 1 " SUM ("b", "s0"), "op 0 " SUM ("a", "s0"),
               "deadlock: role 0 lane world at op 1 (all_reduce b)");
}

static void
members_agree_in_size_type_kind_and_reduction (void **state)
{
  static const char *const others[] = {
    "world all_reduce O c0 \"a\" s1 over world uses rw2\n",
    "world all_reduce O c0 \"a\" s2 over world uses rw2\n",
    "world broadcast O c0 \"a\" s0 over world uses rw2\n",
    "world all_reduce O c0 \"a\" s0 over world reduce max uses rw2\n",
    "world all_reduce O m1 c0 \"a\" s0 over world uses rw2\n",
  };
  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (others); i++) {
    g_autofree char *other = g_strconcat ("op 0 ", others[i], NULL);
    g_autofree char *message =
        g_strdup_printf ("role 0 issues all_reduce a (op 0) where role 1 issues %s %s (op 0)" AGREE,
                         strstr (other, "broadcast") ? "broadcast" : "all_reduce",
                         strstr (other, "m1") ? "a m1" : "a");
    check_roles ("op 0 " SUM ("a", "s0"), other, message);
  }
}

#define SEND(name, shape, peer) "pp send F m0 c0 \"" name "\" " shape " over pp peer " peer
#define RECV(name, shape, peer) "pp recv F m0 c0 \"" name "\" " shape " over pp peer " peer

static void
a_send_needs_its_receive (void **state)
{
  (void) state;
  check_roles ("op 0 " SEND ("a", "s0", "+1") "\n", "op 0 " RECV ("b", "s0", "-1") "\n", NULL);
  check_roles ("op 0 " SEND ("a", "s0", "+1") "\n", "",
               "deadlock: role 0 lane pp at op 0 (send a m0)");
  check_roles ("", "op 0 " RECV ("b", "s0", "-1") "\n",
               "deadlock: role 1 lane pp at op 0 (recv b m0)");
  check_roles ("op 0 " SEND ("a", "s0", "+1") "\n", "op 0 " RECV ("b", "s1", "-1") "\n",
               "role 1 issues recv b m0 (op 0) where role 0 issues send a m0 (op 0)" AGREE);
  check_roles ("op 0 " SEND ("a", "s0", "+1") "\n",
               "op 0 pp recv F m1 c0 \"b\" s0 over pp peer -1\n",
               "role 1 issues recv b m1 (op 0) where role 0 issues send a m0 (op 0)" AGREE);
  check_roles ("op 0 " SEND ("a", "s0", "+1") "\n",
               "op 0 pp recv B m0 c0 \"b\" s0 over pp peer -1\n",
               "role 1 issues recv b m0 (op 0) where role 0 issues send a m0 (op 0)" AGREE);
}

static void
two_that_send_first_wait_for_ever_unless_grouped (void **state)
{
  (void) state;
  check_roles (
      "op 0 " SEND ("a", "s0", "+1") "\nop 1 " RECV ("b", "s0", "+1") "\n",
      "op 0 " SEND ("c", "s0", "-1") "\nop 1 " RECV ("d", "s0", "-1") "\n",
      "deadlock: role 0 lane pp at op 0 (send a m0); role 1 lane pp at op 0 (send c m0)");
  check_roles ("op 0 " SEND ("a", "s0", "+1") "\nop 1 " RECV ("b", "s0", "+1") " grouped\n",
               "op 0 " SEND ("c", "s0", "-1") "\nop 1 " RECV ("d", "s0", "-1") " grouped\n", NULL);
  check_roles ("op 0 " SEND ("a", "s0", "+1") "\nop 1 " RECV ("b", "s0", "+1") "\n",
               "op 0 " RECV ("d", "s0", "-1") "\nop 1 " SEND ("c", "s0", "-1") "\n", NULL);
}

/* Each of two lanes waits for an op that the other lane runs later: a deadlock. */
static void
crossed_orders_of_two_lanes_wait_for_ever (void **state)
{
  static const char sends_last[] =
      "op 0 " SUM ("a", "s0") "op 1 " SEND ("b", "s0", "+1") " after 0\n";
  static const char receives_first[] = "op 0 " RECV (
      "c", "s0", "-1") "\nop 1 world all_reduce O c0 \"a\" s0 over world uses rw2 after 0\n";
  (void) state;
  check_roles (sends_last, receives_first,
               "deadlock: role 0 lane pp at op 1 (send b m0); role 0 lane world at op 0 "
               "(all_reduce a); role 1 lane pp at op 0 (recv c m0); role 1 lane world at op 1 "
               "(all_reduce a)");
  check_roles (sends_last, "op 0 " RECV ("c", "s0", "-1") "\nop 1 " SUM ("a", "s0"), NULL);
}

#define NOBODY ", which has no partner: "

static void
what_a_role_talks_to_must_be_there (void **state)
{
  (void) state;
  check_roles ("op 0 " SEND ("a", "s0", "-1") "\n", "",
               "role 0 issues send a m0 (op 0)" NOBODY "peer -1, group pp, lane pp");
  check_roles ("", "op 0 " RECV ("a", "s0", "+1") "\n",
               "role 1 issues recv a m0 (op 0)" NOBODY "peer +1, group pp, lane pp");
  check_roles ("op 0 " SEND ("a", "s0", "+0") "\n", "op 0 " RECV ("a", "s0", "-1") "\n",
               "role 0 issues send a m0 (op 0)" NOBODY "peer +0, group pp, lane pp");
  check_roles ("op 0 " SUM ("a", "s0"), "op 0 dp all_reduce O c0 \"a\" s0 over world uses rw2\n",
               "role 1 issues all_reduce a (op 0)" NOBODY "peer +0, group world, lane dp");
}

/* Buffers x and y share an address, and two lanes write one half of y each. The write on the first
 * lane is ordered after the last use of x. The write on the second lane is not, which must be
 * reported. */
static void
every_lane_waits_for_bytes_that_change_hands (void **state)
{
#define HALVES                                                                                     \
  HEAD ("0", "1")                                                                                  \
  "buf 0 activations device fp32 \"x\" bytes 256 at 256\n"                                         \
  "buf 1 activations device fp32 \"y\" bytes 256 at 256\n"                                         \
  "buf 2 activations device fp32 \"v\" bytes 128 at 0 in 1\n"                                      \
  "buf 3 activations device fp32 \"w\" bytes 128 at 128 in 1\n"                                    \
  "op 0 gpu zero F c0 \"a\" s0 uses w0\nop 1 gpu gelu F c0 \"b\" s0 uses r0\n"                     \
  "op 2 gpu zero F c0 \"c\" s0 uses w2\nop 3 h2d copy_in F c0 \"d\" s0 uses w3"
  (void) state;
  CHECK_EACH (weft_check_addresses,
              { HALVES "\n" END,
                "role 0: buffer 1 (y) overwrites buffer 0 (x), but op 1 still "
                "uses the old one when op 3 may start" },
              { HALVES " after 1\n" END });
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_read_needs_a_write_before_it),
  cmocka_unit_test (lanes_that_touch_one_buffer_need_an_order),
  cmocka_unit_test (order_may_pass_through_other_lanes),
  cmocka_unit_test (views_race_where_they_overlap),
  cmocka_unit_test (ops_of_one_group_run_at_once),
  cmocka_unit_test (bytes_are_handed_over_after_their_last_use),
  cmocka_unit_test (nothing_shares_bytes_with_what_is_permanent),
  cmocka_unit_test (members_issue_the_same_collectives_in_the_same_order),
  cmocka_unit_test (members_agree_in_size_type_kind_and_reduction),
  cmocka_unit_test (a_send_needs_its_receive),
  cmocka_unit_test (two_that_send_first_wait_for_ever_unless_grouped),
  cmocka_unit_test (crossed_orders_of_two_lanes_wait_for_ever),
  cmocka_unit_test (what_a_role_talks_to_must_be_there),
  cmocka_unit_test (every_lane_waits_for_bytes_that_change_hands),
};

WEFT_TESTS (tests)

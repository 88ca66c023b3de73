/* Collective algorithms as data on the CPU: the ring gives the bits of the built-in ring; other
 * algorithms give the same numbers but for the order of their sums. */
#include "tests/made/made.h"
#include "tests/made/real_run.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"

#define REAL                                                                                       \
  "topology=cpu model=gpt2-nano seq_length=16 hidden_size=32 num_attention_heads=4 "               \
  "num_query_groups=4 kv_channels=8 ffn_hidden_size=96 precision=fp32 global_batch_size=8 "        \
  "reduction_order=fast gpus=4 "

static const char *const files[] = {
  /* each rank sends its chunks to their owners, which add them; then the owners send the sums */
  "scatter.txt", "collective reduce_scatter\nchunks 2 * n\n"
                 "for d in 1 .. n - 1\n"
                 "  for k in 0 .. 1\n"
                 "    channel d\n"
                 "    send 2 * (r + d) + k to r + d\n"
                 "    add 2 * r + k from r - d\n",
  "gather.txt",  "collective all_gather\nchunks 2 * n\n"
                 "for d in 1 .. n / 2 times 2\n"
                 "  for c in 0 .. 2 * n - 1\n"
                 "    if c / 2 / d == r / d\n"
                 "      send c to r ^ d\n"
                 "  for c in 0 .. 2 * n - 1\n"
                 "    if c / 2 / d == (r ^ d) / d\n"
                 "      copy c from r ^ d\n",
  "double.txt",  "collective all_reduce\nchunks 1\n"
                 "for d in 1 .. n / 2 times 2\n"
                 "  send 0 to r ^ d\n"
                 "  add 0 from r ^ d\n",
  /* sums at rank 0, which a copy takes to their owners */
  "root.txt",    "collective reduce_scatter\nchunks n\n"
                 "for p in 1 .. n - 1\n"
                 "  for c in 0 .. n - 1\n"
                 "    if r == p\n"
                 "      send c to 0\n"
                 "    if r == 0\n"
                 "      add c from p\n"
                 "for p in 1 .. n - 1\n"
                 "  if r == 0\n"
                 "    send p to p\n"
                 "  if r == p\n"
                 "    copy p from 0\n",
};

static struct real_result
run (const char *strategy, const char *use, uint64_t stress)
{
  g_autofree char *words = g_strconcat (REAL, strategy, use, NULL);

  return weft_test_run (
      &(struct real_run){ .words = words, .steps = 2, .stress = stress, .poison = TRUE });
}

static void
the_ring_as_data_gives_the_bits_of_the_ring (void **state)
{
  static const char *const strategies[] = { "", "ddp_average_in_collective=true ",
                                            "tensor_model_parallel_size=2 " };
  static const char use[] = "collective_algorithm_files=dp:" WEFT_SOURCE_DIR "/docs/ideas/ring.txt";

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (strategies); i++) {
    struct real_result built_in = run (strategies[i], "", 0), data = run (strategies[i], use, i);
    assert_true (weft_test_same_bits (&built_in, &data, 2));
  }
}

static void
other_algorithms_add_the_same_numbers (void **state)
{
  static const struct {
    const char *strategy, *use;
  } cases[] = {
    { "", "dp:%s/double.txt" },
    { "ddp_average_in_collective=true ", "dp:%s/double.txt" },
    { "use_distributed_optimizer=true ", "dp:%s/scatter.txt,dp:%s/gather.txt" },
    { "use_distributed_optimizer=true ddp_average_in_collective=true ",
      "dp:%s/root.txt,dp:%s/gather.txt" },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (files); i += 2) {
    g_autofree char *path = g_build_filename (*state, files[i], NULL);
    assert_true (g_file_set_contents (path, files[i + 1], -1, NULL));
  }
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_auto (GStrv) parts = g_strsplit (cases[i].use, "%s", -1);
    g_autofree char *list = g_strjoinv (*state, parts);
    g_autofree char *use = g_strconcat ("collective_algorithm_files=", list, NULL);
    struct real_result built_in = run (cases[i].strategy, "", 0),
                       data = run (cases[i].strategy, use, i % 2);
    assert_true (weft_test_is_near (&built_in, &data, 2));
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_ring_as_data_gives_the_bits_of_the_ring),
  cmocka_unit_test_setup_teardown (other_algorithms_add_the_same_numbers, weft_test_folder_make,
                                   weft_test_folder_remove),
};

WEFT_TESTS (tests)

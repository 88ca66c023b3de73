/* The work of writing the initial weights of a model, on the CPU executor: bytes that the host
 * copies or converts, normal random numbers, seconds; before, when everything was written through a
 * buffer of its own and moments were written as zeros, and now.
 *
 *   ./weft bench init [MODEL]
 */
#include "core/base/error.h"
#include "core/job/flags.h"
#include "exec_cpu/exec_cpu.h"
#include "train/state.h"
#include <stdio.h>
#include <string.h>

struct work {
  double converted, copied, seconds; /* bytes stored by the host; bytes that write() copied again */
  uint64_t writes;
};

static struct work work;
static const struct weft_exec_ops *real;

static void
count_write (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n, const void *in)
{
  void *to = real->at (x, row, buf);

  work.converted += (double) n;
  work.copied += (const uint8_t *) to + offset == in ? 0 : (double) n;
  work.writes++;
  real->write (x, row, buf, offset, n, in);
}

/* Opens the executor, writes the weights, and prints the work. `before`: without the memory that
 * the executor offers, and with zeros written to moments. */
static gboolean
run (const weft_plan *plan, gboolean before, GError **error)
{
  static struct weft_exec_ops ops;
  struct weft_exec_options options = { 0 };
  weft_exec *x = weft_exec_cpu.open (plan, &options, error);

  if (!x)
    return FALSE;
  real = x->ops;
  ops = *real;
  ops.write = count_write;
  ops.staging = before ? NULL : real->staging;
  x->ops = &ops;
  x->fresh &= !before;
  work = (struct work){ 0 };
  weft_state *state = weft_state_new (x);
  gint64 start = g_get_monotonic_time ();
  weft_state_init (state, 1);
  work.seconds = (double) (g_get_monotonic_time () - start) * 1e-6;
  weft_state_free (state);
  x->ops = real;
  real->close (x);
  return TRUE;
}

static void
print_row (const char *name, const struct work *w)
{
  printf ("%-8s %12.1f %12.1f %10" G_GUINT64_FORMAT " %9.2f\n", name, w->converted / 1e6,
          w->copied / 1e6, w->writes, w->seconds);
}

int
main (int argc, char **argv)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autofree char *words = g_strdup_printf ("model=%s topology=cpu gpus=1 precision=bf16 "
                                            "micro_batch_size=1 global_batch_size=1 seq_length=64",
                                            argc > 1 ? argv[1] : "gpt2");
  struct weft_job job;
  weft_plan *plan = NULL;
  struct work old;

  if (weft_flags_words (words, settings, &error) && weft_job_build (settings, &job, &error) &&
      (plan = weft_plan_new (&job, &error)) && run (plan, TRUE, &error)) {
    old = work;
    if (run (plan, FALSE, &error)) {
      printf ("         MB converted    MB copied     writes   seconds\n");
      print_row ("before", &old);
      print_row ("now", &work);
      printf ("ratio    %12.2f %12.2f %10.2f %9.2f\n", work.converted / old.converted,
              work.copied / old.copied, (double) work.writes / (double) old.writes,
              work.seconds / old.seconds);
    }
  }
  g_clear_pointer (&plan, weft_plan_free);
  if (!error)
    return 0;
  fprintf (stderr, "bench_init: %s\n", error->message);
  return weft_error_exit_status (error);
}

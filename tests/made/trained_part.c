#include "tests/made/trained_part.h"
#include "core/exec/timeline_file.h"
#include "launch/rendezvous.h"
#include "tests/made/random_job.h"
#include <stdio.h>
#include <string.h>

static void
print_line (void *user, const struct weft_trainer_line *line)
{
  uint64_t bits;

  (void) user;
  memcpy (&bits, &line->loss, sizeof bits);
  printf ("%" G_GUINT64_FORMAT "%s %016" G_GINT64_MODIFIER "x\n", line->step,
          line->evaluated ? "e" : "", bits);
}

GArray *
trained_part_losses (const char *out)
{
  g_auto (GStrv) lines = g_strsplit (out, "\n", -1);
  GArray *losses = g_array_new (FALSE, FALSE, sizeof (double));

  for (unsigned i = 0; lines[i] && *lines[i]; i++) {
    uint64_t bits = g_ascii_strtoull (strchr (lines[i], ' ') + 1, NULL, 16);
    double loss;
    memcpy (&loss, &bits, sizeof loss);
    g_array_append_val (losses, loss);
  }
  return losses;
}

static void
say (void *user, const char *message)
{
  (void) user;
  fprintf (stderr, "%s\n", message);
}

static struct weft_trainer_options
options_of (const struct trained_part *part)
{
  return (struct weft_trainer_options){ .data = part->data,
                                        .steps = part->steps,
                                        .seed = 7,
                                        .lr = 1e-2,
                                        .min_lr = 1e-3,
                                        .beta1 = 0.9,
                                        .beta2 = 0.95,
                                        .epsilon = 1e-8,
                                        .weight_decay = 0.1,
                                        .warmup = 2,
                                        .decay_steps = 20,
                                        .eval_share = 0.1,
                                        .eval_interval = 3,
                                        .eval_batches = 1,
                                        .shuffle = TRUE,
                                        .save = part->folder,
                                        .load = part->resumes ? part->folder : NULL,
                                        .save_interval = part->folder ? 2 : 0,
                                        .exec = part->exec };
}

/* Writes the timeline with the times of all ranks. Only process 0 writes it. */
static gboolean
write_times (const weft_plan *plan, const struct trained_part *part, const weft_timeline *t,
             GError **error)
{
  struct weft_rendezvous *peers = part->exec.peers;
  g_autofree char *path = part->files ? g_strconcat (part->files, "-times.json", NULL) : NULL;

  return !path || !t || (peers && weft_rendezvous_place (peers)->process) ||
         weft_timeline_save (plan, t, path, error);
}

int
trained_part_alone (const struct trained_part *part)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", part->words);
  struct weft_trainer_options options = options_of (part);
  g_autofree char *weights = part->files ? g_strconcat (part->files, "-weights", NULL) : NULL,
                  *gradients = part->files ? g_strconcat (part->files, "-gradients", NULL) : NULL;
  const struct weft_trainer_sink sink = { print_line, say, NULL };
  struct weft_trainer_result result;
  g_autoptr (GError) error = NULL;

  options.export_safetensors = weights;
  options.dump_gradients = gradients;
  options.exec.times = part->files != NULL;
  gboolean ok = weft_trainer_run (plan, part->ops, &options, &sink, &result, &error) &&
                write_times (plan, part, result.timeline, &error);
  int status = !ok ? 1 : result.interrupted ? 75 : 0;
  if (!ok)
    fprintf (stderr, "%s\n", error->message);
  for (uint32_t role = 0; ok && role < result.n_roles; role++)
    if (result.planned[role] != result.allocated[role])
      status = 3;
  weft_trainer_result_clear (&result);
  return status;
}

int
trained_part_together (const struct trained_part *part)
{
  struct trained_part mine = *part;
  g_auto (weft_launch) launch = { 0 };
  g_autoptr (GError) error = NULL;

  if (!weft_launch_read (NULL, NULL, &launch, &error)) {
    fprintf (stderr, "%s\n", error->message);
    return 2;
  }
  g_autoptr (weft_rendezvous) r = weft_rendezvous_open_launch (&launch, 1, 120, &error);
  if (!r) {
    fprintf (stderr, "%s\n", error->message);
    return 2;
  }
  mine.exec.peers = r;
  if (mine.met)
    mine.met (&launch, r);
  return trained_part_alone (&mine);
}

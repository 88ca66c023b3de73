#include "cli/progress.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Number of progress lines of a run that remain on a terminal. */
enum { KEPT_LINES = 20 };

void
weft_cli_progress_pause (struct weft_cli_progress *p)
{
  if (p->open)
    fputc ('\n', stdout);
  p->open = FALSE;
  fflush (stdout);
}

static void
put_line (struct weft_cli_progress *p, const char *text, gboolean stays)
{
  if (p->terminal)
    fputs ("\r\033[K", stdout);
  fputs (text, stdout);
  p->open = TRUE;
  if (stays || !p->terminal)
    weft_cli_progress_pause (p);
  fflush (stdout);
}

/* Prints a JSON document on one line. */
static void
put_json (JsonBuilder *builder)
{
  g_autoptr (JsonNode) root = json_builder_get_root (builder);
  g_autofree char *text = weft_json_print (root, FALSE);

  printf ("%s\n", text);
  fflush (stdout);
}

static void
line_json (const struct weft_trainer_line *line)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_int (b, "step", (int64_t) line->step);
  weft_json_real_or_null (b, line->evaluated ? "eval_loss" : "loss", line->loss);
  if (!line->evaluated) {
    if (!isnan (line->mtp_loss))
      weft_json_real_or_null (b, "mtp_loss", line->mtp_loss);
    weft_json_real_or_null (b, "grad_norm", line->grad_norm);
    weft_json_real_or_null (b, "lr", line->lr);
    weft_json_real_or_null (b, "time_s", line->seconds);
    weft_json_real_or_null (b, "tokens_per_s", line->tokens_per_s);
    weft_json_real_or_null (b, "mfu", line->mfu);
    weft_json_int (b, "peak_bytes", (int64_t) line->peak_bytes);
    if (line->loss_scale > 0)
      weft_json_real_or_null (b, "loss_scale", line->loss_scale);
    weft_json_bool (b, "skipped", line->skipped);
  }
  json_builder_end_object (b);
  put_json (b);
}

/* A duration as text: "1:02:03" or "2:03". The caller frees the text. */
static char *
clock_text (double seconds)
{
  uint64_t s = (uint64_t) llround (seconds), hours = s / 3600;

  if (hours)
    return g_strdup_printf ("%" G_GUINT64_FORMAT ":%02u:%02u", hours, (unsigned) (s / 60 % 60),
                            (unsigned) (s % 60));
  return g_strdup_printf ("%u:%02u", (unsigned) (s / 60), (unsigned) (s % 60));
}

/* The estimated remaining time as text, from the mean time of all steps since the start.
 * Evaluations and checkpoints between steps are included. The caller frees the text. */
static char *
time_left (struct weft_cli_progress *p, const struct weft_trainer_line *line)
{
  gint64 now = g_get_monotonic_time ();

  if (!p->start) {
    p->start = now - (gint64) (line->seconds * 1e6);
    p->first = line->step;
  }
  double each = (double) (now - p->start) * 1e-6 / (double) (line->step - p->first + 1);
  return clock_text (each * (double) (line->steps - line->step));
}

/* Columns of the terminal on stdout; 0: unknown. */
static unsigned
terminal_width (void)
{
  struct winsize size;
  return ioctl (STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* Parts of a progress line, in the order in which they are printed. */
enum part { WHERE, LOSS, NORM, RATE, SCALE, SPEED, LEFT, SKIPPED, N_PART };

static char *
join_parts (char *const part[N_PART], unsigned gone)
{
  GString *text = g_string_new (NULL);

  for (unsigned i = 0; i < N_PART; i++)
    if (*part[i] && !(gone >> i & 1))
      g_string_append_printf (text, "%s%s", i ? "  " : "", part[i]);
  return g_string_free (text, FALSE);
}

/* Joins the parts of a progress line. On a narrow terminal, parts are dropped until the line fits,
 * the least important part first, because a line that is wrapped cannot be overwritten. */
static char *
fit_parts (const struct weft_cli_progress *p, char *const part[N_PART])
{
  static const enum part dispensable[] = { RATE, SCALE, NORM, SPEED, LEFT };
  unsigned gone = 0, width = p->terminal ? terminal_width () : 0;
  char *text = join_parts (part, gone);

  for (unsigned i = 0; width && strlen (text) >= width && i < G_N_ELEMENTS (dispensable); i++) {
    gone |= 1u << dispensable[i];
    g_free (text);
    text = join_parts (part, gone);
  }
  return text;
}

static void
line_text (struct weft_cli_progress *p, const struct weft_trainer_line *line)
{
  int width = snprintf (NULL, 0, "%" G_GUINT64_FORMAT, line->steps);
  g_autofree char *where = g_strdup_printf ("step %*" G_GUINT64_FORMAT "/%" G_GUINT64_FORMAT, width,
                                            line->step, line->steps);

  if (line->evaluated) {
    g_autofree char *text = g_strdup_printf ("%s  evaluation loss %.4f", where, line->loss);
    put_line (p, text, TRUE);
    return;
  }
  g_autofree char *left = time_left (p, line);
  g_autofree char *speed = weft_units_human (line->tokens_per_s, "tokens/s");
  g_auto (GStrv) part = g_new0 (char *, N_PART + 1);
  part[WHERE] = g_steal_pointer (&where);
  part[LOSS] = isnan (line->mtp_loss)
                   ? g_strdup_printf ("loss %.4f", line->loss)
                   : g_strdup_printf ("loss %.4f mtp %.4f", line->loss, line->mtp_loss);
  part[NORM] =
      isnan (line->grad_norm) ? g_strdup ("") : g_strdup_printf ("norm %-6.3g", line->grad_norm);
  part[RATE] = g_strdup_printf ("lr %.1e", line->lr);
  part[SCALE] =
      line->loss_scale > 0 ? g_strdup_printf ("scale %g", line->loss_scale) : g_strdup ("");
  part[SPEED] = g_strdup_printf ("%14s", speed);
  part[LEFT] = g_strdup_printf ("eta %s", left);
  part[SKIPPED] = g_strdup (line->skipped ? "skipped: not finite" : "");
  g_autofree char *text = fit_parts (p, part);
  put_line (p, text,
            line->skipped || line->step == line->steps ||
                line->step % MAX (line->steps / KEPT_LINES, 1) == 0);
}

/* If the pipe on stdout is closed, raises SIGTERM, a signal that the trainer has blocked and polls
 * for. This is needed because ctrl-C in `weft train | tee` ends `tee` before the step ends. */
static void
stop_when_unread (void)
{
  struct pollfd out = { .fd = STDOUT_FILENO };

  if (poll (&out, 1, 0) > 0 && out.revents & POLLERR)
    raise (SIGTERM);
}

static void
print_line (void *user, const struct weft_trainer_line *line)
{
  struct weft_cli_progress *p = user;

  if (p->json)
    line_json (line);
  else
    line_text (p, line);
  stop_when_unread ();
}

static void
print_message (void *user, const char *message)
{
  weft_cli_progress_pause (user);
  fprintf (stderr, "weft: %s\n", message);
}

static void
add_bytes (JsonBuilder *b, const char *member, const uint64_t *bytes, uint32_t n)
{
  weft_json_array (b, member);
  for (uint32_t i = 0; i < n; i++)
    json_builder_add_int_value (b, (int64_t) bytes[i]);
  json_builder_end_array (b);
}

static void
done_json (const struct weft_trainer_result *r)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_bool (b, "done", !r->interrupted);
  weft_json_int (b, "steps", (int64_t) r->steps);
  weft_json_real_or_null (b, "final_loss", r->final_loss);
  weft_json_int (b, "skipped", (int64_t) r->skipped);
  add_bytes (b, "planned_bytes", r->planned, r->n_roles);
  add_bytes (b, "allocated_bytes", r->allocated, r->n_roles);
  if (r->timeline && r->timeline->knows_reserved) {
    weft_json_object (b, "reserved_bytes");
    for (int i = 0; i < WEFT_N_RESERVED; i++)
      weft_json_int (b, weft_reserved_words[i], (int64_t) r->timeline->reserved[i]);
    json_builder_end_object (b);
  }
  json_builder_end_object (b);
  put_json (b);
}

static void
done_text (const struct weft_trainer_result *r)
{
  uint64_t most = 0;

  for (uint32_t role = 0; role < r->n_roles; role++)
    most = MAX (most, r->allocated[role]);
  g_autofree char *bytes = weft_units_human ((double) most, "B");
  printf ("%s after step %" G_GUINT64_FORMAT, r->interrupted ? "stopped" : "done", r->steps);
  if (isfinite (r->final_loss))
    printf (", loss %.4f", r->final_loss);
  if (r->skipped)
    printf (", %" G_GUINT64_FORMAT " skipped", r->skipped);
  printf (", %s allocated by the largest rank\n", bytes);
}

void
weft_cli_progress_done (const struct weft_cli_progress *p, const struct weft_trainer_result *result)
{
  if (p->json)
    done_json (result);
  else
    done_text (result);
}

struct weft_trainer_sink
weft_cli_progress_start (struct weft_cli_progress *p, gboolean json)
{
  gboolean erases = isatty (STDOUT_FILENO) && g_strcmp0 (g_getenv ("TERM"), "dumb") != 0;

  signal (SIGPIPE, SIG_IGN);
  *p = (struct weft_cli_progress){ .json = json, .terminal = !json && erases };
  return (struct weft_trainer_sink){ print_line, print_message, p };
}

/* attack.h - runs weft with any arguments, under limits of time and memory, and judges how the
 * run ended. No input may crash the command, hang it, or end it without a message. */
#pragma once
#include <glib.h>
#include <stdint.h>
#include <sys/types.h>

/* How a run ended. ATTACK_SLOW: the run reached the time limit, received SIGINT, stopped within 30
 * s, and had printed something. ATTACK_FAULT: a crash, a hang, no message, or another violation.
 * ATTACK_REFUSED: a documented exit status other than 0. */
enum attack_end { ATTACK_DONE, ATTACK_REFUSED, ATTACK_SLOW, ATTACK_FAULT, ATTACK_N_END };

struct attack_run {
  enum attack_end end;
  const char *fault; /* what was wrong, if `end` is ATTACK_FAULT; otherwise NULL */
  char *out, *err;   /* the first 4 MiB of stdout and of stderr */
  int status;        /* the status that waitpid() returns */
  gboolean late;     /* TRUE: the run reached the time limit */
  double seconds;    /* processor time */
  double bytes;      /* peak resident memory of the run */
};

void attack_run_clear (struct attack_run *run);

/* Creates the folder DIR/work, in which runs start, with the input files data.txt, job.ini and
 * empty and the empty folder sub/. Deletes the previous contents of DIR/work. */
void attack_folder_fill (const char *dir);

/* The path of a file in DIR/work. The caller frees it. */
char *attack_path (const char *dir, const char *name);

/* Starts weft in DIR/work; argv does not contain the name of the command weft. The caller waits for
 * the process. */
pid_t attack_start (const char *dir, char *const *argv);

/* Runs weft for at most `seconds` of real time, and returns how the run ended. */
struct attack_run attack_run (const char *dir, char *const *argv, double seconds);

/* Like attack_run(), with arguments from a printf format, separated by single blanks. */
struct attack_run
attack_words (const char *dir, double seconds, const char *format, ...) G_GNUC_PRINTF (3, 4);

/* Returns the command line in the syntax of a shell, with long arguments cut. The caller frees
 * it. */
char *attack_line (char *const *argv);

/* Prints a fault: its reason, command line and messages. */
void attack_print (const struct attack_run *run, const char *line);

/* Draws a text that no setting accepts: signs, NaN, numbers beyond the range of every type,
 * bytes that are no UTF-8 ... The text lives as long as the process. */
const char *attack_absurd (GRand *rand);

/* Returns TRUE in one of `n` calls, at random. */
gboolean attack_one_in (GRand *rand, int n);

/* Seed and number of cases. attack_begin() parses them from the arguments SEED [COUNT]; test files
 * pass it to WEFT_TESTS as `begin`. */
extern struct weft_tests_draw attack_drawn;
int attack_begin (int argc, char **argv);

/* Returns the number of cases: COUNT of the command line, or `few` without COUNT. */
uint32_t attack_count (uint32_t few);

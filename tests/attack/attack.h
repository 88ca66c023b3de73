/* attack.h - runs weft with any arguments, under limits of time and memory, and judges how it
 * ended. No input may crash the command, hang it, or end it without a message. */
#pragma once
#include <glib.h>
#include <stdint.h>
#include <sys/types.h>

/* How a run ended. A run that is still at work at the time limit gets SIGINT, like Ctrl-C: it is
 * slow if it had printed something by then and stops soon, else it is a fault. */
enum attack_end { ATTACK_DONE, ATTACK_REFUSED, ATTACK_SLOW, ATTACK_FAULT, ATTACK_N_END };

struct attack_run {
  enum attack_end end;
  const char *fault; /* why the end is a fault, in words; else NULL */
  char *out, *err;   /* what the run printed, up to 4 MiB of each */
  int status;        /* as of waitpid() */
  gboolean late;     /* the time limit was reached */
  double seconds;    /* processor time */
  double bytes;      /* largest resident size */
};

void attack_run_clear (struct attack_run *run);

/* A folder for runs: they start in DIR/work, which contains the input files data.txt, job.ini,
 * empty and the folder sub/, and which is made anew on demand. */
void attack_folder_fill (const char *dir);

/* The path of a file in DIR/work. The caller frees it. */
char *attack_path (const char *dir, const char *name);

/* Starts weft in DIR/work; argv does not contain the name of the command weft. */
pid_t attack_start (const char *dir, char *const *argv);

/* Runs weft for at most `seconds` of real time, and judges the end. */
struct attack_run attack_run (const char *dir, char *const *argv, double seconds);

/* attack_run() of words separated by single blanks. */
struct attack_run
attack_words (const char *dir, double seconds, const char *format, ...) G_GNUC_PRINTF (3, 4);

/* The command line as a shell reads it; long arguments are cut. The caller frees it. */
char *attack_line (char *const *argv);

/* Prints a fault: its reason, command line and messages. */
void attack_print (const struct attack_run *run, const char *line);

/* Words that no field expects: signs, NaN, numbers beyond all types, bytes that are no UTF-8 ...
 * The text lives as long as the process. */
const char *attack_absurd (GRand *rand);

/* TRUE in one of `n` calls. */
gboolean attack_one_in (GRand *rand, int n);

/* The number after the seed: WEFT_TESTS with this `begin` take SEED [COUNT]. */
extern struct weft_tests_draw attack_drawn;
int attack_begin (int argc, char **argv);

/* How many cases: COUNT of the command line, or `few`. */
uint32_t attack_count (uint32_t few);

/* trial.h - timing alternatives before the first step, on temporary memory, and saving the choice
 * in a file: the choice determines the bits of the results, so every run on the same machine must
 * make the same choice. */
#pragma once
#include <glib.h>
#include <stdint.h>

/* The alignment of an address: the largest power of two up to 256 that divides the address; 0 for
 * NULL. */
uint32_t weft_trial_alignment (const void *at);

/* Allocates n random elements with the alignment of `like`: zeros would draw less power and run
 * faster, and the plan's own memory must not be overwritten. *at is the first element; if `like` is
 * NULL, *at is NULL and nothing is allocated. FALSE: out of device memory. The caller frees *block
 * in either case. */
gboolean
weft_trial_block (void **block, const void *like, uint64_t n, uint8_t dtype, const void **at);
void weft_trial_free (void *block);

/* Milliseconds of the fastest of several runs on a stream (cudaStream_t) after a warm-up run;
 * negative: `run` failed. `run` enqueues work and returns NULL or an error text. Waits for the
 * stream, but for a run at most weft_trial_limit seconds: then returns WEFT_TRIAL_HUNG, and frees
 * no memory from then on, because a call that frees would wait for the work that does not end. The
 * process cannot use the GPU any more. */
float weft_trial_time (const char *(*run) (const void *user), const void *user, void *stream);
#define WEFT_TRIAL_HUNG (-2.0f)
/* 10 s, an estimate: a hundred times the longest kernel of the compared models. Tests shorten
 * it. */
extern double weft_trial_limit;

/* Like weft_trial_time(), but with one run after the warm-up run. The caller then leaves out
 * candidates that are far slower than the fastest. */
float weft_trial_glance (const char *(*run) (const void *user), const void *user, void *stream);

/* Path of a file of choices, in the user's cache folder; `kind` names what is chosen. The file has
 * a first line that names the machine (libraries, driver, GPU), then one line per choice: hex
 * digits, a space, and words for people, which Weft does not read. The caller frees the path. */
char *weft_trial_path (const char *kind, const char *machine);

struct weft_trial_file {
  const char *path, *machine, *what; /* what: the word for a line of the file in error messages */
  size_t bytes;                      /* size of a value */
  /* called with each value of the file; must copy the value */
  void (*take) (void *user, const void *bytes);
  void *user;
  /* appends a value as words KEY=NUMBER or KEY=WORD, for people and tests/gpu; NULL: no words */
  void (*describe) (const void *bytes, GString *words);
};

/* Saves the values of a hash table to a file. Creates missing folders. */
gboolean
weft_trial_save (const struct weft_trial_file *file, GHashTable *values, GError **error);

/* Loads the values of a file. If another machine has written the file, no line is loaded. *found is
 * the number of values that were loaded. */
gboolean weft_trial_load (const struct weft_trial_file *file, uint32_t *found, GError **error);

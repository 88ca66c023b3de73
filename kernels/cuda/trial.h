/* trial.h - which of several ways is the quickest is found by trying them before the first step, on memory
 * of their own, and kept in a file: which way is taken decides the bits, and so every run of the same
 * machine has the same. */
#pragma once
#include <glib.h>
#include <stdint.h>

/* The largest power of two, up to 256, that an address is a multiple of; 0 for NULL. */
uint32_t weft_trial_alignment (const void *at);

/* A block of n elements like that at `like`, as aligned as that is, full of random numbers: zeros would
 * draw less power and be quicker, and the memory of a plan holds what must stay.  *at is where they
 * begin; NULL and no block where `like` is NULL.  FALSE: the device has no room.  The caller frees the
 * block, in either case. */
gboolean
weft_trial_block (void **block, const void *like, uint64_t n, uint8_t dtype, const void **at);
void weft_trial_free (void *block);

/* Milliseconds of the fastest of some runs on a stream (cudaStream_t), after one to warm up; negative:
 * it does not run.  Waits for the stream.  `run` enqueues, and returns NULL or what went wrong. */
float weft_trial_time (const char *(*run) (const void *user), const void *user, void *stream);

/* Files: a line of hex digits for each thing that was found, after one that names the machine (libraries,
 * driver, GPU).  One is kept for each machine, in the user's folder for caches; caller frees. */
char *weft_trial_path (const char *kind, const char *machine);

/* The values of a table, `bytes` of each.  Makes the folders that are missing. */
gboolean weft_trial_save (const char *path, const char *machine, GHashTable *values, size_t bytes,
                          GError **error);

struct weft_trial_file {
  const char *path, *machine, *what; /* what: of which a line is, for errors */
  size_t bytes;
  void (*take) (void *user, const void *bytes); /* copies them */
  void *user;
};

/* Lines of another machine are left out; *found is how many were taken. */
gboolean weft_trial_load (const struct weft_trial_file *file, uint32_t *found, GError **error);

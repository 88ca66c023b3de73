/* checkpoint.h - a training job on disk, readable by any other strategy and number of ranks.
 *
 *   DIR/step-00000050/manifest.json       what it is: written last
 *   DIR/step-00000050/shard-0.safetensors what rank 0 owns, and so on
 *   DIR/latest                            the newest complete one, for people and scripts
 *
 * A shard holds chunks named TENSOR/KIND@ROW,COLUMN: rectangles of a global tensor (a slice that
 * begins or ends inside a row is up to three of them).  The manifest lists every tensor, its chunks
 * with file, offset, extent and checksum (manifest.h), and the state of training.  A directory is
 * written under a temporary name, synced, then renamed; one without a manifest that agrees with its
 * files is refused with the reason, and the newest complete one beside it is named.  Newest is of
 * the highest step: who goes back to an older one to train on otherwise names another directory. */
#pragma once
#include "train/loss_scale.h"
#include "train/state.h"

/* What a resumed run must know beside tensors. */
struct weft_progress {
  uint64_t step;     /* optimizer steps done */
  uint64_t position; /* sequences visited (sampler.h) */
  uint64_t seed;
  uint64_t data;     /* fingerprint of the token file; 0 unknown */
  uint64_t skipped;  /* steps without an update so far */
  struct weft_loss_scale loss_scale; /* of the next step */
};

/* Publishes DIR/step-N, in place of one that is there; deletes all but the newest `keep` complete
 * ones (0 keeps all), never before the new one is published and never that, and leftovers of
 * unfinished saves.  One process at a time saves into a directory (flock()): another is refused.
 *
 * Processes of one job save together: each writes the shards of its ranks, into a directory that all
 * of them see, and that of rank 0 the manifest. */
gboolean weft_checkpoint_save (weft_state *state, const struct weft_job *job,
                               const struct weft_progress *progress, const char *dir,
                               uint32_t keep, GError **error);

/* `path` is a checkpoint, or a directory of them (the newest complete one is taken; damaged or
 * unfinished newer ones are each told in `passed_over`, a text for people, NULL when none; caller
 * frees).  A damaged `path` itself is refused: the error says what is wrong and which complete one
 * is the newest beside it.  Refuses another model: names and shapes must be the same, and what
 * shapes do not show (weft_manifest_model).  What is refused has changed nothing.
 *
 * Precision may differ: a model in bf16 or fp16 takes its masters from the weights of one in fp32, and
 * rounds them to weights; one in fp32 takes the masters as weights.  A loss scale goes on where both
 * runs have a dynamic one. */
gboolean weft_checkpoint_load (weft_state *state, const struct weft_job *job, const char *path,
                               struct weft_progress *progress, char **passed_over,
                               GError **error);

/* The newest complete checkpoint of a directory, checked by sizes and manifest but not by
 * checksums; NULL when there is none.  Caller frees. */
char *weft_checkpoint_newest (const char *dir);
